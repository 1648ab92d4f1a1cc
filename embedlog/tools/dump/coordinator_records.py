"""Decodes records of coordinators into the JSON of Kafka's tools, field by field.

They are those of `__consumer_offsets`, `__transaction_state` and `__share_group_state`, in the
versions of Kafka 4.4.

- A record that cannot be decoded is a sentence in place of its key: an unknown type or version,
  damage.
- A tagged field is shown only if it differs from its default.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from embedlog.format.wire import LONG, NUMBER, SHORT, Flexible, Plain

_BYTE = struct.Struct(">b")
_PORT = struct.Struct(">H")
_NUMBERS: Final = {"int8": _BYTE, "int16": SHORT, "int32": NUMBER, "int64": LONG, "uint16": _PORT}
_NO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_EVER = 99


class Field(NamedTuple):
    """A field of a schema. `kind`: a type of Kafka's protocol, with "?" if it can be null, or the
    fields of a struct.

    `many`: an array of them. `since` and `until` are schema versions. `tag` 0 or more: a tagged
    field, which is absent if it has the value `default`. `nullable`: a struct that can be null.
    """

    name: str
    kind: str | tuple[Field, ...]
    many: bool = False
    since: int = 0
    until: int = _EVER
    tag: int = -1
    default: Any = None
    nullable: bool = False


class RecordSchema(NamedTuple):
    """The fields of a value. Versions from `flexible` on have the flexible encoding."""

    fields: tuple[Field, ...]
    newest: int
    flexible: int = 0


def _texts(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "string") for name in names)


_GROUP = _texts("groupId")
_GROUP_MEMBER = _texts("groupId", "memberId")
_PARTITIONS = (Field("topicId", "uuid"), Field("partitions", "int32", many=True))
_OWNED = (*_PARTITIONS, Field("assignmentEpochs", "int32", many=True, tag=0, default=[]))
_CLASSIC_MEMBER = (
    Field("sessionTimeoutMs", "int32"),
    Field("supportedProtocols", (Field("name", "string"), Field("metadata", "bytes")), many=True),
)
_MEMBER = (
    Field("memberId", "string"),
    Field("groupInstanceId", "string?", since=3),
    *_texts("clientId", "clientHost"),
    Field("rebalanceTimeout", "int32", since=1),
    Field("sessionTimeout", "int32"),
    Field("subscription", "bytes"),
    Field("assignment", "bytes"),
)
# The embedded protocol of consumers (format.md 9.2).
_OF_TOPIC = (Field("topic", "string"), Field("partitions", "int32", many=True))
_SUBSCRIPTION = (
    Field("topics", "string", many=True),
    Field("userData", "bytes?"),
    Field("ownedPartitions", _OF_TOPIC, many=True, since=1),
    Field("generationId", "int32", since=2),
    Field("rackId", "string?", since=3),
)
_ASSIGNMENT = (Field("assignedPartitions", _OF_TOPIC, many=True), Field("userData", "bytes?"))
_PROTOCOL_NEWEST = 3
_OFFSET = RecordSchema(
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", since=3),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", since=1, until=1),
        Field("topicId", "uuid", since=4, tag=0, default=_NO_UUID),
    ),
    newest=4,
    flexible=4,
)
_GROUP_VALUE = RecordSchema(
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        Field("protocol", "string?"),
        Field("leader", "string?"),
        Field("currentStateTimestamp", "int64", since=2),
        Field("members", _MEMBER, many=True),
    ),
    newest=4,
    flexible=4,
)
_OFFSET_KEY = (*_texts("group", "topic"), Field("partition", "int32"))

_TARGET_EPOCH = RecordSchema(
    (Field("assignmentEpoch", "int32"), Field("assignmentTimestamp", "int64", tag=0, default=0)),
    newest=0,
)
_TARGET = RecordSchema((Field("topicPartitions", _PARTITIONS, many=True),), newest=0)
_NAMED_TOPIC = (Field("topicId", "uuid"), Field("topicName", "string"))
_NAMED_PARTITIONS = (*_NAMED_TOPIC, Field("partitions", "int32", many=True))
_KINDS_OF_TASKS = ("activeTasks", "standbyTasks", "warmupTasks")
_TASKS = (Field("subtopologyId", "string"), Field("partitions", "int32", many=True))
_OWNED_TASKS = (*_TASKS, Field("assignmentEpochs", "int32", many=True, tag=0, default=[]))
_STREAMS_TOPIC = (
    Field("name", "string"),
    Field("partitions", "int32"),
    Field("replicationFactor", "int16"),
    Field("topicConfigs", _texts("key", "value"), many=True),
)
_COPARTITIONED = tuple(
    Field(name, "int16", many=True)
    for name in ("sourceTopics", "sourceTopicRegex", "repartitionSourceTopics")
)
_SUBTOPOLOGY = (
    Field("subtopologyId", "string"),
    Field("sourceTopics", "string", many=True),
    Field("sourceTopicRegex", "string", many=True),
    Field("stateChangelogTopics", _STREAMS_TOPIC, many=True),
    Field("repartitionSinkTopics", "string", many=True),
    Field("repartitionSourceTopics", _STREAMS_TOPIC, many=True),
    Field("copartitionGroups", _COPARTITIONED, many=True),
)

# By the type in the key: the fields of the key, which are plain, and the schema of the value
# (format.md 9.1, KIP-848).
OFFSETS: Final[Mapping[int, tuple[tuple[Field, ...], RecordSchema]]] = {
    0: (_OFFSET_KEY, _OFFSET._replace(newest=0)),
    1: (_OFFSET_KEY, _OFFSET),
    2: (_texts("group"), _GROUP_VALUE),
    3: (
        _GROUP,
        RecordSchema(
            (Field("epoch", "int32"), Field("metadataHash", "int64", tag=0, default=0)), newest=0
        ),
    ),
    5: (
        _GROUP_MEMBER,
        RecordSchema(
            (
                Field("instanceId", "string?"),
                Field("rackId", "string?"),
                *_texts("clientId", "clientHost"),
                Field("subscribedTopicNames", "string", many=True),
                Field("subscribedTopicRegex", "string?"),
                Field("rebalanceTimeoutMs", "int32"),
                Field("serverAssignor", "string?"),
                Field("classicMemberMetadata", _CLASSIC_MEMBER, tag=0, nullable=True),
            ),
            newest=0,
        ),
    ),
    6: (_GROUP, _TARGET_EPOCH),
    7: (_GROUP_MEMBER, _TARGET),
    8: (
        _GROUP_MEMBER,
        RecordSchema(
            (
                Field("memberEpoch", "int32"),
                Field("previousMemberEpoch", "int32"),
                Field("state", "int8"),
                Field("assignedPartitions", _OWNED, many=True),
                Field("partitionsPendingRevocation", _OWNED, many=True),
            ),
            newest=0,
        ),
    ),
    # share groups (KIP-932)
    10: (
        _GROUP_MEMBER,
        RecordSchema(
            (
                Field("rackId", "string?"),
                *_texts("clientId", "clientHost"),
                Field("subscribedTopicNames", "string", many=True),
            ),
            newest=0,
        ),
    ),
    11: (_GROUP, RecordSchema((Field("epoch", "int32"), Field("metadataHash", "int64")), newest=0)),
    12: (_GROUP, _TARGET_EPOCH),
    13: (_GROUP_MEMBER, _TARGET),
    14: (
        _GROUP_MEMBER,
        RecordSchema(
            (
                Field("memberEpoch", "int32"),
                Field("previousMemberEpoch", "int32"),
                Field("state", "int8"),
                Field("assignedPartitions", _PARTITIONS, many=True),
            ),
            newest=0,
        ),
    ),
    15: (
        _GROUP,
        RecordSchema(
            (
                Field("initializingTopics", _NAMED_PARTITIONS, many=True),
                Field("initializedTopics", _NAMED_PARTITIONS, many=True),
                Field("deletingTopics", _NAMED_TOPIC, many=True),
            ),
            newest=0,
        ),
    ),
    16: (
        _texts("groupId", "regularExpression"),
        RecordSchema(
            (
                Field("topics", "string", many=True),
                Field("version", "int64"),
                Field("timestamp", "int64"),
            ),
            newest=0,
        ),
    ),
    # streams groups (KIP-1071)
    17: (
        _GROUP,
        RecordSchema(
            (
                Field("epoch", "int32"),
                Field("metadataHash", "int64"),
                Field("validatedTopologyEpoch", "int32", tag=0, default=-1),
                Field(
                    "lastAssignmentConfigs", _texts("key", "value"), many=True, tag=1, default=[]
                ),
                Field("storedDescriptionTopologyEpoch", "int32", tag=2, default=-1),
                Field("failedDescriptionTopologyEpoch", "int32", tag=3, default=-1),
            ),
            newest=0,
        ),
    ),
    19: (
        _GROUP_MEMBER,
        RecordSchema(
            (
                Field("instanceId", "string?"),
                Field("rackId", "string?"),
                *_texts("clientId", "clientHost"),
                Field("rebalanceTimeoutMs", "int32"),
                Field("topologyEpoch", "int32"),
                Field("processId", "string"),
                Field(
                    "userEndpoint",
                    (Field("host", "string"), Field("port", "uint16")),
                    nullable=True,
                ),
                Field("clientTags", _texts("key", "value"), many=True),
            ),
            newest=0,
        ),
    ),
    20: (_GROUP, _TARGET_EPOCH),
    21: (
        _GROUP_MEMBER,
        RecordSchema(tuple(Field(name, _TASKS, many=True) for name in _KINDS_OF_TASKS), newest=0),
    ),
    22: (
        _GROUP_MEMBER,
        RecordSchema(
            (
                Field("memberEpoch", "int32"),
                Field("previousMemberEpoch", "int32"),
                Field("state", "int8"),
                *(Field(name, _OWNED_TASKS, many=True) for name in _KINDS_OF_TASKS),
                *(
                    Field(f"{name}PendingRevocation", _OWNED_TASKS, many=True)
                    for name in _KINDS_OF_TASKS
                ),
            ),
            newest=0,
        ),
    ),
    23: (
        _GROUP,
        RecordSchema(
            (Field("epoch", "int32"), Field("subtopologies", _SUBTOPOLOGY, many=True)), newest=0
        ),
    ),
}
_STATUSES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
TRANSACTIONS: Final[Mapping[int, tuple[tuple[Field, ...], RecordSchema]]] = {
    0: (
        _texts("transactionalId"),
        RecordSchema(
            (
                Field("producerId", "int64"),
                Field("previousProducerId", "int64", since=1, tag=0, default=-1),
                Field("nextProducerId", "int64", since=1, tag=1, default=-1),
                Field("producerEpoch", "int16"),
                Field("transactionTimeoutMs", "int32"),
                Field("transactionStatus", "int8"),
                Field(
                    "transactionPartitions",
                    (Field("topic", "string"), Field("partitionIds", "int32", many=True)),
                    many=True,
                ),
                Field("transactionLastUpdateTimestampMs", "int64"),
                Field("transactionStartTimestampMs", "int64"),
                Field("clientTransactionVersion", "int16", since=1, tag=2, default=0),
            ),
            newest=1,
            flexible=1,
        ),
    ),
}

_STATE_BATCH = (
    Field("firstOffset", "int64"),
    Field("lastOffset", "int64"),
    Field("deliveryState", "int8"),
    Field("deliveryCount", "int16"),
)
_STATE_KEY = (*_texts("groupId"), Field("topicId", "uuid"), Field("partition", "int32"))
_COMPLETE = Field("deliveryCompleteCount", "int32", tag=0, default=-1)
SHARE_STATES: Final[Mapping[int, tuple[tuple[Field, ...], RecordSchema]]] = {
    0: (
        _STATE_KEY,
        RecordSchema(
            (
                Field("snapshotEpoch", "int32"),
                Field("stateEpoch", "int32"),
                Field("leaderEpoch", "int32"),
                Field("startOffset", "int64"),
                _COMPLETE,
                Field("createTimestamp", "int64"),
                Field("writeTimestamp", "int64"),
                Field("stateBatches", _STATE_BATCH, many=True),
            ),
            newest=0,
        ),
    ),
    1: (
        _STATE_KEY,
        RecordSchema(
            (
                Field("snapshotEpoch", "int32"),
                Field("leaderEpoch", "int32"),
                Field("startOffset", "int64"),
                _COMPLETE,
                Field("stateBatches", _STATE_BATCH, many=True),
            ),
            newest=0,
        ),
    ),
}


Decoded = tuple[str, str | None]


class _UndecodableError(Exception):
    """A record is not in the layout; the text says why."""


def make_decoder(
    types: Mapping[int, tuple[tuple[Field, ...], RecordSchema]],
) -> Callable[[int, bytes | None, bytes | None], Decoded]:
    """A function that returns key and value of the record at an offset as JSON texts; a value None
    is `<DELETE>`.
    """

    def decode(offset: int, key: bytes | None, value: bytes | None) -> Decoded:
        try:
            kind = _read_version(key, "key")
            if kind not in types:
                return f"Unknown record type {kind} at offset {offset}, skipping.", None
            fields, schema = types[kind]
            name = _run_reader(lambda: _read_struct(Plain(key or b"", 2), fields, 0), kind, "key")
            payload = "<DELETE>" if value is None else _decode_value(kind, value, schema)
        except _UndecodableError as problem:
            return f"Error at offset {offset}, skipping. {problem}", None
        return _json_of({"type": str(kind), "data": name}), payload

    return decode


def _read_version(data: bytes | None, part: str) -> int:
    """The number at the begin of a key or value."""
    if data is None or len(data) < SHORT.size:
        raise _UndecodableError(f"Could not read version from {part}'s buffer.")
    version: int = SHORT.unpack_from(data)[0]
    return version


def _run_reader(read: Callable[[], dict[str, Any]], version: int, part: str) -> dict[str, Any]:
    """The result of `read`. Raises _UndecodableError for bytes that contradict their schema."""
    try:
        return read()
    except (ValueError, IndexError, struct.error) as problem:
        text = (
            f"Could not read record with version {version} from {part}'s buffer due to: {problem}."
        )
        raise _UndecodableError(text) from problem


def _decode_value(kind: int, value: bytes, schema: RecordSchema) -> str:
    version = _read_version(value, "value")
    if not 0 <= version <= schema.newest:
        raise _UndecodableError(f"Found an unknown record version {version} for {kind} type")
    reader = Flexible(value, 2) if version >= schema.flexible else Plain(value, 2)
    data = _run_reader(lambda: _read_struct(reader, schema.fields, version), version, "value")
    if data.get("protocolType") == "consumer":
        for member in data["members"] or []:
            for name, fields in (("subscription", _SUBSCRIPTION), ("assignment", _ASSIGNMENT)):
                member[name] = _decode_embedded(member[name], fields)
    if "transactionStatus" in data:
        status = data["transactionStatus"]
        is_known = 0 <= status < len(_STATUSES)
        data["transactionStatus"] = _STATUSES[status] if is_known else str(status)
    return _json_of({"version": str(version), "data": data})


def _decode_embedded(text: str, fields: tuple[Field, ...]) -> object:
    """Bytes of the consumer protocol as a struct; unchanged if they are none."""
    data = base64.b64decode(text)
    try:
        version = SHORT.unpack_from(data)[0]
        if version < 0:
            return text
        return _read_struct(Plain(data, 2), fields, min(version, _PROTOCOL_NEWEST))
    except (ValueError, IndexError, struct.error):
        return text


def _json_of(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# ---- fields --------------------------------------------------------------------------------------


def _read_struct(reader: Plain | Flexible, fields: Sequence[Field], version: int) -> dict[str, Any]:
    """The fields of a struct by their names, in the order of the schema: the tagged ones are
    written after the others.
    """
    version_fields = [field for field in fields if field.since <= version <= field.until]
    values = {
        field.name: _read_field(reader, field, version) for field in version_fields if field.tag < 0
    }
    tagged = dict(reader.tagged()) if isinstance(reader, Flexible) else {}
    for field in version_fields:
        if field.tag in tagged:
            values[field.name] = _read_field(Flexible(tagged[field.tag], 0), field, version)
    return {
        field.name: values[field.name]
        for field in version_fields
        if field.name in values and not _is_default(field, values[field.name])
    }


def _is_default(field: Field, value: object) -> bool:
    """Whether a tagged field has its default, which is not shown."""
    return field.tag >= 0 and not field.nullable and value == field.default


def _read_field(reader: Plain | Flexible, field: Field, version: int) -> Any:
    if field.nullable and reader.fixed(1) != b"\1":  # this byte says whether the struct is there
        return None
    if not field.many:
        return _read_value(reader, field.kind, version)
    count = reader.uvarint() - 1 if isinstance(reader, Flexible) else reader.number()
    if count < 0:
        return None
    return [_read_value(reader, field.kind, version) for _ in range(count)]


def _read_value(reader: Plain | Flexible, kind: str | tuple[Field, ...], version: int) -> Any:
    if isinstance(kind, tuple):
        return _read_struct(reader, kind, version)
    if kind in _NUMBERS:
        return reader.take(_NUMBERS[kind])[0]
    if kind == "uuid":
        return base64.urlsafe_b64encode(reader.fixed(16)).decode().rstrip("=")
    if kind in ("bytes", "bytes?"):
        data = reader.data()
        if data is None and kind == "bytes?":
            return None
        return base64.b64encode(data or b"").decode()
    return reader.string() if kind == "string" else reader.nullable()
