"""E17: sets of directories under faults of processes and directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness.processes import Nursery
from tests.faults.replicas import histories
from tests.support.campaign_report import add_counts, pieces

EPISODES_FAST, EPISODES_LONG, PIECES = 3, 10, 40


@pytest.mark.timeout(900)
def test_e17_a_set_keeps_what_was_acknowledged(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, counts = histories.experiment(nursery, tmp_path, seed, EPISODES_FAST)
    add_counts("E17", **counts, **verdict.counts())
    assert not verdict.violations, "\n".join(verdict.violations)
    assert verdict.acked > 10


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pieces(PIECES)
def test_e17_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    verdict, counts = histories.experiment(nursery, tmp_path, campaign_seed + piece, EPISODES_LONG)
    add_counts("E17", **counts, **verdict.counts())
    assert not verdict.violations, "\n".join(verdict.violations)
