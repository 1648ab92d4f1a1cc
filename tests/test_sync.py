"""Syncs in one process: what failed, what was lost, what nobody counted; each promise on the idle and the unlucky path."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from tests.faults.processes import Nursery
from tests.faults.stage import Play

QUIET = {"flush.ms": 3_600_000}


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


def test_what_a_dead_appender_left_is_flushed_though_nobody_appends_again(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log", config={"flush.ms": 1})
    log = opened(tmp_path / "log")
    partition = log._partition("t", 0)
    append(log)
    log.flush()
    log._housekeeper.flush_due()
    victim = play.enter()
    play.die_in_append(victim, ".log", kind="pwrite", action="kill_after")
    with partition.exclusive():
        pass
    assert (partition.durable_offset, partition.bounds().log_end) == (1, 2)
    log._housekeeper.flush_due()
    assert partition.durable_offset == 2
    log.close()


def test_a_sync_that_ends_beside_an_append_hides_it_from_no_housekeeper(tmp_path: Path) -> None:
    """The append has seen what was unsynced before; the housekeeper finds all durable before the append publishes."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={"flush.ms": 1000})
        partition, page = log._partition("t", 0), log._home.directory_page
        append(log)
        counted = page.word(system.WORD_UNSYNCED_COUNT)
        system.fault_arm(["point"], 1, "delay", 300_000, name="before-publish")
        thread = threading.Thread(target=append, args=(log,))
        thread.start()
        while not partition.page.word(system.WORD_OWNER):
            pass
        threading.Event().wait(0.1)
        partition.syncer.sync(1, system.boot_ns() + 10**10)
        assert partition.durable_offset == 1 == partition.bounds().log_end, "the append was to stand before its publication"
        thread.join()
        system.fault_off()
        assert page.word(system.WORD_UNSYNCED_COUNT) > counted


def test_the_flusher_forgets_a_topic_that_was_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        append(log)
        log._housekeeper.flush_due()
        log.delete_topic("t")
        log._housekeeper.flush_due()
        assert not caplog.records
        assert not log._housekeeper._unsynced


def test_writers_that_find_a_segment_full_at_once_roll_it_once(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log, opened(tmp_path / "log") as other:
        log.create_topic("t", config=QUIET | {"segment.bytes": 400})
        append(log, 2)
        partition = log._partition("t", 0)
        real = partition.exclusive_mutexed

        def slower(deadline_ns: int) -> object:
            partition.exclusive_mutexed = real
            append(other)  # rolls, and writes into the new segment
            return real(deadline_ns)

        partition.exclusive_mutexed = slower
        append(log)
        assert [info.base for info in partition.segments.all(partition.published())] == [0, 2]


def test_descriptors_given_back_under_a_sync_are_closed_behind_it(tmp_path: Path) -> None:
    """Else the sync would go on with numbers that are other files' by then: it would sync, or write to, the wrong one."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET)
        append(log)
        partition = log._partition("t", 0)
        system.fault_arm(["point"], 1, "delay", 300_000, name="sync-segment")
        failed: list[Exception] = []

        def sync() -> None:
            try:
                partition.sync()
            except embedlog.EmbedlogError as problem:
                failed.append(problem)

        thread = threading.Thread(target=sync)
        thread.start()
        while not partition.page.word(system.WORD_SYNC_OWNER):
            pass
        assert partition.release()
        assert partition.syncer._fds, "closed under the sync"
        thread.join()
        system.fault_off()
        assert not failed
        assert partition.durable_offset == 1
        assert not partition.syncer._fds


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
        assert log._partition("t", 0).bounds().log_start >= 2
        victim.resume()
        victim.result()
        assert log.durable_offset("t", 0) == 6
    assert not list((tmp_path / "log" / "t-0").glob("embedlog.poison*"))
