"""Hostile directories: right records or an error of embedlog, in a short time, and nothing written
elsewhere.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.damage.hostile import GROWN_MAX_KB, Rows, mutate, outside
from tests.faults.harness.processes import Died, Nursery, RemoteError
from tests.support.campaign_report import add_counts, pieces

# cases for each kind of directory
SHORT = 7
LONG = 250
PIECES = 12
DEADLINE_S = 100.0  # on a machine where much else runs; the processor's time has a limit of its own


def ours(killed: bool) -> Callable[[Nursery, Path, Path], None]:
    def build(nursery: Nursery, path: Path, golden: Path) -> None:
        maker = nursery.spawn()
        if not killed:
            maker.call("build_for_strangers", str(path), False)
            nursery.end(maker)
            return
        maker.start("build_for_strangers", str(path), True)
        maker.wait_dead()

    return build


def a_brokers(nursery: Nursery, path: Path, golden: Path) -> None:
    """The smallest of the golden directories."""
    directories = [each for each in golden.iterdir() if (each / "log").is_dir()]
    source = min(
        directories, key=lambda each: (sum(1 for _ in (each / "log").rglob("*")), each.name)
    )
    shutil.copytree(source / "log", path)


SOURCES = {"closed": ours(killed=False), "killed": ours(killed=True), "a broker's": a_brokers}


class Campaign:
    """One kind of directory, changed again and again."""

    def __init__(self, nursery: Nursery, workspace: Path, source: Path) -> None:
        self.nursery = nursery
        self.workspace = workspace
        self.source = source
        self.counts: Counter[str] = Counter()
        self.bad: list[str] = []
        self.right: Rows = {}
        self.log = self.fresh()
        end, self.right, _ = self.used(read_only=True)
        assert end == "right", f"the undamaged directory ends with {end}"
        assert self.right, "the undamaged directory gives no records"

    def fresh(self) -> Path:
        shutil.rmtree(self.workspace, ignore_errors=True)
        log = self.workspace / "log"
        shutil.copytree(self.source, log)
        (self.workspace / "victim").write_bytes(b"precious" * 20)
        (self.workspace / "elsewhere").mkdir()
        (self.workspace / "elsewhere" / "cat.jpg").write_bytes(b"cat")
        return log

    def used(self, *, read_only: bool) -> tuple[str, Rows, int]:
        victim = self.nursery.spawn()
        try:
            found: tuple[str, Rows, int] = victim.call(
                "use_of_a_stranger", str(self.log), read_only, deadline_s=DEADLINE_S
            )
            return found
        finally:
            self.nursery.end(victim)

    def case(self, rng: random.Random) -> None:
        self.log = self.fresh()
        done, others = mutate(rng, self.log)
        before = outside(self.workspace)
        for read_only in (True, False):
            what = f"{'reading' if read_only else 'writing'} after: {done}"
            try:
                end, rows, grown_kb = self.used(read_only=read_only)
            except (Died, RemoteError, AssertionError) as problem:
                self.bad.append(f"{what}: {problem}")
                end = "bad"
                rows = {}
                grown_kb = 0
            self.counts[end] += 1
            wrong = [
                place
                for place, value in rows.items()
                if not others and place in self.right and self.right[place] != value
            ]
            if wrong:
                self.bad.append(f"{what}: wrong records at {wrong[:3]}")
            if grown_kb > GROWN_MAX_KB:
                self.bad.append(f"{what}: {grown_kb >> 10} MB of memory")
            if outside(self.workspace) != before:
                self.bad.append(f"{what}: something outside of the directory changed")
                return

    def report(self, what: str) -> None:
        total = sum(self.counts.values())
        add_counts(
            what,
            cases=total,
            right=self.counts["right"],
            typed_errors=total - self.counts["right"] - self.counts["bad"],
            violations=len(self.bad),
        )
        print(dict(self.counts))
        assert not self.bad, f"{len(self.bad)} of {total}:\n" + "\n".join(self.bad[:20])


def campaign(nursery: Nursery, tmp_path: Path, golden: Path, kind: str) -> Campaign:
    SOURCES[kind](nursery, tmp_path / "source", golden)
    return Campaign(nursery, tmp_path / "workspace", tmp_path / "source")


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("kind", SOURCES)
def test_directories_from_a_stranger(
    nursery: Nursery, tmp_path: Path, golden: Path, kind: str, rng: random.Random
) -> None:
    strange = campaign(nursery, tmp_path, golden, kind)
    for _ in range(SHORT):
        strange.case(rng)
    strange.report("hostile directories")


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", SOURCES)
@pieces(PIECES)
def test_many_directories_from_a_stranger(
    nursery: Nursery, tmp_path: Path, golden: Path, kind: str, seed: int, piece: int
) -> None:
    strange = campaign(nursery, tmp_path, golden, kind)
    rng = random.Random(f"{seed} {piece}")
    for _ in range(LONG):
        strange.case(rng)
    strange.report("hostile directories")


@pytest.mark.parametrize(
    "fault",
    ["a record of another value", "memory", "a signal", "a write outside", "a foreign exception"],
)
def test_the_judge_sees_what_must_not_be(
    nursery: Nursery,
    tmp_path: Path,
    golden: Path,
    monkeypatch: pytest.MonkeyPatch,
    rng: random.Random,
    fault: str,
) -> None:
    """Else no count of directories would show anything."""
    strange = campaign(nursery, tmp_path, golden, "closed")
    monkeypatch.setattr(
        "tests.faults.damage.test_hostile.mutate", lambda rng, log: ("nothing", False)
    )

    def used(*, read_only: bool) -> tuple[str, Rows, int]:
        if fault == "a signal":
            raise Died("by signal 11")
        if fault == "a foreign exception":
            raise RemoteError(("ValueError",), "x", "")
        if fault == "a write outside":
            (strange.workspace / "made").touch()
        place = next(iter(strange.right))
        rows: Rows = {place: b"wrong"} if fault == "a record of another value" else {}
        return "right", rows, GROWN_MAX_KB * 2 if fault == "memory" else 0

    strange.case(rng)
    assert not strange.bad
    monkeypatch.setattr(strange, "used", used)
    strange.case(rng)
    assert strange.bad
