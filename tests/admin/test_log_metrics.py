"""Metrics of topics, partitions, groups and files in `log.metrics()`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.admin.log_metrics import _would_wait, report
from embedlog.descriptions.directories import ReplicaDescription, ReplicatedPartitionDescription
from embedlog.storage import file_names
from tests.support.producer_helpers import wait_until

QUIET = {"housekeeping": False}
PATIENT_S = 20.0
PLACE = TopicPartition("t", 0)


def test_appends_and_reads_are_counted_by_topic(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t", 2)
        log.create_topic("other")
        with log.producer() as producer:
            for number in range(30):
                producer.send("t", b"x" * 100, partition=number % 2)
            producer.send("other", b"x")
        found = log.metrics()
        sizes = sum(found["partitions"][TopicPartition("t", number)]["Size"] for number in range(2))
        assert found["topics"]["t"]["MessagesInPerSec"]["Count"] == 30
        assert found["topics"]["t"]["BytesInPerSec"]["Count"] == sizes > 3000
        assert found["topics"]["t"]["BytesOutPerSec"]["Count"] == 0
        assert found["MessagesInPerSec"]["Count"] == 31
        assert found["MessagesInPerSec"]["OneMinuteRate"] > 0
        assert len(list(log.scan("t").records())) == 30
        assert log.metrics()["topics"]["t"]["BytesOutPerSec"]["Count"] == sizes
        assert log.metrics()["topics"]["other"]["BytesOutPerSec"]["Count"] == 0


def test_a_waiting_reader_counts_what_it_reads(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        with (
            log.producer(linger_ms=0) as producer,
            log.consumer("t", auto_offset_reset="earliest") as consumer,
        ):
            for _ in range(3):  # the first read is a fetch, the later ones tail the log
                producer.send("t", b"x").result(PATIENT_S)
                assert len(consumer.poll(PATIENT_S)) == 1
        found = log.metrics()
        assert found["BytesOutPerSec"]["Count"] == found["BytesInPerSec"]["Count"] > 0


def test_totals_survive_a_writer_that_is_dropped(tmp_path: Path) -> None:
    # descriptors of two writers
    with embedlog.open(tmp_path, config=QUIET, max_open_files=32) as log:
        log.create_topic("t", 5)
        with log.producer(linger_ms=0) as producer:
            for number in range(10):
                producer.send("t", b"x", partition=number % 5).result(PATIENT_S)
        assert log.metrics()["topics"]["t"]["MessagesInPerSec"]["Count"] == 10


def test_a_log_has_offsets_and_segments(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t", config={"segment.bytes": "1000"})
        with log.producer(linger_ms=0) as producer:
            for _ in range(6):
                producer.send("t", b"x" * 400).result(PATIENT_S)
        log.delete_records({PLACE: 1})
        found = log.metrics()["partitions"][PLACE]
        assert (found["LogStartOffset"], found["LogEndOffset"], found["NumLogSegments"]) == (
            1,
            6,
            3,
        )
    with embedlog.open(tmp_path, config=QUIET) as log:  # not opened yet: the files show it
        again = log.metrics()["partitions"][PLACE]
        assert (again["NumLogSegments"], again["Size"]) == (found["NumLogSegments"], found["Size"])


def test_syncs_loads_and_compactions_are_timed(tmp_path: Path) -> None:
    settings = {
        "segment.bytes": "1000",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
    }
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t", config=settings)
        assert (
            log.metrics()["LogFlushRateAndTimeMs"]["Count"]
            == log.metrics()["LogCleanRateAndTimeMs"]["Count"]
            == 0
        )
        with log.producer(linger_ms=0) as producer:
            for _ in range(6):
                producer.send("t", b"x" * 400, key=b"k").result(PATIENT_S)
        log.flush()
        log.housekeep()
        found = log.metrics()
        assert found["LogFlushRateAndTimeMs"]["Count"] >= 1
        assert found["LogFlushRateAndTimeMs"]["Max"] > 0
        assert found["LogCleanRateAndTimeMs"]["Count"] == 1
        assert found["max-clean-time-secs"] > 0
        assert 0 < found["cleaner-recopy-percent"] < 100
        assert found["LogLoadRateAndTimeMs"]["Count"] >= 1
        assert found["RecoveredLogs"] == 0


def test_logs_that_were_not_closed_in_order_are_counted(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "a", config=QUIET) as log:
        log.create_topic("t", 2)
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"x", partition=0).result(PATIENT_S)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    with embedlog.open(tmp_path / "b", config=QUIET) as log:
        assert [record.value for record in log.scan("t").records()] == [b"x"]
        assert log.metrics()["RecoveredLogs"] == 1  # the other partition is empty


def test_the_lag_of_a_group(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        assert log.metrics()["groups"] == {}
        with log.producer(linger_ms=0) as producer:
            for _ in range(5):
                producer.send("t", b"x").result(PATIENT_S)
        with log.consumer(
            "t", group_id="g", enable_auto_commit=False, auto_offset_reset="earliest"
        ) as consumer:
            consumer.poll(PATIENT_S)
            consumer.commit({PLACE: embedlog.OffsetAndMetadata(2)})
        found = log.metrics()["groups"]["g"]
        assert (found["records-lag"], found["records-lag-max"], found["members"]) == (3, 3, 0)
        assert found["partitions"] == {PLACE: {"records-lag": 3}}


def test_copies_of_followers_are_no_appends(tmp_path: Path) -> None:
    with embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)], config=QUIET) as log:
        log.create_topic("t", replication_factor=3)
        with log.producer(linger_ms=0) as producer:
            for _ in range(4):
                producer.send("t", b"x" * 50).result(PATIENT_S)
        found = log.metrics()
        assert found["topics"]["t"]["MessagesInPerSec"]["Count"] == 4
        assert found["partitions"][PLACE]["LogEndOffset"] == 4
        assert found["partitions"][PLACE]["Size"] == found["topics"]["t"]["BytesInPerSec"]["Count"]
        assert found["OfflineLogDirectoryCount"] == 0


def test_without_a_majority_no_lag_of_groups_is_read(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        log.reset_group_offsets("g", ["t"], to="earliest")
        assert set(report(log._engine, log.replicas())["groups"]) == {"g"}
        assert report(log._engine, replace(log.replicas(), can_decide=False))["groups"] == {}


def test_waits_for_the_append_lock_of_another_process_are_timed(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log, log.producer(linger_ms=0) as producer:
        log.create_topic("t")
        producer.send("t", b"x").result(PATIENT_S)
        assert log.metrics()["AppendLockWaitRateAndTimeMs"]["Count"] == 0
        [directory] = log._engine.directories
        writer = directory.partitions["t", 0].direct_target.writer
        assert writer is not None
        with (tmp_path / "t-0" / file_names.LOCK).open("rb+") as held:
            assert system.lock_try(held.fileno(), True) == 0
            sent = producer.send("t", b"y")
            wait_until(lambda: writer.raw.lock_waited_ns > 0)
        sent.result(PATIENT_S)
        found = log.metrics()["AppendLockWaitRateAndTimeMs"]
        assert found["Count"] == 1
        # the mean is of the whole wait, which had several parts
        assert 0 < found["Max"] <= found["Mean"]
        assert log.metrics()["AppendLockWaitRateAndTimeMs"]["Max"] == found["Max"]


def test_groups_are_left_out_while_their_last_decisions_wait_for_more_replicas() -> None:
    """A read of them would wait for `lock.timeout.ms`."""
    copies = (ReplicaDescription(1, "", log_end=7), ReplicaDescription(2, "", log_end=9))
    each = ReplicatedPartitionDescription(
        "__consumer_offsets",
        3,
        "OnlinePartition",
        1,
        4,
        5,
        (1, 2, 3),
        (1,),
        min_in_sync=2,
        high_watermark=6,
        copies=copies,
    )
    assert _would_wait(each)
    assert not _would_wait(replace(each, high_watermark=7))
    assert not _would_wait(replace(each, isr=(1, 2)))
    assert _would_wait(replace(each, high_watermark=None))
    assert _would_wait(replace(each, state="OfflinePartition", leader=-1))
