"""The directories of a set after failovers: Kafka's tools find nothing wrong in any of them, and
print the decisions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from tests.kafka import client, oracle

NODES = (1, 2, 3)
WAIT_S = 60


@pytest.fixture
def directories(tmp_path: Path, seed: int) -> list[Path]:
    """Three directories after transactions, groups, and the loss and return of each of them."""
    rng = random.Random(seed)
    found = [tmp_path / f"d{node}" for node in NODES]
    with embedlog.open(found) as log:
        log.create_topic("t", 2, replication_factor=3, segment_bytes=4096)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for lost in found:
                send(producer, rng)
                away = lost.with_name("away")
                lost.rename(away)
                send(producer, rng)
                away.rename(lost)
                level(log)
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(WAIT_S)
            consumer.commit()
        level(log)
    return found


def send(producer: embedlog.Producer, rng: random.Random) -> None:
    for _ in range(5):
        producer.begin_transaction()
        for _ in range(rng.randrange(1, 20)):
            producer.send("t", rng.randbytes(rng.randrange(300)), key=b"k%d" % rng.randrange(9))
        if rng.random() < 0.7:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def level(log: embedlog.Log) -> None:
    end = time.monotonic() + WAIT_S
    while any(set(each.isr) != set(each.replicas) for each in log.replicas().partitions):
        log.housekeep()
        assert time.monotonic() < end, log.replicas()


@pytest.mark.kafka
@pytest.mark.slow
def test_dump_log_finds_nothing_wrong_in_any_directory(
    directories: list[Path], dump_log_verify: Callable[..., int]
) -> None:
    counts = {
        dump_log_verify(each, compacted=("__consumer_offsets", "__transaction_state"))
        for each in directories
    }
    assert min(counts) > 3


@pytest.mark.kafka
@pytest.mark.slow
def test_kafkas_tool_prints_the_decisions(directories: list[Path], kafka: None) -> None:
    printed = set()
    for each in directories:
        paths = sorted((each / "__replica_state-0").glob("*.log"))
        found = oracle.tool(
            "dump-log",
            "--cluster-metadata-decoder",
            "--skip-record-metadata",
            "--files",
            ",".join(map(str, paths)),
        )
        assert not found.stderr.strip(), found.stderr
        assert "REGISTER_BROKER_RECORD" in found.stdout
        assert "PARTITION_RECORD" in found.stdout
        printed.add(found.stdout.count("PARTITION_RECORD"))
    assert len(printed) == 1, "all copies have the same decisions"


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_serves_each_directory_alone(directories: list[Path], kafka: None) -> None:
    with embedlog.open(directories, read_only=True) as log:
        wanted = [
            sorted(
                (record.partition, record.offset, record.value)
                for record in log.scan("t").records()
            )
        ]
    for each in directories:
        with oracle.serving(each, topics=["t"]) as broker:
            rows = client.read(broker.bootstrap, {"t": 2})["t"]
        assert len(rows) == len(wanted[0])
        with embedlog.open(each, read_only=True) as log:
            assert (
                sorted(
                    (record.partition, record.offset, record.value)
                    for record in log.scan("t").records()
                )
                == wanted[0]
            )
