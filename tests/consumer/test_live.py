"""The consumer over real logs: waits that end, interrupts that lose nothing, readers of directories
that others write.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition

T0 = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log") as opened:
        opened.create_topic("t", 2)
        yield opened


def send(log: embedlog.Log, values: list[bytes], partition: int = 0) -> None:
    with log.producer() as producer:
        producer.send_batch("t", values, partition=partition).result(10)


def values_of(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def append_elsewhere(path: Path, values: list[bytes]) -> None:
    """The same from another process."""
    program = f"""
import embedlog
with embedlog.open({str(path)!r}) as log, log.producer() as producer:
    producer.send_batch("t", {values!r}, partition=0).result(10)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# ---- waiting ---------------------------------------------------------------------------------------------------------


def test_a_waiting_poll_is_woken_by_another_process(log: embedlog.Log) -> None:
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        thread = threading.Thread(target=append_elsewhere, args=(log.path, [b"x"]))
        thread.start()
        assert values_of(consumer.poll(timeout=60)) == [b"x"]
        thread.join()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_one_who_stands_at_the_end_is_given_whatever_comes(log: embedlog.Log, codec: str) -> None:
    """Plain batches take a fast path from there; others must come all the same, and the batches
    after them.
    """
    with (
        log.consumer("t", auto_offset_reset="earliest") as consumer,
        log.producer(compression_type=codec) as producer,
    ):
        for turn in range(4):
            sent = [b"%d-%d " % (turn, number) * 20 for number in range(50)]
            producer.send_batch("t", sent, partition=0).result(10)
            assert values_of(consumer.poll(timeout=10)) == sent
            assert consumer.poll(timeout=0) == []


def test_a_waiting_poll_costs_no_cpu(log: embedlog.Log) -> None:
    with log.consumer("t") as consumer:
        consumer.poll()
        before = time.thread_time()
        assert consumer.poll(timeout=1.0) == []
        assert time.thread_time() - before < 0.02


def test_a_partition_added_while_waiting_is_read(log: embedlog.Log) -> None:
    with log.consumer("t") as consumer:

        def grow() -> None:
            log.create_partitions("t", 3)
            send(log, [b"first"], partition=2)

        thread = threading.Thread(target=grow)
        thread.start()
        (record,) = consumer.poll(timeout=60)
        thread.join()
        assert (record.partition, record.value) == (2, b"first")


@pytest.mark.timeout(method="thread")  # it takes SIGALRM for itself
def test_an_interrupt_ends_a_wait_at_once(log: embedlog.Log) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with log.consumer("t") as consumer:
        consumer.poll()
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(timeout=60)
            # the last is the machine's, not ours
            assert time.monotonic() - began < 0.05 + 0.1 + 0.2
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        send(log, [b"after"])
        assert values_of(consumer.poll(timeout=10)) == [b"after"]


@pytest.mark.timeout(method="thread")  # it takes SIGALRM for itself
def test_interrupts_at_any_moment_lose_nothing(log: embedlog.Log, rng: random.Random) -> None:
    """Interrupts strike while records are collected; the next poll returns the records that an
    interrupted one did not.
    """
    count = 20_000
    send(log, [b"%d" % n for n in range(count)])
    got: list[bytes] = []
    struck = 0

    def interrupt(number: int, frame: Any) -> None:
        # Python code of the test itself, between return and bookkeeping, is the application's own
        # danger.
        nonlocal struck
        if (
            frame is not None
            and "embedlog" in frame.f_code.co_filename
            and frame.f_code.co_name in HANDS_OUT
        ):
            struck += 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with log.consumer(
            "t", auto_offset_reset="earliest", max_partition_fetch_bytes=2000
        ) as consumer:
            while len(got) < count:
                signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.002 + 1e-5)
                try:
                    got += values_of(consumer.poll(max_records=37))
                except KeyboardInterrupt:
                    continue
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(f"{struck} interrupts")
    assert got == [b"%d" % n for n in range(count)]


HANDS_OUT = {
    "collect",
    "fill",
    "_fetch_chunk",
    "read_chunk",
    "decode",
    "fetch",
    "take",
    "_fetch_if_empty",
    "_fetch_if_led",
    "records_of",
    "end_turn",
}


