"""Batches from Spark are written once, whatever call the driver dies at, or gets an error from:
without Spark, at every call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.harness.processes import Died, Nursery
from tests.faults.partition.crashes import ERRORS, FAILING, Point
from tests.faults.spark import landing
from tests.support.campaign_report import add_counts, pieces, share

POINTS_FAST = {"append": 2, "overwrite": 3}
POINTS_PIECES = 16
ERRORS_FAST = 2


def crash_everywhere(
    nursery: Nursery,
    directory: Path,
    seed: int,
    chosen: Sequence[Point],
    counts: dict[str, int],
    overwrite: bool = False,
) -> None:
    """Crashes at the points; every third driver that repeats the batch dies, too."""
    died = 0
    for point in chosen:
        rng = random.Random(f"{seed} {point}")
        again = landing.nested_point(rng, counts) if rng.random() < 1 / 3 else None
        wrong, dead = landing.crash_at(nursery, directory, point, again, overwrite)
        assert not wrong, wrong[0]
        died += dead
        landing.forget(directory)
    add_counts("Spark: commits cut", points=len(chosen), drivers_killed=died, violations=0)


def fail_everywhere(nursery: Nursery, directory: Path, seed: int, chosen: Sequence[int]) -> None:
    late = 0
    for nth in chosen:
        error = random.Random(f"{seed} {nth}").choice(ERRORS)
        wrong, behind_its_effect = landing.fail_at(nursery, directory, nth, error)
        assert not wrong, wrong[0]
        late += behind_its_effect
        landing.forget(directory)
    add_counts(
        "Spark: commits with an error",
        points=len(chosen),
        raised_after_their_effect=late,
        violations=0,
    )


def failing(counts: dict[str, int]) -> range:
    return range(1, sum(counts[kind] for kind in FAILING) + 1)


@pytest.mark.parametrize("mode", ["append", pytest.param("overwrite", marks=pytest.mark.slow)])
def test_a_driver_that_dies_at_any_call_has_its_batch_written_once(
    nursery: Nursery, tmp_path: Path, seed: int, mode: str
) -> None:
    counts = landing.count_calls(nursery, tmp_path / "log", mode == "overwrite")
    chosen = random.Random(seed).sample(landing.points(counts), POINTS_FAST[mode])
    crash_everywhere(nursery, tmp_path / "log", seed, chosen, counts, mode == "overwrite")


def test_a_commit_that_raised_is_repeated_and_writes_nothing_twice(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    counts = landing.count_calls(nursery, tmp_path / "log")
    fail_everywhere(
        nursery, tmp_path / "log", seed, random.Random(seed).sample(failing(counts), ERRORS_FAST)
    )


def test_without_the_mark_in_the_transaction_a_batch_is_written_twice(
    nursery: Nursery, tmp_path: Path
) -> None:
    landing.make(tmp_path / "log")
    victim = nursery.spawn()
    with pytest.raises(Died):
        victim.call("land_and_mark_apart", str(tmp_path / "log"))
    nursery.end(victim)
    assert any(
        "too much" in each for each in landing.repeated(nursery, tmp_path / "log", overwrite=False)
    )


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pieces(POINTS_PIECES)
def test_at_every_call(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int, mode: str
) -> None:
    counts = landing.count_calls(nursery, tmp_path / "log", mode == "overwrite")
    every = landing.points(counts)
    chosen = share(every, piece, POINTS_PIECES)
    crash_everywhere(nursery, tmp_path / "log", campaign_seed, chosen, counts, mode == "overwrite")


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(POINTS_PIECES)
def test_an_error_at_every_call(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    counts = landing.count_calls(nursery, tmp_path / "log")
    fail_everywhere(
        nursery, tmp_path / "log", campaign_seed, share(failing(counts), piece, POINTS_PIECES)
    )
