"""The interface of a partition is enough for all clients of an open log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.partition.interfaces import LogPartition
from embedlog.partition.partition import Partition
from embedlog.topic import Topic
from embedlog.types import TopicPartition

MEMBERS = {name for base in LogPartition.__mro__ for name in vars(base) if not name.startswith("_")}
DIRECTORY_ONLY = {
    "retain",
    "compact",
    "checkpoint",
    "segments",
    "loaded",
    "close_in_order",
    "unsynced_since_ns",
    "apply_config",
}


class Routed:
    """A partition in another object: it has the members of the interface only."""

    def __init__(self, partition: Partition, direct: bool) -> None:
        self.__routed = partition
        self.__direct = direct

    def __getattr__(self, name: str) -> Any:
        if name not in MEMBERS:
            raise AttributeError(f"{name} is not in the interface of a partition")
        return (
            None if name == "direct_target" and not self.__direct else getattr(self.__routed, name)
        )


@pytest.fixture(params=[True, False], ids=["direct appends", "no direct appends"])
def log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", housekeeping=False) as opened:
        engine = opened._engine
        routed: dict[Partition, Routed] = {}

        def route(topic: Topic, number: int) -> Routed:
            partition = engine.home.open_partition(topic, number)
            return routed.setdefault(partition, Routed(partition, request.param))

        monkeypatch.setattr(engine, "_open_partition", route)
        monkeypatch.setattr(engine, "_partitions", {})
        opened.create_topic("t", 2)
        yield opened
        assert len(routed) > 2, "the partitions of t and of an internal topic"


def test_a_partition_has_the_members_of_its_interface(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", housekeeping=False) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        assert [name for name in MEMBERS if not hasattr(partition, name)] == []
    assert {
        "append",
        "fetch",
        "exclusive",
        "notify",
        "mapped_page",
        "path",
        "size_bytes",
    } <= MEMBERS
    assert not MEMBERS & DIRECTORY_ONLY


def test_clients_use_no_more_than_the_interface(log: embedlog.Log) -> None:
    with log.producer() as producer:
        sent = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(40)]
        assert [each.result(60).offset for each in sent] == [number // 2 for number in range(40)]
    with log.consumer(
        "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        read: list[embedlog.Record[bytes, bytes]] = []
        while len(read) < 40:
            read += consumer.poll(60)
        consumer.commit()
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"in a transaction", partition=0)
            producer.send_offsets_to_transaction(
                {TopicPartition("t", 0): 21}, consumer.group_metadata()
            )
            producer.commit_transaction()
    with log.consumer("t", group_id="g", isolation_level="read_committed") as consumer:
        assert [record.value for record in consumer.poll(1)] == []
    assert sorted(record.value for record in read) == sorted(b"%d" % number for number in range(40))
    assert log.group_offsets("g")[TopicPartition("t", 0)].offset == 22
    assert log.scan("t", isolation_level="read_committed").to_arrow().num_rows == 41


def test_administration_uses_no_more_than_the_interface(log: embedlog.Log, tmp_path: Path) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v", partition=1)
        producer.flush()
        producer.abort_transaction()
    assert [each.high_watermark for each in log.describe_topic("t").partitions] == [0, 2]
    assert log.delete_records({TopicPartition("t", 1): 1}) == {TopicPartition("t", 1): 1}
    log.reset_group_offsets("g", "t", to="latest")
    log.flush()
    log.housekeep()
    log.backup(tmp_path / "copy")
    log.delete_topic("t")
    assert "t" not in log.topics()
