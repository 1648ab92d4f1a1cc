"""Deletion at the front of a log: deleted records stay deleted, the others stay readable, after any
interruption.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from embedlog import TopicPartition
from embedlog._native import system
from tests.faults.harness.content import Mark, value_of
from tests.faults.harness.processes import Nursery
from tests.faults.harness.stage import Play
from tests.faults.power import cuts
from tests.faults.power.powerloss import Disk, changes, materialise
from tests.support.campaign_report import add_counts
from tests.support.small_logs import append, opened

TP = TopicPartition("t", 0)
SMALL = {"flush.ms": 3_600_000, "segment.bytes": 400}


@pytest.mark.parametrize("points_first", [False, True])
def test_records_deleted_up_to_a_segments_border_stay_deleted(
    tmp_path: Path, points_first: bool
) -> None:
    """Its files are deleted in the next round: until then only the checkpoint has the new start."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=SMALL)
        append(log, 6)
        assert log.delete_records({TP: 4}) == {TP: 4}
        if points_first:
            log._housekeeper.jobs.write_points()
    with opened(tmp_path / "log") as log:
        assert log._engine.partition("t", 0).bounds().log_start == 4


def test_a_log_start_is_never_ahead_of_what_survives_a_power_loss(tmp_path: Path) -> None:
    """Else the log would come back shorter than its start, and could not be opened any more."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=SMALL)
        append(log, 6)
        assert log.durable_offset("t", 0) == 0
        log.delete_records({TP: 3})
        assert log.durable_offset("t", 0) >= 3
        append(log, 1)
        log.delete_records({TP: -1})
        assert log.durable_offset("t", 0) == 7


def test_a_page_that_is_made_anew_knows_what_others_deleted_since(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    with opened(tmp_path / "log") as log:
        victim = play.enter()
        for _ in range(3):
            play.append(victim)
        victim.call("on_log", "delete_records", {TP: 2})
        victim.kill()
        (play.partition / "embedlog.page").unlink()
        assert log._engine.partition("t", 0).bounds().log_start == 2


def test_the_name_of_a_new_segment_is_on_disk_before_the_old_ones_go(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=SMALL | {"retention.ms": 0})
        append(log, 4)
        trace = tmp_path / "trace"
        with trace.open("wb") as file:
            system.shift_wall(10_000)
            system.fault_trace(file.fileno())
            log.housekeep()
            system.fault_trace(-1)
            system.shift_wall(0)
        calls = [line.split() for line in trace.read_text().splitlines()]
        made = max(
            at for at, call in enumerate(calls) if call[0] == "open" and f"{4:020d}.log" in call[-1]
        )
        gone = next(
            at for at, call in enumerate(calls) if call[0] == "rename" and call[-1].endswith(".log")
        )
        assert any(call[0] == "fsync" and call[-1].endswith("t-0") for call in calls[made:gone])
    shutil.rmtree(tmp_path / "log")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by size", "after delete_records"])
def test_no_power_loss_behind_retention_takes_what_stays(
    nursery: Nursery, tmp_path: Path, way: str
) -> None:
    """LOAD-9: any of the names that change may have reached the disk, and any not: those of old
    segments, and the active one's.

    It had lost them all at once; and one name in the middle left a gap, after which the library
    trusted no segment.
    """
    root = tmp_path / "log"
    recording = tmp_path / "recording"
    known = cuts.Known(durable={0: 2})
    victim = nursery.spawn()
    victim.call("record", str(recording))
    victim.call("open", str(root), config={"housekeeping": False})
    limits = {
        "retention.bytes": 1000 if way == "by size" else -1,
        "file.delete.delay.ms": 3_600_000,
    }
    victim.call("create_topic", "t", 1, SMALL | limits)
    for number in range(6):
        known.acks[0, number] = Mark(1, number)
        # the next roll creates a name that nothing else syncs
        if number == 5 and way == "after delete_records":
            known.durable[0] = victim.call("delete_records", 5)[TP]
        assert victim.call("append", [value_of(1, number, 250 if number < 5 else 150)]) == [number]
        if number == 1:
            victim.call("flush")
    before = len(list(changes(recording)))
    victim.call("on_log", "housekeep")
    known.deletable[0], end = victim.call("ends")[0]
    assert 1 < known.deletable[0] < end == 6
    victim.call("record", None)
    nursery.end(victim)
    disk = Disk(root)
    opened = 0
    for at, change in enumerate(changes(recording)):
        renamed = disk.folders[str(root / "t-0")].pending if at > before else []
        if (
            change.kind == "fsync"
            and change.name == str(root / "t-0")
            and any(None in names.values() for names in renamed)
        ):
            for state in disk.states_by_name(change.name):
                target = tmp_path / f"cut-{opened}"
                materialise(state, root, target, list(disk.folders))
                verdict = cuts.judge(nursery, target, known, ())
                assert not verdict.violations, f"state {opened}: {verdict}"
                shutil.rmtree(target)
                opened += 1
        disk.replay(change)
    add_counts("E5, retention", disks=opened, violations=0)
    assert opened > 20
