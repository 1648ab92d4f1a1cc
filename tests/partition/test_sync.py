"""Syncs in one process: failed, lost and uncounted ones; each promise on the idle path and on the
path of errors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.partition.partition import Partition
from embedlog.storage import control_page as page
from embedlog.storage import file_names, files, locks
from tests.faults.harness.processes import Nursery, until
from tests.faults.harness.stage import Play
from tests.faults.power.powerloss import changes
from tests.support.replica_logs import lead, replica
from tests.support.stamped_batches import run_of

QUIET = {"flush.ms": 3_600_000}
LONG_NS = 200_000_000_000


def opened(path: Path, **config: object) -> embedlog.Log:
    return embedlog.open(path, config={"housekeeping": False, **config})


def append(log: embedlog.Log, count: int = 1, value: bytes = b"v" * 100) -> None:
    with log.producer(linger_ms=0) as producer:
        for _ in range(count):
            producer.send("t", value=value).result(timeout=10)


def test_a_marked_segment_that_was_cut_to_nothing_takes_records_again(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        append(log)
        system.fault_arm(["fdatasync"], 1, "fail", errno.EIO, name=".log")
        with pytest.raises(embedlog.DurabilityError):
            log.flush()
        system.fault_off()
        path = tmp_path / "log" / "t-0" / f"{0:020d}.log"
        with path.open("r+b") as file:
            file.seek(90)
            file.write(b"\xff\xff")
        with pytest.raises(embedlog.DurabilityError, match="are lost"):
            log.flush()
        append(log, 2)
        assert [record.value for record in log.scan("t").records()] == [b"v" * 100] * 2
        log.flush()
        assert log.durable_offset("t", 0) == 2


def test_a_sync_that_failed_and_one_whose_process_ended_are_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def messages() -> list[tuple[str, str]]:
        found = [
            (each.levelname, each.getMessage())
            for each in caplog.records
            if "is marked" in each.getMessage()
        ]
        caplog.clear()
        return found

    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        path = tmp_path / "log" / "t-0" / f"{0:020d}.log"
        tail = f"{path} is marked, its unsynced bytes will be written again"
        append(log)
        ended = 4_000_000 | 7 << 32  # as a process leaves it that was killed in a sync
        log._engine.partition("t", 0)._state.page.set(system.WORD_SYNC_OWNER, ended)
        log.flush()
        assert messages() == [
            (
                "WARNING",
                f"a sync of process 4000000 was not completed, perhaps because it ended: {tail}",
            )
        ]
        assert log.durable_offset("t", 0) == 1
        append(log)
        (tail,) = [
            f"{each} is marked, its unsynced bytes will be written again"
            for each in path.parent.glob(f"{1:020d}.log")
        ]
        system.fault_arm(["fdatasync"], 1, "fail", errno.ENOSPC, name=".log")
        with pytest.raises(embedlog.DurabilityError):
            log.flush()
        system.fault_off()
        assert messages() == [("ERROR", f"a sync failed with ENOSPC: {tail}")]


def test_a_failed_sync_cuts_no_replica_of_a_set(tmp_path: Path) -> None:
    """Other replicas can have the damaged records."""
    with replica(tmp_path / "d1", config=QUIET) as partition:
        lead(partition, 1)
        for value in (b"first", b"second", b"third"):
            partition.append(run_of(value))
        path = partition.path / file_names.file_name(0, file_names.LOG)
        good = path.read_bytes()
        damaged = len(good) * 2 // 3 - 3
        path.write_bytes(good[:damaged] + b"\xff\xff" + good[damaged + 2 :])
        with (
            replica(tmp_path / "d1") as other,
            pytest.raises(embedlog.CorruptRecordError, match="damage of a replica"),
        ):
            other.sync()
        assert (partition.published().log_end, partition.published().epoch) == (3, 1)
        assert path.stat().st_size == len(good)
        path.write_bytes(good)
        partition.sync()
        assert partition.durable_offset == 3


def test_what_a_dead_appender_left_is_flushed_though_nobody_appends_again(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config={"flush.ms": 1})
    log = opened(tmp_path / "log")
    partition = log._engine.partition("t", 0)
    append(log)
    log.flush()
    log._housekeeper.jobs.flush_due()
    victim = play.enter()
    play.die_in_append(victim, ".log", kind="pwrite", action="kill_after")
    with partition.exclusive():
        pass
    assert (partition.durable_offset, partition.bounds().log_end) == (1, 2)
    log._housekeeper.jobs.flush_due()
    assert partition.durable_offset == 2
    log.close()


def test_a_sync_that_ends_beside_an_append_hides_it_from_no_housekeeper(tmp_path: Path) -> None:
    """The append has read the unsynced end before; the housekeeper finds all durable before the
    append publishes.
    """
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={"flush.ms": 1000})
        partition = log._engine.partition("t", 0)
        page = log._engine.home.context.directory_page
        append(log)
        counted = page.word(system.WORD_UNSYNCED_COUNT)
        system.fault_arm(["point"], 1, "delay", 300_000, name="before-publish")
        thread = threading.Thread(target=append, args=(log,))
        thread.start()
        while not partition._state.page.word(system.WORD_OWNER):
            pass
        threading.Event().wait(0.1)
        partition._syncer.sync(1, system.boot_ns() + 10**10)
        assert partition.durable_offset == 1 == partition.bounds().log_end, (
            "the append was to stand before its publication"
        )
        thread.join()
        system.fault_off()
        assert page.word(system.WORD_UNSYNCED_COUNT) > counted


def test_a_sync_among_several_awaits_the_senders_that_the_last_one_acknowledged(
    tmp_path: Path,
) -> None:
    """SYNC-8: three records in one sync, of which two are appended after it has its lock."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        partition = log._engine.partition("t", 0)
        append(log)
        syncer = partition._syncer
        other = locks.LockFile(partition.path / file_names.SYNC_LOCK)
        syncer._shared = True
        syncer._sync_ns = 4 * LONG_NS
        partition._state.page.set(system.WORD_AWAITED, 3)
        thread = threading.Thread(target=syncer.sync, args=(1, system.boot_ns() + LONG_NS))
        thread.start()
        try:
            until(lambda: not thread.is_alive() or is_held(other), "the sync to begin")
            append(log, 2)
            thread.join()
        finally:
            other.close()
        assert partition.durable_offset == 3


