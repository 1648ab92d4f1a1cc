"""SYNC-1 to SYNC-6, LOAD-3 and LOAD-4 of the protocol, and E11, step by step with processes that
stop, die or fail to sync.

A failed write-back needs root; the tests observe the writes and syncs after one. So these tests
record every change to files and check: before `durable` passed an offset, were its bytes written
again and synced?
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from embedlog.storage import file_names
from tests.faults.harness.batches import end_of
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError, Victim, until
from tests.faults.harness.stage import Play, check_rule
from tests.faults.power.powerloss import Change, changes


def failing_sync(victim: Victim, nth: int = 1) -> None:
    victim.arm(["fdatasync", "fsync"], "fail", error=errno.EIO, name=".log", nth=nth)


def poisons(play: Play) -> list[str]:
    return sorted(path.name for path in play.partition.glob("embedlog.poison-*"))


def recorded(play: Play, victim: Victim, task: str, *arguments: object) -> list[Change]:
    """The changes to files that a task makes."""
    path = play.directory.with_name(f"{play.directory.name}-{victim.pid}.recording")
    victim.call("record", str(path))
    victim.call(task, *arguments)
    victim.call("record", None)
    found = list(changes(path))
    path.unlink()
    return found


def rewritten_then_synced(found: list[Change], log: Path, low: int, high: int) -> bool:
    """Whether bytes [low, high) of a file were all written and the file synced after that."""
    missing = set(range(low, high))
    synced = False
    for change in found:
        if change.name != str(log):
            continue
        if change.kind == "pwrite":
            missing -= set(range(change.number, change.number + len(change.data)))
        elif change.kind in ("fdatasync", "fsync") and not missing:
            synced = True
    return synced


# -- SYNC-1 to SYNC-6 and E11
# ----------------------------------------------------------------------------------------------


def failed_sync_then_another(play: Play) -> Verdict:
    """Traces `append: without poison` and `without poison_rewrite`: the next sync succeeds and
    proves nothing.
    """
    a = play.enter()
    b = play.enter()
    play.append(a)
    play.append(b)
    a.call("flush")
    log = play.partition / f"{0:020d}.log"
    durable_bytes = log.stat().st_size
    play.append(a)
    play.append(b)
    end = log.stat().st_size
    failing_sync(a)
    verdict = Verdict()
    with pytest.raises(RemoteError) as failed:
        a.call("flush")
    assert failed.value.kind == "DurabilityError", failed.value
    if b.call("durable") != 2:
        verdict.violations.append("durable rose over a failed sync")
    if not poisons(play):
        verdict.violations.append("no mark on disk")
    found = recorded(play, b, "flush")
    if b.call("durable") != 4:
        verdict.violations.append("the next sync did not bring durability back")
    if not rewritten_then_synced(found, log, durable_bytes, end):
        verdict.violations.append(
            "durable passed bytes of a failed sync that were not written again"
        )
    verdict.add(play.seen_by(b))
    return verdict


def test_sync_4_durable_passes_a_failed_sync_only_after_a_rewrite(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_poison", failed_sync_then_another, nursery, tmp_path)


def killed_with_an_intent(play: Play) -> Verdict:
    """Trace `append: without sync_intent`: A dies between its failed sync and the poison; B's
    descriptors are older.
    """
    a = play.enter()
    b = play.enter()
    play.append(b)
    b.call("flush")
    log = play.partition / f"{0:020d}.log"
    durable_bytes = log.stat().st_size
    play.append(a)
    end = log.stat().st_size
    a.arm(["fdatasync", "fsync"], "kill_before", name=".log")
    a.start("flush")
    a.wait_dead()
    found = recorded(play, b, "flush")
    verdict = play.seen_by(b)
    if not rewritten_then_synced(found, log, durable_bytes, end):
        verdict.violations.append("the intent of a dead process had no effect")
    if not poisons(play):
        verdict.violations.append("no mark on disk")
    return verdict


def test_sync_5_an_intent_left_behind_counts_as_a_failed_sync(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_sync_intent", killed_with_an_intent, nursery, tmp_path)


def test_sync_6_a_descriptor_that_came_late_rewrites_first(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Trace `append: without fresh_rewrite`: an error before its opening was reported to another
    process, or to none.
    """
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    a.call("flush")
    log = play.partition / f"{0:020d}.log"
    durable_bytes = log.stat().st_size
    play.append(a)
    end = log.stat().st_size
    a.kill()
    b = play.enter()
    found = recorded(play, b, "flush")
    assert rewritten_then_synced(found, log, durable_bytes, end)
    assert b.call("durable") == 2


