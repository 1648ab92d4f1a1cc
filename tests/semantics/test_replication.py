"""Worked examples of Kafka's replication, with their numbers: high watermark, acks, leader epochs,
truncation, quorums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import (
    LogTruncationError,
    NotEnoughDirectoriesError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
)
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import LeaderDecision, Leading
from embedlog.replicas.partition.copying import copy
from embedlog.replicas.partition.leader import Leader
from embedlog.storage.checkpoints import EpochCache, read_epochs
from tests.support.decision_logs import Process as Decider
from tests.support.decision_logs import begun
from tests.support.replica_logs import lead, replica
from tests.support.replica_moves import opened
from tests.support.replica_partitions import a_set
from tests.support.stamped_batches import run_of

# slots of the directories
A = 0
B = 1
C = 2


def far() -> int:
    return system.boot_ns() + 30_000_000_000


@contextmanager
def replicas(path: Path, count: int = 3) -> Iterator[list[Partition]]:
    with ExitStack() as stack:
        yield [stack.enter_context(replica(path / str(slot), slot)) for slot in range(count)]


def append(partition: Partition, count: int) -> None:
    for _ in range(count):
        partition.append(run_of(b"value"))


def commit(leader: Partition, *followers: tuple[int, Partition]) -> int:
    return leader.replica.commit(
        [(slot, each.replica) for slot, each in followers], leader.published().epoch
    )


# ---- ISR and high watermark ------------------------------------------------------------------------------------------


@contextmanager
def ends_19_12_15(path: Path) -> Iterator[list[Partition]]:
    """The leader with log end 19, and followers with 12 and 15, all of them in the ISR."""
    with replicas(path) as (one, two, other):
        lead(one, 1, 0b111)
        append(one, 12)
        copy(Leader(1, one, 1), two, 12, far())
        append(one, 3)
        copy(Leader(1, one, 1), other, 15, far())
        append(one, 4)
        assert [each.published().log_end for each in (one, two, other)] == [19, 12, 15]
        yield [one, two, other]


def test_isr_the_high_watermark_is_the_least_log_end_of_it(tmp_path: Path) -> None:
    with ends_19_12_15(tmp_path) as (one, two, other):
        assert commit(one, (B, two), (C, other)) == 12
        assert one.replica.lead(LeaderDecision(0, 1, 2, 0b101, 1)), (
            "the follower with 12 leaves the ISR"
        )
        assert commit(one, (C, other)) == 15


def test_visible_bound_a_reader_ends_at_the_high_watermark_and_a_position_at_the_log_end(
    tmp_path: Path,
) -> None:
    with ends_19_12_15(tmp_path) as (one, two, other):
        commit(one, (B, two), (C, other))
        assert one.fetch(0).next_offset == 12
        for offset in (12, 15, 19):
            assert not len(one.fetch(offset).batches)
        with pytest.raises(OffsetOutOfRangeError):
            one.fetch(20)


def test_high_watermark_stands_still_while_the_isr_is_below_the_effective_minimum(
    tmp_path: Path,
) -> None:
    """RF 3, minimum 2, ISR 1 2 3: then 3 is lost, then 2, then 2 returns."""
    with a_set(tmp_path, min_insync_replicas="2") as (decisions, [process]):
        process.partition.append(run_of(b"0"))
        assert (decisions.partition.isr, process.partition.bounds().high_watermark) == (
            (1, 2, 3),
            1,
        )
        process.partition.append(run_of(b"1"), all_in_sync=False)
        assert (process.partition.bounds().log_end, process.partition.bounds().high_watermark) == (
            2,
            1,
        )
        process.disks[3].broken = True
        process.partition.append(run_of(b"2"))
        assert (decisions.partition.isr, process.partition.bounds().high_watermark) == ((1, 2), 3)
        process.disks[2].broken = True
        with pytest.raises(NotEnoughReplicasAfterAppendError) as after:
            process.partition.append(run_of(b"3"))
        assert (decisions.partition.isr, decisions.partition.elr, after.value.offset) == (
            (1,),
            (2,),
            3,
        )
        with pytest.raises(NotEnoughReplicasError) as before:
            process.partition.append(run_of(b"4"))
        assert (before.value.isr, before.value.required) == ([1], 2)
        assert process.partition.append(run_of(b"4"), all_in_sync=False).base_offset == 4, (
            "acks=1 is accepted"
        )
        assert (process.partition.bounds().log_end, process.partition.bounds().high_watermark) == (
            5,
            3,
        )
        process.disks[2].broken = False
        process.forgive()
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 2, far()
        )
        process.replicas.tend(far())
        assert (decisions.partition.elr, process.partition.bounds().high_watermark) == ((), 5)


def test_pending_growth_counts_for_the_high_watermark_before_it_is_decided(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        lead(one, 1)
        append(one, 2)
        assert commit(one) == 2
        copy(Leader(1, one, 1), two, 2, far())
        assert one.replica.join(two.replica, B, 1, 1)
        append(one, 1)
        assert commit(one, (B, two)) == 2, "the maximal ISR has the new member"
        copy(Leader(1, one, 1), two, 3, far())
        assert commit(one, (B, two)) == 3


def test_a_replica_joins_a_durable_topic_after_its_sync(tmp_path: Path) -> None:
    """Else a power loss costs it records that were acknowledged before it joined."""
    with (
        replica(tmp_path / "1", A, {"flush.messages": 1}) as one,
        replica(tmp_path / "2", B, {"flush.messages": 1}) as two,
    ):
        lead(one, 1)
        append(one, 2)
        one.sync()
        assert commit(one) == 2
        two.replica.follow(1, 1, one.epoch_end)
        fetched = one.replica.read(0)
        with two.replica.exclusive() as held:
            assert held.take(fetched.data, fetched.batches, Leading(2, 1))
        assert (two.published().log_end, two.durable_offset) == (2, 0)
        assert not one.replica.join(two.replica, B, 1, 1)
        two.sync()
        assert one.replica.join(two.replica, B, 1, 1)


def test_checkpoint_after_an_orderly_close_a_leader_starts_with_the_stored_high_watermark(
    tmp_path: Path,
) -> None:
    with replica(tmp_path, A) as one:
        lead(one, 1, 0b111)
        append(one, 3)
        with one.replica.exclusive() as held:
            held.publish(held.published._replace(high_watermark=2), held.replica)
    stored = (tmp_path / "replication-offset-checkpoint").read_text().split()
    assert stored[2:] == ["t", "0", "2"]
    with replica(tmp_path, A) as one:
        assert one.replica.lead(LeaderDecision(0, 2, 2, 0b111, 1))
        assert (one.published().high_watermark, one.published().log_end) == (2, 3)


# ---- leader epochs and truncation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(7, (7, 200)), (8, (-1, -1)), (1, (1, 40)), (3, (2, 90)), (5, (5, 120)), (6, (5, 120))],
    ids=["latest", "higher", "below the first", "unknown", "known", "between"],
)
def test_end_offset_for_epoch(asked: int, answer: tuple[int, int]) -> None:
    epochs = EpochCache([(2, 40), (5, 90), (7, 120)])
    assert epochs.end_offset(asked, 200) == answer
    assert EpochCache().end_offset(asked, 200) == (-1, -1)


def test_truncation_a_returning_leader_cuts_its_tail_where_the_epochs_part(tmp_path: Path) -> None:
    """A wrote 0 to 9 in epoch 0, of which B has 0 to 7. B leads epoch 1 from 8, and writes 8 to 11.
    Then A returns.
    """
    with replicas(tmp_path, 2) as (a, b):
        lead(a, 0, 0b11)
        append(a, 8)
        copy(Leader(1, a, 0), b, 8, far())
        append(a, 2)
        assert (a.published().log_end, b.published().log_end) == (10, 8)
        assert b.replica.lead(LeaderDecision(2, 1, 1, 0b10, 1))
        b.replica.require(1, all_in_sync=False)
        append(b, 4)
        assert commit(b) == 12
        assert b.epoch_end(0) == (0, 8)
        assert a.replica.follow(2, 1, b.epoch_end) == 8, "it is cut to 8"
        assert not b.replica.join(a.replica, A, 1, 1), "its log end is below the high watermark"
        assert copy(Leader(2, b, 1), a, 12, far()) == 12
        assert read_epochs(a.path / "leader-epoch-checkpoint").entries == [(0, 0), (1, 8)]
        assert b.replica.join(a.replica, A, 1, 1)


# ---- quorums ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failures", "voters"), [(1, 3), (2, 5)])
def test_n_failures_are_survived_by_a_majority_of_2n_plus_1(
    tmp_path: Path, failures: int, voters: int
) -> None:
    """An ISR survives n failures with n + 1 copies
    (`test_n_failures_are_survived_by_n_plus_one_members`).
    """
    every = range(1, voters + 1)
    begun(tmp_path, every)
    with Decider(tmp_path, range(1, voters - failures + 1), voters=every) as process:
        process.decide(2)
    with (
        Decider(tmp_path, range(1, voters - failures), voters=every) as process,
        pytest.raises(NotEnoughDirectoriesError),
    ):
        process.decide(3)


# ---- topics and consumers --------------------------------------------------------------------------------------------


def test_deletion_a_directory_that_was_away_removes_the_topic_and_the_name_is_free_at_once(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer() as producer:
            producer.send("t", b"of the deleted topic").result(20)
        (tmp_path / "d3").rename(tmp_path / "away")
        log.delete_topic("t")
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer() as producer:
            producer.send("t", b"of the new topic").result(20)
    (tmp_path / "away").rename(tmp_path / "d3")
    with opened(tmp_path) as log:
        log.housekeep()
        assert sorted(log.replicas("t").partitions[0].isr) == [1, 2, 3]
    with embedlog.open(tmp_path / "d3", read_only=True) as alone:
        assert [record.value for record in alone.scan("t").records()] == [b"of the new topic"]


def test_a_consumer_finds_the_truncation_of_an_unclean_election(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2]})
        with log.producer() as producer:
            producer.send("t", b"in both").result(20)
        with log.consumer("t", auto_offset_reset="none") as consumer:
            consumer.seek(embedlog.TopicPartition("t", 0), 0)
            assert [record.value for record in consumer.poll(5)] == [b"in both"]
            (tmp_path / "d2").rename(tmp_path / "away")
            with log.producer() as producer:
                producer.send("t", b"in one").result(20)
            assert [record.value for record in consumer.poll(5)] == [b"in one"]
            (tmp_path / "away").rename(tmp_path / "d2")
            log._engine.set.members.tend(by_hand=True)  # type: ignore[attr-defined]
            assert log.elect("t", 0, unclean=True, node=2) == {embedlog.TopicPartition("t", 0): 2}
            with log.producer() as producer:
                producer.send("t", b"another").result(20)
                producer.send("t", b"and one more").result(20)
            with pytest.raises(LogTruncationError) as cut:
                consumer.poll(5)
            assert (cut.value.offset, cut.value.diverging and cut.value.diverging.offset) == (2, 1)
