"""E17: sets of directories under faults of processes and directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness.processes import Nursery
from tests.faults.replicas import histories, power_cuts
from tests.faults.replicas.ledger import contradictions
from tests.support.campaign_report import add_counts, pieces

EPISODES_FAST = 2
EPISODES_OF_A_KIND = 1
EPISODES_LONG = 10
PIECES = 40
KINDS = {
    "remove": "removals",
    "errors": "errors",
    "damage": "damages",
    "caches": "caches",
    "identity": "identities",
    "closed": "damages of a closed set",
    "put back": "earlier copies",
    "clone": "clones",
    "slow": "slow disks",
    "hang": "hangs",
    "replace": "replacements",
    "backup": "backups",
}
ALWAYS = ("remove", "damage", "caches", "put back", "hang")  # the others are slow
# after a power loss
SETS_FAST = 2
SETS_LONG = 2000
HISTORIES = 12  # in which a mutant must be found


@pytest.mark.timeout(900)
def test_e17_a_set_keeps_what_was_acknowledged(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, counts = histories.experiment(nursery, tmp_path, seed, EPISODES_FAST)
    add_counts("E17", **counts, **verdict.counts())
    assert not verdict.violations, "\n".join(verdict.violations)
    assert verdict.acked > 10


@pytest.mark.sample(0.3)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "way",
    [
        each if each in ALWAYS else pytest.param(each, marks=pytest.mark.slow)
        for each in histories.WAYS
    ],
)
def test_e17_one_kind_of_fault(nursery: Nursery, tmp_path: Path, seed: int, way: str) -> None:
    verdict, counts = histories.experiment(nursery, tmp_path, seed, EPISODES_OF_A_KIND, way=way)
    add_counts("E17", **counts, **verdict.counts())
    assert not verdict.violations, "\n".join(verdict.violations)
    assert verdict.acked > 10
    assert counts[KINDS[way]] == EPISODES_OF_A_KIND


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pieces(PIECES)
def test_e17_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    verdict, counts = histories.experiment(nursery, tmp_path, campaign_seed + piece, EPISODES_LONG)
    add_counts("E17", **counts, **verdict.counts())
    assert not verdict.violations, "\n".join(verdict.violations)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutant", ["acknowledged_by_the_leader", "tail_is_kept"])
def test_e17_finds_a_rule_that_is_off(
    nursery: Nursery, tmp_path: Path, seed: int, mutant: str
) -> None:
    """Records, files or decisions contradict each other, and not without the mutant in the same
    history.
    """
    for number in range(HISTORIES):
        verdict, _ = histories.experiment(
            nursery, tmp_path / str(number), seed + number, EPISODES_LONG, (mutant,)
        )
        found = contradictions(verdict.violations)
        if found:
            print(f"found in history {number + 1}: {found[0]}")
            plain, _ = histories.experiment(
                nursery, tmp_path / f"{number}-plain", seed + number, EPISODES_LONG
            )
            assert not plain.violations, "\n".join(plain.violations)
            return
    raise AssertionError(f"{HISTORIES} histories without {mutant} show no contradiction")


def test_e17_power_losses_of_each_disk_keep_what_was_durable(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    verdict, opened = power_cuts.experiment(nursery, tmp_path, seed, SETS_FAST)
    add_counts("E17 power", sets=opened, **verdict.counts())
    assert not verdict.violations, "\n".join(verdict.violations)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pieces(PIECES)
def test_e17_power_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    verdict, opened = power_cuts.experiment(
        nursery, tmp_path, campaign_seed + piece, SETS_LONG // PIECES
    )
    add_counts("E17 power", sets=opened, **verdict.counts())
    assert not verdict.violations, "\n".join(verdict.violations)
