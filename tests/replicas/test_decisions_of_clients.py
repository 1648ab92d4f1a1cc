"""Decisions about transactions and groups in replicated internal topics: made at the log end, acted
on after their commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import LeaderNotAvailableError, NotEnoughReplicasAfterAppendError
from embedlog.partition.log_context import AppendProgress
from embedlog.partition.partition import Partition
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition
from tests.support.replica_moves import failing, opened, partition_of, values
from tests.support.replica_partitions import a_set
from tests.support.stamped_batches import run_of
from tests.support.transactional_producers import begun
from tests.support.transactional_producers import committed as read_committed


def test_a_decision_sees_records_that_are_not_committed(tmp_path: Path) -> None:
    with a_set(tmp_path, processes=2) as (_, [process, other]):
        process.partition.append(
            run_of(b"of a process that was killed before the commit"), all_in_sync=False
        )
        assert not len(other.partition.fetch(0).batches)
        with other.partition.exclusive():
            assert other.partition.fetch(0).next_offset == 1
        assert other.partition.fetch(0).next_offset == other.partition.bounds().high_watermark == 1


def test_the_files_of_a_held_leader_are_read_from_the_committed_start_of_its_epoch_on(
    tmp_path: Path,
) -> None:
    """Before, its high watermark can be below decisions of an earlier epoch, which other processes
    have acted on.
    """
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        assert process.partition.held_replica() is None
        with process.partition.exclusive() as held:
            assert process.partition.held_replica() is not None
            now, replica = held.read_page()
            held.publish(now, replica._replace(epoch_start=now.high_watermark + 1))
            with pytest.raises(LeaderNotAvailableError, match="start of its epoch"):
                process.partition.held_replica()
            held.publish(now, replica)


def test_a_reader_of_decisions_waits_for_their_commit(tmp_path: Path) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"), all_in_sync=False)
        assert process.partition.confirm(1, 0)
        assert process.partition.bounds().high_watermark == 1
        assert process.published(2).log_end == process.published(3).log_end == 1


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_registration_is_committed_before_the_first_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    with opened(tmp_path, transaction_state_log_num_partitions=1) as log:
        log.create_topic("t", partitions, replication_factor=3)
        appended = list[tuple[int, int]]()
        append = ReplicatedPartition.append

        def watched(self: ReplicatedPartition, *arguments: Any, **options: Any) -> Any:
            if self.topic == "t":
                bounds = log._engine.partition("__transaction_state", 0).bounds()
                appended.append((bounds.high_watermark, bounds.log_end))
            return append(self, *arguments, **options)

        monkeypatch.setattr(ReplicatedPartition, "append", watched)
        with log.producer(transactional_id="x", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(6):
                producer.send("t", b"%d" % number, partition=number % partitions)
            producer.commit_transaction()
        assert appended
        assert all(high_watermark == log_end for high_watermark, log_end in appended), appended
        assert len(values(log)) == 6


INTERNAL = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}


@pytest.mark.parametrize("offsets", [False, True])
def test_a_registration_that_was_not_committed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offsets: bool
) -> None:
    """The first attempt ended before the commit. The next one finds the registration, and must not
    write at once.
    """
    group = embedlog.GroupMetadata("g")
    place = embedlog.TopicPartition("t", 0)
    with opened(tmp_path, **INTERNAL) as log:
        log.create_topic("t", replication_factor=3)
        appended = list[tuple[int, int]]()
        failures = list[int]()
        append = Partition.append
        committed = ReplicatedPartition._wait_for_commit
        append_held = ReplicatedPartition.append_held

        def ends() -> None:
            bounds = log._engine.partition("__transaction_state", 0).bounds()
            appended.append((bounds.high_watermark, bounds.log_end))

        def watched(self: Partition, *arguments: Any, **options: Any) -> Any:
            if self.topic == "t":
                ends()
            return append(self, *arguments, **options)

        def watched_offsets(self: ReplicatedPartition, batch: bytes, stamp: Any = None) -> Any:
            if stamp is not None:
                ends()
            return append_held(self, batch, stamp)

        def failing_once(self: ReplicatedPartition, *arguments: Any, **options: Any) -> None:
            if self.topic == "__transaction_state" and not failures:
                failures.append(1)
                raise LeaderNotAvailableError("not committed before the deadline")
            committed(self, *arguments, **options)

        with log.producer(transactional_id="x", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            monkeypatch.setattr(Partition, "append", watched)
            monkeypatch.setattr(ReplicatedPartition, "append_held", watched_offsets)
            monkeypatch.setattr(ReplicatedPartition, "_wait_for_commit", failing_once)
            if offsets:
                producer.send_offsets_to_transaction({place: 0}, group)
            else:
                producer.send("t", b"v").result(20)
            producer.commit_transaction()
        assert failures
        assert appended
        assert all(high_watermark == log_end for high_watermark, log_end in appended), appended


def test_several_partitions_wait_for_a_registration_that_was_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, for partitions that are begun together: the second attempt finds all of them
    registered.
    """
    with opened(tmp_path, **INTERNAL) as log:
        log.create_topic("t", 2, replication_factor=3)
        writer = begun(log)
        state = log._engine.partition("__transaction_state", 0)
        committed = ReplicatedPartition._wait_for_commit
        failures = list[int]()

        def failing_once(self: ReplicatedPartition, *arguments: Any, **options: Any) -> None:
            if self.topic == "__transaction_state" and not failures:
                failures.append(1)
                raise LeaderNotAvailableError("not committed before the deadline")
            committed(self, *arguments, **options)

        monkeypatch.setattr(ReplicatedPartition, "_wait_for_commit", failing_once)
        runs = [
            (log._engine.partition("t", number), writer.prepare(b"v", partition=number))
            for number in (0, 1)
        ]
        attempts = [(partition, run, AppendProgress(run)) for partition, run in runs]
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            writer.owner.begin_in(attempts)
        bounds = state.bounds()
        assert bounds.high_watermark < bounds.log_end
        writer.owner.begin_in(attempts)
        for partition, run, progress in attempts:
            assert not partition.bounds().log_end, "written before the commit of the registration"
            writer.owner.append(partition, run, progress=progress)
            assert state.bounds().high_watermark == bounds.log_end
        writer.commit()
        assert read_committed(log) == [b"v", b"v"]


