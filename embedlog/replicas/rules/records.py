"""Encodes and decodes the records of the decision log (`__replica_state`), as Kafka's KRaft
metadata records.

- A value is a frame version, a record type, a version and a body, as Kafka's controller writes it;
  its tools print it.
- A key is the type and the subject of a record, so that compaction keeps the newest record of every
  subject.
- Fields of embedlog are tagged fields from 10000 up; unknown tagged fields are kept, byte for byte.
- A DecidedPartition is complete and consistent: the decoder refuses one that no decision can have
  produced.
- Damaged bytes raise CorruptRecordError, unknown types and versions UnsupportedFormatError; lengths
  are checked first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias, TypeVar
from uuid import UUID

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.wire import LONG, NUMBER, Flexible, uvarint

LOG: Final = "__replica_state"
NO_LEADER: Final = -1
# kinds of resources that a DecidedConfig is about, with Kafka's numbers
TOPIC: Final = 2
NODE: Final = 4
FRAME_VERSION: Final = 1
SLOTS: Final = 64  # bits of the ISR in a control page

Tags: TypeAlias = tuple[tuple[int, bytes], ...]
Value = TypeVar("Value")

_BYTE: Final = struct.Struct(">b")
# tags of RegisterBroker
_DIRECTORIES = 0
_CORDONED = 1
_VOTER = 10000
_GENERATION = 10001
_PATH = 10002
_SLOT = 10003
_OPENING = 10004
# tags of DecidedPartition
_RECOVERING = 0
_ELR = 1
_LAST_KNOWN = 2  # has the strangers here
_LEADER_REGISTRATION_ID = 10000
# tagged field of a DecidedConfig: its topic was created with this value
ORIGINAL: Final = (10000, b"")
_CORDONED_VERSION = 4


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A directory of the set. `registration_id` changes when it was not closed in order.

    `broker_epoch` is the offset of that registration. `opening` is the id that the first process in
    the directory drew when it opened it; None in a log of an earlier version.

    `replicas` is false for a witness, which votes but takes no partitions; a `leaving` directory
    takes no further ones. `slot` is the bit of the directory in the ISR of control pages, 0 to 63.
    It is unique among the current directories.
    """

    TYPE: ClassVar[int] = 0

    node: int
    registration_id: UUID
    broker_epoch: int
    directory: UUID
    path: str
    rack: str | None = None
    voter: bool = True
    replicas: bool = True
    leaving: bool = False
    generation: int = 0
    slot: int = 0
    opening: UUID | None = None
    others: Tags = ()


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """A directory left the set; its number is not used again."""

    TYPE: ClassVar[int] = 1

    node: int
    broker_epoch: int
    others: Tags = ()


@dataclass(frozen=True, slots=True)
class DecidedTopic:
    """A topic that exists."""

    TYPE: ClassVar[int] = 2

    name: str
    topic_uuid: UUID
    others: Tags = ()


@dataclass(frozen=True, slots=True)
class DecidedPartition:
    """One partition after a decision. `replicas` begins with the preferred leader; `directories`
    are in its order.

    `elr`: eligible leaders outside the ISR. `leader_registration_id`: registration id of the
    leader's directory at its election. `strangers`: replicas in strangers, until they join the ISR
    (in the field of Kafka's last known ELR).
    """

    TYPE: ClassVar[int] = 3

    topic_uuid: UUID
    number: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...]
    elr: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    recovering: bool = False
    leader_registration_id: UUID | None = None
    strangers: tuple[int, ...] = ()
    others: Tags = ()


@dataclass(frozen=True, slots=True)
class DecidedConfig:
    """One setting of a topic or of a node. None returns it to its default."""

    TYPE: ClassVar[int] = 4

    kind: int
    resource: str
    name: str
    value: str | None
    others: Tags = ()


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """A topic was deleted, with its partitions."""

    TYPE: ClassVar[int] = 9

    topic_uuid: UUID
    others: Tags = ()


