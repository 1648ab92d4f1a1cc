"""A group's offsets within a transaction: pending until its marker, fenced by producer and by
group, waited for, helped out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.coordination.groups.group_coordinator import Groups
from embedlog.coordination.groups.offset_commits import OFFSETS_TOPIC
from embedlog.errors import (
    DeadlineError,
    FencedError,
    IllegalGenerationError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from embedlog.group import Group, Member, State
from embedlog.storage import files
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.faults.harness.processes import Nursery
from tests.support.mutants import mutated
from tests.support.transactional_producers import QUIET, TOPIC, Writer, begun, committed, soon

ONE = TopicPartition(TOPIC, 0)
TWO = TopicPartition(TOPIC, 1)
NO_MEMBER = GroupMetadata("g")
FIVE = OffsetAndMetadata(5)
SEVEN = OffsetAndMetadata(7)


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(path, config=QUIET) as opened:
        opened.create_topic(TOPIC, 3)
        yield opened


def stable(
    log: embedlog.Log, timeout_s: float = 20
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    return log._engine.groups.read_committed("g", None, files.deadline_after(timeout_s))


def with_member(groups: Groups, generation: int = 4, state: State = State.STABLE) -> GroupMetadata:
    """A group of one, as its records would have it."""
    member = Member("m", None, "c", "/h", 60_000, 45_000, (("range", b""),))
    groups.decide(
        "g", lambda old: Group("consumer", generation, "range", "m", state, 1, {"m": member})
    )
    return GroupMetadata("g", generation, "m")


# ---- pending, then committed or gone -------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_from_the_marker_on(
    log: embedlog.Log, other: embedlog.Log, commit: bool
) -> None:
    log._engine.groups.commit("g", {ONE: 1, TWO: 2})
    writer = begun(log)
    writer.write(b"a")
    writer.owner.add_offsets({ONE: OffsetAndMetadata(5, "note", 3)}, NO_MEMBER)
    writer.owner.add_offsets({TWO: 7}, NO_MEMBER)
    before = {ONE: OffsetAndMetadata(1), TWO: OffsetAndMetadata(2)}
    for each in (log, other):
        assert each._engine.groups.read_committed("g") == before
        view = each._engine.groups.entries("g")
        assert view is not None
        assert view.pending("g") == {ONE, TWO}
    (writer.commit if commit else writer.abort)()
    after = {ONE: OffsetAndMetadata(5, "note", 3), TWO: SEVEN} if commit else before
    assert stable(log) == stable(other) == after
    assert committed(other) == ([b"a"] if commit else [])


def test_offsets_alone_make_a_transaction(log: embedlog.Log, other: embedlog.Log) -> None:
    writer = begun(log)
    for turn in range(3):
        writer.owner.add_offsets({ONE: turn}, NO_MEMBER)
        writer.commit()
        assert stable(other) == {ONE: OffsetAndMetadata(turn)}
    writer.owner.add_offsets({}, NO_MEMBER)
    writer.commit()


def test_the_last_of_several_calls_counts(log: embedlog.Log, other: embedlog.Log) -> None:
    writer = begun(log)
    for offset in (9, 3, 6):
        writer.owner.add_offsets({ONE: offset}, NO_MEMBER)
    writer.commit()
    assert stable(other) == {ONE: OffsetAndMetadata(6)}


def test_a_plain_commit_behind_it_in_the_log_counts_more(
    log: embedlog.Log, other: embedlog.Log, path: Path
) -> None:
    """Compaction would keep the later record alone: the result must not depend on it."""
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5, TWO: 5}, NO_MEMBER)
    other._engine.groups.commit("g", {ONE: 7})
    writer.commit()
    assert stable(log) == stable(other) == {ONE: SEVEN, TWO: FIVE}
    with embedlog.open(path, read_only=True) as reader:
        assert stable(reader) == {ONE: SEVEN, TWO: FIVE}


def test_several_groups_and_owners_do_not_meet(log: embedlog.Log, other: embedlog.Log) -> None:
    one = begun(log, "one")
    two = begun(other, "two")
    for name in ("g", "h", "i"):
        one.owner.add_offsets({ONE: 5}, GroupMetadata(name))
        two.owner.add_offsets({TWO: 7}, GroupMetadata(name))
    two.commit()
    one.abort()
    for name in ("g", "h", "i"):
        assert log._engine.groups.read_committed(name, None, soon()) == {TWO: SEVEN}


def test_what_is_not_asked_for_is_not_waited_for(log: embedlog.Log) -> None:
    writer = begun(log)
    log._engine.groups.commit("g", {TWO: 7})
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    assert log._engine.groups.read_committed("g", [TWO], files.deadline_after(0)) == {TWO: SEVEN}
    assert log._engine.groups.read_committed("h", None, files.deadline_after(0)) == {}
    with pytest.raises(
        DeadlineError,
        match=r"UNSTABLE_OFFSET_COMMIT.*transactional id 'id'.*transaction\.timeout\.ms",
    ):
        log._engine.groups.read_committed("g", [ONE, TWO], files.deadline_after(0.05))
    writer.commit()


@pytest.mark.parametrize(
    "ask",
    [lambda consumer: consumer.committed(ONE), lambda consumer: consumer.position(ONE)],
    ids=["committed", "position"],
)
def test_who_waits_for_the_marker_can_be_woken(log: embedlog.Log, ask: Any) -> None:
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    with log.consumer(group_id="g") as consumer:
        consumer.assign([ONE])
        waits = threading.Event()
        wait = log._engine.wait
        log._engine.wait = lambda *given, **named: (waits.set(), wait(*given, **named))[1]  # type: ignore[method-assign]
        waker = threading.Thread(target=lambda: (waits.wait(20), consumer.wakeup()))
        waker.start()
        with pytest.raises(WakeupError):
            ask(consumer)
        waker.join()
        writer.commit()
        assert ask(consumer) in (5, {ONE: FIVE})


def test_who_asks_for_stable_offsets_waits_for_the_marker(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(stable(other)))
    thread.start()
    thread.join(0.2)
    assert not found
    writer.commit()
    thread.join(20)
    assert found == [{ONE: FIVE}]


def test_a_read_only_log_waits_and_gives_up(log: embedlog.Log, path: Path) -> None:
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    with embedlog.open(path, read_only=True) as reader:
        with pytest.raises(DeadlineError):
            stable(reader, 0.2)
        assert reader._engine.groups.read_committed("g") == {}
        writer.commit()
        assert stable(reader) == {ONE: FIVE}


# ---- owners that die -----------------------------------------------------------------------------


def test_a_dead_owner_keeps_nobody_waiting(log: embedlog.Log, other: embedlog.Log) -> None:
    log._engine.groups.commit("g", {ONE: 1})
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    writer.owner.close()
    assert stable(other) == {ONE: OffsetAndMetadata(1)}


def test_an_owner_killed_behind_its_decision_has_committed(
    log: embedlog.Log, nursery: Nursery, path: Path
) -> None:
    victim = nursery.spawn()
    victim.call("open", str(path), config=QUIET)
    victim.call("owner", "id")
    victim.call("add_offsets", "id", {ONE: 5}, NO_MEMBER)
    victim.arm(["point"], "kill_before", name="txn-decided")
    victim.start("end", "id", True)
    victim.wait_dead()
    assert stable(log) == {ONE: FIVE}


# ---- fencing ---------------------------------------------------------------------------------


def test_a_zombie_producer_adds_nothing(log: embedlog.Log, other: embedlog.Log) -> None:
    zombie = begun(log)
    zombie.owner.add_offsets({ONE: 5}, NO_MEMBER)
    heir = begun(other)
    for place in (ONE, TWO):
        with pytest.raises(FencedError):
            zombie.owner.add_offsets({place: 6}, NO_MEMBER)
    with pytest.raises(FencedError):
        zombie.owner.add_offsets({ONE: 6}, GroupMetadata("h"))
    heir.owner.add_offsets({TWO: 7}, NO_MEMBER)
    heir.commit()
    assert stable(log) == {TWO: SEVEN}


def test_a_member_that_lost_its_place_adds_nothing(log: embedlog.Log, other: embedlog.Log) -> None:
    member = with_member(other._engine.groups)
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, member)
    other._engine.groups.decide("g", lambda old: old and replace(old, generation=5))
    with pytest.raises(IllegalGenerationError):
        writer.owner.add_offsets({ONE: 6}, member)
    with pytest.raises(UnknownMemberError):
        writer.owner.add_offsets({ONE: 6}, GroupMetadata("g", 5, "stranger"))
    with pytest.raises(IllegalGenerationError, match="no such group"):
        writer.owner.add_offsets({ONE: 6}, GroupMetadata("h", 5, "m"))
    writer.commit()
    assert stable(log) == {ONE: FIVE}


def test_without_the_check_a_member_commits_what_it_read_before_the_group_went_on(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    """It is a member still, but of a generation in which the partition may be another's."""
    member = with_member(other._engine.groups)
    writer = begun(log)
    other._engine.groups.decide("g", lambda old: old and replace(old, generation=5))
    other._engine.groups.commit("g", {ONE: 7}, GroupMetadata("g", 5, "m"))
    with mutated("commit_of_any_generation"):
        writer.owner.add_offsets({ONE: 5}, member)
    writer.commit()
    assert stable(log) == {ONE: FIVE}


