"""Contains the ids under which a serializer has registered its schema, by topic.

A schema is registered with the first value of each subject, not when the serializer is made.
"""

from __future__ import annotations

from embedlog.schemas.registry import SchemaRegistry
from embedlog.schemas.schema_records import Schema
from embedlog.schemas.subjects import Field, SubjectName


class RegisteredIds:
    """The ids of one schema. Threads: any."""

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: Schema,
        field: Field,
        subject: SubjectName,
        record: str,
        auto_register: bool,
    ) -> None:
        self._registry = registry
        self._schema = schema
        self._field = field
        self._subject = subject
        self._record = record
        self._auto_register = auto_register
        self._by_topic: dict[str, int] = {}

    def of_topic(self, topic: str) -> int:
        """The id in the subject of a topic. Raises as `SchemaRegistry.register`, or `lookup`
        without `auto_register`.
        """
        schema_id = self._by_topic.get(topic)
        if schema_id is None:
            subject = self._subject(topic, self._field, self._record)
            if self._auto_register:
                schema_id = self._registry.register(subject, self._schema)
            else:
                schema_id = self._registry.lookup(subject, self._schema).id
            self._by_topic[topic] = schema_id
        return schema_id
