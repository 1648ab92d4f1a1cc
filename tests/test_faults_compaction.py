"""A compaction that dies at any call of it: no last value is lost, no deleted key comes back, and whoever lives on goes on."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import embedlog
from tests.faults.crashes import Point
from tests.faults.processes import Died, Nursery
from tests.figures import pieces, share, tell
from tests.test_cleaner import COMPACT, last_values, opened, put, random_pairs, rows, table

POINTS_FAST, POINTS_PIECES = 12, 8
QUIET = {"config": {"housekeeping": False}}
Pairs = list[tuple[bytes, bytes | None]]


def made(path: Path, seed: int) -> Pairs:
    """A log that was compacted once and has got more since."""
    rng = random.Random(seed)
    pairs = random_pairs(rng, 150)
    with opened(path) as log:
        log.create_topic("t", config={**COMPACT, "segment.bytes": 1500, "file.delete.delay.ms": 0})
        put(log, pairs)
        log.housekeep()
        more = random_pairs(rng, 150)
        put(log, more)
    return pairs + more


def die_compacting(nursery: Nursery, path: Path, point: Point | None) -> dict[str, int]:
    """A process compacts and dies at the point; the calls that it made if there is none."""
    victim = nursery.spawn()
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


def check(log: embedlog.Log, pairs: Pairs, before: dict[int, tuple[bytes | None, bytes | None]]) -> None:
    found = rows(log)
    assert all(before[offset] == (key, value) for offset, key, value in found)
    assert table(found) == last_values(pairs)


def crash_everywhere(nursery: Nursery, directory: Path, seed: int, chosen: Sequence[Point] | None, piece: int = -1) -> None:
    pairs = made(directory / "made", seed)
    with opened(directory / "made") as log:
        before = {offset: (key, value) for offset, key, value in rows(log)}
    if chosen is None:
        every = points(nursery, directory)
        chosen = random.Random(seed).sample(every, POINTS_FAST) if piece < 0 else share(every, piece, POINTS_PIECES)
    for number, point in enumerate(chosen):
        path = directory / "log"
        shutil.copytree(directory / "made", path)
        if number % 2:
            die_compacting(nursery, path, point)
            with opened(path) as log:
                check(log, pairs, before)
                log.housekeep()
                check(log, pairs, before)
        else:  # somebody else is in, and goes on without reopening
            with opened(path) as log:
                rows(log)
                die_compacting(nursery, path, point)
                check(log, pairs, before)
                put(log, [(b"new", b"x")])
                log.housekeep()
                check(log, [*pairs, (b"new", b"x")], before | {len(pairs): (b"new", b"x")})
        shutil.rmtree(path)
    tell("E2 of compaction", points=len(chosen))


def points(nursery: Nursery, directory: Path) -> list[Point]:
    shutil.copytree(directory / "made", directory / "counted")
    counts = die_compacting(nursery, directory / "counted", None)
    calls = range(1, sum(counts.values()) + 1)
    every = [Point(nth, mode) for nth in calls for mode in ("kill_before", "kill_after")]
    return every + [Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)]


def test_e2_a_compaction_that_dies_anywhere_loses_no_last_value(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    crash_everywhere(nursery, tmp_path, seed, None)


@pytest.mark.parametrize("name", ["swap-begun", "swap-aside"])
@pytest.mark.parametrize("nth", [1, 2])
def test_rule_26_a_swap_that_was_broken_off_is_finished(nursery: Nursery, tmp_path: Path, seed: int, name: str, nth: int) -> None:
    """The two places between which the files of a segment are neither the old ones nor the new ones."""
    pairs = made(tmp_path / "log", seed)
    with opened(tmp_path / "log") as log:
        before = {offset: (key, value) for offset, key, value in rows(log)}
        victim = nursery.spawn()
        victim.call("open", str(tmp_path / "log"), **QUIET)
        victim.arm(["point"], "kill_before", name=name, nth=nth)
        with pytest.raises(Died):
            victim.call("on_log", "housekeep")
        assert log._partition("t", 0).page.read().generation % 2 == 1
        check(log, pairs, before)
        assert log._partition("t", 0).page.read().generation % 2 == 0


def test_rule_26_without_the_generation_a_reader_mixes_old_and_new(tmp_path: Path, seed: int) -> None:
    """Files that were opened before a swap are not the segment's any more: forgetting them is what the generation is for."""
    pairs = made(tmp_path / "log", seed)
    with opened(tmp_path / "log") as log, opened(tmp_path / "log") as other:
        before = {offset: (key, value) for offset, key, value in rows(other)}
        log.housekeep()
        check(other, pairs, before)
        assert len(rows(other)) < len(before)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(POINTS_PIECES)
def test_e2_compaction_at_every_call(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    crash_everywhere(nursery, tmp_path, campaign_seed, None, piece)