def test_a_sync_of_one_sender_awaits_no_other(tmp_path: Path) -> None:
    """SYNC-8, whatever the page says: the test would time out."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        partition = log._engine.partition("t", 0)
        for end in (1, 2, 3):
            append(log)
            partition._syncer._sync_ns = 4 * LONG_NS
            partition._state.page.set(system.WORD_AWAITED, 100)
            assert partition._syncer.sync(end, system.boot_ns() + LONG_NS) == end


def test_a_sync_leaves_the_number_of_records_that_the_next_one_awaits(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        partition = log._engine.partition("t", 0)
        append(log, 3)
        log.flush()
        assert partition._state.page.word(system.WORD_AWAITED) == 3 + 3
        append(log, 2)
        assert not partition._syncer._shared
        partition._syncer.sync(4, system.boot_ns() + LONG_NS)
        assert partition._syncer._shared, "it had a record of another sender"
        assert partition._state.page.word(system.WORD_AWAITED) == 5 + 2


def is_held(lock: locks.LockFile) -> bool:
    """Whether another open file has the lock."""
    if not lock.try_lock():
        return True
    lock.unlock()
    return False


def test_the_flusher_forgets_a_topic_that_was_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        append(log)
        log._housekeeper.jobs.flush_due()
        log.delete_topic("t")
        log._housekeeper.jobs.flush_due()
        assert not caplog.records
        assert not log._housekeeper.jobs._unsynced


def test_writers_that_find_a_segment_full_at_once_roll_it_once(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log, opened(tmp_path / "log") as other:
        log.create_topic("t", config=QUIET | {"segment.bytes": 400})
        append(log, 2)
        partition = log._engine.partition("t", 0)
        real = partition._lock.exclusive_mutexed

        def slower(deadline_ns: int) -> object:
            partition._lock.exclusive_mutexed = real
            append(other)  # rolls, and writes into the new segment
            return real(deadline_ns)

        partition._lock.exclusive_mutexed = slower
        append(log)
        assert [info.base for info in partition._segments.all(partition.published())] == [0, 2]


def test_descriptors_given_back_under_a_sync_are_closed_behind_it(tmp_path: Path) -> None:
    """Else the sync would continue with descriptors that belong to other files by then: it would
    sync or write the wrong one.
    """
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        append(log)
        partition = log._engine.partition("t", 0)
        system.fault_arm(["point"], 1, "delay", 300_000, name="sync-segment")
        failed: list[Exception] = []

        def sync() -> None:
            try:
                partition.sync()
            except embedlog.EmbedlogError as problem:
                failed.append(problem)

        thread = threading.Thread(target=sync)
        thread.start()
        while not partition._state.page.word(system.WORD_SYNC_OWNER):
            pass
        assert partition._writer.release()
        assert not partition._syncer.release()
        partition._syncer.close()
        assert partition._syncer._fds, "closed under the sync"
        thread.join()
        system.fault_off()
        assert not failed
        assert partition.durable_offset == 1
        assert not partition._syncer._fds


def test_a_sync_that_retention_overtakes_does_not_fail(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log", config={"segment.bytes": 400})
    victim = play.enter()
    for _ in range(6):
        play.append(victim)
    victim.arm(["point"], "stop_before", name="sync-intent")
    victim.start("flush")
    victim.wait_stopped()
    with opened(tmp_path / "log") as log:
        log.alter_topic("t", {"file.delete.delay.ms": 0, "retention.bytes": 400})
        log.housekeep()
        assert log._engine.partition("t", 0).bounds().log_start >= 2
        victim.resume()
        victim.result()
        assert log.durable_offset("t", 0) == 6
    assert not list((tmp_path / "log" / "t-0").glob("embedlog.poison*"))


@contextlib.contextmanager
def held_by_another(partition: Partition) -> Iterator[None]:
    other = locks.LockFile(partition.path / file_names.SYNC_LOCK)
    with other.hold(system.boot_ns() + 10**10):
        yield
    other.close()


def test_who_waits_for_a_sync_is_served_while_another_one_holds_the_lock(tmp_path: Path) -> None:
    """Else the callers that one sync has served queue up for the lock, and delay the next sync."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        append(log)
        partition = log._engine.partition("t", 0)
        served: list[int] = []
        thread = threading.Thread(target=lambda: served.append(partition.sync()))
        with held_by_another(partition):
            thread.start()
            thread.join(0.01)
            assert not served
            partition._state.page.set(system.WORD_DURABLE, 1)
            partition._state.page.wake(system.WORD_DURABLE)
            thread.join(10)
            assert served == [1]


