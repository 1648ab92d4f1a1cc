"""Power loss, simulated from a recording (a small E5): durable records are present, the others are
a prefix.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness.processes import Nursery
from tests.faults.power import cuts
from tests.support.campaign_report import add_counts, pieces

STATES_FAST = 15
STATES_LONG = 10_000
STATES_PIECES = 40


def test_e5_disks_after_a_power_loss_keep_what_was_durable(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    verdict, opened = cuts.experiment(nursery, tmp_path, seed, STATES_FAST)
    add_counts("E5", disks=opened, **verdict.counts())
    assert not verdict.violations, verdict
    assert opened == STATES_FAST


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(STATES_PIECES)
def test_e5_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    verdict, opened = cuts.experiment(
        nursery, tmp_path, campaign_seed + piece, STATES_LONG // STATES_PIECES
    )
    add_counts("E5", disks=opened, **verdict.counts())
    assert not verdict.violations, verdict


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutant",
    [
        "skip_fsync",
        "skip_dir_fsync",
        "ack_before_fsync",
        "no_new_epoch",
        "skip_checkpoint_fsync",
    ],
)
def test_e5_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int, mutant: str) -> None:
    for turn in range(5):
        workspace = tmp_path / str(turn)
        workspace.mkdir()
        verdict, opened = cuts.experiment(nursery, workspace, seed + turn, 200, (mutant,))
        if verdict.violations:
            print(f"E5 with {mutant}: {opened} disks: {verdict}")
            add_counts("mutants", killed=1)
            return
    pytest.fail(f"{mutant} survived")
