"""Contains the verbs of producers and their transactions."""

from __future__ import annotations

from typing import Any

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from tests.interrupts.runner import Use
from tests.interrupts.verbs import verb
from tests.interrupts.world import World
from tests.interrupts.writers import PATIENCE_S, TOPIC

BATCH = 40


def sending(world: World, linger_ms: int, **options: Any) -> Use:
    producer = world.log.producer(linger_ms=linger_ms, **options)

    def call() -> None:
        value = world.value()
        producer.send(TOPIC, value, key=b"key").result(PATIENCE_S)
        world.acknowledge(value)

    return Use(call, share=call, close=producer.close)


@verb("Producer.send", "Future.result")
def send(world: World) -> Use:
    return sending(world, 0)


@verb("Producer.send", "Future.result")
def send_with_linger(world: World) -> Use:
    return sending(world, 1)


@verb("Producer.send", "Future.result")
def send_compressed(world: World) -> Use:
    return sending(world, 0, compression_type="gzip")


@verb("Producer.send")
def send_at_an_expected_offset(world: World) -> Use:
    producer = world.log.producer(linger_ms=0)

    def call() -> None:
        value = world.value()
        end = world.log.scan(TOPIC, partitions=1).bounds[1][1]
        producer.send(TOPIC, value, partition=1, expected_offset=end).result(PATIENCE_S)
        world.acknowledge(value)

    return Use(call, close=producer.close)


@verb("Producer.send", "Producer.close", fresh=True)
def first_send_and_close(world: World) -> Use:
    producer = world.log.producer(linger_ms=0)

    def call() -> None:
        value = world.value()
        producer.send(TOPIC, value)
        producer.close()
        world.acknowledge(value)

    def again() -> None:
        if not producer._rows.closed:
            value = world.value()
            producer.send(TOPIC, value).result(PATIENCE_S)
            world.acknowledge(value)
        producer.close()

    return Use(call, again, close=producer.close)


@verb("Log.producer", "Producer.__enter__", "Producer.__exit__")
def producer_block(world: World) -> Use:
    def call() -> None:
        value = world.value()
        with world.log.producer() as producer:
            producer.send(TOPIC, value)
        world.acknowledge(value)

    return Use(call)


@verb("Producer.send_batch")
def send_batch(world: World) -> Use:
    producer = world.log.producer(linger_ms=0)

    def call() -> None:
        values = world.values(BATCH)
        producer.send_batch(TOPIC, values).result(PATIENCE_S)
        world.acknowledge(*values)

    return Use(call, share=call, close=producer.close)


@verb("Producer.send_batch")
def send_batch_with_keys(world: World) -> Use:
    producer = world.log.producer(linger_ms=0, compression_type="zstd")

    def call() -> None:
        values = world.values(BATCH)
        producer.send_batch(
            TOPIC, values, [b"%d" % (number % 5) for number in range(BATCH)]
        ).result(PATIENCE_S)
        world.acknowledge(*values)

    return Use(call, share=call, close=producer.close)


@verb("Producer.flush", "Future.done", "Future.exception")
def flush(world: World) -> Use:
    producer = world.log.producer(linger_ms=60_000)

    def call() -> None:
        values = world.values(3)
        futures = [producer.send(TOPIC, value) for value in values]
        producer.flush(PATIENCE_S)
        assert all(future.done() and future.exception(0) is None for future in futures)
        world.acknowledge(*values)

    return Use(call, share=call, close=producer.close)


@verb("Producer.metrics", "Producer.partitions_for")
def producer_figures(world: World) -> Use:
    producer = world.log.producer(linger_ms=0)

    def call() -> None:
        assert producer.metrics()
        assert producer.partitions_for(TOPIC) == {0, 1}

    def share() -> None:
        value = world.value()
        producer.send(TOPIC, value).result(PATIENCE_S)
        world.acknowledge(value)

    return Use(call, share=share, close=producer.close)


# ---- transactions -------------------------------------------------------------------------------------------------


def ended(producer: embedlog.Producer) -> None:
    """Repeat the call in whose midst the producer is, or abort what is open, as a program does
    after an interrupt.
    """
    state = producer._transaction.state.name  # type: ignore[union-attr]
    if state in ("UNINITIALIZED", "INITIALIZING"):
        producer.init_transactions()
    elif state == "COMMITTING":
        producer.commit_transaction()
    elif state in ("IN_TRANSACTION", "ABORTING", "ABORTABLE_ERROR"):
        producer.abort_transaction()


@verb("Producer.transaction", "Producer.send")
def transaction(world: World) -> Use:
    """An open transaction that nobody ends would keep readers of committed records waiting."""
    producer = world.log.producer(transactional_id="block", max_block_ms=int(PATIENCE_S * 1000))
    producer.init_transactions()

    def call() -> None:
        values = world.values(2, together=True)
        with producer.transaction():
            for number, value in enumerate(values):
                producer.send(TOPIC, value, partition=number)
        world.acknowledge(*values)

    def again() -> None:
        ended(producer)
        call()

    return Use(call, again, close=producer.close)


@verb(
    "Producer.begin_transaction",
    "Producer.commit_transaction",
    "Producer.send_offsets_to_transaction",
)
def commit_transaction(world: World) -> Use:
    producer = world.log.producer(transactional_id="commits", max_block_ms=int(PATIENCE_S * 1000))
    producer.init_transactions()
    group = embedlog.GroupMetadata("offsets-of-transactions")

    def call() -> None:
        values = world.values(2, together=True)
        producer.begin_transaction()
        producer.send_batch(TOPIC, values)
        producer.send_offsets_to_transaction(
            {TopicPartition(TOPIC, 0): OffsetAndMetadata(1)}, group
        )
        producer.commit_transaction()
        world.acknowledge(*values)

    def again() -> None:
        ended(producer)
        call()

    return Use(call, again, close=producer.close)


@verb("Producer.begin_transaction", "Producer.abort_transaction")
def abort_transaction(world: World) -> Use:
    producer = world.log.producer(transactional_id="aborts", max_block_ms=int(PATIENCE_S * 1000))
    producer.init_transactions()

    def call() -> None:
        values = world.values(2)
        world.refuse(*values)
        producer.begin_transaction()
        producer.send_batch(TOPIC, values)
        producer.abort_transaction()

    def again() -> None:
        ended(producer)
        call()

    return Use(call, again, close=producer.close)


@verb("Producer.init_transactions", "Producer.close", fresh=True)
def init_transactions(world: World) -> Use:
    producer = world.log.producer(transactional_id="begins", max_block_ms=int(PATIENCE_S * 1000))

    def call() -> None:
        producer.init_transactions()
        producer.close()

    def again() -> None:
        with world.log.producer(
            transactional_id="begins", max_block_ms=int(PATIENCE_S * 1000)
        ) as other:
            other.init_transactions()
            value = world.value()
            with other.transaction():
                other.send(TOPIC, value)
            world.acknowledge(value)

    return Use(call, again, close=producer.close)
