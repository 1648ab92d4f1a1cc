"""Encodes and decodes the records of `__cluster_metadata`, the metadata log of a broker (KIP-631,
`docs/format.md` 11).

- A value is a frame version, a record type, a version and a body; tagged fields that are not used
  are skipped.
- A record whose fields are not needed is `Other`; its bytes are kept as they are.
- Damaged bytes raise CorruptRecordError, unknown types and versions UnsupportedFormatError.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.wire import LONG, NUMBER, SHORT, Flexible, uvarint

TOPIC_SETTINGS: Final = 2  # kinds of a Config record
BROKER_SETTINGS: Final = 4
CLIENT_METRICS_SETTINGS: Final = 16
GROUP_SETTINGS: Final = 32
NO_LEADER: Final = -1
# types of records without content that is needed
BEGIN = 23
END = 24
ABORT = 25
NO_OP = 20
CLEAR_ELR = 28

_FRAME_VERSION: Final = 1
_BYTE: Final = struct.Struct(">b")
_UUID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A broker of the cluster, with the ids of its log directories."""

    node: int
    epoch: int
    directories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    """A broker left the cluster."""

    node: int


@dataclass(frozen=True, slots=True)
class RegistrationChange:
    """The log directories of a broker have changed; None: they have not."""

    node: int
    directories: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic that exists."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic was deleted, with its partitions and settings."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """One partition. `directories` are the log directories of `replicas`, in their order; () before
    Kafka 3.7.
    """

    topic_id: str
    number: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """Changed fields of a partition; None: unchanged. A leader, also the same one, begins a new
    leader epoch.
    """

    topic_id: str
    number: int
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    replicas: tuple[int, ...] | None = None
    directories: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """One setting of a topic, a broker or another resource. None returns it to its default."""

    kind: int
    resource: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """The finalized level of a feature; 0 removes it."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """The first producer id that no broker has been given."""

    node: int
    broker_epoch: int
    following: int


@dataclass(frozen=True, slots=True)
class Other:
    """A record of a known type that is kept as it is."""

    kind: int


Record: TypeAlias = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | RegistrationChange
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChange
    | ConfigRecord
    | FeatureLevel
    | ProducerIds
    | Other
)

# ---- encoding ------------------------------------------------------------------------------------


def encode_topic(record: TopicRecord) -> bytes:
    """The value of a topic."""
    return _frame(2, 0, _encode_string(record.name) + _encode_id(record.topic_id))


def encode_partition(record: PartitionRecord, version: int) -> bytes:
    """The value of a partition without a reassignment and without an ELR. Version 0 has no
    directories.
    """
    body = (
        NUMBER.pack(record.number)
        + _encode_id(record.topic_id)
        + _encode_numbers(record.replicas)
        + _encode_numbers(record.isr)
        + b"\1\1"
    )
    body += struct.pack(">iii", record.leader, record.leader_epoch, record.partition_epoch)
    if version >= 1:
        body += _encode_ids(record.directories)
    return _frame(3, version, body)


def encode_config(record: ConfigRecord) -> bytes:
    """The value of a setting."""
    body = _BYTE.pack(record.kind) + _encode_string(record.resource) + _encode_string(record.name)
    body += b"\0" if record.value is None else _encode_string(record.value)
    return _frame(4, 0, body)


def encode_feature(record: FeatureLevel) -> bytes:
    """The value of a feature's level."""
    return _frame(12, 0, _encode_string(record.name) + SHORT.pack(record.level))


def encode_producer_ids(record: ProducerIds) -> bytes:
    """The value of the next producer id."""
    body = NUMBER.pack(record.node) + LONG.pack(record.broker_epoch) + LONG.pack(record.following)
    return _frame(15, 0, body)


def _frame(kind: int, version: int, body: bytes) -> bytes:
    return bytes((_FRAME_VERSION, kind, version)) + body + b"\0"  # no tagged fields


def _encode_id(text: str) -> bytes:
    """The bytes of an id; that of no directory has only zeros."""
    return base64.urlsafe_b64decode(text + "==")


