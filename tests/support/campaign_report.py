"""The counts of the experiments, reported at the end of a run: a zero means little without its n.

F1  `add_counts` may be called from anywhere in a test; counts of one name are added up over all
tests and workers F2  a long experiment comes in pieces that share one seed, so that each point is
in exactly one of them, in any worker F3  with EMBEDLOG_FIGURES (a file) the summary is also written
there, for the summary of several runs F4  with EMBEDLOG_CAMPAIGN (a directory) a passed piece is
noted there, and a later run of the same code leaves it out
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CODE = (
    "embedlog/**/*.py",
    "embedlog/**/*.[ch]",
    "tests/faults/**/*.py",
    "tests/interrupts/*.py",
    "tests/model/*.py",
    "tests/scheduler/*.py",
)
KEY = "figures"
OUTCOMES = ("passed", "failed", "error", "skipped")
Counts = list[tuple[str, dict[str, int]]]
T = TypeVar("T")

_added: Counts = []


def add_counts(experiment: str, **counts: int) -> None:
    """Add counts to an experiment's figures, and print them for the report of this test."""
    print(f"{experiment}: {in_words(counts)}")
    _added.append((experiment, counts))


def pieces(count: int) -> pytest.MarkDecorator:
    """A test in so many pieces: it gets its number as `piece` and takes
    `share(points, piece, count)`.
    """
    return pytest.mark.parametrize(
        "piece", range(count), ids=[f"piece {number + 1} of {count}" for number in range(count)]
    )


def share(points: Sequence[T], piece: int, count: int) -> Sequence[T]:
    """Every `count`th point from the `piece`th on: the costs of neighbours are alike, so pieces
    take about as long.
    """
    return points[piece::count]


# ---- carried through pytest: the test's process, the report, the summary ---------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _added.clear()
    try:
        return (yield)
    finally:
        item.user_properties += [(KEY, [experiment, counts]) for experiment, counts in _added]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that reports to the terminal: note a long test that passed."""
    place = campaign()
    if (
        place is None
        or report.when != "call"
        or not report.passed
        or "PYTEST_XDIST_WORKER" in os.environ
    ):
        return
    if "faults" in report.keywords:
        found_counts = [value for key, value in report.user_properties if key == KEY]
        line = {
            "test": report.nodeid.partition("@")[0],
            "code": fingerprint(),
            "seconds": report.duration,
            KEY: found_counts,
        }
        with place.open("a") as file:
            file.write(json.dumps(line) + "\n")


def leave_out_what_passed(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the pieces that passed in an earlier run of this campaign (F4)."""
    passed = {line["test"] for line in passed_before()}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


def passed_before() -> list[dict[str, Any]]:
    """The passed pieces of this campaign and this code, in this run or before."""
    place = campaign()
    if place is None or not place.exists():
        return []
    code = fingerprint()
    return [
        line for line in map(json.loads, place.read_text().splitlines()) if line["code"] == code
    ]


def campaign() -> Path | None:
    given = os.environ.get("EMBEDLOG_CAMPAIGN")
    return Path(given) / "passed.jsonl" if given else None


def fingerprint() -> str:
    """Of the library and of the experiments: a figure belongs to the code that it was found
    with.
    """
    found = hashlib.blake2b(os.environ.get("EMBEDLOG_SEED", "").encode(), digest_size=8)
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        found.update(path.read_bytes())
    return found.hexdigest()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    # each worker has only a part of the counts of its parent process
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    counts = Counter(
        {
            outcome: len(reports)
            for outcome, reports in terminalreporter.stats.items()
            if outcome in OUTCOMES
        }
    )
    lines = [
        *summary(all_counts(terminalreporter)),
        ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES),
    ]
    if before := len(passed_before()):
        lines.append(f"{before} pieces of this campaign have passed, in this run and before")
    if len(lines) > 1:
        terminalreporter.section("counts (no violation in n runs: below 3/n with 95 %)")
        terminalreporter.write("\n".join(lines) + "\n")
    if given := os.environ.get("EMBEDLOG_FIGURES"):
        with open(given, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def summary(found_counts: Iterable[tuple[float, Counts]]) -> list[str]:
    """A line an experiment: its counts added up, its tests, their seconds."""
    sums: dict[str, Counter[str]] = {}
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for took, figures in found_counts:
        for experiment in {experiment for experiment, _ in figures}:
            seconds[experiment] += took
            tests[experiment] += 1
        for experiment, counts in figures:
            sums.setdefault(experiment, Counter()).update(counts)
    return [
        f"{name:<24} {in_words(sums[name])}; {in_words({'tests': tests[name]})}, "
        f"{seconds[name]:,.0f} s"
        for name in sorted(sums)
    ]


def in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


def all_counts(terminalreporter: Any) -> Iterator[tuple[float, Counts]]:
    """The counts of this run, and of earlier runs of its campaign."""
    before = {line["test"]: line for line in passed_before()}
    for line in before.values():
        yield line["seconds"], line[KEY]
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if (
                getattr(report, "when", None) == "call"
                and report.nodeid.partition("@")[0] not in before
            ):
                yield (
                    report.duration,
                    [value for key, value in report.user_properties if key == KEY],
                )