def test_who_waits_for_a_sync_takes_the_lock_of_a_syncer_that_died(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        append(log)
        partition = log._engine.partition("t", 0)
        thread = threading.Thread(target=partition.sync)
        with held_by_another(partition):
            thread.start()
            thread.join(0.01)
        thread.join(10)
        assert partition.durable_offset == 1
        with (
            held_by_another(partition),
            pytest.raises(embedlog.LockTimeoutError, match="held by pid"),
        ):
            append(log)
            partition.sync(system.boot_ns() + 10**7)


def test_a_slot_of_the_durable_record_that_is_on_disk_is_written_over_only_behind_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SYNC-2: a power loss in the middle of a write then leaves the other one; and not every store
    is synced.
    """
    record = page.DurableRecord(tmp_path, b"t" * 16)
    fd = os.open(tmp_path / "recording", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    system.record_to(fd)
    try:
        for offset in range(1, 10):
            monkeypatch.setattr(page, "RECORD_AGE_NS", 0 if offset in (4, 5, 8) else 10**18)
            record.store(offset, 0, 0o600)
            found = record.read()
            assert found is not None
            assert found.offset == offset
    finally:
        system.record_to(-1)
        os.close(fd)
    on_disk = None
    fresh = None
    synced = 0
    for change in changes(tmp_path / "recording"):
        if change.kind == "fdatasync":
            on_disk = fresh
            synced = synced + 1
        elif change.kind == "pwrite":
            fresh = change.number
            assert fresh != on_disk
    assert synced == 3


@pytest.mark.parametrize("moved", [1, 3, -1])
def test_a_damaged_index_leaves_no_byte_out_when_a_failed_sync_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """The offset index names the place at which the rewrite begins: an entry that points too far
    would omit batches.
    """
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={**QUIET, "index.interval.bytes": 100})
        append(log, 6)
        log.flush()
        append(log, 6)
        system.fault_arm(["fdatasync"], 1, "fail", errno.EIO, name=".log")
        with pytest.raises(embedlog.DurabilityError):
            log.flush()
        system.fault_off()
        file = tmp_path / "log" / "t-0" / f"{0:020d}.index"
        partition = log._engine.partition("t", 0)
        entries = list(
            struct.iter_unpack(">ii", file.read_bytes()[: 8 * partition.published().index_entries])
        )
        number = max(at for at, (relative, _) in enumerate(entries) if relative <= 6)
        with file.open("r+b") as index:
            index.seek(8 * number)
            index.write(
                struct.pack(
                    ">ii", entries[number][0], entries[number + moved][1] if moved > 0 else -1
                )
            )
        real = files.write_all
        written = []

        def noted(fd: int, data: Any, position: int, path: Any = "") -> None:
            if str(path).endswith(".log"):
                written.append((position, position + len(data)))
            real(fd, data, position, path)

        monkeypatch.setattr(files, "write_all", noted)
        log.flush()
        found = partition.fetch(6, max_bytes=1)
        assert min(start for start, _ in written) <= found.position + int(
            found.batches["position"][0]
        )
        assert max(end for _, end in written) == partition.published().segment_size
