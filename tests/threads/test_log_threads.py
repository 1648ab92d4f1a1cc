"""Several threads on one log at the same time: topics, producers, consumers, groups, scans,
administration and close.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import ClosedError, EmbedlogError, TopicExistsError
from tests.support.crowd import crowd

THREADS = 8


@pytest.fixture
def log(tmp_path: Path):
    with embedlog.open(tmp_path / "log") as log:
        yield log


def test_each_thread_has_its_own_producer(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=2)

    def work(number: int) -> None:
        with log.producer() as producer:
            for at in range(300):
                future = producer.send("t", b"%d:%d" % (number, at), partition=number % 2)
            future.result(60)

    crowd(THREADS, work)
    with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0) as consumer:
        found = [record.value for record in consumer]
    for number in range(THREADS):
        mine = [value for value in found if value.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, at) for at in range(300)]


def test_one_thread_creates_a_topic_and_the_others_are_refused(log: embedlog.Log) -> None:
    for round_ in range(10):
        outcomes: list[str] = []

        def work(_: int, name: str = f"t{round_}", outcomes: list[str] = outcomes) -> None:
            try:
                log.create_topic(name, partitions=2)
                outcomes.append("created")
            except TopicExistsError:
                outcomes.append("refused")

        crowd(4, work)
        assert collections.Counter(outcomes) == {"created": 1, "refused": 3}


def test_consumers_in_threads_read_every_record(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=4)
    with log.producer() as producer:
        producer.send_batch("t", [b"%d" % number for number in range(20_000)]).result()
    counts = [0] * THREADS

    def work(number: int) -> None:
        with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0) as consumer:
            counts[number] = sum(1 for _ in consumer)

    crowd(THREADS, work)
    assert counts == [20_000] * THREADS


def test_consumers_tail_what_producers_append(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=2)
    count = 2000
    found: list[list[bytes]] = [[] for _ in range(3)]

    def read(number: int) -> None:
        with log.consumer(
            "t", auto_offset_reset="earliest", consumer_timeout_ms=60_000
        ) as consumer:
            found[number].extend(record.value for record in itertools.islice(consumer, 2 * count))

    def write() -> None:
        with log.producer() as producer:
            for at in range(count):
                producer.send("t", b"%d" % at, partition=at % 2)

    crowd(3, read, write, write)
    assert all(
        collections.Counter(each) == {b"%d" % at: 2 for at in range(count)} for each in found
    )


def test_members_of_a_group_in_threads_share_the_partitions(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=6)
    with log.producer() as producer:
        producer.send_batch("t", [b"%d" % number for number in range(3000)]).result()
    found: list[bytes] = []
    done = threading.Event()
    lock = threading.Lock()

    def work(_: int) -> None:
        with log.consumer(
            "t", group_id="g", auto_offset_reset="earliest", heartbeat_interval_ms=200
        ) as consumer:
            while not done.is_set():
                for record in consumer.poll(0.2):
                    with lock:
                        found.append(record.value)
                        if len(set(found)) == 3000:
                            done.set()
                consumer.commit()

    crowd(3, work)
    assert set(found) == {b"%d" % number for number in range(3000)}


def test_records_of_one_poll_are_dropped_in_other_threads(log: embedlog.Log) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        producer.send_batch(
            "t", [b"%d" % number * 10 for number in range(5000)], keys=[b"k"] * 5000
        ).result()
    with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0) as consumer:
        records = list(consumer)
    nested = [
        embedlog.Record("t", 0, at, 0, 0, None, [record]) for at, record in enumerate(records)
    ]
    for depth in range(200):  # a chain of records, deeper than one deallocation
        nested[0] = embedlog.Record("t", 0, depth, 0, 0, None, nested[0])
    shares = [nested[number::THREADS] for number in range(THREADS)]
    del nested

    def work(number: int) -> None:
        assert all(record.value for record in shares[number])
        hash(shares[number][0]), repr(shares[number][-1])
        shares[number].clear()
        while records:
            with contextlib.suppress(IndexError):
                records.pop()

    crowd(THREADS, work)


def test_scans_in_threads_are_equal(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=3)
    with log.producer() as producer:
        producer.send_batch("t", [b"%d" % number for number in range(30_000)]).result()
    found: list[list[bytes]] = [[] for _ in range(4)]
    crowd(
        4, lambda number: found[number].extend(record.value for record in log.scan("t").records())
    )
    assert all(sorted(each) == sorted(found[0]) and len(each) == 30_000 for each in found)


def test_administration_beside_producers_and_consumers(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=2)
    ended = threading.Event()

    def administer() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            log.create_topic(f"other{number}")
            log.topics()
            log.describe_topic("t")
            log.groups()
            log.delete_topic(f"other{number}")

    def work(number: int) -> None:
        try:
            with log.producer() as producer:
                for _ in range(10):
                    for _ in range(50):
                        producer.send("t", b"v", partition=number % 2)
                    producer.flush(60)
                    producer.metrics()
        finally:
            ended.set()

    crowd(4, work, administer)


def test_a_close_of_the_log_ends_its_clients_in_all_threads(tmp_path: Path) -> None:
    for _ in range(5):
        log = embedlog.open(tmp_path / "log")
        log.create_topic("t", exist_ok=True)
        busy = threading.Barrier(5)

        def work(number: int, log: embedlog.Log = log, busy: threading.Barrier = busy) -> None:
            producer = log.producer()
            consumer = log.consumer("t", auto_offset_reset="earliest")
            producer.send("t", b"v").result(60)
            busy.wait(60)
            with contextlib.suppress(ClosedError):
                while True:
                    producer.send("t", b"v")
                    consumer.poll(0.01)

        def close(log: embedlog.Log = log, busy: threading.Barrier = busy) -> None:
            busy.wait(60)
            with contextlib.suppress(EmbedlogError):
                log.close()

        crowd(4, work, close)


def test_logs_are_opened_and_closed_in_all_threads(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")

    def work(number: int) -> None:
        for _ in range(10):
            with embedlog.open(tmp_path / "log") as log, log.producer() as producer:
                producer.send("t", b"v").result(60)

    crowd(4, work)
    with embedlog.open(tmp_path / "log") as log:
        assert len(log.scan("t").head(100)) == 40


def test_transactions_in_threads(log: embedlog.Log) -> None:
    log.create_topic("t", partitions=2)

    def work(number: int) -> None:
        with log.producer(transactional_id=f"id-{number}") as producer:
            producer.init_transactions()
            for at in range(10):
                with contextlib.suppress(ZeroDivisionError), producer.transaction():
                    producer.send("t", b"%d:%d" % (number, at), partition=number % 2)
                    1 // (at % 2)

    crowd(4, work)
    with log.consumer(
        "t", auto_offset_reset="earliest", isolation_level="read_committed", consumer_timeout_ms=0
    ) as consumer:
        found = {record.value for record in consumer}
    assert found == {b"%d:%d" % (number, at) for number in range(4) for at in range(1, 10, 2)}
