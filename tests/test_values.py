"""Values: immutable, comparable, picklable, and free of handles."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from embedlog.values import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionDescription,
    RecordMetadata,
    TopicDescription,
    TopicPartition,
)

PARTITION = PartitionDescription(0, "/log/events-0", 3, 9, 8, 7, 2, 512)
TOPIC = TopicDescription("events", "AAAAAAAAAAAAAAAAAAAAAA", (PARTITION,), {"compression.type": "zstd"})


def test_named_tuples_have_kafka_fields_in_order() -> None:
    assert TopicPartition("events", 1) == ("events", 1)
    assert OffsetAndMetadata(5) == (5, "", -1)
    assert OffsetAndTimestamp(5, 1_700_000_000_000, 3)._fields == ("offset", "timestamp_ms", "leader_epoch")
    assert RecordMetadata._fields == ("topic", "partition", "offset", "timestamp_ms")


@pytest.mark.parametrize("value", [TopicPartition("t", 0), OffsetAndMetadata(1), PARTITION, TOPIC])
def test_values_survive_pickling(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_description_cannot_be_changed_by_its_reader() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TOPIC.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        TOPIC.config["compression.type"] = "none"  # type: ignore[index]


def test_description_does_not_follow_the_dict_it_was_made_from() -> None:
    config = {"retention.ms": "5"}
    topic = TopicDescription("events", "id", (PARTITION,), config)
    config["retention.ms"] = "6"
    assert topic.config["retention.ms"] == "5"