def test_sync_4_nobody_appends_to_a_poisoned_segment(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    b = play.enter()
    play.append(a)
    failing_sync(a)
    with pytest.raises(RemoteError):
        a.call("flush")
    play.append(b)
    play.append(a)
    bases = sorted(int(path.stem) for path in play.partition.glob("*.log"))
    assert bases == [0, 1], "the poisoned segment was rolled"
    play.leave(a)
    play.leave(b)
    assert not play.seen_afresh().violations


def test_sync_4_the_mark_outlives_a_restart(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    failing_sync(a)
    with pytest.raises(RemoteError):
        a.call("flush")
    a.kill()
    log = play.partition / f"{0:020d}.log"
    size = log.stat().st_size
    b = play.enter()
    found = recorded(play, b, "flush")
    assert rewritten_then_synced(found, log, 0, size)
    assert b.call("durable") == 1
    play.append(b)
    assert not play.seen_by(b).violations


def test_sync_4_bytes_lost_in_the_cache_are_told_and_the_log_goes_on(
    nursery: Nursery, tmp_path: Path
) -> None:
    """After a failed sync the page was dropped and reads back as zeroes: no rewrite can help, but
    the log must stay usable.
    """
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    a.call("flush")
    log = play.partition / f"{0:020d}.log"
    durable_bytes = log.stat().st_size
    play.append(a)
    failing_sync(a)
    with pytest.raises(RemoteError):
        a.call("flush")
    with log.open("r+b") as file:
        file.seek(durable_bytes)
        file.write(bytes(log.stat().st_size - durable_bytes))
    with pytest.raises(RemoteError) as told:
        a.call("flush")
    assert told.value.kind == "DurabilityError"
    del play.acks[0, 1]  # it was acknowledged by the cache only, and is lost with it
    play.append(a)
    a.call("flush")
    rows = a.call("read")[0]
    assert rows[-1].epoch > rows[0].epoch, (
        "another record at an offset that readers saw needs a larger epoch"
    )
    assert not play.seen_by(a).violations


def acknowledged_before_its_sync(play: Play) -> Verdict:
    a = play.enter()
    b = play.enter()
    play.append(a)
    a.arm(["fdatasync"], "stop_before", name=".log")
    play.start_append(a)
    until(lambda: a.note_waiting() or stopped(a), "an answer or a stop")
    verdict = Verdict()
    if a.note_waiting() and b.call("durable") < 2:
        verdict.violations.append("acknowledged while its sync had not begun")
    if not a.note_waiting():
        a.resume()
    play.finish_append(a)
    if b.call("durable") < 2:
        verdict.violations.append("acknowledged, but not durable")
    return verdict


def stopped(victim: Victim) -> bool:
    from tests.faults.harness.processes import state_of

    return state_of(victim.pid) == "T"


def test_sync_1_durable_acknowledgements_come_from_durable_only(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Trace `append: without durable_only`."""
    durable = {"flush.messages": 1}
    verdict = acknowledged_before_its_sync(Play(nursery, tmp_path / "log", config=durable))
    assert not verdict.violations, verdict
    mutant = Play(nursery, tmp_path / "mutant", config=durable, mutants=("ack_before_fsync",))
    assert acknowledged_before_its_sync(mutant).violations


def test_sync_1_many_waiting_appends_share_one_sync(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    b = play.enter()
    play.append(a)
    play.append(b)
    a.arm(["fdatasync"], "stop_before", name=".log")
    a.start("flush")
    a.wait_stopped()
    b.arm_refused(file_names.SYNC_LOCK)
    b.start("flush")
    assert b.is_refused(), "B did not wait for A's sync"
    a.resume()
    a.result()
    b.resume()
    b.result()
    assert b.call("durable") == 2


# -- LOAD-3, LOAD-4 and SYNC-3
# ---------------------------------------------------------------------------------------------


def after_reboot(play: Play, target: Path) -> Path:
    """The directory as it comes back after a power loss with everything written: mapped pages are
    zeroes.
    """
    shutil.copytree(play.directory, target)
    for page in target.rglob("embedlog.page"):
        page.write_bytes(bytes(4096))
    (target / "embedlog.control").write_bytes(bytes(4096))
    return target


def damage_below_durable(play: Play) -> Verdict:
    """Trace `append: without durable_record`: a bad sector below the end of a completed flush."""
    a = play.enter()
    for _ in range(3):
        play.append(a)
    a.call("flush")
    play.append(a)
    a.kill()
    reborn = after_reboot(play, play.directory.with_name(f"{play.directory.name}-reborn"))
    log = reborn / play.partition.name / f"{0:020d}.log"
    size = log.stat().st_size
    with log.open("r+b") as file:
        file.seek(size // 2 - 10)
        file.write(b"\xff\xff\xff")
    reader = play.nursery.spawn()
    reader.call("mutants", *play.mutants)
    verdict = Verdict()
    try:
        rows = reader.call("read_directory", str(reborn))
        verdict.violations.append(
            f"damage below durable passed for a torn tail: {len(rows[0])} records are left"
        )
    except RemoteError as refused:
        if refused.kind != "CorruptRecordError":
            verdict.violations.append(f"refused by {refused}")
        if log.stat().st_size != size:
            verdict.violations.append("refused, and cut nevertheless")
    return verdict


def test_load_4_damage_below_the_stored_durable_is_no_torn_tail(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("truncate_below_recovery_point", damage_below_durable, nursery, tmp_path)


def test_load_3_a_torn_tail_above_durable_is_cut_and_kept_aside(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    for _ in range(3):
        play.append(a)
    a.call("flush")
    play.append(a)
    a.kill()
    reborn = after_reboot(play, tmp_path / "reborn")
    log = reborn / "t-0" / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size - 7)
    reader = play.nursery.spawn()
    rows = reader.call("read_directory", str(reborn))[0]
    assert [row.offset for row in rows] == [0, 1, 2]
    assert list((reborn / "t-0").glob("embedlog.cut-*"))
    assert (reborn / ".kafka_cleanshutdown").exists()


def test_sync_3_durable_passes_a_segment_after_its_file_its_indexes_and_its_name(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Traces `append: without all_segments` and `without directory_sync`."""
    play = Play(nursery, tmp_path / "log", config={"segment.bytes": 500})
    a = play.enter()
    path = tmp_path / "recording"
    a.call("record", str(path))
    for _ in range(7):
        play.append(a)
    a.call("flush")
    found = list(changes(path))
    told = max(
        at
        for at, change in enumerate(found)
        if change.kind == "pwrite" and change.name.endswith("embedlog.durable")
    )
    logs = sorted(play.partition.glob("*.log"))
    assert len(logs) > 2
    last_new = 0
    for log in logs:
        synced = [
            at
            for at, c in enumerate(found[:told])
            if c.kind in ("fsync", "fdatasync") and c.name == str(log)
        ]
        written = [at for at, c in enumerate(found) if c.kind == "pwrite" and c.name == str(log)]
        assert synced, f"{log.name} was not synced before durable passed it"
        assert not written or max(synced) > max(written), f"{log.name} was written after its sync"
        last_new = max(
            last_new,
            min(
                (at for at, c in enumerate(found) if c.kind == "open" and c.name == str(log)),
                default=0,
            ),
        )
    names = [
        at
        for at, c in enumerate(found[:told])
        if c.kind == "fsync" and c.name == str(play.partition)
    ]
    assert names, "the directory was not synced"
    assert max(names) > last_new, "a segment's name was not synced before durable passed it"


# -- TXN-6, SYNC-7 and LOAD-1
# ----------------------------------------------------------------------------------------------


def test_sync_7_an_appender_syncs_itself_when_the_housekeeper_is_frozen(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config={"flush.ms": 100})
    keeper = play.enter(config={"housekeeping": True})
    keeper.call("ends")
    keeper.stop()
    a = play.enter()
    play.append(a)
    end = time.monotonic() + 0.15
    until(lambda: time.monotonic() > end, "the record to grow older than flush.ms")
    play.append(a)
    assert a.call("durable") >= 1
    keeper.resume()


def test_sync_7_the_housekeeper_syncs_what_nobody_appends_to(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config={"flush.ms": 100})
    a = play.enter(config={"housekeeping": True, "log.flush.scheduler.interval.ms": 50})
    play.append(a)
    until(lambda: a.call("durable") == 1, "the housekeeper to sync", 10)


def tail_lost_in_a_power_loss(play: Play) -> Verdict:
    """Trace `append: without new_epoch`: readers had seen offsets 3 and 4, the log comes back at
    3.
    """
    a = play.enter()
    for _ in range(3):
        play.append(a)
    a.call("flush")
    size = (play.partition / f"{0:020d}.log").stat().st_size
    play.append(a)
    play.append(a)
    a.kill()
    reborn = after_reboot(play, play.directory.with_name(f"{play.directory.name}-reborn"))
    os.truncate(reborn / play.partition.name / f"{0:020d}.log", size)
    play.directory = reborn
    b = play.enter()
    for lost in (3, 4):
        del play.acks[0, lost]
    play.append(b)
    rows = b.call("read")[0]
    verdict = play.seen_by(b)
    if rows[3].epoch <= rows[2].epoch:
        verdict.violations.append(f"offset 3 holds another record, still in epoch {rows[3].epoch}")
    return verdict


def test_load_1_what_comes_after_a_lost_tail_has_a_new_epoch(
    nursery: Nursery, tmp_path: Path
) -> None:
    check_rule("no_new_epoch", tail_lost_in_a_power_loss, nursery, tmp_path)


def test_load_1_also_where_nothing_at_all_came_back(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    play.append(a)
    a.kill()
    reborn = after_reboot(play, tmp_path / "reborn")
    os.truncate(reborn / "t-0" / f"{0:020d}.log", 0)
    play.directory = reborn
    play.acks.clear()
    b = play.enter()
    assert play.append(b) == 0
    assert b.call("read")[0][0].epoch > 0, "offset 0 was seen in epoch 0 with another record"


def test_load_1_the_new_epoch_is_on_disk_before_anything_is_appended_under_it(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Trace `append: without epoch_synced`."""
    play = Play(nursery, tmp_path / "log")
    a = play.enter()
    for _ in range(3):
        play.append(a)
    a.kill()
    play.directory = after_reboot(play, tmp_path / "reborn")
    b = nursery.spawn()
    path = tmp_path / "recording"
    b.call("record", str(path))
    b.call("open", str(play.directory), config={"housekeeping": False})
    play.append(b)
    found = list(changes(path))
    written = [
        at
        for at, c in enumerate(found)
        if c.kind == "pwrite" and c.name.endswith(".log") and len(c.data) > 100
    ]
    named = [
        at
        for at, c in enumerate(found)
        if c.kind == "rename" and c.second.endswith("leader-epoch-checkpoint")
    ]
    synced = [
        at for at, c in enumerate(found) if c.kind == "fsync" and c.name == str(play.partition)
    ]
    assert named, "no new epoch was stored"
    assert any(named[0] < at < written[-1] for at in synced), (
        "appended before the epoch's name was on disk"
    )
    assert end_of(play.partition / f"{0:020d}.log")[1] > 0
