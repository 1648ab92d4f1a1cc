"""Records of the metadata log: Kafka's own bytes, bytes of this package, hostile bytes."""

from __future__ import annotations

import json
import lzma
import random
import struct
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.wire import uvarint
from embedlog.storage.identity import id_text, new_id
from embedlog.tools.handover import metadata_records as records
from embedlog.tools.handover.metadata_records import (
    ConfigRecord,
    FeatureLevel,
    PartitionChange,
    PartitionRecord,
    ProducerIds,
    TopicRecord,
    decode,
)
from tests.conftest import DATA

ID = new_id()
OTHER = new_id()
NOWHERE = "A" * 22
PARTITION = PartitionRecord(ID, 3, (1,), (1,), -1, 4, 9, (OTHER,))
SAMPLES = [
    (TopicRecord("orders", ID), records.encode_topic(TopicRecord("orders", ID))),
    (PARTITION, records.encode_partition(PARTITION, 2)),
    (
        ConfigRecord(2, "orders", "flush.ms", "1"),
        records.encode_config(ConfigRecord(2, "orders", "flush.ms", "1")),
    ),
    (
        ConfigRecord(4, "", "flush.ms", None),
        records.encode_config(ConfigRecord(4, "", "flush.ms", None)),
    ),
    (
        FeatureLevel("metadata.version", 25),
        records.encode_feature(FeatureLevel("metadata.version", 25)),
    ),
    (ProducerIds(1, 7, 5000), records.encode_producer_ids(ProducerIds(1, 7, 5000))),
]


def ids(texts: list[str]) -> tuple[str, ...]:
    return tuple(id_text(UUID(each).bytes) for each in texts)


def expected(kind: int, fields: dict[str, Any]) -> records.Record | None:
    """The record of Kafka's fields; None for types that are kept as they are."""
    topic_id = ids([fields["topic_id"]])[0] if "topic_id" in fields else ""
    match kind:
        case 0:
            return records.RegisterBrokerRecord(
                fields["node"], fields["broker_epoch"], ids([fields["directory"]])
            )
        case 1:
            return records.UnregisterBrokerRecord(fields["node"])
        case 2:
            return TopicRecord(fields["name"], topic_id)
        case 3:
            numbers = (
                tuple(fields["replicas"]),
                tuple(fields["isr"]),
                fields["leader"],
                fields["leader_epoch"],
            )
            return PartitionRecord(
                topic_id,
                fields["number"],
                *numbers,
                fields["partition_epoch"],
                ids(fields["directories"]),
            )
        case 4:
            return ConfigRecord(fields["kind"], fields["resource"], fields["name"], fields["value"])
        case 9:
            return records.RemoveTopicRecord(topic_id)
    return None


def test_records_of_kafkas_own_serializer_are_read() -> None:
    counts: Counter[int] = Counter()
    with lzma.open(DATA / "metadata-records.jsonl.xz", "rt", encoding="utf-8") as lines:
        for each in map(json.loads, lines):
            found = decode(bytes.fromhex(each["value"]))
            wanted = expected(each["type"], each["fields"])
            assert found == (wanted or records.Other(each["type"])), each
            counts[each["type"]] += 1
    assert set(counts) == {0, 1, 2, 3, 4, 9, 20}
    assert min(counts.values()) > 20


def test_written_partitions_and_settings_are_kafkas_own_bytes() -> None:
    same = 0
    with lzma.open(DATA / "metadata-records.jsonl.xz", "rt", encoding="utf-8") as lines:
        for each in map(json.loads, lines):
            value = bytes.fromhex(each["value"])
            found = decode(bytes.fromhex(each["value"]))
            if isinstance(found, TopicRecord) and not each["fields"].get("others"):
                assert records.encode_topic(found) == value
            elif isinstance(found, ConfigRecord) and not each["fields"].get("others"):
                assert records.encode_config(found) == value
            elif isinstance(found, PartitionRecord) and value == records.encode_partition(found, 2):
                pass  # others have a reassignment or an ELR, which is never written
            else:
                continue
            same += 1
    assert same > 50


@pytest.mark.parametrize(("record", "value"), SAMPLES, ids=lambda each: type(each).__name__)
def test_a_record_is_read_back(record: records.Record, value: bytes) -> None:
    assert decode(value) == record


def test_a_partition_of_an_older_cluster_has_no_directories() -> None:
    old = PartitionRecord(ID, 0, (1,), (1,), 1, 0, 0)
    assert decode(records.encode_partition(old, 0)) == old
    assert decode(records.encode_partition(PARTITION, 1)) == PARTITION


def test_changes_of_a_partition_are_read() -> None:
    def field(tag: int, data: bytes) -> bytes:
        return uvarint(tag) + uvarint(len(data)) + data

    head = b"\1\5\2" + struct.pack(">i", 3) + records._encode_id(ID)
    fields = [
        field(0, b"\1"),
        field(1, struct.pack(">i", -1)),
        field(2, b"\2\0\0\0\1"),
        field(8, b"\2" + bytes(16)),
    ]
    assert decode(head + bytes((4,)) + b"".join(fields)) == PartitionChange(
        ID, 3, (), -1, (1,), (NOWHERE,)
    )
    assert decode(head + b"\0") == PartitionChange(ID, 3)


def test_types_and_versions_of_a_newer_kafka_are_refused_by_name() -> None:
    newer = (
        (b"\1\x63\0\0", "type"),
        (b"\1\2\1\0", "version of metadata records of type 2"),
        (b"\2\2\0\0", "frame"),
    )
    for value, message in newer:
        with pytest.raises(UnsupportedFormatError, match=message):
            decode(value)
    assert decode(b"\1\x12\0rubbish that is not read") == records.Other(18)


def test_damaged_records_are_errors_of_this_package(rng: random.Random) -> None:
    values = [value for _, value in SAMPLES]
    for _ in range(20_000):
        value = bytearray(rng.choice(values))
        for _ in range(rng.randint(1, 3)):
            value[rng.randrange(len(value))] = rng.randrange(256)
        del value[rng.randint(0, len(value)) :]
        try:
            decode(bytes(value))
        except (CorruptRecordError, UnsupportedFormatError):
            continue
