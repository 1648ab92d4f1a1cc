"""E14: idempotent producers of many processes, with kill -9 and errors that pass: each record once,
in order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness.processes import Nursery
from tests.faults.producer import repeating
from tests.support.campaign_report import add_counts, pieces

WRITERS_FAST = 3
KILLS_FAST = 8
KILLS_LONG = 2000
KILLS_PIECES = 20
KILLS_OF_A_MUTANT = 120


def test_e14_each_record_once_and_in_order(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, killed = repeating.experiment(
        nursery, tmp_path / "log", seed, KILLS_FAST, writers=WRITERS_FAST
    )
    add_counts("E14", kills=killed, **verdict.counts())
    assert not verdict.violations, verdict
    assert verdict.read > 1000


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(KILLS_PIECES)
def test_e14_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    verdict, killed = repeating.experiment(
        nursery, tmp_path / "log", campaign_seed + piece, KILLS_LONG // KILLS_PIECES
    )
    add_counts("E14", kills=killed, **verdict.counts())
    assert not verdict.violations, verdict


@pytest.mark.faults
@pytest.mark.parametrize("mutant", ["no_stamp", "retry_unstamped", "no_duplicate_check"])
def test_e14_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int, mutant: str) -> None:
    """Without sequences, or with repeats that are not detected, some record is present twice."""
    verdict, killed = repeating.experiment(
        nursery, tmp_path / "log", seed, KILLS_OF_A_MUTANT, mutants=(mutant,)
    )
    print(f"E14 with {mutant}: {killed} kills: {verdict}")
    assert verdict.violations, f"{mutant} survived {killed} kills"
    add_counts("mutants", killed=1)
