"""Several threads on one producer at the same time: records, futures, callbacks, flush, close and
failures are all counted.

Without the GIL these tests fail if a function of `_rows` does not enter its section:
`test_sections` shows it.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import ClosedError, EmbedlogError
from tests.support.crowd import crowd

THREADS = 8
EACH = 300


def values_of(log: embedlog.Log, topic: str = "t") -> list[bytes]:
    with log.consumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=0) as consumer:
        return [record.value for record in consumer]


@pytest.fixture
def log(tmp_path: Path):
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=3)
        yield log


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"linger_ms": 5},
    {"acks": "0"},
    {"buffer_memory": 64_000, "batch_size": 2000},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_each_record_of_each_thread_is_in_the_log_once_and_in_order(
    log: embedlog.Log, options: dict[str, Any]
) -> None:
    with log.producer(**options) as producer:
        crowd(
            THREADS,
            lambda number: [
                producer.send("t", b"%d:%d" % (number, at), partition=number % 3)
                for at in range(EACH)
            ],
        )
    found = values_of(log)
    by_thread = collections.defaultdict(list)
    for value in found:
        number, at = map(int, value.split(b":"))
        by_thread[number].append(at)
    assert by_thread == {number: list(range(EACH)) for number in range(THREADS)}


def test_a_record_without_a_key_goes_to_one_partition_whatever_the_others_choose(
    log: embedlog.Log,
) -> None:
    with log.producer(batch_size=300) as producer:
        futures: list[list[embedlog.Future]] = [[] for _ in range(THREADS)]
        crowd(
            THREADS,
            lambda number: futures[number].extend(
                producer.send("t", b"%d:%d" % (number, at)) for at in range(EACH)
            ),
        )
        places = [future.result() for future in itertools.chain(*futures)]
    assert (
        len({(place.partition, place.offset) for place in places})
        == THREADS * EACH
        == len(values_of(log))
    )


def test_each_thread_that_waits_for_a_record_gets_its_own_offset(log: embedlog.Log) -> None:
    offsets: list[list[int]] = [[] for _ in range(THREADS)]
    with log.producer() as producer:
        crowd(
            THREADS,
            lambda number: offsets[number].extend(
                producer.send("t", b"v", partition=0).result(60).offset for _ in range(200)
            ),
        )
    assert sorted(itertools.chain(*offsets)) == list(range(THREADS * 200))
    assert all(each == sorted(each) for each in offsets)


def test_one_future_is_waited_for_by_all_threads(log: embedlog.Log) -> None:
    rounds = 50
    found: list[list[int]] = [[] for _ in range(THREADS)]
    futures: list[embedlog.Future] = []
    with log.producer(linger_ms=2) as producer:
        turn = threading.Barrier(
            THREADS, lambda: futures.append(producer.send("t", b"v", partition=0))
        )

        def work(number: int) -> None:
            for _ in range(rounds):
                turn.wait(60)
                found[number].append(futures[-1].result(60).offset)

        crowd(THREADS, work)
    assert found == [list(range(rounds))] * THREADS


def test_callbacks_that_are_added_while_records_are_settled_run_once(log: embedlog.Log) -> None:
    called: list[list[int]] = [[] for _ in range(THREADS)]
    with log.producer() as producer:

        def work(number: int) -> None:
            for at in range(EACH):
                future = producer.send("t", b"v", partition=number % 3)
                future.add_done_callback(lambda _, at=at: called[number].append(at))
                future.done()
                if at % 50 == 0:
                    producer.flush()

        crowd(THREADS, work)
        producer.flush()
    assert [sorted(each) for each in called] == [list(range(EACH))] * THREADS


def test_all_threads_add_callbacks_to_one_future(log: embedlog.Log) -> None:
    rounds = 50
    called: collections.Counter[tuple[int, int]] = collections.Counter()
    futures: list[embedlog.Future] = []
    with log.producer() as producer:
        turn = threading.Barrier(4, lambda: futures.append(producer.send("t", b"v")))

        def work(number: int) -> None:
            for round_ in range(rounds):
                turn.wait(60)
                # on one thread
                futures[-1].add_done_callback(lambda _, key=(round_, number): called.update([key]))

        crowd(4, work)
        producer.flush(60)
    assert called == dict.fromkeys(itertools.product(range(rounds), range(4)), 1)


@pytest.mark.parametrize("timeout", [None, 0])
def test_a_close_during_sends_settles_every_record_once(
    log: embedlog.Log, timeout: float | None
) -> None:
    producer = log.producer(linger_ms=1)
    sent: list[list[embedlog.Future]] = [[] for _ in range(4)]
    closing = threading.Event()

    def work(number: int) -> None:
        with contextlib.suppress(ClosedError):
            for at in range(100_000):
                sent[number].append(producer.send("t", b"%d:%d" % (number, at), partition=0))
                if at == 100:
                    closing.set()

    def close() -> None:
        assert closing.wait(60)
        with contextlib.suppress(EmbedlogError):
            producer.close(timeout)

    crowd(4, work, close)
    written = [future for future in itertools.chain(*sent) if future.exception(60) is None]
    failed = {type(future.exception()) for future in itertools.chain(*sent)} - {type(None)}
    assert failed <= {ClosedError}
    assert len(values_of(log)) == len(written)
    assert not producer._rows.pending()


def test_memory_is_counted_exactly(log: embedlog.Log) -> None:
    with log.producer(buffer_memory=200_000, batch_size=4000) as producer:
        crowd(
            THREADS,
            lambda number: [
                producer.send("t", bytes(300), partition=number % 3) for _ in range(EACH)
            ],
        )
        producer.flush()
        assert producer._rows.memory_used == 0
        assert producer._rows.record_count == THREADS * EACH
        assert producer._rows.waiting == 0
        assert (
            sum(queue.queued_bytes + queue.batch_count for queue in producer._routes["t"].queues)
            == 0
        )


def test_failures_of_all_threads_are_counted_exactly(log: embedlog.Log) -> None:
    producer = log.producer()
    crowd(THREADS, lambda number: [producer.send("no-such-topic", b"v") for _ in range(100)])
    kept = [producer.send("no-such-topic", b"v") for _ in range(400)]
    crowd(
        4,
        lambda number: [future.exception(60) for future in kept[number * 100 : number * 100 + 100]],
    )
    with pytest.raises(embedlog.errors.DeliveryError, match=f"{THREADS * 100:,}|{THREADS * 100}"):
        producer.close()


def test_flush_in_all_threads_returns_after_its_own_records(log: embedlog.Log) -> None:
    with log.producer(linger_ms=10_000) as producer:

        def work(number: int) -> None:
            for _ in range(30):
                future = producer.send("t", b"v", partition=number % 3)
                producer.flush(60)
                assert future.done()

        crowd(THREADS, work)


def test_send_batch_beside_send(log: embedlog.Log) -> None:
    with log.producer(buffer_memory=1_000_000) as producer:
        columns = [b"%d" % number for number in range(2000)]

        def work(number: int) -> None:
            if number % 2:
                assert sum(each[3] for each in producer.send_batch("t", columns).result(60)) == len(
                    columns
                )
            else:
                for value in columns:
                    producer.send("t", value)

        crowd(4, work)
    assert collections.Counter(values_of(log)) == dict.fromkeys(columns, 4)


def test_a_list_that_changes_during_send_batch_is_copied_at_one_moment(log: embedlog.Log) -> None:
    items = [b"%d" % number for number in range(1000)]
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            items.append(b"more" * 10)
            del items[500:]
            items.extend(b"%d" % number for number in range(500))

    with log.producer() as producer:

        def send(_: int) -> None:
            try:
                for _ in range(200):
                    producer.send_batch("t", items).result(60)
            finally:
                ended.set()

        crowd(1, send, change)


def test_producers_that_are_dropped_in_other_threads(log: embedlog.Log) -> None:
    def work(number: int) -> None:
        for at in range(20):
            producer = log.producer()
            future = producer.send("t", b"%d:%d" % (number, at))
            future.add_done_callback(lambda future, producer=producer: None)  # a cycle
            producer.close()

    crowd(4, work, lambda: [gc.collect() for _ in range(10)])
    assert len(values_of(log)) == 80


def test_buffer_memory_in_all_threads(log: embedlog.Log) -> None:
    with log.producer(buffer_memory=5000, max_block_ms=60_000, linger_ms=1) as producer:
        crowd(
            THREADS,
            lambda number: [
                producer.send("t", bytes(700), partition=number % 3).result(60) for _ in range(30)
            ],
        )
    assert len(values_of(log)) == THREADS * 30
