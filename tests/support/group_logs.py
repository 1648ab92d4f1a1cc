"""Helpers for tests of groups in a log: groups and offsets in given states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.coordination.groups.group_coordinator import Groups
from embedlog.coordination.groups.group_records import encode_offset, encode_offset_key, key_kind
from embedlog.coordination.groups.offset_commits import OFFSETS_TOPIC
from embedlog.group import Group
from embedlog.types import OffsetAndMetadata, TopicPartition
from tests.support.group_members import taken
from tests.support.transactional_producers import QUIET

ONE = TopicPartition("t", 0)
TWO = TopicPartition("t", 1)
OTHER = TopicPartition("u", 0)


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(path, config=QUIET) as opened:
        for topic in ("t", "u"):
            opened.create_topic(topic, 2)
        yield opened


@pytest.fixture
def other(other: embedlog.Log) -> Groups:
    """Those of a second handle: to the locks another process."""
    return other._engine.groups


def keep(groups: Groups, group: Group, name: str = "g") -> Group:
    """Write a group as it is."""
    return taken(groups.decide(name, lambda old: group))


def written(log: embedlog.Log) -> list[tuple[int, bool]]:
    """Kind of the key, and whether there is a value, of every record in `__consumer_offsets`."""
    return [
        (key_kind(each.key), each.value is not None) for each in log.scan(OFFSETS_TOPIC).records()
    ]


def commit_at(
    groups: Groups, name: str, place: TopicPartition, ms: int, expire_ms: int = -1
) -> None:
    """An offset committed at that time."""
    value = encode_offset(OffsetAndMetadata(5), ms, expire_ms)
    with groups.topic.lock_for_decision(
        groups.topic.partition_of(name), groups.deadline(None)
    ) as decision:
        decision.append([(encode_offset_key(name, *place), value)])


def since(age_ms: int) -> int:
    return system.wall_ms() - age_ms
