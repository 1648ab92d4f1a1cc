"""Reads groups of Kafka's newer protocols from a broker's records. They are never written.

These are consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071). What a
share group has delivered is in `__share_group_state` and is not read, nor are the tasks and the
topology of a streams group.

- A group is a set of records with separate keys; a missing record has Kafka's default.
- Topics have ids here; their names are in a record of kind 4 if the broker's version writes one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.wire import NUMBER, Flexible

GROUP = 3
TOPICS = 4
MEMBER = 5
TARGET = 6
TARGET_OF = 7
CURRENT = 8
SHARE_MEMBER = 10
SHARE_GROUP = 11
SHARE_TARGET = 12
SHARE_TARGET_OF = 13
SHARE_CURRENT = 14
SHARE_TOPICS = 15
STREAMS_GROUP = 17
STREAMS_MEMBER = 19
STREAMS_TARGET = 20
STREAMS_TARGET_OF = 21
STREAMS_CURRENT = 22
STREAMS_TOPOLOGY = 23
SHARE_KINDS: Final = frozenset(
    {SHARE_MEMBER, SHARE_GROUP, SHARE_TARGET, SHARE_TARGET_OF, SHARE_CURRENT, SHARE_TOPICS}
)
STREAMS_KINDS: Final = frozenset(
    {
        STREAMS_GROUP,
        STREAMS_MEMBER,
        STREAMS_TARGET,
        STREAMS_TARGET_OF,
        STREAMS_CURRENT,
        STREAMS_TOPOLOGY,
    }
)
CONSUMER_KINDS: Final = frozenset({GROUP, TOPICS, MEMBER, TARGET, TARGET_OF, CURRENT})
KINDS: Final = CONSUMER_KINDS | SHARE_KINDS | STREAMS_KINDS

_EPOCHS: Final = struct.Struct(">iib")  # epoch, previous epoch, state

Parts = Mapping[UUID, tuple[int, ...]]  # partitions by topic id

_STATES: Final = {0: "Stable", 1: "UnrevokedPartitions", 2: "UnreleasedPartitions"}


@dataclass(frozen=True, slots=True)
class ModernMember:
    """One member: its subscription, and the progress of its assignment."""

    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: str = "Stable"
    assigned: Parts = field(default_factory=dict)
    revoking: Parts = field(default_factory=dict)
    target: Parts = field(default_factory=dict)
    classic: bool = False  # uses the older protocol


@dataclass(frozen=True, slots=True)
class ModernGroup:
    """A group. `topics`: names of topic ids, as far as its records contain them. `type` is
    "consumer", "share" or "streams".
    """

    epoch: int
    assignment_epoch: int
    members: Mapping[str, ModernMember]
    topics: Mapping[UUID, str]
    type: str = "consumer"

    @property
    def state(self) -> str:
        """The state, with Kafka's names."""
        if not self.members:
            return "Empty"
        if self.type == "share":
            return "Stable"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        is_stable = all(
            member.epoch == self.assignment_epoch and member.state == "Stable"
            for member in self.members.values()
        )
        return "Stable" if is_stable else "Reconciling"


def describe(records: Mapping[tuple[int, str], bytes]) -> ModernGroup:
    """The group from its newest records, by kind and member. Raises CorruptRecordError,
    UnsupportedFormatError.
    """
    try:
        kinds = {kind for kind, _ in records}
        if kinds & SHARE_KINDS:
            return _decode_share_group(records)
        if kinds & STREAMS_KINDS:
            return _decode_streams_group(records)
        epoch = _decode_number(_open_record(records, GROUP, ""))
        target_epoch = _decode_number(_open_record(records, TARGET, ""))
        topics = _decode_topics(_open_record(records, TOPICS, ""))
        members = {
            member: _decode_member(records, member)
            for kind, member in sorted(records)
            if kind == MEMBER
        }
        return ModernGroup(epoch, target_epoch, members, topics)
    except (struct.error, IndexError, ValueError) as problem:
        raise CorruptRecordError(f"group in __consumer_offsets: {problem}") from problem


def _decode_share_group(records: Mapping[tuple[int, str], bytes]) -> ModernGroup:
    epoch = _decode_number(_open_record(records, SHARE_GROUP, ""))
    target_epoch = _decode_number(_open_record(records, SHARE_TARGET, ""))
    topics = _decode_share_topics(_open_record(records, SHARE_TOPICS, ""))
    members = {
        member: _decode_share_member(records, member)
        for kind, member in sorted(records)
        if kind == SHARE_MEMBER
    }
    return ModernGroup(epoch, target_epoch, members, topics, "share")


