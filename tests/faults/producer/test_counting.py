"""Optimistic appends between processes: a counter in a log, with races and with kill -9."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.harness.processes import Nursery
from tests.faults.producer import counting
from tests.support.campaign_report import add_counts, pieces

KILLS_FAST = 3
KILLS_LONG = 600
KILLS_PIECES = 20


def test_a_process_that_is_killed_anywhere_leaves_a_counter_that_counts_on(
    nursery: Nursery, tmp_path: Path, rng: random.Random
) -> None:
    assert not counting.killed(nursery, tmp_path / "log", rng, KILLS_FAST)


@pytest.mark.slow
def test_two_processes_count_to_two_thousand(nursery: Nursery, tmp_path: Path) -> None:
    wrong, conflicts = counting.race(nursery, tmp_path / "log", 2, 1000)
    print(f"{conflicts} conflicts")
    assert not wrong


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(KILLS_PIECES)
def test_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    wrong = counting.killed(
        nursery, tmp_path / "log", random.Random(campaign_seed + piece), KILLS_LONG // KILLS_PIECES
    )
    add_counts("counted", kills=KILLS_LONG // KILLS_PIECES)
    assert not wrong
