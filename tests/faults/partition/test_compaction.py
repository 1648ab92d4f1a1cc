"""A compaction that dies at any of its calls: no last value is lost, no deleted key returns, and
other processes continue.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import embedlog
from tests.faults.harness.processes import Died, Nursery
from tests.faults.partition.crashes import Point
from tests.support.campaign_report import add_counts, pieces, share
from tests.support.compacted_logs import (
    QUIET,
    check,
    made,
    opened,
    put,
    rows,
)

POINTS_FAST = 5
POINTS_PIECES = 8


def die_compacting(
    nursery: Nursery, path: Path, point: Point | None, mutants: Sequence[str] = ()
) -> dict[str, int]:
    """A process compacts and dies at the point; the calls that it made if there is none."""
    victim = nursery.spawn()
    victim.mutate(mutants)
    victim.call("open", str(path), **QUIET)
    victim.call("counters", True)
    if point is not None:
        victim.arm(point.kinds, point.mode, nth=point.nth)
    counts: dict[str, int] = {}
    try:
        victim.call("on_log", "housekeep")
        counts = victim.call("counters")
    except Died:
        pass
    nursery.end(victim)
    return counts


def crash_everywhere(
    nursery: Nursery,
    directory: Path,
    seed: int,
    chosen: Sequence[Point] | None,
    piece: int = -1,
    mutants: Sequence[str] = (),
) -> None:
    pairs = made(directory / "made", seed)
    with opened(directory / "made") as log:
        before = {offset: (key, value) for offset, key, value in rows(log)}
    if chosen is None:
        every = points(nursery, directory)
        chosen = (
            random.Random(seed).sample(every, POINTS_FAST)
            if piece < 0
            else share(every, piece, POINTS_PIECES)
        )
    for number, point in enumerate(chosen):
        path = directory / "log"
        shutil.copytree(directory / "made", path)
        if number % 2:
            die_compacting(nursery, path, point, mutants)
            with opened(path) as log:
                check(log, pairs, before)
                log.housekeep()
                check(log, pairs, before)
        else:  # another process has the log open, and continues without reopening
            with opened(path) as log:
                rows(log)
                die_compacting(nursery, path, point, mutants)
                check(log, pairs, before)
                put(log, [(b"new", b"x")])
                log.housekeep()
                check(log, [*pairs, (b"new", b"x")], before | {len(pairs): (b"new", b"x")})
        shutil.rmtree(path)
    add_counts("E2 of compaction", points=len(chosen))


def points(nursery: Nursery, directory: Path) -> list[Point]:
    shutil.copytree(directory / "made", directory / "counted")
    counts = die_compacting(nursery, directory / "counted", None)
    calls = range(1, sum(counts.values()) + 1)
    every = [Point(nth, mode) for nth in calls for mode in ("kill_before", "kill_after")]
    return every + [Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)]


def test_e2_a_compaction_that_dies_anywhere_loses_no_last_value(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    crash_everywhere(nursery, tmp_path, seed, None)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_e2_compaction_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """Old files that go before the new ones are called complete are missing if the compaction dies
    in between.
    """
    try:
        crash_everywhere(nursery, tmp_path, seed, None, 0, ("aside_before_swap",))
    except (AssertionError, embedlog.EmbedlogError) as problem:
        print(f"E2 of compaction with aside_before_swap: {problem}")
        add_counts("mutants", killed=1)
    else:
        pytest.fail("aside_before_swap survived")


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(POINTS_PIECES)
def test_e2_compaction_at_every_call(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    crash_everywhere(nursery, tmp_path, campaign_seed, None, piece)