def test_closing_the_log_ends_a_wait(log: embedlog.Log) -> None:
    consumer = log.consumer("t")
    problems: list[BaseException] = []
    waits = threading.Event()

    def poll() -> None:
        consumer.poll()
        waits.set()
        try:
            consumer.poll(timeout=60)
        except embedlog.ClosedError as problem:
            problems.append(problem)

    thread = threading.Thread(target=poll)
    thread.start()
    assert waits.wait(10)
    log.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(problems) == 1


def test_a_forked_child_is_refused(log: embedlog.Log) -> None:
    send(log, [b"x"])
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        scan = log.scan("t").records()
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (
                consumer.poll,
                lambda: next(scan),
                lambda: next(iter(consumer)),
                lambda: log.scan("t"),
            ):
                try:
                    call()
                except embedlog.ForkedError:
                    refused += 1
            os._exit(0 if refused == 4 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert values_of(consumer.poll()) == [b"x"]


# ---- directories that others write -----------------------------------------------------------------------------------


def test_a_read_only_reader_tails_what_others_write(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as writer:
        writer.create_topic("t")
        send(writer, [b"0"])
        with (
            embedlog.open(tmp_path / "log", read_only=True) as reader,
            reader.consumer("t", auto_offset_reset="earliest") as consumer,
        ):
            assert values_of(consumer.poll(timeout=10)) == [b"0"]
            for n in range(1, 20):
                send(writer, [b"%d" % n])
                assert values_of(consumer.poll(timeout=10)) == [b"%d" % n]


def test_a_reader_that_was_there_first_follows_the_writer(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as writer:
        writer.create_topic("t")
        send(writer, [b"old"])
    with (
        embedlog.open(tmp_path / "log", read_only=True) as reader,
        reader.consumer("t", auto_offset_reset="earliest") as consumer,
    ):
        assert values_of(consumer.poll()) == [b"old"]
        with embedlog.open(tmp_path / "log") as writer:
            send(writer, [b"new"])
            assert values_of(consumer.poll(timeout=10)) == [b"new"]
            send(writer, [b"newer"])
            assert values_of(consumer.poll(timeout=10)) == [b"newer"]


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_retention_under_a_reader_follows_the_reset_policy(log: embedlog.Log) -> None:
    send(log, [b"%d" % n for n in range(10)])
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        assert len(consumer.poll(max_records=2)) == 2
        log.delete_records({T0: 6})
        consumer.seek(T0, 2)
        assert values_of(consumer.poll()) == [b"6", b"7", b"8", b"9"]
    with log.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2)
        with pytest.raises(embedlog.OffsetOutOfRangeError, match="6"):
            consumer.poll()


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "lz4", "zstd"])
def test_what_compresses_well_is_read_in_small_groups(tmp_path: Path, codec: str) -> None:
    """A chunk of many MiB may hold gigabytes: neither a poll nor a scan takes them all at once."""
    count = 40
    size = 1_000_000
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", config={"compression.type": codec, "max.message.bytes": 4 << 20})
        for n in range(count):
            send(log, [b"%04d" % n + bytes(size)])
        lengths = [
            len(batch)
            for batch in log.consumer("t", auto_offset_reset="earliest").batches(timeout=0)
        ]
        assert sum(lengths) == count
        assert max(lengths) <= 8
        scanned = [batch.num_rows for batch in log.scan("t")]
        assert sum(scanned) == count
        assert max(scanned) <= 8
        assert [record.value[:4] for record in log.scan("t").records()] == [
            b"%04d" % n for n in range(count)
        ]


def test_every_way_of_reading_gives_the_same(log: embedlog.Log, rng: random.Random) -> None:
    for _ in range(30):
        values = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 60))]
        send(log, values, partition=rng.randrange(2))
    by_poll = []
    with log.consumer("t", auto_offset_reset="earliest", max_poll_records=11) as consumer:
        while records := consumer.poll():
            by_poll += records
    with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0) as consumer:
        by_loop = list(consumer)
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        by_batch = [record for batch in consumer.batches(timeout=0) for record in batch.records()]
    by_scan = list(log.scan("t").records())
    by_place = [
        sorted(each, key=lambda r: (r.partition, r.offset))
        for each in (by_poll, by_loop, by_batch, by_scan)
    ]
    assert by_place[0] == by_place[1] == by_place[2] == by_place[3]
    table = log.scan("t").to_arrow()
    table.validate(full=True)
    assert table["value"].to_pylist() == values_of(by_scan)