def _encode_string(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def _encode_numbers(numbers: tuple[int, ...]) -> bytes:
    return uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def _encode_ids(ids: Iterable[str]) -> bytes:
    encoded = [_encode_id(text) for text in ids]
    return uvarint(len(encoded) + 1) + b"".join(encoded)


# ---- decoding ------------------------------------------------------------------------------------


def decode(value: bytes) -> Record:
    """The record of a value. Raises CorruptRecordError for damaged bytes, and
    UnsupportedFormatError for unknown types and versions.
    """
    try:
        reader = Flexible(value, 0)
        frame = reader.uvarint()
        kind = reader.uvarint()
        version = reader.uvarint()
        if frame != _FRAME_VERSION:
            raise UnsupportedFormatError(
                "frame of a metadata record", expected=_FRAME_VERSION, found=frame
            )
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise UnsupportedFormatError(
                "type of a metadata record: a newer Kafka wrote it",
                expected=sorted(_DECODERS),
                found=kind,
            )
        newest, read_body = decoder
        if version > newest:
            raise UnsupportedFormatError(
                f"version of metadata records of type {kind}",
                expected=f"0 to {newest}",
                found=version,
            )
        if read_body is None:
            return Other(kind)
        record = read_body(reader, version)
        if reader.at != len(value):
            raise ValueError(f"{len(value) - reader.at} bytes follow its end")
    except (struct.error, ValueError, IndexError) as problem:
        raise CorruptRecordError(f"metadata record: {problem}", found=value[:64].hex()) from problem
    return record


def _read_register_broker(reader: Flexible, version: int) -> Record:
    node = _read_number(reader)
    if version >= 2:
        reader.fixed(1)  # a migration from ZooKeeper
    reader.fixed(_UUID_BYTES)  # the incarnation
    epoch = reader.take(LONG)[0]
    for _ in range(reader.uvarint() - 1):  # end points
        reader.string()
        reader.string()
        reader.fixed(4)
        reader.tagged()
    for _ in range(reader.uvarint() - 1):  # features
        reader.string()
        reader.fixed(4)
        reader.tagged()
    reader.nullable()
    reader.fixed(2 if version >= 1 else 1)
    return RegisterBrokerRecord(node, epoch, _read_tagged_ids(reader, 0) or ())


def _read_unregister_broker(reader: Flexible, version: int) -> Record:
    record = UnregisterBrokerRecord(_read_number(reader))
    reader.fixed(8)
    reader.tagged()
    return record


def _read_registration_change(reader: Flexible, version: int) -> Record:
    node = _read_number(reader)
    reader.fixed(8)
    return RegistrationChange(node, _read_tagged_ids(reader, 2))


def _read_topic(reader: Flexible, version: int) -> Record:
    record = TopicRecord(reader.string(), _read_id(reader))
    reader.tagged()
    return record


def _read_remove_topic(reader: Flexible, version: int) -> Record:
    record = RemoveTopicRecord(_read_id(reader))
    reader.tagged()
    return record


def _read_partition(reader: Flexible, version: int) -> Record:
    number = _read_number(reader)
    topic_id = _read_id(reader)
    replicas = reader.numbers()
    isr = reader.numbers()
    reader.numbers()  # replicas that a reassignment removes
    reader.numbers()  # those that it adds
    leader = _read_number(reader)
    leader_epoch = _read_number(reader)
    partition_epoch = _read_number(reader)
    directories = _read_ids(reader) if version >= 1 else ()
    reader.tagged()
    return PartitionRecord(
        topic_id,
        number,
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        directories=directories,
    )


def _read_partition_change(reader: Flexible, version: int) -> Record:
    number = _read_number(reader)
    topic_id = _read_id(reader)
    fields = dict(reader.tagged())
    return PartitionChange(
        topic_id,
        number,
        isr=Flexible(fields[0], 0).numbers() if 0 in fields else None,
        leader=NUMBER.unpack(fields[1])[0] if 1 in fields else None,
        replicas=Flexible(fields[2], 0).numbers() if 2 in fields else None,
        directories=_read_ids(Flexible(fields[8], 0)) if 8 in fields else None,
    )


def _read_config(reader: Flexible, version: int) -> Record:
    kind = reader.take(_BYTE)[0]
    record = ConfigRecord(kind, reader.string(), reader.string(), reader.nullable())
    reader.tagged()
    return record


def _read_feature(reader: Flexible, version: int) -> Record:
    record = FeatureLevel(reader.string(), reader.take(SHORT)[0])
    reader.tagged()
    return record


def _read_producer_ids(reader: Flexible, version: int) -> Record:
    record = ProducerIds(_read_number(reader), reader.take(LONG)[0], reader.take(LONG)[0])
    reader.tagged()
    return record


# By type: the newest version, and the decoder; None: the record is kept as it is.
_DECODERS: Final[dict[int, tuple[int, Callable[[Flexible, int], Record] | None]]] = {
    0: (4, _read_register_broker),
    1: (0, _read_unregister_broker),
    2: (0, _read_topic),
    3: (2, _read_partition),
    4: (0, _read_config),
    5: (2, _read_partition_change),
    7: (0, None),  # a broker is fenced
    8: (0, None),  # or not
    9: (0, _read_remove_topic),
    10: (0, None),  # delegation token
    11: (0, None),  # SCRAM credential
    12: (0, _read_feature),
    14: (0, None),  # quota
    15: (0, _read_producer_ids),
    17: (3, _read_registration_change),
    18: (0, None),  # access control entry
    19: (0, None),
    NO_OP: (0, None),
    21: (0, None),  # migration from ZooKeeper
    22: (0, None),
    BEGIN: (0, None),
    END: (0, None),
    ABORT: (0, None),
    26: (0, None),
    27: (0, None),  # a controller
    CLEAR_ELR: (0, None),
    29: (0, None),
}


def _read_number(reader: Flexible) -> int:
    return reader.take(NUMBER)[0]


def _read_id(reader: Flexible) -> str:
    return base64.urlsafe_b64encode(reader.fixed(_UUID_BYTES)).decode().rstrip("=")


def _read_ids(reader: Flexible) -> tuple[str, ...]:
    return tuple(_read_id(reader) for _ in range(reader.uvarint() - 1))


def _read_tagged_ids(reader: Flexible, tag: int) -> tuple[str, ...] | None:
    """The ids in a tagged field; None without it."""
    fields = dict(reader.tagged())
    return _read_ids(Flexible(fields[tag], 0)) if tag in fields else None
