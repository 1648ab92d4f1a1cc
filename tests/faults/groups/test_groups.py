"""E15 and E16 of groups: members that join, leave, die, freeze and delay; zombies whose commits
must not count.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.groups import rebalancing, zombies
from tests.faults.harness.processes import Nursery
from tests.support.campaign_report import add_counts, pieces

FAST = 6
LONG = 1200
PIECES = 24
OF_A_MUTANT = 63
ZOMBIES_FAST = 3
ZOMBIES_LONG = 1000
ZOMBIES_PIECES = 20
ASSIGNORS = ["range", "cooperative-sticky", "sticky"]


@pytest.mark.parametrize(
    "assignor", [ASSIGNORS[0], pytest.param(ASSIGNORS[1], marks=pytest.mark.slow)]
)
def test_e15_no_partition_has_two_owners_and_nothing_is_skipped(
    nursery: Nursery, tmp_path: Path, seed: int, assignor: str
) -> None:
    verdict, counts = rebalancing.experiment(
        nursery, tmp_path / "log", seed, FAST, assignor=assignor
    )
    add_counts("E15", **verdict.counts(), **counts)
    assert not verdict.violations, verdict
    assert counts["rebalances"] >= FAST


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(PIECES)
def test_e15_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    assignor = ASSIGNORS[piece % len(ASSIGNORS)]
    verdict, counts = rebalancing.experiment(
        nursery,
        tmp_path / "log",
        campaign_seed + piece,
        LONG // PIECES,
        assignor=assignor,
        deadline_s=120,
    )
    add_counts("E15", **verdict.counts(), **counts)
    assert not verdict.violations, verdict


def freeze(
    nursery: Nursery, directory: Path, seed: int, count: int, mutants: tuple[str, ...] = ()
) -> list[str]:
    """So many trials, at any of the calls that a commit makes; what is wrong."""
    trials = zombies.Trials(nursery, directory, seed, mutants)
    rng = random.Random(seed)
    try:
        calls = trials.count_calls()
        outcomes = [
            trials.trial(nth) for nth in [1, *(rng.randint(1, calls) for _ in range(count - 1))]
        ]
        wrong = [each.wrong for each in outcomes if each.wrong] + trials.verdict()
    finally:
        trials.close()
    if mutants:
        return wrong  # the result of a mutant is not counted
    add_counts(
        "E16 of groups",
        zombies=sum(each.stopped for each in outcomes),
        taken_over=sum(each.taken_over for each in outcomes),
        refused=sum(bool(each.refused) for each in outcomes),
        violations=len(wrong),
    )
    return wrong


def test_e16_a_frozen_members_commit_is_refused_once_its_place_is_taken(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    wrong = freeze(nursery, tmp_path / "log", seed, ZOMBIES_FAST)
    assert not wrong, wrong


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(ZOMBIES_PIECES)
def test_e16_of_groups_long(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    wrong = freeze(nursery, tmp_path / "log", campaign_seed + piece, ZOMBIES_LONG // ZOMBIES_PIECES)
    assert not wrong, wrong


@pytest.mark.faults
def test_e16_of_groups_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """Without the check under the lock a zombie's commit counts."""
    wrong = freeze(nursery, tmp_path / "log", seed, 6, ("commit_unfenced",))
    print(wrong)
    assert wrong, "commit_unfenced survived"
    add_counts("mutants", killed=1)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", ["commit_unfenced"])
def test_e15_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int, mutant: str) -> None:
    verdict, counts = rebalancing.experiment(
        nursery, tmp_path / "log", seed, OF_A_MUTANT, assignor="range", mutants=(mutant,)
    )
    print(f"E15 with {mutant}: {counts}: {verdict}")
    assert verdict.violations, f"{mutant} survived {counts}"
    add_counts("mutants", killed=1)