def leader_of(log: embedlog.Log, topic: str) -> int:
    return partition_of(log, embedlog.TopicPartition(topic, 0)).leader


@pytest.mark.parametrize("nth", [1, 2])
def test_decisions_of_a_group_continue_at_the_next_leader(tmp_path: Path, nth: int) -> None:
    """The directory of the leader fails in an append of a join and of a commit."""
    with opened(tmp_path, **INTERNAL) as log:
        log.create_topic("t", replication_factor=3)
        with log.producer() as producer:
            producer.send("t", b"v").result(20)
        with log.consumer("t", group_id="other", auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(20)) == 1
        failed = set()
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            for step in (lambda: consumer.poll(20), consumer.commit):
                failed.add(node := leader_of(log, "__consumer_offsets"))
                with failing(("pwrite",), nth=nth, name=f"/d{node}/__consumer_offsets") as struck:
                    step()
                if nth == 1:
                    assert struck.count == 1
                    assert leader_of(log, "__consumer_offsets") != node
                for _ in range(3):
                    log.housekeep()
        assert log.group_offsets("g")[embedlog.TopicPartition("t", 0)].offset == 1
        assert failed


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("begun", [False, True])
def test_decisions_of_a_transaction_continue_at_the_next_leader(
    tmp_path: Path, nth: int, begun: bool
) -> None:
    with opened(tmp_path, **INTERNAL) as log:
        log.create_topic("t", replication_factor=3)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            if begun:
                producer.send("t", b"v").result(20)
            node = leader_of(log, "__transaction_state")
            with failing(("pwrite",), nth=nth, name=f"/d{node}/__transaction_state"):
                if not begun:
                    producer.send("t", b"v").result(20)
                producer.commit_transaction()
            producer.begin_transaction()
            producer.send("t", b"w").result(20)
            producer.commit_transaction()
        with log.consumer(
            "t",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            consumer_timeout_ms=300,
        ) as consumer:
            assert [record.value for record in consumer] == [b"v", b"w"]
