"""Takes figures: upper bound and subject in alternation, medians, one line with target and verdict.

M1  upper bound and subject run in the same minute, on the same files or the same number of bytes,
in alternation M2  figures are ratios of medians; absolute figures depend on the machine and its
load M3  every figure has a target; missed targets are printed too M4  an upper bound has the cores
of its subject. One that is exceeded makes the figure invalid, which counts as missed M5  each
figure has a reference from the same run, in `detail`: a bound, a bare loop, a peer, or less work
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embedlog._native import system

PIECE_BYTES = 1 << 20
# Keys of `detail` that are references (M5); also every key that begins with "bare".
REFERENCES = {
    "ceiling",
    "one",
    "small",
    "sync_ms",
    "jvm",
    "confluent",
    "kafka_python",
    "kcat",
    "theirs",
    "map MB",
    "256 MB",
    "first half MiB",
    "one core s",
    "an empty program",
    "without compaction MiB",
    "a send us",
    "without a transaction ms",
}
Measure = Callable[[], float]


@dataclass(frozen=True)
class Outcome:
    """One figure: `value` is compared with `target`; `detail` has its parts."""

    name: str
    value: float
    unit: str  # "of ceiling", "us", "s", "x"
    target: float
    at_least: bool  # False: at most
    detail: dict[str, Any] = field(default_factory=dict)
    bound: bool = False  # the reference is an upper bound: nothing can be above it

    @property
    def valid(self) -> bool:
        """Whether the upper bound is one (M4)."""
        return not self.bound or self.value <= 1

    @property
    def referenced(self) -> bool:
        """Whether the figure has a reference (M5)."""
        return any(key in REFERENCES or key.startswith("bare") for key in self.detail)

    @property
    def passed(self) -> bool:
        return self.valid and self.referenced and self._reached()

    def _reached(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target

    def line(self) -> str:
        sign = "≥" if self.at_least else "≤"
        details = ", ".join(f"{key} {short(value)}" for key, value in self.detail.items())
        verdict = (
            "pass"
            if self.passed
            else "INVALID"
            if not self.valid
            else "MISS"
            if self.referenced
            else "NO REF"
        )
        return (
            f"{verdict:<7}  {self.name:<52} {short(self.value):>8} {self.unit} (target {sign} "
            f"{short(self.target)})  {details}"
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "passed": self.passed,
            "valid": self.valid,
            "referenced": self.referenced,
        }


def short(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def against(
    name: str,
    ceiling: Measure,
    subject: Measure,
    *,
    target: float,
    rounds: int,
    unit: str,
    cpu: Measure | None = None,
    rest: Callable[[], None] | None = None,
    bound: bool = False,
) -> Outcome:
    """Rates of subject and reference, `rounds` times in alternation; the figure is the ratio of
    their medians.

    `bound`: the reference is an upper bound (M4).

    `cpu`: a clock of processor time; its ratio for the same rounds is shown too, since it depends
    less on other load. `rest`: runs before each measurement, outside of the clock.
    """
    ceilings: list[float] = []
    subjects: list[float] = []
    spent: dict[int, list[float]] = {id(ceilings): [], id(subjects): []}
    for turn in range(rounds):
        order = ((ceilings, ceiling), (subjects, subject))
        for results, measure in order if turn % 2 == 0 else reversed(order):
            if rest:
                rest()
            began = cpu() if cpu else 0.0
            results.append(measure())
            spent[id(results)].append((cpu() if cpu else 0.0) - began)
    top = statistics.median(ceilings)
    ours = statistics.median(subjects)
    pairs = sorted(mine / most for mine, most in zip(subjects, ceilings, strict=True))
    detail = {
        "ours": ours,
        "ceiling": top,
        "per": unit,
        "rounds": rounds,
        "pairs": f"{pairs[0]:.2f}..{pairs[-1]:.2f}",
    }
    if cpu:
        detail["cpu"] = statistics.median(spent[id(ceilings)]) / max(
            statistics.median(spent[id(subjects)]), 1e-9
        )
    return Outcome(name, ours / top, "of ceiling", target, True, detail, bound)


def report(outcomes: Iterable[Outcome], json_path: Path | None) -> int:
    """Print each outcome, write all to `json_path` if given; return the exit status: 1 if a target
    was missed.
    """
    where = machine()
    seen = list[Outcome]()
    print(", ".join(where.values()), flush=True)
    for outcome in outcomes:
        seen.append(outcome)
        print(outcome.line(), flush=True)
    if json_path:
        json_path.write_text(
            json.dumps({"machine": where, "figures": [each.as_json() for each in seen]}, indent=1)
        )
    missed = [outcome.name for outcome in seen if not outcome.passed]
    print(
        f"{len(seen)} figures, {len(missed)} missed or "
        f"invalid{': ' if missed else ''}{', '.join(missed)}"
    )
    return int(bool(missed))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def workspace(parent: str | None) -> Iterator[Path]:
    """A temporary directory, removed in any case."""
    path = Path(tempfile.mkdtemp(prefix="embedlog-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Bare:
    """The bare loops, compiled once per run into a temporary directory."""

    def __init__(self, directory: Path) -> None:
        source = Path(__file__).with_name("bare.c")
        self._program = directory / "bare"
        machine = ["-msse4.2"] if platform.machine() == "x86_64" else ["-march=armv8-a+crc"]
        command = [
            "cc",
            "-O3",
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-pthread",
            *machine,
            "-o",
            str(self._program),
            str(source),
        ]
        subprocess.run(command, check=True)
        first, *pair = self._run("check")
        assert first == "e3069283", "the ceiling's CRC-32C is wrong"
        assert pair[0] == pair[1], "the ceiling's three streams disagree with one"

    def _run(self, *words: str) -> list[str]:
        done = subprocess.run(
            [str(self._program), *words], check=True, capture_output=True, text=True
        )
        return done.stdout.split()

    def write(self, path: Path, size: int) -> float:
        """Bytes per second of `pwrite` into a new file, which is removed afterwards."""
        spent_ns, written, _ = self._run("write", str(path), str(size), str(PIECE_BYTES))
        path.unlink()
        return int(written) / (int(spent_ns) / 1e9)

    def wake(self, samples: int, *, spinning: bool = False) -> dict[str, float]:
        """Microseconds from a futex wake in one process to execution in another, after pauses of
        half a millisecond.

        `spinning`: the other process does not sleep, but reads the word again and again.
        """
        p50_ns, p99_ns = self._run("spin" if spinning else "wake", str(samples))
        return {"p50": int(p50_ns) / 1e3, "p99": int(p99_ns) / 1e3}

    def read(self, paths: list[Path]) -> float:
        """Bytes per second of `pread` and CRC-32C over files that are in the page cache, on all
        cores of this process.
        """
        spent_ns, found, _ = self._run(
            "read", str(PIECE_BYTES), str(len(os.sched_getaffinity(0))), *map(str, paths)
        )
        return int(found) / (int(spent_ns) / 1e9)


def machine() -> dict[str, str]:
    """Machine and time of the figures."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = next(
        line.split()[1]
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal")
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory) >> 20} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "core": "C core with fault injection (test build)"
        if system.TEST_BUILD
        else "C core for production",
    }