def _decode_share_topics(reader: Flexible | None) -> dict[UUID, str]:
    """The names of topics whose state is being made, and of those whose state exists."""
    names: dict[UUID, str] = {}
    if reader is None:
        return names
    for _ in range(2):
        for _ in range(reader.uvarint() - 1):
            topic = UUID(bytes=reader.fixed(16))
            names[topic] = reader.string()
            reader.numbers()
            reader.tagged()
    return names


def _decode_share_member(records: Mapping[tuple[int, str], bytes], member: str) -> ModernMember:
    fields = _open_record(records, SHARE_MEMBER, member)
    assert fields is not None
    subscribed = ModernMember(
        member,
        rack=fields.nullable(),
        client_id=fields.string(),
        client_host=fields.string(),
        topics=fields.texts(),
        target=_decode_parts(_open_record(records, SHARE_TARGET_OF, member)),
    )
    current = _open_record(records, SHARE_CURRENT, member)
    if current is None:
        return subscribed
    epoch, previous, state = current.take(_EPOCHS)
    return replace(
        subscribed,
        epoch=epoch,
        previous_epoch=previous,
        state=_STATES.get(state, "Unknown"),
        assigned=_decode_parts(current),
    )


def _decode_streams_group(records: Mapping[tuple[int, str], bytes]) -> ModernGroup:
    epoch = _decode_number(_open_record(records, STREAMS_GROUP, ""))
    target_epoch = _decode_number(_open_record(records, STREAMS_TARGET, ""))
    members = {
        member: _decode_streams_member(records, member)
        for kind, member in sorted(records)
        if kind == STREAMS_MEMBER
    }
    return ModernGroup(epoch, target_epoch, members, {}, "streams")


def _decode_streams_member(records: Mapping[tuple[int, str], bytes], member: str) -> ModernMember:
    fields = _open_record(records, STREAMS_MEMBER, member)
    assert fields is not None
    subscribed = ModernMember(
        member,
        instance_id=fields.nullable(),
        rack=fields.nullable(),
        client_id=fields.string(),
        client_host=fields.string(),
        rebalance_timeout_ms=fields.take(NUMBER)[0],
    )
    current = _open_record(records, STREAMS_CURRENT, member)
    if current is None:
        return subscribed
    epoch, previous, state = current.take(_EPOCHS)
    return replace(
        subscribed, epoch=epoch, previous_epoch=previous, state=_STATES.get(state, "Unknown")
    )


def _open_record(
    records: Mapping[tuple[int, str], bytes], kind: int, member: str
) -> Flexible | None:
    """A reader after the version of a record; None if the record does not exist."""
    value = records.get((kind, member))
    if value is None:
        return None
    if value[:2] != b"\0\0":
        raise UnsupportedFormatError(
            f"version of a record of kind {kind} of a group", expected="0000", found=value[:2].hex()
        )
    return Flexible(value, 2)


def _decode_number(reader: Flexible | None) -> int:
    return 0 if reader is None else reader.take(NUMBER)[0]


def _decode_topics(reader: Flexible | None) -> dict[UUID, str]:
    names: dict[UUID, str] = {}
    if reader is None:
        return names
    for _ in range(reader.uvarint() - 1):
        topic = UUID(bytes=reader.fixed(16))
        names[topic] = reader.string()
        reader.take(NUMBER)
        for _ in range(reader.uvarint() - 1):
            reader.take(NUMBER)
            reader.texts()
            reader.tagged()
        reader.tagged()
    return names


def _decode_parts(reader: Flexible | None) -> dict[UUID, tuple[int, ...]]:
    parts: dict[UUID, tuple[int, ...]] = {}
    if reader is None:
        return parts
    for _ in range(reader.uvarint() - 1):
        topic = UUID(bytes=reader.fixed(16))
        parts[topic] = reader.numbers()
        reader.tagged()
    return parts


def _decode_member(records: Mapping[tuple[int, str], bytes], member: str) -> ModernMember:
    fields = _open_record(records, MEMBER, member)
    assert fields is not None
    subscribed = ModernMember(
        member,
        instance_id=fields.nullable(),
        rack=fields.nullable(),
        client_id=fields.string(),
        client_host=fields.string(),
        topics=fields.texts(),
        pattern=fields.nullable(),
        rebalance_timeout_ms=fields.take(NUMBER)[0],
        assignor=fields.nullable(),
        classic=any(tag == 0 and data[:1] == b"\1" for tag, data in fields.tagged()),
        target=_decode_parts(_open_record(records, TARGET_OF, member)),
    )
    current = _open_record(records, CURRENT, member)
    if current is None:
        return subscribed
    epoch, previous, state = current.take(_EPOCHS)
    assigned = _decode_parts(current)
    revoking = _decode_parts(current)
    return replace(
        subscribed,
        epoch=epoch,
        previous_epoch=previous,
        state=_STATES.get(state, "Unknown"),
        assigned=assigned,
        revoking=revoking,
    )
