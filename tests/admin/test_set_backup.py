"""Backups of sets: every partition from its leader up to the high watermark, also while a directory
fails; else an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.admin import backup
from embedlog.errors import (
    EmbedlogError,
    ForeignDirectoryError,
    LeaderNotAvailableError,
    ReplicaSetError,
    StorageError,
)
from embedlog.partition import pinned_segments
from embedlog.partition.partition import Partition
from embedlog.partition.pinned_segments import Pin
from embedlog.replicas.rules.events import RaiseEpoch
from embedlog.storage import file_names
from tests.faults.harness.processes import until
from tests.support.backups import KEPT, QUIET
from tests.support.changes_during_copies import deleting
from tests.support.opened_sets import paths

SHORT = {**QUIET, "lock.timeout.ms": 2000}
STATE = "__transaction_state"


def opened(root: Path, count: int = 3, *, read_only: bool = False) -> embedlog.Log:
    return embedlog.open(paths(root, count), config=SHORT, read_only=read_only)


def fill(
    log: embedlog.Log, topic: str, count: int = 60, *, acks: Literal[1, "all"] = "all"
) -> None:
    """Records in batches of about four, in all partitions of a topic."""
    with log.producer(linger_ms=0, batch_size=300, acks=acks) as producer:
        for number in range(count):
            partition = number % len(log.describe_topic(topic).partitions) if number < 8 else None
            producer.send(
                topic,
                b"value %d" % number,
                b"k%d" % (number % 20),
                partition=partition,
                timestamp_ms=1000 + number,
            )


def rows(log: embedlog.Log) -> dict[str, list[tuple[object, ...]]]:
    return {
        topic: sorted(
            (r.partition, r.offset, r.leader_epoch, r.key, r.value)
            for r in log.scan(topic).records()
        )
        for topic in log.topics()
    }


def checked(copy: Path) -> dict[str, list[tuple[object, ...]]]:
    """The records of a copy, which opens for readers and for writers without a finding."""
    for read_only in (True, False):
        with embedlog.open(copy, read_only=read_only, create=False, config=QUIET) as log:
            report = log.check()
            assert not report.findings, report
            found = rows(log)
    return found


def test_each_partition_is_copied_wherever_its_replicas_are(tmp_path: Path) -> None:
    with opened(tmp_path, 4) as log:
        log.create_topic(
            "single", assignment={0: [3], 1: [1], 2: [2]}, config={**KEPT, "retention.ms": 10**12}
        )
        log.create_topic("elsewhere", assignment={0: [2, 3]})
        log.create_topic("three", assignment={0: [2, 3, 4], 1: [4, 1, 2]})
        log.create_topic("empty", replication_factor=2)
        for topic in ("single", "elsewhere", "three"):
            fill(log, topic)
        log.delete_records({TopicPartition("single", 0): 7})
        expected = rows(log)
        described = {topic: log.describe_topic(topic) for topic in log.topics()}
        log.backup(tmp_path / "copy")
    with opened(tmp_path, 4, read_only=True) as log:
        log.backup(tmp_path / "reader")
    for name in ("copy", "reader"):
        assert checked(tmp_path / name) == expected
        with embedlog.open(tmp_path / name) as copy:
            for topic, before in described.items():
                after = copy.describe_topic(topic)
                assert (after.topic_id, dict(after.config)) == (
                    before.topic_id,
                    dict(before.config),
                )
                offsets = [
                    (each.log_start_offset, each.high_watermark) for each in after.partitions
                ]
                assert offsets == [
                    (each.log_start_offset, each.high_watermark) for each in before.partitions
                ]


def test_the_copy_is_no_member_of_the_set(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", replication_factor=3)
        fill(log, "t", 5)
        log.backup(tmp_path / "copy")
        names = {path.name for path in (tmp_path / "copy").iterdir()}
        assert not {file_names.REPLICAS, "__replica_state-0"} & names
        with pytest.raises(ReplicaSetError):
            log.add_directory(tmp_path / "copy")
    with embedlog.open(tmp_path / "copy") as copy:
        assert not copy._engine.replicated
        fill(copy, "t", 3)
    with embedlog.open([tmp_path / "copy", *paths(tmp_path)[1:]], config=SHORT) as log:
        assert {str(each.path) for each in log.replicas().directories if each.answers} == set(
            map(str, paths(tmp_path))
        )


def test_records_of_a_directory_that_was_away_are_copied_from_the_leader(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, min_insync_replicas=2)
        fill(log, "t", 20)
    paths(tmp_path)[0].rename(tmp_path / "away")
    with opened(tmp_path) as log:
        log.create_topic("later", assignment={0: [2, 3]})
        fill(log, "later", 10)
        fill(log, "t", 30)
        expected = rows(log)
    (tmp_path / "away").rename(paths(tmp_path)[0])
    for read_only in (True, False):
        with opened(tmp_path, read_only=read_only) as log:
            log.backup(tmp_path / f"copy-{read_only}")
        assert checked(tmp_path / f"copy-{read_only}") == expected
    assert len(expected["t"]) == 50


def test_records_that_are_not_committed_are_left_out(tmp_path: Path) -> None:
    """The copy has what readers can have; of a transaction that is not committed, the records
    without the marker.
    """
    with opened(tmp_path) as log:
        log.create_topic(
            "t", assignment={0: [1, 2, 3]}, config={**KEPT, "min.insync.replicas": "2"}
        )
        fill(log, "t", 20)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"of a transaction")
            producer.abort_transaction()
        expected = rows(log)
        for path in paths(tmp_path)[1:]:
            path.rename(path.with_suffix(".away"))
        fill(log, "t", 40, acks=1)
        bounds = log._engine.partition("t", 0).bounds()
        assert bounds.log_end > bounds.high_watermark
        with opened(tmp_path, read_only=True) as reader:
            reader.backup(tmp_path / "copy")
        for path in paths(tmp_path)[1:]:
            path.with_suffix(".away").rename(path)
    found = checked(tmp_path / "copy")
    assert found == expected
    with embedlog.open(tmp_path / "copy", config=QUIET) as copy:
        assert copy._engine.partition("t", 0).bounds().log_end == bounds.high_watermark
        fill(copy, "t", 5, acks=1)
        assert len(rows(copy)["t"]) == len(expected["t"]) + 5


@pytest.mark.parametrize("how", ["renamed", "removed", "pread", "open"])
def test_a_directory_that_fails_during_the_backup_costs_no_record(tmp_path: Path, how: str) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3], 1: [2, 3, 1]}, config=KEPT)
        fill(log, "t", 200)
        expected = rows(log)
        calls = list[int]()
        home = paths(tmp_path)[0]

        def fail(done: int, total: int) -> None:
            calls.append(done)
            if len(calls) == 2 and how == "renamed":
                home.rename(tmp_path / "away")
            elif len(calls) == 2 and how == "removed":
                shutil.rmtree(home)
            elif len(calls) == 2:
                system.fault_arm((how,), 1, "fail", errno.EIO, name="d1/t-0/")

        log.backup(tmp_path / "copy", progress=fail)
        system.fault_off()
        assert checked(tmp_path / "copy") == expected
        if how == "renamed":
            (tmp_path / "away").rename(home)


def test_the_only_replica_that_fails_is_an_error_that_names_the_partition(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1], 1: [2]}, config=KEPT)
        fill(log, "t", 100)
        lost = paths(tmp_path)[1]
        with pytest.raises(EmbedlogError, match="t-1"):
            log.backup(
                tmp_path / "copy",
                progress=lambda done, total: lost.exists() and lost.rename(tmp_path / "away"),
            )
        assert not (tmp_path / "copy").exists()
    with opened(tmp_path) as log, pytest.raises(LeaderNotAvailableError, match="t-1"):
        log.backup(tmp_path / "copy")
    with (
        opened(tmp_path, read_only=True) as log,
        pytest.raises(LeaderNotAvailableError, match="t-1"),
    ):
        log.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_damage_of_a_leader_is_copied_from_another_replica(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config=KEPT)
        fill(log, "t", 100)
        expected = rows(log)
        damaged = sorted((paths(tmp_path)[0] / "t-0").glob("*.log"))[1]
        data = bytearray(damaged.read_bytes())
        data[70] ^= 0x10
        damaged.write_bytes(data)
        log.backup(tmp_path / "copy")
    assert checked(tmp_path / "copy") == expected


@pytest.mark.parametrize("read_only", [False, True])
def test_the_leader_may_change_during_the_backup(tmp_path: Path, read_only: bool) -> None:
    with opened(tmp_path) as log, opened(tmp_path, read_only=read_only) as copier:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config=KEPT)
        fill(log, "t", 60)
        expected = rows(log)
        calls = list[int]()

        def change(done: int, total: int) -> None:
            calls.append(done)
            if len(calls) == 2:
                log.reassign({TopicPartition("t", 0): [2, 3]})
                while log.reassignments():
                    log.housekeep()
                log.housekeep()

        copier.backup(tmp_path / "copy", progress=change)
    found = checked(tmp_path / "copy")
    assert found == expected


def test_a_topic_that_is_deleted_during_the_backup_is_left_out(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for topic in ("a", "b"):
            log.create_topic(topic, assignment={0: [2], 1: [3]}, config=KEPT)
            fill(log, topic)
        expected = rows(log)["b"]
        log.backup(tmp_path / "copy", progress=deleting(log, "a"))
    assert not list((tmp_path / "copy").glob("a-*"))
    assert checked(tmp_path / "copy") == {"b": expected}


def test_groups_continue_in_the_copy(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [2, 3]})
        fill(log, "t", 12)
        with log.consumer(
            "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            while sum(1 for _ in consumer.poll(1)) == 0:
                pass
            consumer.seek(TopicPartition("t", 0), 5)
            consumer.commit()
        log.backup(tmp_path / "copy")
    with embedlog.open(tmp_path / "copy") as copy:
        with copy.consumer(
            "t", group_id="g", consumer_timeout_ms=2000, enable_auto_commit=False
        ) as consumer:
            assert [record.offset for record in consumer] == list(range(5, 12))
            consumer.commit()
        assert copy.describe_group("g").lag == 0


def test_a_replica_that_lacks_pinned_records_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader without a process that writes may find an older replica after the first one has
    failed.
    """
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config=KEPT)
        fill(log, "t", 40)
    first = list[Pin]()

    def pin_of(partition: Partition, **options: int) -> Pin:
        pin = pinned_segments.pin_of(partition, **options)  # type: ignore[arg-type]
        first.append(pin)
        return pin._replace(end=pin.end + 1) if len(first) == 2 else pin

    monkeypatch.setattr(backup, "pin_of", pin_of)
    with opened(tmp_path, read_only=True) as log:
        calls = list[int]()

        def fail(done: int, total: int) -> None:
            calls.append(done)
            if len(calls) == 1:
                system.fault_arm(("open",), 1, "fail", errno.EIO, name="d1/t-0/")

        with pytest.raises(EmbedlogError, match="t-0"):
            log.backup(tmp_path / "copy", progress=fail)
    assert not (tmp_path / "copy").exists()


