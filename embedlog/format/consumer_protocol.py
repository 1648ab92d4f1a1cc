"""What consumers of a group tell each other: subscriptions and assignments, as Kafka's clients encode them (format.md 9.2).

CONSUMERPROTOCOL-1  version 3 is written; older ones are read, and a newer one as far as version 3 goes: it adds fields behind it
CONSUMERPROTOCOL-2  topics and partitions are written in order, so equal contents are equal bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from embedlog.errors import CorruptRecordError
from embedlog.format.wire import NUMBER, SHORT, Plain
from embedlog.types import TopicPartition

VERSION: Final = 3
TYPE: Final = "consumer"  # the protocol type of a group whose members speak this
REMEMBERING: Final = frozenset({"sticky", "cooperative-sticky"})  # their user data tells what was owned, and since when

_NULL_BYTES: Final = b"\xff\xff\xff\xff"
_NULL_STRING: Final = b"\xff\xff"


class Subscription(NamedTuple):
    """What a member says of itself when it joins."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1  # the one in which it got what it owns
    rack: str | None = None


def encode_subscription(subscription: Subscription) -> bytes:
    """The bytes that a join carries for one protocol."""
    parts = [SHORT.pack(VERSION), NUMBER.pack(len(subscription.topics))]
    parts += [_string(topic) for topic in sorted(subscription.topics)]
    data = subscription.user_data
    parts.append(_NULL_BYTES if data is None else NUMBER.pack(len(data)) + data)
    parts.append(_partitions(subscription.owned))
    parts.append(NUMBER.pack(subscription.generation))
    parts.append(_NULL_STRING if subscription.rack is None else _string(subscription.rack))
    return b"".join(parts)


def decode_subscription(data: bytes) -> Subscription:
    """What a member said. Raises CorruptRecordError."""
    try:
        version, reader = SHORT.unpack_from(data)[0], Plain(data, 2)
        topics = tuple(reader.string() for _ in range(reader.count()))
        user_data = reader.data()
        owned = reader.partitions() if version >= 1 else ()
        generation = reader.number() if version >= 2 else -1
        rack = reader.nullable() if version >= 3 else None
    except (struct.error, ValueError) as problem:
        raise CorruptRecordError(f"subscription of a group's member: {problem}", found=data[:64].hex()) from problem
    return Subscription(topics, user_data, owned, generation, rack)


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """The bytes that a leader's sync carries for one member."""
    tail = _NULL_BYTES if user_data is None else NUMBER.pack(len(user_data)) + user_data
    return SHORT.pack(VERSION) + _partitions(partitions) + tail


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in an assignment; none in one that is empty. Raises CorruptRecordError."""
    if not data:
        return ()
    try:
        return Plain(data, 2).partitions()
    except (struct.error, ValueError) as problem:
        raise CorruptRecordError(f"assignment of a group's member: {problem}", found=data[:64].hex()) from problem


def same_subscription(protocol: str, one: bytes, other: bytes) -> bool:
    """Whether two subscriptions for a protocol ask for the same: what is owned, and since when, is not asked for."""
    if one == other:
        return True
    try:
        first, second = decode_subscription(one), decode_subscription(other)
    except CorruptRecordError:  # of another protocol type: opaque bytes
        return False
    if protocol in REMEMBERING:
        first, second = first._replace(user_data=None), second._replace(user_data=None)
    return (set(first.topics), first.user_data, first.rack) == (set(second.topics), second.user_data, second.rack)


def _string(text: str) -> bytes:
    data = text.encode()
    return SHORT.pack(len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [NUMBER.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts.append(_string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)
