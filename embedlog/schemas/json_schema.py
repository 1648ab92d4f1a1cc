"""Contains the serializer and the deserializer of JSON with a JSON Schema.

Values are validated on both sides, by the schema of the serializer, and by the reader's schema if
there is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from embedlog import MissingExtraError
from embedlog.schemas.framing import add_frame, remove_frame
from embedlog.schemas.registered import RegisteredIds
from embedlog.schemas.registry import SchemaRegistry
from embedlog.schemas.schema_records import Schema
from embedlog.schemas.subjects import Field, SubjectName, topic_name


def _as_schema(schema: Schema | str | Mapping[str, Any]) -> Schema:
    if isinstance(schema, Schema):
        return schema
    return Schema(schema if isinstance(schema, str) else json.dumps(schema), "JSON").normal


def _validator(schema: Schema) -> Any:
    try:
        from jsonschema.validators import validator_for
    except ImportError as missing:
        raise MissingExtraError("JSON Schema needs jsonschema", extra="jsonschema") from missing
    content = json.loads(schema.text)
    kind = validator_for(content)
    kind.check_schema(content)
    return kind(content)


class JsonSchemaSerializer:
    """Serializes values as JSON that a schema allows. Raises MissingExtraError without jsonschema.
    Threads: any.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: Schema | str | Mapping[str, Any],
        *,
        field: Field = "value",
        subject: SubjectName = topic_name,
        auto_register: bool = True,
    ) -> None:
        own_schema = _as_schema(schema)
        self._validator = _validator(own_schema)
        self._ids = RegisteredIds(
            registry,
            own_schema,
            field=field,
            subject=subject,
            record=str(json.loads(own_schema.text).get("title", "")),
            auto_register=auto_register,
        )

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
        """The framed JSON; None stays None. Raises jsonschema's ValidationError."""
        if data is None:
            return None
        self._validator.validate(data)
        return add_frame(
            self._ids.of_topic(topic),
            json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(),
        )


class JsonSchemaDeserializer:
    """Deserializes framed JSON; `schema` validates the values. Threads: any."""

    def __init__(
        self, registry: SchemaRegistry, schema: Schema | str | Mapping[str, Any] | None = None
    ) -> None:
        self._registry = registry
        self._validator = None if schema is None else _validator(_as_schema(schema))

    def deserialize(self, topic: str, headers: Any, data: bytes) -> Any:
        """The value. Raises UnknownSchemaError, jsonschema's ValidationError, and ValueError for
        other bytes.
        """
        schema_id, payload = remove_frame(data)
        kind = self._registry.schema(schema_id).kind
        if kind != "JSON":
            raise ValueError(f"schema {schema_id} is {kind}, not JSON")
        value = json.loads(bytes(payload))
        if self._validator is not None:
            self._validator.validate(value)
        return value
