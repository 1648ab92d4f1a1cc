"""A topic's deletion and the offsets that groups have committed for it, with a crash at any
call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.groups import offsets
from tests.faults.harness.processes import Nursery
from tests.faults.partition.crashes import Point
from tests.support.campaign_report import add_counts, pieces, share

POINTS_FAST = 6
PIECES = 8


def crash_everywhere(nursery: Nursery, directory: Path, seed: int, chosen: Sequence[Point]) -> None:
    """Crashes at the points; every third finisher dies, too; every second time a witness has the
    directory open.
    """
    nested = 0
    for point in chosen:
        rng = random.Random(f"{seed} {point}")
        again = offsets.nested_point(rng) if rng.random() < 1 / 3 else None
        wrong = offsets.crash_at(nursery, directory, point, again, witness=rng.random() < 0.5)
        nested += again is not None
        assert not wrong, wrong[0]
    add_counts("deletions", points=len(chosen), crashes_of_a_finisher=nested, violations=0)


def test_a_crash_at_any_call_of_a_deletion_leaves_offsets_with_their_topic_or_none(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    every = offsets.points(offsets.count_calls(nursery, tmp_path / "log"))
    crash_everywhere(
        nursery, tmp_path / "log", seed, random.Random(seed).sample(every, POINTS_FAST)
    )


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(PIECES)
def test_a_crash_at_every_call_of_a_deletion(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    every = offsets.points(offsets.count_calls(nursery, tmp_path / "log"))
    crash_everywhere(nursery, tmp_path / "log", campaign_seed, share(every, piece, PIECES))


@pytest.mark.parametrize("finisher", ["opens", "changes"])
def test_whoever_finishes_a_deletion_drops_the_offsets(
    nursery: Nursery, tmp_path: Path, finisher: str
) -> None:
    """The deleter dies between the last directory and the first group."""
    directory = tmp_path / "log"
    offsets.prepare(directory)
    witness = offsets.deleter(nursery, directory) if finisher == "changes" else None
    victim = offsets.deleter(nursery, directory)
    victim.arm(["point"], "kill_before", name="offsets-forgotten")
    victim.start("on_log", "delete_topic", "t")
    victim.wait_dead()
    heir = witness or offsets.deleter(nursery, directory)
    heir.call("create_topic", "t")
    assert [heir.call("committed_offsets", name) for name in offsets.GROUPS] == [
        {offsets.KEPT: (6, "", -1)}
    ] * 4
    nursery.end(heir)
