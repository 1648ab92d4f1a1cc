"""A log that becomes a set, and everything that it contains."""

from __future__ import annotations

import os
from pathlib import Path

import embedlog
from embedlog import TopicPartition

QUIET = {"housekeeping": False, "lock_timeout_ms": 10_000, "auto_leader_rebalance_enable": False}
FIRST = [b"0", b"1", b"2", b"kept"]


def opened(path: Path) -> embedlog.Log:
    return embedlog.open(path, config=QUIET)


def together(root: Path, *nodes: int) -> embedlog.Log:
    return embedlog.open([root / f"d{node}" for node in nodes], config=QUIET)


def filled(path: Path) -> None:
    """A closed log with a compacted and a transactional topic, a group with a position, and an
    aborted transaction.
    """
    with opened(path) as log:
        log.create_topic("t", partitions=2, config={"retention.ms": "-1"})
        log.create_topic("keys", config={"cleanup.policy": "compact"})
        with log.producer(transactional_id="writer") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for value in FIRST[:3]:
                producer.send("t", value, partition=0)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send("t", b"aborted", partition=0).result(30)
            producer.abort_transaction()
            producer.begin_transaction()
            producer.send("t", b"kept", partition=0)
            producer.commit_transaction()
        with log.producer() as producer:
            producer.send("keys", b"value", key=b"key").result(30)
        with log.consumer(
            "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            assert consumer.poll(30, max_records=1)
            consumer.commit()


def values(log: embedlog.Log, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in log.scan(topic, isolation_level="read_committed").records()]


def rest_of_group(log: embedlog.Log) -> list[bytes | None]:
    """What the group has not read yet."""
    with log.consumer(
        "t",
        group_id="g",
        isolation_level="read_committed",
        consumer_timeout_ms=1,
        enable_auto_commit=False,
    ) as consumer:
        found = list[bytes | None]()
        for _ in range(20):
            found += [record.value for record in consumer.poll(2)]
            if found and found[-1] == values(log)[-1]:
                break
        return found


def check_everything(log: embedlog.Log, *later: bytes) -> None:
    assert log.topics() == ["keys", "t"]
    assert values(log) == [*FIRST, *later]
    assert values(log, "keys") == [b"value"]
    assert rest_of_group(log) == [*FIRST[1:], *later]


def use(log: embedlog.Log, value: bytes) -> None:
    """One more record, in a transaction of the same id."""
    with log.producer(transactional_id="writer") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", value, partition=0)
        producer.commit_transaction()


def moved(log: embedlog.Log, nodes: list[int]) -> None:
    """Give all partitions these replicas."""
    places = [
        TopicPartition(name, number)
        for name in log._engine.topic_names()
        for number in range(log._engine.partition_count(name))
    ]
    log.reassign(dict.fromkeys(places, nodes))
    for _ in range(100):
        if not log.reassignments():
            return
        log.housekeep()
    raise AssertionError(log.reassignments())


def send(log: embedlog.Log, *values: bytes) -> None:
    with log.producer(linger_ms=0) as producer:
        for value in values:
            producer.send("t", value, partition=0).result(30)


def writer(path: Path, commands: int, answers: int) -> None:
    """A process that has the log open, and sends a record for each command."""
    with opened(path) as log:
        os.write(answers, b"open")
        while value := os.read(commands, 100):
            send(log, value)
            os.write(answers, b"sent")
