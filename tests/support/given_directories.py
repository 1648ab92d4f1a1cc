"""Directories that a broker is given, and what a broker changes in them, made by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import embedlog
from embedlog._native._rows import encode_batch
from embedlog.storage.identity import new_id, write_topic_id
from embedlog.tools.handover import from_kafka, metadata_image, metadata_log, to_kafka
from embedlog.tools.handover import metadata_records as records
from embedlog.tools.handover.metadata_image import Image, TopicState
from embedlog.tools.handover.server_properties import Addresses
from tests.faults.harness.stage import FakeBroker

CONFIG: dict[str, Any] = {
    "housekeeping": False,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
SETTINGS = {"retention.ms": "1000000", "segment.bytes": "4096"}
COUNT = 5
NO_OP = b"\1\x14\0\0"


def make(directory: Path) -> Path:
    """Two topics, of which one has settings, with records, and the offsets of a group."""
    with embedlog.open(directory, config=CONFIG) as log:
        log.create_topic("kept", 2, config=SETTINGS)
        log.create_topic("gone")
        with log.producer() as producer:
            for number in range(COUNT):
                producer.send("kept", b"%d" % number, partition=0)
        with log.consumer("kept", group_id="g", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(timeout=10)
            consumer.commit()
    return directory


def give(
    directory: Path, given: Mapping[str, str] | None = None, metadata: Path | None = None
) -> to_kafka.HandoverPlan:
    """The steps of the verb."""
    to_kafka.check_last_use(directory)
    embedlog.open(directory, create=False).close()
    return to_kafka.hand_over(directory, metadata, Addresses(), given or {})


def take(directory: Path, metadata: Path | None = None) -> from_kafka.TakenDirectory:
    """The steps of the verb."""
    found = from_kafka.take_back(directory, metadata)
    embedlog.open(directory, create=False).close()
    from_kafka.finish(directory)
    return found


@contextmanager
def broker(
    directory: Path, metadata: Path | None = None, *, killed: bool = False
) -> Iterator[Image]:
    """A broker runs; its image may be changed, and is written when it stops."""
    running = FakeBroker(directory)
    assert running.start()
    image, log = metadata_image.read(metadata or directory)
    yield image
    place = (metadata or directory) / metadata_log.NAME
    data = metadata_log.snapshot(image.values(2), log.raft, log.epoch, 0)
    (place / metadata_log.snapshot_name(log.end + 7, log.epoch)).write_bytes(data)
    # a broker writes records after each snapshot
    record = bytearray(encode_batch([(None, NO_OP)], 0, 0, -1, -1, -1))
    struct.pack_into(">q", record, 0, log.end + 7)
    record[12:16] = log.epoch.to_bytes(4, "big")
    for segment in place.glob("*.log"):
        segment.unlink()
    (place / f"{log.end + 7:020d}.log").write_bytes(record)
    if killed:
        running.die()
    else:
        running.mark_and_unlock()
        running.unlink()


def by_name(image: Image, name: str) -> TopicState:
    return next(each for each in image.topics.values() if each.name == name)


def create(image: Image, directory: Path, name: str, partitions: int, made: int) -> str:
    """A new topic, of which the broker has made some directories."""
    topic_id = new_id()
    state = image.topics[topic_id] = TopicState(name, topic_id)
    for number in range(partitions):
        state.partitions[number] = records.PartitionRecord(topic_id, number, (1,), (1,), 1, 0, 0)
        if number < made:
            (directory / f"{name}-{number}").mkdir()
            write_topic_id(directory / f"{name}-{number}", topic_id)
    return topic_id


def change(directory: Path, image: Image) -> None:
    """What an administrator does: a setting changed, one removed, a topic created, one deleted, one
    grown.
    """
    settings = image.settings[records.TOPIC_SETTINGS, "kept"]
    settings["retention.ms"] = "7"
    settings["cleanup.policy"] = "compact"
    create(image, directory, "new", 2, made=1)
    image.settings[records.TOPIC_SETTINGS, "new"] = {
        "retention.bytes": "55",
        "remote.storage.enable": "false",
    }
    del image.topics[by_name(image, "gone").topic_id]
    kept = by_name(image, "kept")
    kept.partitions[2] = records.PartitionRecord(kept.topic_id, 2, (1,), (1,), 1, 0, 0)


def check_changed(directory: Path) -> list[str]:
    """What is not as `change` left it."""
    wrong = []
    with embedlog.open(directory, config=CONFIG) as log:
        found = {
            name: (len(log.describe_topic(name).partitions), dict(log.describe_topic(name).config))
            for name in log.topics()
        }
        settings = {"retention.ms": "7", "cleanup.policy": "compact", "segment.bytes": "4096"}
        if found != {"kept": (3, settings), "new": (2, {"retention.bytes": "55"})}:
            wrong.append(f"topics {found}")
        wrong += check_records(log)
        with log.producer() as producer:
            producer.send("new", b"x", partition=1).result(10)
    return wrong


def check_records(log: embedlog.Log) -> list[str]:
    values = [record.value for record in log.scan("kept").records()]
    committed = log.describe_group("g").partitions[0].position
    good = values == [b"%d" % number for number in range(COUNT)] and committed == COUNT
    return [] if good else [f"records {values}, offset {committed}"]
