"""Contains the verbs of consumers: a record that a call did not return comes again, and none comes
twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from tests.interrupts.runner import Use
from tests.interrupts.verbs import verb
from tests.interrupts.world import World
from tests.interrupts.writers import PATIENCE_S

Client = TypeVar("Client")

COUNT = 200  # records in each partition of the topic that is read
READ = "read"
READ_TPS = [TopicPartition(READ, 0), TopicPartition(READ, 1)]


def filled(world: World) -> None:
    """Make the topic that consumers read, if it does not exist yet."""
    if READ in world.log.topics():
        return
    world.log.create_topic(READ, partitions=2)
    with world.log.producer() as producer:
        for tp in READ_TPS:
            producer.send_batch(
                READ, [b"%d" % number for number in range(COUNT)], partition=tp.partition
            )


def reader(world: World, make: Callable[..., Client], *topics: str, **options: Any) -> Client:
    """A consumer from the begin on, by `log.consumer` or `log.async_consumer`, which commits only
    by itself.
    """
    filled(world)
    return make(*topics, auto_offset_reset="earliest", enable_auto_commit=False, **options)


class Reading:
    """Checks that the records of each partition come in order, without a gap and without a
    repetition.

    A call extends `returned` by the result of the verb itself: what was returned cannot be lost by
    an interrupt in the test.
    """

    def __init__(self, consumer: embedlog.Consumer[Any, Any]) -> None:
        self.consumer = consumer
        self.returned: list[Any] = []
        self.next = dict.fromkeys(READ_TPS, 0)

    def poll(self, max_records: int) -> None:
        self.returned.extend(self.consumer.poll(timeout=PATIENCE_S, max_records=max_records))

    def take(self) -> None:
        records = self.returned
        self.returned = []
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            assert record.offset == self.next[tp], (
                f"expected {tp} at {self.next[tp]}, found {record.offset}"
            )
            self.next[tp] += 1

    def rewind(self) -> None:
        """Begin again before the end comes."""
        if max(self.next.values()) > COUNT - 50:
            self.begin()

    def begin(self) -> None:
        self.returned = []
        for tp in READ_TPS:
            self.consumer.seek(tp, 0)
            self.next[tp] = 0

    def positions(self) -> None:
        self.take()
        for tp in READ_TPS:
            position = self.consumer.position(tp)
            assert position == self.next[tp], (
                f"expected the position {self.next[tp]} of {tp}, found {position}"
            )


def reading(world: World, **options: Any) -> Reading:
    consumer = reader(world, world.log.consumer, **options)
    consumer.assign(READ_TPS)
    return Reading(consumer)


@verb("Consumer.poll")
def poll(world: World) -> Use:
    state = reading(world, fetch_max_bytes=500)

    def call() -> None:
        state.poll(7)

    def judge() -> None:
        state.positions()
        state.rewind()

    return Use(call, judge=judge, close=state.consumer.close)


@verb("Consumer.poll")
def poll_of_a_whole_fetch(world: World) -> Use:
    state = reading(world)

    def call() -> None:
        state.poll(10 * COUNT)

    def judge() -> None:
        state.positions()
        state.begin()

    return Use(call, state.positions, judge=judge, close=state.consumer.close)


@verb("Consumer.__next__", "Consumer.__iter__")
def next_record(world: World) -> Use:
    state = reading(world)

    def call() -> None:
        for _ in range(3):
            state.returned.append(next(state.consumer))

    def judge() -> None:
        state.positions()
        state.rewind()

    return Use(call, judge=judge, close=state.consumer.close)


@verb("Consumer.batches")
def batches(world: World) -> Use:
    state = reading(world)

    def call() -> None:
        state.consumer.seek_to_beginning(*READ_TPS)
        assert len(next(state.consumer.batches(timeout=PATIENCE_S))) == COUNT

    return Use(call, close=state.consumer.close)


@verb(
    "Consumer.position",
    "Consumer.seek",
    "Consumer.seek_to_beginning",
    "Consumer.seek_to_end",
    "Consumer.pause",
    "Consumer.paused",
    "Consumer.resume",
    "Consumer.assignment",
    "Consumer.subscription",
    "Consumer.current_lag",
    "Consumer.beginning_offsets",
    "Consumer.end_offsets",
    "Consumer.offsets_for_times",
    "Consumer.metrics",
    "Consumer.wakeup",
    "Consumer.assign",
)
def positions(world: World) -> Use:
    consumer = reader(world, world.log.consumer)

    def call() -> None:
        tp = READ_TPS[0]
        consumer.assign(READ_TPS)
        consumer.seek(tp, 7)
        assert consumer.position(tp) == 7
        consumer.seek_to_end(tp)
        assert consumer.position(tp) == COUNT
        consumer.seek_to_beginning(tp)
        assert consumer.position(tp) == 0
        consumer.pause(tp)
        assert consumer.paused() == {tp}
        consumer.resume(tp)
        assert consumer.current_lag(tp) == COUNT
        assert consumer.beginning_offsets([tp]) == {tp: 0}
        assert consumer.end_offsets([tp]) == {tp: COUNT}
        found = consumer.offsets_for_times({tp: 0})[tp]
        assert found is not None
        assert found.offset == 0
        assert consumer.assignment() == set(READ_TPS)
        assert consumer.subscription() == set()
        assert consumer.metrics()

    def wake() -> None:
        consumer.wakeup()
        try:
            consumer.poll(timeout=1)
        except embedlog.WakeupError:
            return
        raise AssertionError("a wakeup was lost")

    return Use(call, judge=wake, close=consumer.close)


# ---- groups --------------------------------------------------------------------------------------


@verb("Consumer.commit", "Consumer.committed", "Consumer.group_metadata")
def commit(world: World) -> Use:
    consumer = reader(world, world.log.consumer, group_id="commits")
    consumer.assign(READ_TPS)
    numbers = iter(range(1, 1_000_000))
    possible = [0]

    def call() -> None:
        possible.append(next(numbers))
        consumer.commit({READ_TPS[0]: OffsetAndMetadata(possible[-1])})
        found = consumer.committed(READ_TPS[0])[READ_TPS[0]]
        assert found is not None
        assert found.offset == possible[-1]
        assert consumer.group_metadata().group_id == "commits"

    def judge() -> None:
        consumer.seek(READ_TPS[1], possible[-1] % COUNT)
        consumer.commit()

    return Use(call, judge=judge, close=consumer.close)


@verb("Consumer.commit_async")
def commit_async(world: World) -> Use:
    consumer = reader(world, world.log.consumer, group_id="async-commits")
    consumer.assign(READ_TPS)
    numbers = iter(range(1, 1_000_000))

    def call() -> None:
        number = next(numbers)
        answers: list[Any] = []
        consumer.commit_async(
            {READ_TPS[0]: OffsetAndMetadata(number)}, lambda _, problem: answers.append(problem)
        )
        consumer.poll(0)
        consumer.commit()
        found = consumer.committed(READ_TPS[0])[READ_TPS[0]]
        assert answers == [None]
        assert found is not None

    return Use(call, close=consumer.close)


@verb("Consumer.poll", "Consumer.commit", "Consumer.subscribe", "Consumer.enforce_rebalance")
def member(world: World) -> Use:
    """One member, which stays: it polls, commits, and takes part in a rebalance that it asks
    for.
    """
    consumer = reader(world, world.log.consumer, group_id="members")
    consumer.subscribe([READ])
    state = Reading(consumer)

    def call() -> None:
        state.poll(5)
        consumer.commit()
        consumer.enforce_rebalance()
        state.poll(5)

    def again() -> None:
        state.poll(5)
        state.poll(5)
        consumer.commit()

    def judge() -> None:
        state.positions()
        committed = consumer.committed(*READ_TPS)
        for tp in READ_TPS:
            found = committed[tp]
            assert found is not None
            assert found.offset == state.next[tp], (
                f"{tp}: committed {found}, returned {state.next[tp]}"
            )
        state.rewind()

    return Use(call, again, judge=judge, close=consumer.close)


@verb(
    "Log.consumer",
    "Consumer.__enter__",
    "Consumer.__exit__",
    "Consumer.close",
    "Consumer.unsubscribe",
    fresh=True,
)
def join_and_leave(world: World) -> Use:
    made: list[embedlog.Consumer[Any, Any]] = []

    def consumer() -> embedlog.Consumer[Any, Any]:
        return reader(world, world.log.consumer, READ, group_id="visitors")

    def call() -> None:
        with consumer() as one:
            made.append(one)
            assert one.poll(timeout=PATIENCE_S, max_records=2)
            one.unsubscribe()

    def again() -> None:
        for each in made:
            each.close()
        with consumer() as one:
            assert one.poll(timeout=PATIENCE_S, max_records=2)
            assert one.assignment() == set(READ_TPS)

    def judge() -> None:
        assert world.log.describe_group("visitors").members == (), (
            "a member that was closed twice is in its group"
        )

    return Use(call, again, judge=judge)


@verb("Consumer.subscribe", fresh=True)
def automatic_commits(world: World) -> Use:
    """The next reader begins at most where the last one had returned records, and loses none."""
    filled(world)
    consumer = world.log.consumer(
        group_id="automatic", auto_offset_reset="earliest", auto_commit_interval_ms=1
    )
    state = Reading(consumer)
    pattern = re.compile(READ)

    def call() -> None:
        consumer.subscribe(pattern=pattern)
        for _ in range(2):
            state.poll(2)
        consumer.close()

    def again() -> None:
        consumer.close()

    def judge() -> None:
        state.take()
        if "automatic" not in world.log.groups():
            return
        for tp, found in world.log.group_offsets("automatic").items():
            assert found.offset <= state.next[tp], (
                f"{tp}: committed {found.offset}, returned {state.next[tp]}"
            )
        world.log.delete_group("automatic")

    return Use(call, again, judge=judge, close=consumer.close)
