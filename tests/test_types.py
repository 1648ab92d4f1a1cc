"""Values: immutable, comparable, picklable, and free of handles."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from embedlog.config.times import duration_ms
from embedlog.descriptions.groups import GroupDescription, GroupPartition, MemberDescription
from embedlog.descriptions.topics import PartitionDescription, TopicDescription
from embedlog.errors import ConfigError
from embedlog.types import OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata, TopicPartition

PARTITION = PartitionDescription(0, "/log/events-0", 3, 9, 8, 7, 2, 512)
TOPIC = TopicDescription(
    "events", "AAAAAAAAAAAAAAAAAAAAAA", (PARTITION,), {"compression.type": "zstd"}
)


def test_named_tuples_have_kafka_fields_in_order() -> None:
    assert TopicPartition("events", 1) == ("events", 1)
    assert OffsetAndMetadata(5) == (5, "", -1)
    assert OffsetAndTimestamp(5, 1_700_000_000_000, 3)._fields == (
        "offset",
        "timestamp_ms",
        "leader_epoch",
    )
    assert RecordMetadata._fields == ("topic", "partition", "offset", "timestamp_ms")


MEMBER = MemberDescription("m-1", None, "m", "/host", ("events",), (TopicPartition("events", 0),))
READ = GroupPartition("events", 0, OffsetAndMetadata(5, "note"), 9, "m-1")
GROUP = GroupDescription(
    "g", "Stable", "classic", "consumer", "range", 3, "m-1", (MEMBER,), (READ,)
)


@pytest.mark.parametrize(
    "value", [TopicPartition("t", 0), OffsetAndMetadata(1), PARTITION, TOPIC, GROUP]
)
def test_values_survive_pickling(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_the_lag_is_what_is_known_of_it() -> None:
    gone = GroupPartition("old", 0, OffsetAndMetadata(7))
    uncommitted = GroupPartition("events", 1, None, 100, "m-1")
    assert (READ.position, READ.lag) == (5, 4)
    assert (gone.position, gone.lag) == (7, None)
    assert (uncommitted.position, uncommitted.lag) == (None, None)
    facts = dataclasses.asdict(READ)  # what a data frame is made of
    assert (facts["position"], facts["lag"]) == (5, 4)
    assert pickle.loads(pickle.dumps(READ)).lag == 4
    assert "group g: Stable, 1 member, lag 4" in GROUP._repr_html_()
    assert dataclasses.replace(GROUP, partitions=(READ, gone, uncommitted, READ)).lag is None
    assert dataclasses.replace(GROUP, partitions=(READ, READ)).lag == 8
    assert dataclasses.replace(GROUP, partitions=()).lag is None, (
        "nothing is known of what it reads"
    )
    beyond = dataclasses.replace(READ, log_end_offset=READ.position - 1)
    assert (beyond.lag, dataclasses.replace(GROUP, partitions=(READ, beyond)).lag) == (None, None)
    assert "lag not known" in repr(dataclasses.replace(GROUP, partitions=(gone,)))


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


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P3D", 259_200_000),
        ("PT1H", 3_600_000),
        ("P1DT2H3M4S", 93_784_000),
        ("PT0.5S", 500),
        ("PT0S", 0),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text, "to") == ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "-P1D", "P-1D", "3D", "P1Y", "PT1.5H", "p1d", "P1D "]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="by_duration"):
        duration_ms(text, "to")