@dataclass(frozen=True, slots=True)
class NoOp:
    """No change: a record of the current term, after which the records before it count."""

    TYPE: ClassVar[int] = 20

    others: Tags = ()


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Removes the newest record of a key from a compacted log. It changes no state."""

    key: bytes


Change: TypeAlias = (
    RegisterBroker
    | UnregisterBroker
    | DecidedTopic
    | DecidedPartition
    | DecidedConfig
    | RemoveTopic
    | NoOp
)
Record: TypeAlias = Change | Tombstone


# ---- keys ----------------------------------------------------------------------------------------


def key_of(record: Record) -> bytes:
    """The key of a record."""
    if isinstance(record, Tombstone):
        return record.key
    return bytes((record.TYPE,)) + _subject_of(record)


def _subject_of(record: Change) -> bytes:
    match record:
        case RegisterBroker() | UnregisterBroker():
            return NUMBER.pack(record.node)
        case DecidedTopic() | RemoveTopic():
            return record.topic_uuid.bytes
        case DecidedPartition():
            return record.topic_uuid.bytes + NUMBER.pack(record.number)
        case DecidedConfig():
            return (
                _BYTE.pack(record.kind)
                + _encode_string(record.resource)
                + _encode_string(record.name)
            )
        case NoOp():
            return b""


# ---- encoding ------------------------------------------------------------------------------------


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value of a record."""
    if isinstance(record, Tombstone):
        return record.key, None
    version, body, tags = _ENCODERS[record.TYPE](record)
    head = bytes((FRAME_VERSION, record.TYPE, version))
    return key_of(record), head + body + _encode_tags([*tags, *record.others])


Encoded: TypeAlias = tuple[int, bytes, list[tuple[int, bytes]]]  # version, body, tagged fields


def _encode_register(record: RegisterBroker) -> Encoded:
    body = (
        NUMBER.pack(record.node)
        + b"\0"  # it migrates from no ZooKeeper
        + record.registration_id.bytes
        + LONG.pack(record.broker_epoch)
        + b"\1\1"  # no endpoints, no features
        + _encode_nullable(record.rack)
        + b"\0"  # not fenced
        + bytes((record.leaving,))
    )
    tags = [(_DIRECTORIES, _encode_uuids([record.directory]))]
    if not record.replicas:
        tags.append((_CORDONED, _encode_uuids([record.directory])))
    tags += [
        (_VOTER, bytes((record.voter,))),
        (_GENERATION, NUMBER.pack(record.generation)),
        (_PATH, _encode_string(record.path)),
    ]
    if record.slot:
        tags.append((_SLOT, bytes((record.slot,))))
    if record.opening is not None:
        tags.append((_OPENING, record.opening.bytes))
    return (3 if record.replicas else _CORDONED_VERSION), body, tags


def _encode_partition(record: DecidedPartition) -> Encoded:
    lists = (record.replicas, record.isr, record.removing, record.adding)
    body = (
        NUMBER.pack(record.number) + record.topic_uuid.bytes + b"".join(map(_encode_numbers, lists))
    )
    body += struct.pack(
        ">iii", record.leader, record.leader_epoch, record.partition_epoch
    ) + _encode_uuids(record.directories)
    tags = []
    if record.recovering:
        tags.append((_RECOVERING, b"\1"))
    if record.elr:
        tags.append((_ELR, _encode_numbers(record.elr)))
    if record.strangers:
        tags.append((_LAST_KNOWN, _encode_numbers(record.strangers)))
    if record.leader_registration_id is not None:
        tags.append((_LEADER_REGISTRATION_ID, record.leader_registration_id.bytes))
    return 2, body, tags


def _encode_config(record: DecidedConfig) -> Encoded:
    body = (
        _BYTE.pack(record.kind)
        + _encode_string(record.resource)
        + _encode_string(record.name)
        + _encode_nullable(record.value)
    )
    return 0, body, []


_ENCODERS: Final[dict[int, Callable[..., Encoded]]] = {
    RegisterBroker.TYPE: _encode_register,
    UnregisterBroker.TYPE: lambda record: (
        0,
        NUMBER.pack(record.node) + LONG.pack(record.broker_epoch),
        [],
    ),
    DecidedTopic.TYPE: lambda record: (
        0,
        _encode_string(record.name) + record.topic_uuid.bytes,
        [],
    ),
    DecidedPartition.TYPE: _encode_partition,
    DecidedConfig.TYPE: _encode_config,
    RemoveTopic.TYPE: lambda record: (0, record.topic_uuid.bytes, []),
    NoOp.TYPE: lambda record: (0, b"", []),
}


