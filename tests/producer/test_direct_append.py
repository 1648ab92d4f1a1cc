"""A caller that waits for a record writes it itself: in order, once, and without a lock that
remains after an interrupt.
"""

from __future__ import annotations

import errno
import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.config.topic import CODEC_NAMES
from embedlog.format import compression, record_batch
from tests.support import producer_helpers
from tests.support.crowd import FREE_THREADED
from tests.support.producer_helpers import LONG_MS, values, wait_until

log = producer_helpers.log
producer = producer_helpers.producer


def direct_count(producer: embedlog.Producer) -> int:
    return producer._rows.direct_count


def opened(producer: embedlog.Producer, topic: str = "one") -> None:
    """The first write goes by the thread, which opens the way; then one past it."""
    producer.send(topic, b"first").result(10)
    before = direct_count(producer)

    def past() -> bool:
        producer.send(topic, b"again").result(10)
        return direct_count(producer) > before

    wait_until(past)


def test_who_waits_writes_past_the_thread(log: embedlog.Log, producer: embedlog.Producer) -> None:
    opened(producer)
    start = producer.send("one", b"x").result(10).offset
    before = direct_count(producer)
    offsets = [
        producer.send("one", b"%d" % number, timestamp_ms=number + 1).result(10)
        for number in range(50)
    ]
    assert [(each.offset, each.timestamp_ms) for each in offsets] == [
        (start + 1 + n, n + 1) for n in range(50)
    ]
    assert direct_count(producer) > before + 40  # now and then the thread writes the queue
    assert values(log)[-50:] == [b"%d" % number for number in range(50)]
    figures = producer.metrics()
    assert figures["record-send-total"] == len(values(log))
    assert figures["buffer-available-bytes"] == figures["buffer-total-bytes"]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_compressed_records_are_those_of_the_thread(log: embedlog.Log, codec: str) -> None:
    log.create_topic("packed", config={"compression.type": codec})
    with log.producer() as producer:
        opened(producer, "packed")
        # short ones stay as they are
        sent = [b"%d" % number if number % 2 else b"%0200d" % number for number in range(40)]
        before = direct_count(producer)
        deadline = time.monotonic() + 60
        # some: a record goes by the thread while that is at work
        while direct_count(producer) == before:
            assert time.monotonic() < deadline
            start = len(values(log, "packed"))
            for value in sent:
                producer.send("packed", value).result(10)
        rate = producer.metrics()["compression-rate-avg"]
        assert 0 < rate < 1
    raw = next(log.path.glob("packed-0/*.log")).read_bytes()
    batches = record_batch.scan(raw, record_batch.Chain()).batches
    assert values(log, "packed")[start:] == sent
    assert set((batches["attributes"][-40:] & 7).tolist()) == {0, CODEC_NAMES.index(codec)}
    # as the thread writes it: compressed if that is smaller
    for row, value in zip(batches[-40:], sent, strict=True):
        plain = record_batch.decode(raw, batches[batches["base_offset"] == row["base_offset"]])
        assert list(plain.values) == [value]


