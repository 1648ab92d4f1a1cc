"""E1 and E2: processes die at random moments and at chosen calls; acknowledged records are
present.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery
from tests.faults.partition import crashes, kills
from tests.support.campaign_report import add_counts, pieces, share

KILLS_FAST = 30
KILLS_LONG = 10_000
KILLS_PIECES = 20
KILLS_OF_A_MUTANT = 600
POINTS_FAST = 6
POINTS_PIECES = 24
CALLS_MORE = 20  # a run makes some calls more than another: its housekeeper keeps no count


def test_e1_killed_writers_lose_nothing_that_was_acknowledged(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    verdict, killed = kills.experiment(nursery, tmp_path / "log", seed, KILLS_FAST)
    add_counts("E1", kills=killed, **verdict.counts())
    assert not verdict.violations, verdict
    assert verdict.acked > 10 * KILLS_FAST


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(KILLS_PIECES)
def test_e1_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    kills_here = KILLS_LONG // KILLS_PIECES
    verdict, killed = kills.experiment(nursery, tmp_path / "log", campaign_seed + piece, kills_here)
    add_counts("E1", kills=killed, **verdict.counts())
    assert not verdict.violations, verdict


@pytest.mark.parametrize("mutant", ["no_append_lock", "publish_before_write"])
@pytest.mark.faults
def test_e1_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int, mutant: str) -> None:
    """With the rule off the same experiment must find something, within a few times the kills of
    the fast form.
    """
    verdict, killed = kills.experiment(
        nursery, tmp_path / "log", seed, KILLS_OF_A_MUTANT, mutants=(mutant,)
    )
    print(f"E1 with {mutant}: {killed} kills: {verdict}")
    assert verdict.violations, f"{mutant} survived {killed} kills"
    add_counts("mutants", killed=1)


def points(counts: dict[str, int]) -> list[crashes.Point]:
    """Every place where the script can die: each call, before and after it, and in the middle of
    each write.
    """
    calls = range(1, sum(counts.values()) + CALLS_MORE)
    whole = [crashes.Point(nth, mode) for nth in calls for mode in ("kill_before", "kill_after")]
    return [
        crashes.Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)
    ] + whole


def crash_everywhere(
    nursery: Nursery, directory: Path, seed: int, chosen: Sequence[crashes.Point]
) -> None:
    """Crashes at the points; every third recovery dies, too, at a call that the seed and the point
    draw.
    """
    total = Verdict()
    struck = 0
    nested = 0
    for point in chosen:
        rng = random.Random(f"{seed} {point}")
        again = (
            crashes.Point(rng.randint(1, 150), rng.choice(crashes.MODES))
            if rng.random() < 1 / 3
            else None
        )
        verdict, hit = crashes.crash_at(nursery, directory, seed, point, nested=again)
        total.add(verdict)
        struck = struck + hit
        nested = nested + (again is not None)
        assert not total.violations, total
        shutil.rmtree(directory, ignore_errors=True)
    add_counts(
        "E2", points=len(chosen), crashes=struck, crashes_of_a_recovery=nested, **total.counts()
    )


def test_e2_a_crash_at_any_call_leaves_a_log_that_goes_on(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    every = points(crashes.count_calls(nursery, tmp_path / "log", seed))
    crash_everywhere(
        nursery, tmp_path / "log", seed, random.Random(seed).sample(every, POINTS_FAST)
    )


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(POINTS_PIECES)
def test_e2_at_every_call(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    every = points(crashes.count_calls(nursery, tmp_path / "log", campaign_seed))
    crash_everywhere(nursery, tmp_path / "log", campaign_seed, share(every, piece, POINTS_PIECES))
