"""Contains the serializer and the deserializer of Avro, by fastavro.

- Data is read by the schema that wrote it, and resolved to the reader's schema if there is one.
- A parsed schema is kept for each id: an id never gets another schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Generic, TypeAlias, TypeVar, overload

from embedlog import MissingExtraError
from embedlog.schemas.framing import add_frame, remove_frame
from embedlog.schemas.registered import RegisteredIds
from embedlog.schemas.registry import SchemaRegistry
from embedlog.schemas.schema_records import Schema
from embedlog.schemas.subjects import Field, SubjectName, topic_name

T = TypeVar("T")
# a schema, or its JSON as a text or an object
SchemaLike: TypeAlias = Schema | str | Mapping[str, Any] | list[Any]


def _import_fastavro() -> Any:
    try:
        import fastavro
    except ImportError as missing:
        raise MissingExtraError("Avro needs fastavro", extra="avro") from missing
    return fastavro


def _as_schema(schema: SchemaLike) -> Schema:
    if isinstance(schema, Schema):
        return schema
    return Schema(schema if isinstance(schema, str) else json.dumps(schema)).normal


def _parse(registry: SchemaRegistry, schema: Schema) -> Any:
    """The schema for fastavro, with the names that it refers to."""
    named: dict[str, Any] = {}
    _add_references(registry, schema, named)
    return _import_fastavro().parse_schema(json.loads(schema.text), named_schemas=named)


def _add_references(registry: SchemaRegistry, schema: Schema, named: dict[str, Any]) -> None:
    for reference in schema.references:
        referred = registry.version(reference.subject, reference.version).schema
        _add_references(registry, referred, named)
        _import_fastavro().parse_schema(json.loads(referred.text), named_schemas=named)


class AvroSerializer(Generic[T]):
    """Serializes values by one Avro schema; the schema is registered with the first value of each
    subject.

    `schema` is its JSON as a text or as an object, or a `Schema`. `to_dict` makes the datum of
    fastavro of a value, which else is the datum itself. Without `auto_register` only registered
    schemas are used (UnknownSchemaError). Raises MissingExtraError without fastavro. Threads: any.
    """

    @overload
    def __init__(
        self: AvroSerializer[Any],
        registry: SchemaRegistry,
        schema: SchemaLike,
        to_dict: None = None,
        *,
        field: Field = "value",
        subject: SubjectName = topic_name,
        auto_register: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: SchemaLike,
        to_dict: Callable[[T], Any],
        *,
        field: Field = "value",
        subject: SubjectName = topic_name,
        auto_register: bool = True,
    ) -> None: ...
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: SchemaLike,
        to_dict: Callable[[T], Any] | None = None,
        *,
        field: Field = "value",
        subject: SubjectName = topic_name,
        auto_register: bool = True,
    ) -> None:
        self._write = _import_fastavro().schemaless_writer
        own_schema = _as_schema(schema)
        self._parsed = _parse(registry, own_schema)
        self._to_dict = to_dict
        name = ""
        if isinstance(self._parsed, dict):
            name = self._parsed.get("name", "")
        self._ids = RegisteredIds(
            registry,
            own_schema,
            field=field,
            subject=subject,
            record=name or _primitive_name(self._parsed),
            auto_register=auto_register,
        )

    def serialize(self, topic: str, headers: Any, data: T) -> bytes | None:
        """The framed datum; None stays None."""
        if data is None:
            return None
        datum = data if self._to_dict is None else self._to_dict(data)
        buffer = BytesIO()
        self._write(buffer, self._parsed, datum)
        return add_frame(self._ids.of_topic(topic), buffer.getvalue())


def _primitive_name(parsed: Any) -> str:
    return str(parsed.get("type")) if isinstance(parsed, dict) else str(parsed)


class AvroDeserializer(Generic[T]):
    """Deserializes framed Avro data, also of writers with other versions of the schema.

    `schema` is the reader's schema: fields that a writer did not know have its defaults, and fields
    that it does not have are left out. `from_dict` makes a value of the datum. Raises
    MissingExtraError without fastavro. Threads: any.
    """

    @overload
    def __init__(
        self: AvroDeserializer[Any],
        registry: SchemaRegistry,
        schema: SchemaLike | None = None,
        from_dict: None = None,
    ) -> None: ...
    @overload
    def __init__(
        self, registry: SchemaRegistry, schema: SchemaLike | None, from_dict: Callable[[Any], T]
    ) -> None: ...
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: SchemaLike | None = None,
        from_dict: Callable[[Any], T] | None = None,
    ) -> None:
        self._registry = registry
        self._read = _import_fastavro().schemaless_reader
        self._reader = None if schema is None else _parse(registry, _as_schema(schema))
        self._from_dict = from_dict
        self._writers: dict[int, Any] = {}

    def deserialize(self, topic: str, headers: Any, data: bytes) -> T:
        """The value. Raises UnknownSchemaError, and ValueError for bytes that are not framed
        Avro.
        """
        schema_id, payload = remove_frame(data)
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._read_writer_schema(schema_id)
            self._writers[schema_id] = writer
        source = BytesIO(payload)
        datum = self._read(source, writer, self._reader)
        if source.tell() != len(payload):
            raise ValueError(
                f"{len(payload) - source.tell()} bytes after the datum of schema {schema_id}"
            )
        value: T = datum if self._from_dict is None else self._from_dict(datum)
        return value

    def _read_writer_schema(self, schema_id: int) -> Any:
        schema = self._registry.schema(schema_id)
        if schema.kind != "AVRO":
            raise ValueError(f"schema {schema_id} is {schema.kind}, not AVRO")
        return _parse(self._registry, schema)
