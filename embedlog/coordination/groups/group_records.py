"""Keys and values of `__consumer_offsets` in Kafka's schema (format.md 9.1), with embedlog's
additions as tagged fields.

- Groups are written in version 4, which has tagged fields, offsets in version 3 as brokers do; all
  versions are read.
- Own fields have high tags. Kafka's own fields contain the values that a broker expects: each
  member's subscription is the one for the chosen protocol. During a join phase a broker reads a
  group whose members have no assignment yet.
- Unknown tagged fields are kept, byte for byte, and written again.
- Keys of an unknown kind are no error: they have no group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.process_slot import ProcessSlot
from embedlog.format.wire import LONG, NUMBER, SHORT, Fields, Flexible, Plain, uvarint
from embedlog.group import Group, Member, State, Tags
from embedlog.types import OffsetAndMetadata, TopicPartition

OFFSET_KEY: Final = 1
GROUP_KEY: Final = 2
OFFSET_VERSION: Final = 3
EXPIRING_VERSION: Final = 1  # the only version with an expiry time
GROUP_VERSION: Final = 4
TOPIC_ID_TAG: Final = 0  # of an offset: Kafka's
STATE_TAG: Final = 10_000  # of a group; first of embedlog's tags: Kafka numbers from 0
SLOT_TAG: Final = 10_000  # of a member
JOINED_TAG: Final = 10_001

_TIMEOUTS: Final = struct.Struct(">ii")  # rebalance and session timeout in ms
STATE: Final = struct.Struct(">bbI")  # state, 1 while the first phase is delayed, round
PROCESS_SLOT: Final = struct.Struct(">IQ")  # slot, nonce
_OFFSET_HEAD: Final = struct.Struct(">hqi")  # version, offset, leader epoch
_TIMES: Final = struct.Struct(">qq")  # commit and expiry in wall clock ms


class Committed(NamedTuple):
    """A committed offset as stored in the log."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    topic_uuid: UUID | None = None  # of the topic, if a broker stored it


# ---- keys ----------------------------------------------------------------------------------------


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a group's committed offset for a partition."""
    name = group.encode()
    of = topic.encode()
    return b"".join(
        (b"\0\1", SHORT.pack(len(name)), name, SHORT.pack(len(of)), of, NUMBER.pack(partition))
    )


def encode_group_key(group: str) -> bytes:
    """The key of a group's own records."""
    name = group.encode()
    return b"\0\2" + SHORT.pack(len(name)) + name


def key_kind(key: bytes) -> int:
    """The number at the start of a key: the kind of its record."""
    if len(key) < 2:
        raise CorruptRecordError("key in __consumer_offsets", found=key.hex())
    return key[0] << 8 | key[1]


def decode_offset_key(key: bytes) -> tuple[str, TopicPartition]:
    """Group and partition of a key of kind 0 or 1. Raises CorruptRecordError."""
    try:
        until = 4 + (key[2] << 8 | key[3])
        group = key[4:until].decode()
        start = until + 2
        until = start + (key[until] << 8 | key[until + 1])
        if len(key) != until + 4:
            raise ValueError(f"{until + 4} bytes expected, {len(key)} found")
        return group, TopicPartition(key[start:until].decode(), NUMBER.unpack_from(key, until)[0])
    except (struct.error, IndexError, ValueError) as problem:
        raise CorruptRecordError(
            f"key in __consumer_offsets: {problem}", found=key[:64].hex()
        ) from problem


def decode_names(key: bytes) -> tuple[str, str]:
    """Group and member of a key of kind 2 or more; the member is empty if the kind has none. Raises
    CorruptRecordError.
    """
    reader = Plain(key, 2)
    try:
        group = reader.string()
        member = reader.string() if reader.at < len(key) else ""
        if reader.at != len(key):
            raise ValueError(f"{len(key) - reader.at} bytes too many")
        return group, member
    except (struct.error, ValueError) as problem:
        raise CorruptRecordError(
            f"key in __consumer_offsets: {problem}", found=key[:64].hex()
        ) from problem


# ---- offsets -------------------------------------------------------------------------------------


