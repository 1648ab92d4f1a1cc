"""Whatever the product itself wrote is in order by a check, and a repair changes no byte of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import embedlog
from tests.support import random_log

PATIENT_S: Final = 20.0
QUIET: Final = {
    "housekeeping": False,
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
}
T_MS: Final = 1_700_000_000_000
TOPIC: Final = "t"
PARTITIONS: Final = 2
KEYS: Final = 6
STEPS: Final = 20
STEPS_LONG: Final = 60
LOGS: Final = 4
LOGS_LONG: Final = 60


def check_in_order(path: Path) -> None:
    """The check of the closed directory has no finding, and a repair leaves every byte."""
    report = embedlog.check(path)
    assert not report.findings, str(report)
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    repaired = embedlog.repair(path)
    assert repaired.repaired == ()
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


def settings(rng: random.Random) -> dict[str, str]:
    """Settings of a topic with small segments, so that few records meet every file."""
    return {
        "cleanup.policy": rng.choice(["compact", "delete", "compact,delete"]),
        "min.cleanable.dirty.ratio": "0.0",
        "delete.retention.ms": rng.choice(["0", "86400000"]),
        "file.delete.delay.ms": "0",
        "segment.bytes": rng.choice(["1500", "4000", "1048576"]),
        "index.interval.bytes": rng.choice(["0", "200", "4096"]),
        "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
    }


class Writers:
    """Random work on one open log. Threads: one."""

    def __init__(self, log: embedlog.Log, rng: random.Random) -> None:
        self.log = log
        self.rng = rng
        self.producers: list[embedlog.Producer] = []
        for number in range(3):
            codec: Any = rng.choice(random_log.CODECS)
            self.producers.append(
                log.producer(compression_type=codec, linger_ms=rng.choice([0, 5]))
            )
            codec = rng.choice(random_log.CODECS)
            transactional = log.producer(transactional_id=f"id-{number}", compression_type=codec)
            transactional.init_transactions()
            self.producers.append(transactional)

    def close(self) -> None:
        for producer in self.producers:
            producer.close()

    def _send(self, producer: embedlog.Producer) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            value = self.rng.choice([None, self.rng.randbytes(self.rng.randrange(400))])
            key = b"k%d" % self.rng.randrange(KEYS)
            timestamp_ms = T_MS + self.rng.randrange(-5000, 5000)
            producer.send(
                TOPIC,
                value,
                key=key,
                partition=self.rng.randrange(PARTITIONS),
                timestamp_ms=timestamp_ms,
            )
        producer.flush()

    def write(self) -> None:
        """Records of one producer, in a transaction if it is transactional."""
        number = self.rng.randrange(len(self.producers))
        producer = self.producers[number]
        if number % 2 == 0:
            self._send(producer)
            return
        producer.begin_transaction()
        self._send(producer)
        if self.rng.random() < 0.5:
            producer.commit_transaction()
        else:
            producer.abort_transaction()

    def housekeep(self) -> None:
        self.log.housekeep()

    def delete_records(self) -> None:
        tp = embedlog.TopicPartition(TOPIC, self.rng.randrange(PARTITIONS))
        description = self.log.describe_topic(TOPIC)
        if "delete" not in description.config["cleanup.policy"]:
            return
        bounds = description.partitions[tp.partition]
        offset = self.rng.randrange(bounds.log_start_offset, bounds.log_end_offset + 1)
        self.log.delete_records({tp: offset})

    def change_settings(self) -> None:
        self.log.alter_topic(TOPIC, config=settings(self.rng))


def run(path: Path, rng: random.Random, steps: int) -> None:
    """Write a random log, and check it while it is open and after each close."""
    for visit in range(3):
        with embedlog.open(path, config=QUIET) as log:
            if visit == 0:
                log.create_topic(TOPIC, partitions=PARTITIONS, config=settings(rng))
            writers = Writers(log, rng)
            works: list[Callable[[], None]] = [
                writers.write,
                writers.housekeep,
                writers.delete_records,
                writers.change_settings,
            ]
            for _ in range(steps):
                rng.choices(works, [8, 3, 1, 1])[0]()
                report = log.check()
                assert not report.findings, str(report)
            writers.close()
        check_in_order(path)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("number", range(LOGS))
def test_a_log_of_the_product_is_in_order(tmp_path: Path, rng: random.Random, number: int) -> None:
    run(tmp_path / "log", random.Random(rng.random() + number), STEPS)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_log_of_the_product_is_in_order_long(tmp_path: Path, rng: random.Random) -> None:
    for number in range(LOGS_LONG):
        run(tmp_path / f"log-{number}", rng, STEPS_LONG)


def test_a_log_with_all_that_makes_reading_hard_is_in_order(
    tmp_path: Path, rng: random.Random
) -> None:
    random_log.write(tmp_path / "log", rng)
    report = embedlog.check(tmp_path / "log")
    assert report.good, str(report)


def test_the_newest_record_of_a_producer_that_compaction_removed_has_no_time(
    tmp_path: Path,
) -> None:
    """Its batch stays without records, for the sequence of its producer. A time index leaves it
    out, and so does a check.
    """
    compacted = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
        "segment.bytes": "2000",
    }
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic(TOPIC, config=compacted)
        with log.producer() as one, log.producer() as two:
            one.send(TOPIC, b"old", key=b"k", timestamp_ms=T_MS + 5000).result(PATIENT_S)
            two.send(TOPIC, b"new", key=b"k", timestamp_ms=T_MS).result(PATIENT_S)
            for number in range(8):
                two.send(
                    TOPIC, b"x" * 400, key=b"f%d" % number, timestamp_ms=T_MS - 10 + number
                ).result(PATIENT_S)
        log.housekeep()
        report = log.check()
        assert not report.findings, str(report)
    check_in_order(tmp_path / "log")