def _encode_string(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def _encode_nullable(text: str | None) -> bytes:
    return b"\0" if text is None else _encode_string(text)


def _encode_numbers(numbers: tuple[int, ...]) -> bytes:
    return uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def _encode_uuids(ids: Iterable[UUID]) -> bytes:
    raw_ids = [uuid.bytes for uuid in ids]
    return uvarint(len(raw_ids) + 1) + b"".join(raw_ids)


def _encode_tags(fields: Iterable[tuple[int, bytes]]) -> bytes:
    ordered = sorted(fields)
    return uvarint(len(ordered)) + b"".join(
        uvarint(tag) + uvarint(len(data)) + data for tag, data in ordered
    )


# ---- decoding ------------------------------------------------------------------------------------


def decode(key: bytes, value: bytes | None) -> Record:
    """The record of a key and a value. Raises CorruptRecordError and UnsupportedFormatError."""
    if value is None:
        if not key or key[0] not in _DECODERS:
            raise UnsupportedFormatError(
                "tombstone of the decision log: unknown type", found=key[:64].hex()
            )
        return Tombstone(key)
    try:
        record = _decode(Flexible(value, 0), len(value))
    except (struct.error, ValueError, IndexError) as problem:
        raise CorruptRecordError(
            f"record of the decision log: {problem}", found=value[:64].hex()
        ) from problem
    if key != key_of(record):
        raise CorruptRecordError(
            "record of the decision log: its key",
            expected=key_of(record).hex(),
            found=key[:64].hex(),
        )
    return record


def _decode(reader: Flexible, size: int) -> Change:
    frame = reader.uvarint()
    kind = reader.uvarint()
    version = reader.uvarint()
    if frame != FRAME_VERSION:
        raise UnsupportedFormatError(
            "frame of a record of the decision log", expected=FRAME_VERSION, found=frame
        )
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise UnsupportedFormatError(
            "type of a record of the decision log", expected=sorted(_DECODERS), found=kind
        )
    versions, decode_body = decoder
    if version not in versions:
        raise UnsupportedFormatError(
            f"version of type {kind} in the decision log", expected=list(versions), found=version
        )
    record = decode_body(reader)
    if reader.at != size:
        raise ValueError(f"{size - reader.at} bytes follow its end")
    return record


class _Fields:
    """The tagged fields of a record: the known ones are taken, the others are kept."""

    def __init__(self, reader: Flexible) -> None:
        fields = reader.tagged()
        tags = [tag for tag, _ in fields]
        if tags != sorted(set(tags)):
            raise ValueError(f"tags are not ascending: {tags[:20]}")
        self._fields = dict(fields)

    def take(self, tag: int, read: Callable[[Flexible], Value]) -> Value | None:
        """The value of a field, None if it is absent."""
        data = self._fields.pop(tag, None)
        if data is None:
            return None
        reader = Flexible(data, 0)
        value = read(reader)
        if reader.at != len(data):
            raise ValueError(f"{len(data) - reader.at} bytes follow the end of tagged field {tag}")
        return value

    def others(self) -> Tags:
        """The fields that were not taken."""
        return tuple(self._fields.items())


def _decode_register(reader: Flexible) -> RegisterBroker:
    node = _read_node(reader)
    _check_unused(reader, 1, "a migration")
    registration_id = _read_uuid(reader)
    broker_epoch = reader.take(LONG)[0]
    _check_unused(reader, 2, "end points or features", b"\1\1")
    rack = reader.nullable()
    _check_unused(reader, 1, "a fence")
    leaving = _read_flag(reader)
    fields = _Fields(reader)
    directories = fields.take(_DIRECTORIES, _read_uuids) or ()
    cordoned = fields.take(_CORDONED, _read_uuids) or ()
    if len(directories) != 1 or cordoned not in ((), directories):
        raise ValueError(
            f"{len(directories)} log directories, {len(cordoned)} cordoned, for one node"
        )
    voter = fields.take(_VOTER, _read_flag)
    generation = fields.take(_GENERATION, _read_number)
    path = fields.take(_PATH, Flexible.string)
    slot = fields.take(_SLOT, _read_slot) or 0
    opening = fields.take(_OPENING, _read_uuid)
    others = fields.others()
    if generation is None or path is None or voter is None or generation < 0:
        raise ValueError("voter, generation or path is missing")
    return RegisterBroker(
        node=node,
        registration_id=registration_id,
        broker_epoch=broker_epoch,
        directory=directories[0],
        path=path,
        rack=rack,
        voter=voter,
        replicas=not cordoned,
        leaving=leaving,
        generation=generation,
        slot=slot,
        opening=opening,
        others=others,
    )


def _decode_partition(reader: Flexible) -> DecidedPartition:
    number = _read_number(reader)
    topic_uuid = _read_uuid(reader)
    replicas = reader.numbers()
    isr = reader.numbers()
    removing = reader.numbers()
    adding = reader.numbers()
    leader = _read_number(reader)
    leader_epoch = _read_number(reader)
    partition_epoch = _read_number(reader)
    directories = _read_uuids(reader)
    fields = _Fields(reader)
    record = DecidedPartition(
        topic_uuid=topic_uuid,
        number=number,
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        directories=directories,
        elr=fields.take(_ELR, Flexible.numbers) or (),
        removing=removing,
        adding=adding,
        recovering=fields.take(_RECOVERING, _read_flag) or False,
        leader_registration_id=fields.take(_LEADER_REGISTRATION_ID, _read_uuid),
        strangers=fields.take(_LAST_KNOWN, Flexible.numbers) or (),
        others=fields.others(),
    )
    problem = inconsistency(record)
    if problem:
        raise ValueError(problem)
    return record


def inconsistency(record: DecidedPartition) -> str:
    """The first reason for which no decision can have produced this record; empty if there is
    none.
    """
    assigned = set(record.replicas)
    if min(record.number, record.leader_epoch, record.partition_epoch, *record.replicas, 0) < 0:
        return "a negative number, epoch or node"
    if not assigned or len(record.directories) != len(record.replicas):
        return f"{len(record.directories)} directories for {len(record.replicas)} replicas"
    lists = {
        "replicas": record.replicas,
        "ISR": record.isr,
        "ELR": record.elr,
        "strangers": record.strangers,
        "removing": record.removing,
        "adding": record.adding,
    }
    for name, nodes in lists.items():
        if len(set(nodes)) != len(nodes) or not assigned.issuperset(nodes):
            return f"{name} has a node twice, or one that is not assigned"
    if record.leader != NO_LEADER and record.leader not in record.isr:
        return f"leader {record.leader} is not in the ISR {record.isr[:64]}"
    if set(record.isr) & set(record.elr):
        return "ISR and ELR have a common node"
    if set(record.strangers) & {*record.isr, *record.elr}:
        return "a stranger is in the ISR or the ELR"
    return ""


def _decode_topic(reader: Flexible) -> DecidedTopic:
    return DecidedTopic(reader.string(), _read_uuid(reader), _Fields(reader).others())


def _decode_unregister(reader: Flexible) -> UnregisterBroker:
    return UnregisterBroker(_read_node(reader), reader.take(LONG)[0], _Fields(reader).others())


def _decode_config(reader: Flexible) -> DecidedConfig:
    kind = reader.take(_BYTE)[0]
    resource = reader.string()
    name = reader.string()
    return DecidedConfig(kind, resource, name, reader.nullable(), _Fields(reader).others())


_DECODERS: Final[dict[int, tuple[tuple[int, ...], Callable[[Flexible], Change]]]] = {
    RegisterBroker.TYPE: ((3, _CORDONED_VERSION), _decode_register),
    UnregisterBroker.TYPE: ((0,), _decode_unregister),
    DecidedTopic.TYPE: ((0,), _decode_topic),
    DecidedPartition.TYPE: ((2,), _decode_partition),
    DecidedConfig.TYPE: ((0,), _decode_config),
    RemoveTopic.TYPE: (
        (0,),
        lambda reader: RemoveTopic(_read_uuid(reader), _Fields(reader).others()),
    ),
    NoOp.TYPE: ((0,), lambda reader: NoOp(_Fields(reader).others())),
}


def _read_uuid(reader: Flexible) -> UUID:
    return UUID(bytes=reader.fixed(16))


def _read_number(reader: Flexible) -> int:
    return reader.take(NUMBER)[0]


def _read_node(reader: Flexible) -> int:
    node = _read_number(reader)
    if node < 0:
        raise ValueError(f"node {node}")
    return node


def _read_flag(reader: Flexible) -> bool:
    byte = reader.fixed(1)[0]
    if byte > 1:
        raise ValueError(f"{byte} instead of 0 or 1")
    return bool(byte)


def _read_slot(reader: Flexible) -> int:
    slot = reader.fixed(1)[0]
    if not 0 < slot < SLOTS:
        raise ValueError(f"slot {slot}")
    return slot


def _read_uuids(reader: Flexible) -> tuple[UUID, ...]:
    return tuple(_read_uuid(reader) for _ in range(reader.uvarint() - 1))


def _check_unused(reader: Flexible, size: int, name: str, unset: bytes = b"\0") -> None:
    """Read a field of Kafka that no directory uses. Raises UnsupportedFormatError if it is set."""
    if reader.fixed(size) != unset:
        raise UnsupportedFormatError(f"registration with {name} in the decision log")