def test_a_destination_inside_any_directory_of_the_set_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for path in paths(tmp_path):
            with pytest.raises(ForeignDirectoryError):
                log.backup(path / "inside")
            assert not (path / "inside").exists()


def test_a_partition_directory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """The topic exists: a copy without it would not be complete."""
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", 2, config=KEPT)
        fill(log, "t", 20)
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        shutil.rmtree(tmp_path / "log" / "t-1")
        with pytest.raises((EmbedlogError, StorageError)) as problem:
            log.backup(tmp_path / "copy")
        assert "t-1" in str(problem.value)
    assert not os.path.exists(tmp_path / "copy")


# ---- transactions while leaders change -----------------------------------------------------------


@contextlib.contextmanager
def in_a_transaction(root: Path) -> Iterator[tuple[embedlog.Log, embedlog.Log, Any]]:
    """Two logs, and a producer of the second one with a record in each partition of t, led beside
    the one of the decisions.
    """
    one = {**SHORT, "transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    with (
        embedlog.open(paths(root), config=one) as log,
        embedlog.open(paths(root), config=one) as other,
        other.producer(transactional_id="x", linger_ms=0) as producer,
    ):
        producer.init_transactions()
        order = [node for node in (1, 2, 3) if node != leader_of(log)] + [leader_of(log)]
        log.create_topic("t", assignment={0: order, 1: order}, config={"min.insync.replicas": "2"})
        producer.begin_transaction()
        for number in range(2):
            producer.send("t", b"x", partition=number).result()
        yield log, other, producer