@pytest.mark.parametrize(
    "state", [State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE, State.STABLE]
)
def test_a_member_commits_within_a_transaction_in_every_phase(
    log: embedlog.Log, state: State
) -> None:
    member = with_member(log._engine.groups, state=state)
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, member)
    writer.commit()
    assert stable(log) == {ONE: FIVE}


def test_offsets_without_member_data_are_taken_unchecked(log: embedlog.Log) -> None:
    with_member(log._engine.groups)
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    writer.commit()
    assert stable(log) == {ONE: FIVE}


# ---- with their topic, with a power loss ---------------------------------------------------------


def test_a_deleted_topic_takes_pending_offsets_along(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    log.create_topic("kept")
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5, TopicPartition("kept", 0): 6}, NO_MEMBER)
    writer.owner.add_offsets({ONE: 5}, GroupMetadata("alone"))
    other.delete_topic(TOPIC)
    other.create_topic(TOPIC, 3)
    with pytest.raises(UnknownTopicOrPartitionError):
        writer.owner.add_offsets({TopicPartition("nope", 0): 1}, NO_MEMBER)
    writer.commit()
    assert stable(log) == stable(other) == {TopicPartition("kept", 0): OffsetAndMetadata(6)}
    assert log._engine.groups.read_committed("alone", None, soon()) == {}


