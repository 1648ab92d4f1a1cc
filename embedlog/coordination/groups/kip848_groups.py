"""Reads groups of Kafka's newer protocols from a broker's records. They are never written.

These are consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071). What a
share group has delivered is in `__share_group_state` and is not read, nor are the tasks and the
topology of a streams group.

KIPGROUP-1  a group is a set of records with separate keys; a missing record has Kafka's default
KIPGROUP-2  topics have ids here; their names are in a record of kind 4 if the broker's version
    writes one
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
        settled = all(
            each.epoch == self.assignment_epoch and each.state == "Stable"
            for each in self.members.values()
        )
        return "Stable" if settled else "Reconciling"


def describe(records: Mapping[tuple[int, str], bytes]) -> ModernGroup:
    """The group from its newest records, by kind and member. Raises CorruptRecordError,
    UnsupportedFormatError.
    """
    try:
        kinds = {kind for kind, _ in records}
        if kinds & SHARE_KINDS:
            return _share_group(records)
        if kinds & STREAMS_KINDS:
            return _streams_group(records)
        epoch = _number(_open(records, GROUP, ""))
        target_epoch = _number(_open(records, TARGET, ""))
        topics = _topics(_open(records, TOPICS, ""))
        members = {
            member: _member_of(records, member)
            for kind, member in sorted(records)
            if kind == MEMBER
        }
        return ModernGroup(epoch, target_epoch, members, topics)
    except (struct.error, IndexError, ValueError) as problem:
        raise CorruptRecordError(f"group in __consumer_offsets: {problem}") from problem


def _share_group(records: Mapping[tuple[int, str], bytes]) -> ModernGroup:
    epoch = _number(_open(records, SHARE_GROUP, ""))
    target_epoch = _number(_open(records, SHARE_TARGET, ""))
    topics = _names_of_share(_open(records, SHARE_TOPICS, ""))
    members = {
        member: _member_of_share(records, member)
        for kind, member in sorted(records)
        if kind == SHARE_MEMBER
    }
    return ModernGroup(epoch, target_epoch, members, topics, "share")


def _names_of_share(reader: Flexible | None) -> dict[UUID, str]:
    """The names of topics whose state is being made, and of those whose state exists."""
    found: dict[UUID, str] = {}
    if reader is None:
        return found
    for _ in range(2):
        for _ in range(reader.uvarint() - 1):
            topic = UUID(bytes=reader.fixed(16))
            found[topic] = reader.string()
            reader.numbers()
            reader.tagged()
    return found


def _member_of_share(records: Mapping[tuple[int, str], bytes], member: str) -> ModernMember:
    fields = _open(records, SHARE_MEMBER, member)
    assert fields is not None
    known = ModernMember(
        member,
        rack=fields.nullable(),
        client_id=fields.string(),
        client_host=fields.string(),
        topics=fields.texts(),
        target=_parts(_open(records, SHARE_TARGET_OF, member)),
    )
    current = _open(records, SHARE_CURRENT, member)
    if current is None:
        return known
    epoch, previous, state = current.take(_EPOCHS)
    return replace(
        known,
        epoch=epoch,
        previous_epoch=previous,
        state=_STATES.get(state, "Unknown"),
        assigned=_parts(current),
    )


def _streams_group(records: Mapping[tuple[int, str], bytes]) -> ModernGroup:
    epoch = _number(_open(records, STREAMS_GROUP, ""))
    target_epoch = _number(_open(records, STREAMS_TARGET, ""))
    members = {
        member: _member_of_streams(records, member)
        for kind, member in sorted(records)
        if kind == STREAMS_MEMBER
    }
    return ModernGroup(epoch, target_epoch, members, {}, "streams")


def _member_of_streams(records: Mapping[tuple[int, str], bytes], member: str) -> ModernMember:
    fields = _open(records, STREAMS_MEMBER, member)
    assert fields is not None
    known = ModernMember(
        member,
        instance_id=fields.nullable(),
        rack=fields.nullable(),
        client_id=fields.string(),
        client_host=fields.string(),
        rebalance_timeout_ms=fields.take(NUMBER)[0],
    )
    current = _open(records, STREAMS_CURRENT, member)
    if current is None:
        return known
    epoch, previous, state = current.take(_EPOCHS)
    return replace(known, epoch=epoch, previous_epoch=previous, state=_STATES.get(state, "Unknown"))


def _open(records: Mapping[tuple[int, str], bytes], kind: int, member: str) -> Flexible | None:
    """A reader after the version of a record; None if the record does not exist."""
    value = records.get((kind, member))
    if value is None:
        return None
    if value[:2] != b"\0\0":
        raise UnsupportedFormatError(
            f"version of a record of kind {kind} of a group", expected="0000", found=value[:2].hex()
        )
    return Flexible(value, 2)


def _number(reader: Flexible | None) -> int:
    return 0 if reader is None else reader.take(NUMBER)[0]


def _topics(reader: Flexible | None) -> dict[UUID, str]:
    found: dict[UUID, str] = {}
    for _ in range(0 if reader is None else reader.uvarint() - 1):
        assert reader is not None
        topic = UUID(bytes=reader.fixed(16))
        found[topic] = reader.string()
        reader.take(NUMBER)
        for _ in range(reader.uvarint() - 1):
            reader.take(NUMBER)
            reader.texts()
            reader.tagged()
        reader.tagged()
    return found


def _parts(reader: Flexible | None) -> dict[UUID, tuple[int, ...]]:
    found: dict[UUID, tuple[int, ...]] = {}
    for _ in range(0 if reader is None else reader.uvarint() - 1):
        assert reader is not None
        topic = UUID(bytes=reader.fixed(16))
        found[topic] = reader.numbers()
        reader.tagged()
    return found


def _member_of(records: Mapping[tuple[int, str], bytes], member: str) -> ModernMember:
    fields = _open(records, MEMBER, member)
    assert fields is not None
    known = ModernMember(
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
        target=_parts(_open(records, TARGET_OF, member)),
    )
    current = _open(records, CURRENT, member)
    if current is None:
        return known
    epoch, previous, state = current.take(_EPOCHS)
    assigned = _parts(current)
    revoking = _parts(current)
    return replace(
        known,
        epoch=epoch,
        previous_epoch=previous,
        state=_STATES.get(state, "Unknown"),
        assigned=assigned,
        revoking=revoking,
    )