def encode_offset(offset: OffsetAndMetadata, commit_ms: int, expire_ms: int = -1) -> bytes:
    """The value of a commit."""
    metadata = offset.metadata.encode()
    size = SHORT.pack(len(metadata))
    if expire_ms >= 0:
        return b"".join(
            (b"\0\1", LONG.pack(offset.offset), size, metadata, _TIMES.pack(commit_ms, expire_ms))
        )
    head = _OFFSET_HEAD.pack(OFFSET_VERSION, offset.offset, offset.leader_epoch)
    return b"".join((head, size, metadata, LONG.pack(commit_ms)))


def decode_offset(value: bytes) -> Committed:
    """The commit in a value. Raises UnsupportedFormatError for a newer version, CorruptRecordError
    for a malformed value.
    """
    try:
        version = SHORT.unpack_from(value)[0]
        offset = LONG.unpack_from(value, 2)[0]
        if not 0 <= version <= 4:
            raise UnsupportedFormatError(
                "version of an offset in __consumer_offsets", expected="0 to 4", found=version
            )
        position = 10
        epoch = -1
        if version >= OFFSET_VERSION:
            position = 14
            epoch = NUMBER.unpack_from(value, 10)[0]
        if version == 4:
            reader = Flexible(value, position)
            metadata = reader.string()
            commit_ms = reader.take(LONG)[0]
            ids = [
                UUID(bytes=data)
                for tag, data in reader.tagged()
                if tag == TOPIC_ID_TAG and len(data) == 16
            ]
            return Committed(offset, epoch, metadata, commit_ms, topic_uuid=ids[0] if ids else None)
        size = SHORT.unpack_from(value, position)[0]
        if size < 0:
            raise ValueError("the metadata is null")
        until = position + 2 + size
        metadata = value[position + 2 : until].decode()
        commit_ms = LONG.unpack_from(value, until)[0]
        expire_ms = LONG.unpack_from(value, until + 8)[0] if version == EXPIRING_VERSION else -1
        return Committed(offset, epoch, metadata, commit_ms, expire_ms)
    except (struct.error, IndexError, ValueError) as problem:
        raise CorruptRecordError(
            f"offset in __consumer_offsets: {problem}", found=value[:64].hex()
        ) from problem


# ---- groups: writing -----------------------------------------------------------------------------


def encode_group(group: Group) -> bytes:
    """The value, in version 4."""
    parts = [
        b"\0\4",
        _encode_text(group.protocol_type),
        NUMBER.pack(group.generation),
        b"\0" if group.protocol is None else _encode_text(group.protocol),
        b"\0" if group.leader is None else _encode_text(group.leader),
        LONG.pack(group.changed_ms),
        uvarint(len(group.members) + 1),
    ]
    parts += [_encode_member(member, group.protocol) for member in group.members.values()]
    parts.append(
        _encode_tagged(
            group.others, ((STATE_TAG, STATE.pack(group.state, group.delayed, group.round)),)
        )
    )
    return b"".join(parts)


def _encode_member(member: Member, protocol: str | None) -> bytes:
    own_fields: Fields = [(JOINED_TAG, _encode_joined(member, protocol))]
    if member.process_slot is not None:
        own_fields.insert(0, (SLOT_TAG, PROCESS_SLOT.pack(*member.process_slot[:2])))
    return b"".join(
        (
            _encode_text(member.member_id),
            b"\0" if member.instance_id is None else _encode_text(member.instance_id),
            _encode_text(member.client_id),
            _encode_text(member.client_host),
            _TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
            _encode_bytes(member.metadata(protocol)),
            _encode_bytes(member.assignment),
            _encode_tagged(member.others, own_fields),
        )
    )


