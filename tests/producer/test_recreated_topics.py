"""A topic is deleted and made anew under a living producer: with fewer partitions, with as many, or
with more.

Every record of a later call is written into the partitions that exist then, whoever changed the
topic.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog

COUNT = 12
ENDS: dict[str, dict[str, Any]] = {
    "plain": {"enable_idempotence": False, "acks": 1},
    "idempotent": {},
    "transactional": {"transactional_id": "x"},
    "serializing": {"value_serializer": bytes},
}
AGAIN = """
import sys, embedlog
path, count = sys.argv[1], int(sys.argv[2])
with embedlog.open(path, config={"housekeeping": False}) as log:
    log.delete_topic("t")
    log.create_topic("t", partitions=count)
"""


@pytest.fixture(params=[1, 2], ids=["a directory", "a set"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[embedlog.Log]:
    paths: Any = [tmp_path / "d1", tmp_path / "d2"] if request.param == 2 else tmp_path / "d1"
    with embedlog.open(
        paths, config={"housekeeping": False, "transaction.state.log.num.partitions": 1}
    ) as log:
        log.create_topic("t", partitions=3)
        yield log


def make_anew(log: embedlog.Log, count: int) -> None:
    log.delete_topic("t")
    log.create_topic("t", partitions=count)


def pairs(tag: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"key%d" % number, b"%s%d" % (tag, number)) for number in range(COUNT)]


def keyed(producer: Any, tag: bytes) -> list[Any]:
    return [producer.send("t", value, key=key) for key, value in pairs(tag)]


def keyless(producer: Any, tag: bytes) -> list[Any]:
    return [producer.send("t", value) for _, value in pairs(tag)]


def columns(producer: Any, tag: bytes) -> list[Any]:
    keys, values = zip(*pairs(tag), strict=True)
    return [producer.send_batch("t", list(values), list(keys))]


def send(producer: Any, way: Callable[[Any, bytes], list[Any]], tag: bytes) -> None:
    if producer._config.transactional_id is None:
        futures = way(producer, tag)
        producer.flush(20)
    else:
        with producer.transaction():
            futures = way(producer, tag)
    for future in futures:
        future.result(20)


def check(log: embedlog.Log, tags: tuple[bytes, ...], count: int) -> None:
    found = list(log.scan("t").records())
    assert sorted(record.value or b"" for record in found) == sorted(
        value for tag in tags for _, value in pairs(tag)
    )
    assert {record.partition for record in found} <= set(range(count))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("way", [keyed, keyless, columns])
@pytest.mark.parametrize("linger_ms", [0, 5])
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.sample(0.1)
def test_records_after_the_change_are_written(
    log: embedlog.Log, kind: str, linger_ms: int, way: Callable[[Any, bytes], list[Any]], count: int
) -> None:
    with log.producer(linger_ms=linger_ms, **ENDS[kind]) as producer:
        if kind == "transactional":
            producer.init_transactions()
        for tag in (b"a", b"b"):
            send(producer, way, tag)
        for tags in ((b"c", b"d"), (b"e", b"f")):
            make_anew(log, count)
            for tag in tags:
                send(producer, way, tag)
            check(log, tags, count)


@pytest.mark.parametrize("kind", ["idempotent", "transactional"])
def test_another_process_makes_the_topic_anew(log: embedlog.Log, kind: str) -> None:
    with log.producer(linger_ms=0, **ENDS[kind]) as producer:
        if kind == "transactional":
            producer.init_transactions()
        send(producer, keyed, b"a")
        paths = [str(each.path) for each in log._engine.directories]
        script = (
            AGAIN
            if len(paths) == 1
            else AGAIN.replace("embedlog.open(path,", "embedlog.open(path.split(':'),")
        )
        subprocess.run([sys.executable, "-c", script, ":".join(paths), "1"], check=True, timeout=60)
        send(producer, keyed, b"b")
        check(log, (b"b",), 1)


def test_each_result_is_awaited_by_its_caller(log: embedlog.Log) -> None:
    """Direct appends, without the producer's thread."""
    with log.producer(linger_ms=0) as producer:
        for round_number, count in enumerate((3, 1, 2, 1)):
            if round_number:
                make_anew(log, count)
            for key, value in pairs(b"v"):
                assert producer.send("t", value, key=key).result(20).partition < count
            check(log, (b"v",), count)


def test_one_transaction_over_the_change_can_be_aborted_and_repeated(log: embedlog.Log) -> None:
    with log.producer(linger_ms=0, transactional_id="x", on_delivery_error="log") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for future in keyed(producer, b"a"):
            future.result(20)
        make_anew(log, 1)
        keyed(producer, b"b")
        producer.abort_transaction()
        send(producer, keyed, b"c")
        assert sorted(
            record.value or b""
            for record in log.scan("t", isolation_level="read_committed").records()
        ) == sorted(value for _, value in pairs(b"c"))


def test_records_that_wait_for_a_vanished_partition_fail_and_later_ones_do_not(
    log: embedlog.Log,
) -> None:
    with log.producer(linger_ms=60_000, on_delivery_error="log") as producer:
        waiting = [producer.send("t", b"v", partition=number) for number in range(3)]
        make_anew(log, 1)
        producer.flush(20)
        assert [future.exception(0) is None for future in waiting] == [True, False, False]
        assert isinstance(waiting[1].exception(0), embedlog.UnknownTopicOrPartitionError)
        send(producer, keyless, b"a")
        assert len(log.scan("t").head(100)) == 1 + COUNT


def test_who_learns_of_the_failure_sends_into_the_present_partitions(log: embedlog.Log) -> None:
    """The routes are renewed before the futures fail, also where no page shows the change."""
    with log.producer(linger_ms=0, on_delivery_error="log") as producer:
        for future in keyed(producer, b"a"):
            future.result(20)
        producer._delivery.routes["t"].follow((), 0, 0)
        make_anew(log, 1)
        for future in keyed(producer, b"b"):
            future.exception(20)
        for future in keyed(producer, b"c"):
            assert future.result(20).partition == 0


@pytest.mark.parametrize(
    "options",
    [{}, {"value_serializer": bytes}, {"transactional_id": "x"}],
    ids=["plain", "serializing", "tx"],
)
def test_an_asyncio_producer_writes_into_the_present_partitions(
    log: embedlog.Log, options: dict[str, Any]
) -> None:
    async def send_all(producer: embedlog.AsyncProducer[Any, Any], tag: bytes) -> None:
        for future in [await producer.send("t", value, key=key) for key, value in pairs(tag)]:
            await future

    async def run() -> None:
        async with log.async_producer(linger_ms=0, **options) as producer:
            if "transactional_id" in options:
                await producer.init_transactions()
            for number, count in enumerate((3, 1, 2, 1)):
                if number:
                    await asyncio.to_thread(make_anew, log, count)
                if "transactional_id" in options:
                    async with producer.transaction():
                        await send_all(producer, b"v")
                else:
                    await send_all(producer, b"v")
                await asyncio.to_thread(check, log, (b"v",), count)

    asyncio.run(run())
