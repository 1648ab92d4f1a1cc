"""Decodes records of `__consumer_offsets` and `__transaction_state` into the JSON of Kafka's tools, field by field.

COORDINATORRECORDS-1  a type or version that is not in the tables is "unknown"; bytes that contradict their schema are, too
COORDINATORRECORDS-2  a tagged field is shown only if it differs from its default
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from embedlog.format.wire import LONG, NUMBER, SHORT, Flexible, Plain

_BYTE = struct.Struct(">b")
_NUMBERS: Final = {"int8": _BYTE, "int16": SHORT, "int32": NUMBER, "int64": LONG}
_NO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_EVER = 99


class Field(NamedTuple):
    """A field of a schema. `kind`: a type of Kafka's protocol, with "?" if it can be null, or the fields of a struct.

    `many`: an array of them. `since` and `until` are schema versions. `tag` 0 or more: a tagged field, which is absent if it has
    the value `default`.
    """

    name: str
    kind: str | tuple[Field, ...]
    many: bool = False
    since: int = 0
    until: int = _EVER
    tag: int = -1
    default: Any = None


class Schema(NamedTuple):
    """The fields of a value. Versions from `flexible` on have the flexible encoding."""

    fields: tuple[Field, ...]
    newest: int
    flexible: int = 0


def _texts(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "string") for name in names)


_GROUP, _GROUP_MEMBER = _texts("groupId"), _texts("groupId", "memberId")
_OWNED = (
    Field("topicId", "uuid"),
    Field("partitions", "int32", many=True),
    Field("assignmentEpochs", "int32", many=True, tag=0, default=[]),
)
_CLASSIC_MEMBER = (
    Field("sessionTimeoutMs", "int32"),
    Field("supportedProtocols", (Field("name", "string"), Field("metadata", "bytes")), many=True),
)
_MEMBER = (
    Field("memberId", "string"), Field("groupInstanceId", "string?", since=3), *_texts("clientId", "clientHost"),
    Field("rebalanceTimeout", "int32", since=1), Field("sessionTimeout", "int32"), Field("subscription", "bytes"),
    Field("assignment", "bytes"),
)  # fmt: skip
# The embedded protocol of consumers (format.md 9.2).
_OF_TOPIC = (Field("topic", "string"), Field("partitions", "int32", many=True))
_SUBSCRIPTION = (
    Field("topics", "string", many=True), Field("userData", "bytes?"), Field("ownedPartitions", _OF_TOPIC, many=True, since=1),
    Field("generationId", "int32", since=2), Field("rackId", "string?", since=3),
)  # fmt: skip
_ASSIGNMENT = (Field("assignedPartitions", _OF_TOPIC, many=True), Field("userData", "bytes?"))
_PROTOCOL_NEWEST = 3
_OFFSET = Schema(
    (
        Field("offset", "int64"), Field("leaderEpoch", "int32", since=3), Field("metadata", "string"),
        Field("commitTimestamp", "int64"), Field("expireTimestamp", "int64", since=1, until=1),
        Field("topicId", "uuid", since=4, tag=0, default=_NO_UUID),
    ), newest=4, flexible=4,
)  # fmt: skip
_GROUP_VALUE = Schema(
    (
        Field("protocolType", "string"), Field("generation", "int32"), Field("protocol", "string?"), Field("leader", "string?"),
        Field("currentStateTimestamp", "int64", since=2), Field("members", _MEMBER, many=True),
    ), newest=4, flexible=4,
)  # fmt: skip
_OFFSET_KEY = (*_texts("group", "topic"), Field("partition", "int32"))

# By the type in the key: the fields of the key, which are plain, and the schema of the value (format.md 9.1, KIP-848).
OFFSETS: Final[Mapping[int, tuple[tuple[Field, ...], Schema]]] = {
    0: (_OFFSET_KEY, _OFFSET),
    1: (_OFFSET_KEY, _OFFSET),
    2: (_texts("group"), _GROUP_VALUE),
    3: (_GROUP, Schema((Field("epoch", "int32"), Field("metadataHash", "int64", tag=0, default=0)), newest=0)),
    5: (_GROUP_MEMBER, Schema((
        Field("instanceId", "string?"), Field("rackId", "string?"), *_texts("clientId", "clientHost"),
        Field("subscribedTopicNames", "string", many=True), Field("subscribedTopicRegex", "string?"),
        Field("rebalanceTimeoutMs", "int32"), Field("serverAssignor", "string?"),
        Field("classicMemberMetadata", (Field("", _CLASSIC_MEMBER),), tag=0, default=False),
    ), newest=0)),
    6: (_GROUP, Schema((Field("assignmentEpoch", "int32"), Field("assignmentTimestamp", "int64", tag=0, default=0)), newest=0)),
    7: (_GROUP_MEMBER, Schema((
        Field("topicPartitions", (Field("topicId", "uuid"), Field("partitions", "int32", many=True)), many=True),
    ), newest=0)),
    8: (_GROUP_MEMBER, Schema((
        Field("memberEpoch", "int32"), Field("previousMemberEpoch", "int32"), Field("state", "int8"),
        Field("assignedPartitions", _OWNED, many=True), Field("partitionsPendingRevocation", _OWNED, many=True),
    ), newest=0)),
}  # fmt: skip
TRANSACTIONS: Final[Mapping[int, tuple[tuple[Field, ...], Schema]]] = {
    0: (_texts("transactionalId"), Schema((
        Field("producerId", "int64"), Field("previousProducerId", "int64", since=1, tag=0, default=-1),
        Field("nextProducerId", "int64", since=1, tag=1, default=-1), Field("producerEpoch", "int16"),
        Field("transactionTimeoutMs", "int32"), Field("transactionStatus", "int8"),
        Field("transactionPartitions", (Field("topic", "string"), Field("partitionIds", "int32", many=True)), many=True),
        Field("transactionLastUpdateTimestampMs", "int64"), Field("transactionStartTimestampMs", "int64"),
        Field("clientTransactionVersion", "int16", since=1, tag=2, default=0),
    ), newest=1, flexible=1)),
}  # fmt: skip


def decoder(types: Mapping[int, tuple[tuple[Field, ...], Schema]]) -> Callable[[bytes | None, bytes | None], tuple[str, str]]:
    """A function that returns key and value as JSON texts; a value None is `<DELETE>`."""

    def decode(key: bytes | None, value: bytes | None) -> tuple[str, str]:
        kind = SHORT.unpack_from(key)[0] if key is not None and len(key) >= 2 else -1
        if key is None or kind not in types:
            return _json({"type": str(kind), "data": "unknown"}), _unknown(value)
        fields, schema = types[kind]
        return _json({"type": str(kind), "data": _struct(Plain(key, 2), fields, 0)}), _value_of(value, schema)

    def tolerant(key: bytes | None, value: bytes | None) -> tuple[str, str]:
        try:
            return decode(key, value)
        except (ValueError, IndexError, struct.error):
            return _json({"type": "-1", "data": "unknown"}), _unknown(value)

    return tolerant


def _value_of(value: bytes | None, schema: Schema) -> str:
    if value is None:
        return "<DELETE>"
    version = SHORT.unpack_from(value)[0]
    if not 0 <= version <= schema.newest:
        return _json({"version": str(version), "data": "unknown"})
    reader = Flexible(value, 2) if version >= schema.flexible else Plain(value, 2)
    data = _struct(reader, schema.fields, version)
    if data.get("protocolType") == "consumer":
        for member in data["members"] or []:
            for name, fields in (("subscription", _SUBSCRIPTION), ("assignment", _ASSIGNMENT)):
                member[name] = _embedded(member[name], fields)
    return _json({"version": str(version), "data": data})


def _embedded(text: str, fields: tuple[Field, ...]) -> object:
    """Bytes of the consumer protocol as a struct; unchanged if they are none."""
    data = base64.b64decode(text)
    try:
        version = SHORT.unpack_from(data)[0]
        return _struct(Plain(data, 2), fields, min(version, _PROTOCOL_NEWEST)) if version >= 0 else text
    except (ValueError, IndexError, struct.error):
        return text


def _unknown(value: bytes | None) -> str:
    return "<DELETE>" if value is None else _json({"version": "-1", "data": "unknown"})


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# ---- fields --------------------------------------------------------------------------------------


def _struct(reader: Plain | Flexible, fields: Sequence[Field], version: int) -> dict[str, Any]:
    present = [each for each in fields if each.since <= version <= each.until]
    values = {each.name: _field(reader, each, version) for each in present if each.tag < 0}
    tagged = dict(reader.tagged()) if isinstance(reader, Flexible) else {}
    for each in present:
        if each.tag in tagged:
            values[each.name] = _tagged(Flexible(tagged[each.tag], 0), each, version)
        elif each.tag >= 0 and each.default is False:
            values[each.name] = None  # a struct that may be null is always shown
    shown = {each.name: values[each.name] for each in present if each.name in values}
    return {name: value for name, value in shown.items() if not _is_default(fields, name, value)}


def _is_default(fields: Sequence[Field], name: str, value: object) -> bool:
    return any(each.name == name and each.tag >= 0 and each.default is not False and value == each.default for each in fields)


def _tagged(reader: Flexible, field: Field, version: int) -> Any:
    if isinstance(field.kind, tuple) and not field.many:  # one byte says whether the struct is there
        kind = field.kind[0].kind
        assert isinstance(kind, tuple)
        return _struct(reader, kind, version) if reader.fixed(1) == b"\1" else None
    return _field(reader, field, version)


def _field(reader: Plain | Flexible, field: Field, version: int) -> Any:
    if not field.many:
        return _one(reader, field.kind, version)
    count = reader.uvarint() - 1 if isinstance(reader, Flexible) else reader.number()
    return None if count < 0 else [_one(reader, field.kind, version) for _ in range(count)]


def _one(reader: Plain | Flexible, kind: str | tuple[Field, ...], version: int) -> Any:
    if isinstance(kind, tuple):
        return _struct(reader, kind, version)
    if kind in _NUMBERS:
        return reader.take(_NUMBERS[kind])[0]
    if kind == "uuid":
        assert isinstance(reader, Flexible)
        return base64.urlsafe_b64encode(reader.fixed(16)).decode().rstrip("=")
    if kind in ("bytes", "bytes?"):
        data = reader.data()
        return None if data is None and kind == "bytes?" else base64.b64encode(data or b"").decode()
    return reader.string() if kind == "string" else reader.nullable()