def leader_of(log: embedlog.Log) -> int:
    leader = log.replicas(STATE).partitions[0].leader
    assert leader is not None
    return leader


def raise_epoch(log: embedlog.Log) -> None:
    """Decide that the leader of the decisions about transactions leads in a later epoch."""
    partition_id = log._engine.partition(STATE, 0).partition_id  # type: ignore[attr-defined]
    decisions = log._engine.set.decisions  # type: ignore[attr-defined]
    decisions.decide(
        lambda state: RaiseEpoch(partition_id, state.partitions[partition_id].leader_epoch + 1)
    )


def under_the_locks(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, call: Callable[[int], None]
) -> list[int]:
    """Call at the begin of each round of pins, with its number; the first look at the topics is
    before the locks.
    """
    rounds = list[int]()
    names = log._engine.topic_names

    def topic_names() -> list[str]:
        rounds.append(len(rounds))
        if rounds[-1]:
            call(rounds[-1])
        return names()

    monkeypatch.setattr(log._engine, "topic_names", topic_names)
    return rounds


def committed(copy: Path) -> list[int]:
    """The partitions of t with a record for readers of committed ones, after open transactions were
    ended.
    """
    with embedlog.open(copy, config=QUIET) as log:
        log.housekeep()
        return sorted(
            record.partition for record in log.scan("t", isolation_level="read_committed").records()
        )