def _encode_joined(member: Member, protocol: str | None) -> bytes:
    """Whether the member has joined, and its protocols in order; the subscription in Kafka's own
    field is not repeated.
    """
    chosen = member.metadata(protocol)
    parts = [b"\1" if member.joined else b"\0", uvarint(len(member.protocols))]
    for name, metadata in member.protocols:
        parts += (_encode_text(name), b"\0" if metadata == chosen else _encode_bytes(metadata))
    return b"".join(parts)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def _encode_bytes(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def _encode_tagged(others: Tags, own: Iterable[tuple[int, bytes]]) -> bytes:
    fields = sorted((*others, *own)) if others else list(own)
    return uvarint(len(fields)) + b"".join(
        [uvarint(tag) + uvarint(len(data)) + data for tag, data in fields]
    )


# ---- groups: reading -----------------------------------------------------------------------------


def decode_group(value: bytes) -> Group:
    """The group in a value. Raises UnsupportedFormatError for a newer version, CorruptRecordError
    for a malformed value.
    """
    try:
        version = SHORT.unpack_from(value)[0]
        if not 0 <= version <= GROUP_VERSION:
            raise UnsupportedFormatError(
                "version of a group in __consumer_offsets", expected="0 to 4", found=version
            )
        return (
            _decode_flexible_group(value)
            if version == GROUP_VERSION
            else _decode_plain_group(value, version)
        )
    except (struct.error, IndexError, ValueError) as problem:
        raise CorruptRecordError(
            f"group in __consumer_offsets: {problem}", found=value[:64].hex()
        ) from problem


def _decode_plain_group(value: bytes, version: int) -> Group:
    """A group as brokers write it: they load all of its members as members of a stable group."""
    reader = Plain(value, 2)
    protocol_type = reader.string()
    generation = reader.number()
    protocol = reader.nullable()
    leader = reader.nullable()
    changed_ms = reader.take(LONG)[0] if version >= 2 else -1
    members = {}
    for _ in range(reader.count()):
        member_id = reader.string()
        instance_id = reader.nullable() if version >= 3 else None
        client_id = reader.string()
        client_host = reader.string()
        rebalance_ms = reader.number() if version >= 1 else -1
        session_ms = reader.number()
        chosen = reader.data() or b""
        assignment = reader.data() or b""
        members[member_id] = Member(
            member_id,
            instance_id,
            client_id,
            client_host,
            session_ms if rebalance_ms < 0 else rebalance_ms,
            session_ms,
            ((protocol or "", chosen),),
            assignment,
        )
    state = State.STABLE if members else State.EMPTY
    return Group(protocol_type, generation, protocol, leader, state, changed_ms, members)


def _decode_flexible_group(value: bytes) -> Group:
    reader = Flexible(value, 2)
    protocol_type = reader.string()
    generation = reader.take(NUMBER)[0]
    protocol = reader.nullable()
    leader = reader.nullable()
    changed_ms = reader.take(LONG)[0]
    members = {}
    for _ in range(reader.uvarint() - 1):
        member = _decode_flexible_member(reader, protocol)
        members[member.member_id] = member
    state = State.STABLE if members else State.EMPTY
    delayed = False
    round_ = 0
    others: Tags = ()
    for tag, data in reader.tagged():
        if tag == STATE_TAG and len(data) == STATE.size:
            number, flag, round_ = STATE.unpack(data)
            state = State(number)
            delayed = bool(flag)
            if state is State.DEAD:
                raise ValueError("a deleted group must have no record")
        else:
            others += ((tag, data),)
    return Group(
        protocol_type,
        generation,
        protocol,
        leader,
        state,
        changed_ms,
        members,
        delayed,
        round_,
        others,
    )


def _decode_flexible_member(reader: Flexible, protocol: str | None) -> Member:
    member_id = reader.string()
    instance_id = reader.nullable()
    client_id = reader.string()
    client_host = reader.string()
    rebalance_ms, session_ms = reader.take(_TIMEOUTS)
    chosen = reader.data()
    assignment = reader.data()
    process_slot = None
    joined = True
    protocols: tuple[tuple[str, bytes], ...] = ((protocol or "", chosen),)
    others: Tags = ()
    for tag, data in reader.tagged():
        if tag == SLOT_TAG and len(data) == PROCESS_SLOT.size:
            process_slot = ProcessSlot(*PROCESS_SLOT.unpack(data))
        elif tag == JOINED_TAG:
            joined, protocols = _decode_joined(data, chosen)
        else:
            others += ((tag, data),)
    return Member(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_ms if rebalance_ms < 0 else rebalance_ms,
        session_ms,
        protocols,
        assignment,
        joined,
        process_slot,
        others,
    )


def _decode_joined(data: bytes, chosen: bytes) -> tuple[bool, tuple[tuple[str, bytes], ...]]:
    reader = Flexible(data, 1)
    protocols = []
    for _ in range(reader.uvarint()):
        name = reader.string()
        metadata = reader.maybe()
        protocols.append((name, chosen if metadata is None else metadata))
    return data[0] != 0, tuple(protocols)