def test_a_batch_that_cannot_be_compressed_goes_by_the_thread(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("packed", config={"compression.type": "zstd"})
    with log.producer() as producer:
        opened(producer, "packed")
        before = direct_count(producer)
        inner = compression.compress
        main = threading.current_thread()

        def failing(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is main:
                raise MemoryError
            return inner(*arguments, **options)

        monkeypatch.setattr(compression, "compress", failing)
        assert producer.send("packed", b"%0200d" % 1).result(10).offset > 0
        assert direct_count(producer) == before


def test_what_lies_before_goes_first_and_together(log: embedlog.Log) -> None:
    with log.producer(
        linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS, batch_size=300
    ) as producer:
        opened(producer)
        futures = [producer.send("one", b"%050d" % number) for number in range(10)]
        last = futures[-1].result(10).offset
        assert [future.result(0).offset for future in futures] == list(range(last - 9, last + 1))


NEEDS_GIL = pytest.mark.skipif(
    FREE_THREADED, reason="without the GIL the thread can write the columns before the next call"
)


@pytest.mark.parametrize(
    "what", [pytest.param("columns in front", marks=NEEDS_GIL), "durable", "memory is short"]
)
def test_what_is_unusual_goes_by_the_thread(log: embedlog.Log, what: str) -> None:
    log.create_topic("odd", config={"flush.messages": 1} if what == "durable" else {})
    with log.producer(linger_ms=LONG_MS, delivery_timeout_ms=10 * LONG_MS) as producer:
        producer.send("odd", b"v").result(10)
        if what == "memory is short":
            wait_until(lambda: producer.send("odd", b"v").result(10) and direct_count(producer))
            producer._rows.waiting += 1
        before = direct_count(producer)
        for number in range(20):
            if what == "columns in front":
                producer.send_batch("odd", [b"w"])
            assert producer.send("odd", b"%d" % number).result(10).offset > 0
        assert direct_count(producer) == before
        producer._rows.waiting = 0


def test_callbacks_run_on_the_producers_thread_all_the_same(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    opened(producer)
    seen: list[tuple[int, str]] = []

    def note(number: int, _: object) -> None:
        seen.append((number, threading.current_thread().name))

    for number in range(100):
        future = producer.send("one", b"v")
        future.add_done_callback(partial(note, number))
        future.result(10)
    producer.flush()
    assert [number for number, _ in seen] == list(range(100))
    assert {name.startswith("embedlog-producer-") for _, name in seen} == {True}


def test_threads_that_wait_keep_their_order_among_those_that_do_not(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    opened(producer)
    before = len(values(log))

    def send(name: int) -> None:
        for number in range(300):
            future = producer.send("one", b"%d %d" % (name, number))
            if number % 7 == name % 7:
                future.result(10)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    producer.flush()
    found = [tuple(map(int, value.split())) for value in values(log)[before:]]
    assert len(found) == 1200
    for name in range(4):
        assert [number for each, number in found if each == name] == list(range(300))


def test_a_lock_that_is_not_free_is_waited_for_by_the_thread(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    opened(producer)
    partition = log._engine.partition("one", 0)
    mutex: Any = partition.direct_target.mutex
    mutex.acquire()
    waiting = threading.Thread(
        target=lambda: found.append(producer.send("one", b"v").result(30).offset)
    )
    found: list[int] = []
    waiting.start()
    wait_until(lambda: producer._rows.pending())
    mutex.release()
    waiting.join(30)
    assert len(found) == 1


def test_a_timeout_is_kept_though_the_lock_is_held_elsewhere(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    opened(producer)
    other = embedlog.open(log.path)
    with other, other._engine.partition("one", 0).exclusive():
        began = time.monotonic()
        future = producer.send("one", b"v")
        with pytest.raises(embedlog.DeadlineError):
            future.result(0.01)
        assert time.monotonic() - began < 1
    assert future.result(30).offset > 0


def test_a_topic_that_is_altered_or_deleted_is_noticed(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    opened(producer)
    log.alter_topic("one", {"max.message.bytes": 300})
    with pytest.raises(embedlog.RecordTooLargeError):
        producer.send("one", b"x" * 400).result(10)
    opened(producer)
    log.delete_topic("one")
    with pytest.raises(embedlog.UnknownTopicOrPartitionError):
        producer.send("one", b"v").result(10)
    log.create_topic("one")
    assert producer.send("one", b"new").result(10).offset == 0


def test_a_failed_write_is_the_threads_to_repeat(
    log: embedlog.Log, producer: embedlog.Producer
) -> None:
    opened(producer)
    count = len(values(log))
    system.fault_arm(["pwrite"], 1, "fail", errno.ENOSPC)
    try:
        assert producer.send("one", b"v").result(10).offset == count
    finally:
        system.fault_off()
    assert len(values(log)) == count + 1


class Struck(Exception):
    """The exception of the signal's handler."""


@pytest.fixture
def alarms() -> Iterator[Callable[[], None]]:
    """Signals whose handler raises, at a later point each time between arming and delivery."""
    pauses = itertools.cycle([0.0002, 0.0001, 0.0003, 0.00005, 0.0005, 0.00015])

    def strike(number: int, frame: object) -> None:
        raise Struck

    gc.disable()  # an exception of a handler inside a collector's callback is lost
    before = signal.signal(signal.SIGALRM, strike)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, next(pauses)) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


@pytest.mark.timeout(method="thread")  # it takes SIGALRM for itself
@pytest.mark.parametrize(("codec", "count"), [("producer", 1500), ("zstd", 500)])
def test_no_interrupt_loses_or_doubles_a_record_or_keeps_a_lock(
    log: embedlog.Log,
    producer: embedlog.Producer,
    alarms: Callable[[], None],
    codec: str,
    count: int,
) -> None:
    log.alter_topic("one", {"compression.type": codec})
    opened(producer)
    sent: list[tuple[embedlog.Future, bytes]] = []
    struck = 0
    for number in range(count):
        value = b"%d" % number
        try:
            alarms()
            future = None
            while True:
                future = producer.send("one", value)
                sent.append((future, value))
                future.result()
                number += 10_000
                value = b"%d" % number
        except Struck:
            struck += 1
            if future is not None and (not sent or sent[-1][0] is not future):
                sent.append((future, value))
    producer.flush(10)
    places = {future.result(0).offset: value for future, value in sent}
    assert len(places) == len(sent)
    there = dict(enumerate(values(log)))
    assert {offset: there[offset] for offset in places} == places
    # struck between the record's coming in and its future's being noted
    assert len(there) - len(places) <= struck + 10
    assert struck == count
