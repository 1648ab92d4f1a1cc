"""Power loss, simulated from a recording (a small E5): what was durable is there, the rest is a prefix without a hole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import cuts
from tests.faults.processes import Nursery

STATES_FAST, STATES_LONG = 60, 5_000


def test_e5_disks_after_a_power_loss_keep_what_was_durable(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, opened = cuts.experiment(nursery, tmp_path, seed, STATES_FAST)
    print(f"E5: {opened} disks: {verdict}")
    assert not verdict.violations, verdict
    assert opened == STATES_FAST


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_e5_long(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    total, opened = cuts.Verdict(), 0
    for turn in range(STATES_LONG // 250):
        workspace = tmp_path / str(turn)
        workspace.mkdir()
        verdict, more = cuts.experiment(nursery, workspace, seed + turn, 250)
        total.add(verdict)
        opened += more
        assert not total.violations, total
    print(f"E5: {opened} disks: {total}")


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", [
    "skip_fsync", "skip_dir_fsync", "ack_before_fsync", "no_new_epoch", "skip_checkpoint_fsync",
])
def test_e5_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int, mutant: str) -> None:
    for turn in range(5):
        workspace = tmp_path / str(turn)
        workspace.mkdir()
        verdict, opened = cuts.experiment(nursery, workspace, seed + turn, 200, (mutant,))
        if verdict.violations:
            print(f"E5 with {mutant}: {opened} disks: {verdict}")
            return
    pytest.fail(f"{mutant} survived")