@pytest.mark.parametrize("mutant", [False, True], ids=["", "offsets_unsynced"])
def test_txn_7_offsets_are_on_disk_before_the_decision_where_the_records_are(
    log: embedlog.Log, mutant: bool
) -> None:
    log.create_topic("safe", config={"flush.messages": 1})
    writer = begun(log)
    writer.write(b"a", topic="safe")
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    groups = log._engine.groups
    partition = groups.topic.partition(groups.topic.partition_of("g"))
    assert partition.durable_offset < partition.bounds().log_end
    with mutated(*["offsets_unsynced"] * mutant):
        writer.commit()
    assert (partition.durable_offset == partition.bounds().log_end) != mutant


def test_the_records_are_what_a_broker_would_have_written(log: embedlog.Log) -> None:
    writer = begun(log)
    writer.owner.add_offsets({ONE: 5}, NO_MEMBER)
    writer.commit()
    found = list(log.scan(OFFSETS_TOPIC, isolation_level="read_committed").records())
    assert [(each.key, each.value[:10]) for each in found] == [
        (bytes.fromhex("0001 0001 67 0001 74 00000000"), bytes.fromhex("0003 0000000000000005"))
    ]


def test_writers_of_one_group_at_once(log: embedlog.Log, other: embedlog.Log) -> None:
    """Producers of two processes and plain commits meet in one partition; each place has one
    writer, whose last word counts.
    """
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = (log, other)[number % 2]
            writer = begun(own, f"id-{number}") if number < 2 else None
            for turn in range(15):
                offsets = {TopicPartition(TOPIC, number): turn}
                if writer is None:
                    own._engine.groups.commit("g", offsets)
                else:
                    writer.owner.add_offsets(offsets, NO_MEMBER)
                    writer.commit()
        except BaseException as problem:  # noqa: BLE001  a thread's edge
            errors.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert (
        stable(log)
        == stable(other)
        == {TopicPartition(TOPIC, number): OffsetAndMetadata(14) for number in range(3)}
    )


def test_a_partition_that_somebody_holds_does_not_keep_other_ids_waiting(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    """A process that waits for the group's partition releases the lock of `__transaction_state`
    meanwhile.
    """
    writer = begun(log, "one")
    own = other._engine.groups
    partition = own.topic.partition(own.topic.partition_of("g"))
    thread = threading.Thread(target=writer.owner.add_offsets, args=({ONE: 5}, NO_MEMBER))
    with partition.exclusive(soon()):
        thread.start()
        Writer(other, "one-more").init()
    thread.join(20)
    assert not thread.is_alive()
    writer.commit()
    assert stable(log) == {ONE: FIVE}
