"""Every setting of a producer has an effect: one experiment for each name."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from embedlog.config.client import ProducerConfig
from embedlog.errors import LockTimeoutError
from embedlog.partition.partition import Partition
from embedlog.partitioners import partition_of
from embedlog.producer.sender import Sender
from tests.faults.harness.processes import until
from tests.support.option_effects import (
    Differ,
    Effect,
    Elsewhere,
    Seen,
    World,
    check,
    error_name,
    keys_of,
    name_of,
)

HOUR_MS = 3_600_000
WORDS = b" ".join(b"word %d" % number for number in random.Random(1).choices(range(50), k=4000))


def sent(world: World) -> str | None:
    world.topic()
    return world.send(b"x" * 200)


def acknowledged(world: World) -> tuple[int, str | None]:
    """The offset of a record, or its error in a topic that one directory does not satisfy."""
    world.topic()
    world.log.create_topic("two", config={"min.insync.replicas": 2})
    producer = world.producer()
    return producer.send("t", b"x").result(60).offset, error_name(
        producer.send("two", b"x").exception(60)
    )


def is_stamped(world: World) -> bool:
    """Whether the batch carries the id of a producer."""
    sent(world)
    return int.from_bytes(world.files("*.log")[0].read_bytes()[43:51], "big", signed=True) >= 0


def begins_transactions(world: World) -> str | None:
    return name_of(lambda: world.producer().init_transactions())


def begins_long_transactions(world: World) -> str | None:
    return name_of(lambda: world.producer(transactional_id="id").init_transactions())


def batches(world: World) -> int:
    world.topic()
    producer = world.producer(linger_ms=HOUR_MS, delivery_timeout_ms=2**31 - 1)
    for _ in range(3):
        producer.send("t", b"x" * 100)
    producer.flush(60)
    return len(world.partition.fetch(0).batches)


def order_of_two(world: World) -> list[bytes]:
    """A record that is sent first, and one of another producer that does not linger."""
    world.topic()
    lingering = world.producer(delivery_timeout_ms=2**31 - 1)
    other = world.log.producer(linger_ms=0)
    lingering.send("t", b"first")
    deadline = time.monotonic() + 60
    while world.value == 0 and not world.partition.bounds().log_end:
        assert time.monotonic() < deadline
    with other:
        other.send("t", b"second").result(60)
    lingering.flush(60)
    return world.values()


def waits_for_memory(world: World) -> str | None:
    """The thread is delayed in an append while its memory is full; a send with a long deadline
    continues.
    """
    world.topic()
    taken = threading.Event()
    go = threading.Event()
    append = Partition.append

    def held(partition: Partition, *arguments: Any, **facts: Any) -> Any:
        taken.set()
        assert go.wait(60)
        return append(partition, *arguments, **facts)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(Partition, "append", held)
        producer = world.producer(buffer_memory=1000, linger_ms=0)
        try:
            producer.send("t", b"x" * 700)
            assert taken.wait(60)
            if world.value < 1000:
                return error_name(producer.send("t", b"x" * 700).exception(60))
            waiting = pool.submit(producer.send, "t", b"x" * 700)
        finally:
            go.set()
        return error_name(waiting.result(60).exception(60))


@contextmanager
def failing(times: int) -> Iterator[list[float]]:
    """So many attempts to append fail of something that passes; gives the pauses that the producers
    make.
    """
    left = [times]
    pauses = []
    append = Partition.append
    pause_s = Sender._pause_s

    def fails(partition: Partition, *arguments: Any, **facts: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise LockTimeoutError("held")
        return append(partition, *arguments, **facts)

    def noted(delivery: Sender, tries: int) -> float:
        pauses.append(pause_s(delivery, tries))
        return pauses[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "append", fails)
        patch.setattr(Sender, "_pause_s", noted)
        yield pauses


def behind_failures(times: int, **options: Any) -> Callable[[World], str | None]:
    def observe(world: World) -> str | None:
        world.topic()
        with failing(times):
            return world.send(b"x", **options)

    return observe


def pause_after(times: int, **options: Any) -> Callable[[World], bool]:
    """Whether the last pause was longer than 50 ms."""

    def observe(world: World) -> bool:
        world.topic()
        with failing(times) as pauses:
            assert world.send(b"x", **options) is None
        return pauses[-1] > 0.05

    return observe


def waits_for_the_append_lock(world: World) -> str | None:
    world.topic()
    other = world.open()
    producer = world.producer(retries=0, linger_ms=0)
    with other._engine.partition("t", 0).exclusive():
        future = producer.send("t", b"x")
        if world.value < 1000:
            return error_name(future.exception(60))
    return error_name(future.exception(60))


def codec(world: World) -> int:
    world.topic()
    assert world.send(WORDS) is None
    return world.files("*.log")[0].read_bytes()[22] & 7


def stored_bytes(name: str) -> Callable[[World], int]:
    def observe(world: World) -> int:
        world.topic()
        assert world.send(WORDS, compression_type=name) is None
        return int(world.partition.published().segment_size)

    return observe


def chosen(world: World) -> int:
    world.topic(partitions=3)
    return world.producer().send("t", b"x", b"k").result(60).partition


def spread(world: World) -> bool:
    """Whether twenty keys lie in more than one partition."""
    world.topic(partitions=3)
    producer = world.producer(linger_ms=HOUR_MS, delivery_timeout_ms=2**31 - 1)
    futures = [producer.send("t", b"x", b"key %d" % number) for number in range(20)]
    producer.flush(60)
    return len({future.result(60).partition for future in futures}) > 1


def stored(world: World) -> tuple[Any, Any]:
    world.topic()
    assert world.send(b"value", key=b"key") is None
    (record,) = world.log.scan("t").records()
    return record.key, record.value


def flush_behind_a_loss(world: World) -> str | None:
    """A record that is too large, and whose future is not observed."""
    world.topic()
    producer = world.producer(max_request_size=100)
    producer.send("t", b"x" * 200)
    return name_of(lambda: producer.flush(60))


def twice(data: bytes) -> bytes:
    return data * 2


def last(key: Any, every: list[int], available: list[int]) -> int:
    return (partition_of(b"k", 3) + 1) % 3


def forgets(name: str, **options: Any) -> Callable[[World], bool]:
    """Whether a maximum is forgotten after the time of some short windows."""

    def experiment(world: World) -> bool:
        world.topic()
        producer = world.producer(**options)
        producer.send("t", b"x").result(60)
        assert producer.metrics()["record-send-total"] == 1
        ends = time.monotonic() + 0.12
        until(lambda: time.monotonic() >= ends, "some short windows end")
        return bool(producer.metrics()[name] == 0)

    return experiment


class Changing:
    """An interceptor."""

    def on_send(self, record: Any) -> Any:
        return record._replace(value=b"changed")


TABLE: dict[str, Effect] = {
    "client_id": Seen(
        lambda world: "mine" in repr(world.producer()), [("mine", True), (None, False)]
    ),
    "acks": Seen(
        acknowledged, [("all", (0, "NotEnoughReplicasError")), ("1", (0, None)), ("0", (-1, None))]
    ),
    "enable_idempotence": Seen(is_stamped, [(True, True), (False, False)]),
    "transactional_id": Seen(
        begins_transactions, [(None, "InvalidTransactionStateError"), ("id", None)]
    ),
    "transaction_timeout_ms": Seen(
        begins_long_transactions, [(60_000, None), (900_001, "ConfigError")]
    ),
    "batch_size": Seen(batches, [(16_384, 1), (0, 3)]),
    "linger_ms": Seen(order_of_two, [(0, [b"first", b"second"]), (HOUR_MS, [b"second", b"first"])]),
    "buffer_memory": Seen(sent, [(1 << 20, None), (100, "RecordTooLargeError")]),
    "max_block_ms": Seen(waits_for_memory, [(1, "BufferExhaustedError"), (60_000, None)]),
    "max_request_size": Seen(sent, [(1 << 20, None), (100, "RecordTooLargeError")]),
    "delivery_timeout_ms": Seen(
        behind_failures(4, retry_backoff_ms=40, request_timeout_ms=10),
        [(60, "DeadlineError"), (120_000, None)],
    ),
    "request_timeout_ms": Seen(
        waits_for_the_append_lock, [(20, "LockTimeoutError"), (30_000, None)]
    ),
    "retries": Seen(behind_failures(2, retry_backoff_ms=1), [(1, "LockTimeoutError"), (2, None)]),
    "retry_backoff_ms": Seen(pause_after(1), [(100, True), (1, False)]),
    "retry_backoff_max_ms": Seen(pause_after(3, retry_backoff_ms=20), [(1000, True), (20, False)]),
    "max_in_flight_requests_per_connection": Seen(is_stamped, [(5, True), (6, False)]),
    "compression_type": Seen(codec, [("none", 0), ("gzip", 1), ("zstd", 4)]),
    "compression_gzip_level": Differ(stored_bytes("gzip"), (1, 9)),
    "compression_lz4_level": Differ(stored_bytes("lz4"), (1, 17)),
    "compression_zstd_level": Differ(stored_bytes("zstd"), (1, 19)),
    "partitioner": Seen(
        chosen, [(None, partition_of(b"k", 3)), (last, (partition_of(b"k", 3) + 1) % 3)]
    ),
    "partitioner_ignore_keys": Seen(spread, [(False, True), (True, False)]),
    "partitioner_adaptive_partitioning_enable": Elsewhere(
        "producer/test_router.py::test_the_draw_is_uniform_where_queues_say_nothing",
        "it is about the odds of many draws",
    ),
    "partitioner_availability_timeout_ms": Elsewhere(
        "producer/test_router.py::test_a_partition_that_is_not_written_to_any_more_gets_nothing_new",
        "it is about the odds of many draws",
    ),
    "metrics_num_samples": Seen(
        forgets("batch-size-max", metrics_sample_window_ms=50), [(1000, False), (1, True)]
    ),
    "metrics_sample_window_ms": Seen(forgets("batch-size-max"), [(HOUR_MS, False), (1, True)]),
    "on_delivery_error": Seen(flush_behind_a_loss, [("raise", "DeliveryError"), ("log", None)]),
    "interceptor_classes": Seen(
        stored, [((), (b"key", b"value")), ((Changing,), (b"key", b"changed"))]
    ),
    "key_serializer": Seen(stored, [(None, (b"key", b"value")), (twice, (b"keykey", b"value"))]),
    "value_serializer": Seen(
        stored, [(None, (b"key", b"value")), (twice, (b"key", b"valuevalue"))]
    ),
}


def test_every_setting_of_a_producer_is_in_the_table() -> None:
    assert sorted(TABLE) == sorted(keys_of(ProducerConfig))


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("name", TABLE)
def test_a_setting_of_a_producer_has_an_effect(name: str, tmp_path: Path) -> None:
    check(TABLE[name], (ProducerConfig, name), tmp_path)
