"""Encodes and decodes subscriptions and assignments of group members, as Kafka's clients do
(format.md 9.2).

- Version 3 is written; older versions are read, and the fields of version 3 of newer ones.
- Topics and partitions are written in order, so equal contents are equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from embedlog.errors import CorruptRecordError
from embedlog.format.wire import NUMBER, SHORT, Plain
from embedlog.types import TopicPartition

VERSION: Final = 3
TYPE: Final = "consumer"  # the protocol type of consumer groups
REMEMBERING: Final = frozenset(
    {"sticky", "cooperative-sticky"}
)  # their user data contains the owned partitions and their generation

_NULL_BYTES: Final = b"\xff\xff\xff\xff"
_NULL_STRING: Final = b"\xff\xff"


class MemberSubscription(NamedTuple):
    """The data of a member that joins."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1  # of the owned partitions
    rack: str | None = None


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """The metadata of a join for one protocol."""
    parts = [SHORT.pack(VERSION), NUMBER.pack(len(subscription.topics))]
    parts += [_encode_string(topic) for topic in sorted(subscription.topics)]
    data = subscription.user_data
    parts.append(_NULL_BYTES if data is None else NUMBER.pack(len(data)) + data)
    parts.append(_encode_partitions(subscription.owned))
    parts.append(NUMBER.pack(subscription.generation))
    parts.append(_NULL_STRING if subscription.rack is None else _encode_string(subscription.rack))
    return b"".join(parts)


def decode_subscription(data: bytes) -> MemberSubscription:
    """The subscription of a member. Raises CorruptRecordError."""
    try:
        version = SHORT.unpack_from(data)[0]
        reader = Plain(data, 2)
        topics = tuple(reader.string() for _ in range(reader.count()))
        user_data = reader.data()
        owned = reader.partitions() if version >= 1 else ()
        generation = reader.number() if version >= 2 else -1
        rack = reader.nullable() if version >= 3 else None
    except (struct.error, ValueError) as problem:
        raise CorruptRecordError(
            f"subscription of a group's member: {problem}", found=data[:64].hex()
        ) from problem
    return MemberSubscription(topics, user_data, owned, generation, rack)


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None
) -> bytes:
    """The assignment of one member in the sync of the leader."""
    tail = _NULL_BYTES if user_data is None else NUMBER.pack(len(user_data)) + user_data
    return SHORT.pack(VERSION) + _encode_partitions(partitions) + tail


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; none for empty data. Raises CorruptRecordError."""
    if not data:
        return ()
    try:
        return Plain(data, 2).partitions()
    except (struct.error, ValueError) as problem:
        raise CorruptRecordError(
            f"assignment of a group's member: {problem}", found=data[:64].hex()
        ) from problem


def same_subscription(protocol: str, one: bytes, other: bytes) -> bool:
    """Whether two subscriptions for a protocol are equal, apart from owned partitions and their
    generation.
    """
    if one == other:
        return True
    try:
        first = decode_subscription(one)
        second = decode_subscription(other)
    except CorruptRecordError:  # of another protocol type: the bytes are opaque
        return False
    if protocol in REMEMBERING:
        first = first._replace(user_data=None)
        second = second._replace(user_data=None)
    if set(first.topics) != set(second.topics):
        return False
    return first.user_data == second.user_data and first.rack == second.rack


def _encode_string(text: str) -> bytes:
    data = text.encode()
    return SHORT.pack(len(data)) + data


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [NUMBER.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts.append(
            _encode_string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        )
    return b"".join(parts)