def test_a_failover_between_two_pins_tears_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is decided at the next leader: the lock that the backup holds keeps nothing
    back.
    """
    with in_a_transaction(tmp_path) as (log, _, producer):
        lost = paths(tmp_path)[leader_of(log) - 1]
        pins = list[int]()

        def pin_of(partition: Partition, **options: Any) -> Pin:
            if (partition.topic, partition.number) == ("t", 1):
                pins.append(1)
                if len(pins) == 2:  # the first one is before the locks
                    lost.rename(tmp_path / "away")
                    producer.commit_transaction()
                    (tmp_path / "away").rename(lost)
            return pinned_segments.pin_of(partition, **options)

        monkeypatch.setattr(backup, "pin_of", pin_of)
        log.backup(tmp_path / "copy")
        assert len(pins) == 3
    assert committed(tmp_path / "copy") == [0, 1]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("slow", [False, True], ids=["", "longer than every wait"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_first_transaction_of_a_log_is_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, slow: bool
) -> None:
    """The topic of the decisions does not exist before it, and so no lock either.

    On a busy machine the creation of that topic took longer than `lock.timeout.ms`, and the backup
    gave up without a second try.
    """
    places: Any = paths(tmp_path) if count > 1 else tmp_path / "d1"
    one = {**SHORT, "transaction.state.log.num.partitions": 1}
    with embedlog.open(places, config=one) as log, embedlog.open(places, config=one) as other:
        log.create_topic("t", 2)
        pins = list[int]()

        def pin_of(partition: Partition, **options: Any) -> Pin:
            if (partition.topic, partition.number) == ("t", 1):
                pins.append(1)
                if len(pins) == 2:
                    end = system.boot_ns() + one["lock.timeout.ms"] * 1_000_000
                    transact(other)
                    until(
                        lambda: not slow or system.boot_ns() > end, "the end of the time for locks"
                    )
            return pinned_segments.pin_of(partition, **options)

        monkeypatch.setattr(backup, "pin_of", pin_of)
        log.backup(tmp_path / "copy")
        assert len(pins) == 3
    assert committed(tmp_path / "copy") == [0, 1]


def transact(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x", linger_ms=0) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(2):
            producer.send("t", b"x", partition=number)
        producer.commit_transaction()


def test_a_later_epoch_of_the_leader_under_the_locks_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page cannot show it before the locks are left: no look for the leader takes the lock of
    this thread again.
    """
    with in_a_transaction(tmp_path) as (log, other, producer):
        rounds = under_the_locks(
            log, monkeypatch, lambda number: raise_epoch(other) if number < 3 else None
        )
        log.backup(tmp_path / "copy")
        assert rounds == [0, 1, 2, 3]
        producer.commit_transaction()
        log.backup(tmp_path / "later")
    assert committed(tmp_path / "copy") == []
    assert committed(tmp_path / "later") == [0, 1]


def test_a_leader_that_changes_until_the_deadline_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_a_transaction(tmp_path) as (log, other, producer):
        rounds = under_the_locks(log, monkeypatch, lambda number: raise_epoch(other))
        with pytest.raises(LeaderNotAvailableError, match=STATE):
            log.backup(tmp_path / "copy")
        assert len(rounds) > 2
        producer.abort_transaction()
    assert not (tmp_path / "copy").exists()


def test_without_a_majority_only_a_reader_copies_transactions(tmp_path: Path) -> None:
    """Other processes may reach the other directories, and decide there."""
    one = {
        **SHORT,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
    }
    with embedlog.open(paths(tmp_path), config=one) as log:
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            log.create_topic("t", assignment={0: [leader_of(log)]})
            with producer.transaction():
                producer.send("t", b"x")
        others = [path for path in paths(tmp_path) if path != paths(tmp_path)[leader_of(log) - 1]]
        for path in others:
            path.rename(path.with_suffix(".away"))
        with pytest.raises(LeaderNotAvailableError, match=f"{STATE} are not known"):
            log.backup(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        with opened(tmp_path, read_only=True) as reader:
            reader.backup(tmp_path / "copy")
        for path in others:
            path.with_suffix(".away").rename(path)
    assert committed(tmp_path / "copy") == [0]
