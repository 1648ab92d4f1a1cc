"""A closed or fenced client says so in every call that acts, also where the arguments would leave
nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import ClosedError, FencedError, FencedInstanceIdError, GroupMetadata, TopicPartition

T0 = TopicPartition("t", 0)
Verb = Callable[[Any], object]

OF_A_MEMBER: dict[str, Verb] = {
    "poll": lambda consumer: consumer.poll(timeout=0),
    "next": next,
    "iteration": lambda consumer: list(consumer),
    "batches": lambda consumer: list(consumer.batches(timeout=0)),
    "commit": lambda consumer: consumer.commit(),
    "commit of nothing": lambda consumer: consumer.commit({}),
    "commit of an offset": lambda consumer: consumer.commit({T0: 1}),
    "commit of a wrong offset": lambda consumer: consumer.commit({T0: "1"}),
    "enforce_rebalance": lambda consumer: consumer.enforce_rebalance(),
    "group_metadata": lambda consumer: consumer.group_metadata(),
    "position": lambda consumer: consumer.position(T0),
    "seek": lambda consumer: consumer.seek(T0, 0),
    "pause": lambda consumer: consumer.pause(T0),
    "resume": lambda consumer: consumer.resume(T0),
    "current_lag": lambda consumer: consumer.current_lag(T0),
}
OF_ANY_CONSUMER: dict[str, Verb] = {
    "subscribe": lambda consumer: consumer.subscribe(["t"]),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "assign": lambda consumer: consumer.assign([]),
    "commit_async": lambda consumer: consumer.commit_async(),
    "committed": lambda consumer: consumer.committed(),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([]),
    "end_offsets": lambda consumer: consumer.end_offsets([]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({}),
}
IN_A_TRANSACTION: dict[str, Verb] = {
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "send_offsets_to_transaction": lambda producer: producer.send_offsets_to_transaction(
        {T0: 1}, GroupMetadata("g")
    ),
    "no offsets": lambda producer: producer.send_offsets_to_transaction({}, GroupMetadata("g")),
    "wrong offsets": lambda producer: producer.send_offsets_to_transaction({T0: "1"}, None),
}
OF_A_PRODUCER: dict[str, Verb] = IN_A_TRANSACTION | {
    "init_transactions": lambda producer: producer.init_transactions(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
    "transaction": lambda producer: producer.transaction().__enter__(),
    "send": lambda producer: producer.send("t", b"v"),
    "send_batch": lambda producer: producer.send_batch("t", [b"v"]),
    "send_batch of nothing": lambda producer: producer.send_batch("t", []),
    "flush": lambda producer: producer.flush(),
    "partitions_for": lambda producer: producer.partitions_for("t"),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t")
        with opened.producer() as producer:
            producer.send("t", b"v")
        yield opened


def member(log: embedlog.Log) -> embedlog.Consumer:
    return log.consumer(
        "t",
        group_id="g",
        group_instance_id="i",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


@pytest.mark.parametrize("verb", OF_A_MEMBER.values(), ids=OF_A_MEMBER)
def test_a_fenced_member_says_so(log: embedlog.Log, verb: Verb) -> None:
    with member(log) as old, member(log) as new:
        assert old.poll(timeout=5)
        new.poll(timeout=5)
        with pytest.raises(FencedInstanceIdError):
            old.poll(timeout=5)
        for _ in range(2):
            with pytest.raises(FencedInstanceIdError):
                verb(old)
        assert log.group_offsets("g") == {}


def test_the_callback_of_a_fenced_member_gets_the_error(log: embedlog.Log) -> None:
    answers: list[Any] = []
    with member(log) as old, member(log) as new:
        assert old.poll(timeout=5)
        new.poll(timeout=5)
        with pytest.raises(FencedInstanceIdError):
            old.poll(timeout=5)
        old.commit_async(callback=lambda offsets, error: answers.append(error))
        with pytest.raises(FencedInstanceIdError):
            old.poll(timeout=0)
    assert [type(each) for each in answers] == [FencedInstanceIdError]


@pytest.mark.parametrize(
    "verb", (OF_A_MEMBER | OF_ANY_CONSUMER).values(), ids=OF_A_MEMBER | OF_ANY_CONSUMER
)
def test_a_closed_consumer_says_so(log: embedlog.Log, verb: Verb) -> None:
    consumer = member(log)
    consumer.close()
    with pytest.raises(ClosedError):
        verb(consumer)


@pytest.mark.parametrize("verb", OF_A_PRODUCER.values(), ids=OF_A_PRODUCER)
def test_a_closed_producer_says_so(log: embedlog.Log, verb: Verb) -> None:
    producer = log.producer(transactional_id="x")
    producer.init_transactions()
    producer.close()
    with pytest.raises(ClosedError):
        verb(producer)


@pytest.mark.parametrize("verb", IN_A_TRANSACTION.values(), ids=IN_A_TRANSACTION)
def test_a_fenced_producer_says_so(log: embedlog.Log, verb: Verb) -> None:
    with log.producer(transactional_id="x") as old, log.producer(transactional_id="x") as new:
        old.init_transactions()
        old.begin_transaction()
        new.init_transactions()
        with pytest.raises(FencedError):
            old.send_offsets_to_transaction({T0: 1}, GroupMetadata("g"))
        for _ in range(2):
            with pytest.raises(FencedError):
                verb(old)
