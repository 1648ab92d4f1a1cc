"""Contains the registry of schemas in a compacted topic of the log.

- All state is in the topic; each process has a view of it, which it reads on before it reports that
  a schema is missing.
- Each change is appended with the expected offset of the view it was decided on. So two processes
  that register at once get different ids, or the same id for the same schema.
- A schema never changes under its id: what was read by an id needs no read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from embedlog import (
    ConfigError,
    DeadlineError,
    Log,
    OffsetMismatchError,
    Record,
    SerializationError,
    TopicPartition,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
)
from embedlog.schemas import compatibility
from embedlog.schemas.schema_records import (
    ANY_SUBJECT,
    RegisteredSchema,
    Schema,
    SchemaView,
    deletion,
    level_record,
    schema_key,
    schema_value,
)

T = TypeVar("T")
Change = tuple[bytes, bytes]


class SchemaRegistry:
    """The schemas of one log, in the topic `_schemas` as a Confluent Schema Registry stores them.

    The topic is created by the first registration. Threads and processes: any number, at once.

    Example:
        >>> registry = SchemaRegistry(log)                              # doctest: +SKIP
        >>> registry.register("orders-value", Schema('{"type": "string"}'))  # doctest: +SKIP
        1
    """

    def __init__(self, log: Log, *, topic: str = "_schemas", timeout: float = 30.0) -> None:
        self._log = log
        self._topic = topic
        self._timeout = timeout
        self._lock = threading.RLock()
        self._view = SchemaView()

    # ---- reading ---------------------------------------------------------------------------------

    def schema(self, schema_id: int) -> Schema:
        """The schema of an id, also of a deleted version. Raises UnknownSchemaError."""
        with self._lock:
            schema = self._view.by_id.get(schema_id)
            if schema is None:
                schema = self._read().by_id.get(schema_id)
        if schema is None:
            raise UnknownSchemaError(f"no schema has this id in {self._topic}", found=schema_id)
        return schema

    def subjects(self) -> list[str]:
        """The subjects with a version that is not deleted."""
        with self._lock:
            view = self._read()
            return sorted(subject for subject in view.subjects if view.versions(subject))

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """The versions of a subject that are not deleted, by rising number; none for an unknown
        subject.
        """
        with self._lock:
            return self._read().versions(subject)

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version. Raises UnknownSchemaError."""
        return _require_last(self.versions(subject), subject, "a version")

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """One version, also a deleted one. Raises UnknownSchemaError."""
        with self._lock:
            registered = self._read().subjects.get(subject, {}).get(version)
        return _require_last([registered] if registered else [], subject, f"version {version}")

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """The version of a subject that has this schema. Raises UnknownSchemaError."""
        normal = schema.normal
        equal_versions = [
            registered for registered in self.versions(subject) if registered.schema == normal
        ]
        return _require_last(equal_versions, subject, "this schema")

    def compatibility(self, subject: str | None = None) -> str:
        """The level of a subject, or of all subjects without one; BACKWARD if none was set."""
        with self._lock:
            return self._read().level(subject or ANY_SUBJECT) or compatibility.DEFAULT

    def check_compatible(self, subject: str, schema: Schema) -> None:
        """Raises IncompatibleSchemaError if `register` would."""
        with self._lock:
            self._check(self._read(), subject, schema.normal)

    # ---- changing --------------------------------------------------------------------------------

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema, which becomes the newest version of the subject unless it is a
        version already.

        The same schema has the same id in all subjects. Raises IncompatibleSchemaError, ValueError
        for a text that is no JSON, DeadlineError.
        """
        normal = schema.normal

        def decide(view: SchemaView) -> tuple[int, Change | None]:
            for registered in view.versions(subject):
                if registered.schema == normal:
                    return registered.id, None
            self._check(view, subject, normal)
            version = view.next_version(subject)
            new = RegisteredSchema(subject, version, view.id_for(normal), normal)
            return new.id, (schema_key(subject, version), schema_value(new))

        with self._lock:
            for registered in self._view.versions(subject):
                if registered.schema == normal:
                    return registered.id
        return self._decide_and_append(decide)

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the level of a subject, or of all subjects without one. Raises ConfigError."""
        key = subject or ANY_SUBJECT
        change = level_record(key, compatibility.check_level(level))

        def decide(view: SchemaView) -> tuple[None, Change | None]:
            return None, None if view.levels.get(key) == level else change

        self._decide_and_append(decide)

    def delete(self, subject: str, version: int | None = None) -> list[int]:
        """Delete a version, or all; the numbers. Data with their ids stays readable. Raises
        UnknownSchemaError.
        """

        def decide(view: SchemaView) -> tuple[list[int], Change | None]:
            existing_versions = view.versions(subject)
            if version is None:
                last = _require_last(existing_versions, subject, "a version")
                numbers = [registered.version for registered in existing_versions]
                return numbers, deletion(subject, last.version)
            matches = [
                registered for registered in existing_versions if registered.version == version
            ]
            deleted = replace(_require_last(matches, subject, f"version {version}"), deleted=True)
            return [version], (schema_key(subject, version), schema_value(deleted))

        return self._decide_and_append(decide)

    def _check(self, view: SchemaView, subject: str, normal: Schema) -> None:
        level = view.level(subject) or compatibility.DEFAULT
        compatibility.check(subject, normal, view.versions(subject), level)

    def _decide_and_append(self, decide: Callable[[SchemaView], tuple[T, Change | None]]) -> T:
        """Decide on the newest view and append the change; decide again if another one came
        first.
        """
        self._log.create_topic(self._topic, partitions=1, cleanup_policy="compact", exist_ok=True)
        deadline = time.monotonic() + self._timeout
        with self._log.producer() as producer:
            while True:
                with self._lock:
                    view = self._read()
                    end = view.end
                    answer, change = decide(view)
                if change is None:
                    return answer
                key, value = change
                try:
                    producer.send(
                        self._topic, value, key, partition=0, expected_offset=end
                    ).result()
                except OffsetMismatchError as conflict:
                    self._await(conflict.actual, deadline)
                else:
                    self._read()
                    return answer

    # ---- the view --------------------------------------------------------------------------------

    def _read(self) -> SchemaView:
        """The view after all records that are visible now."""
        with self._lock:
            view = self._view
            try:
                (partition,) = self._log.describe_topic(self._topic).partitions
            except UnknownTopicOrPartitionError:
                return view
            except ValueError:
                raise ConfigError(
                    f"{self._topic} is no topic of schemas", expected="one partition"
                ) from None
            if partition.high_watermark > view.end:
                for record in self._log.scan(
                    self._topic, start_offset=view.end, end_offset=partition.high_watermark
                ).records():
                    self._apply(view, record)
                view.end = partition.high_watermark
            return view

    def _apply(self, view: SchemaView, record: Record[bytes, bytes]) -> None:
        try:
            view.apply(record.key, record.value)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise SerializationError(
                f"not a record of a schema registry: {problem!r}",
                topic=self._topic,
                partition=0,
                offset=record.offset,
            ) from problem
        view.end = record.offset + 1

    def _await(self, end: int, deadline: float) -> None:
        """Wait until the records below `end` are visible: in a set they may not be committed
        yet.
        """
        tp = TopicPartition(self._topic, 0)
        with self._log.consumer() as consumer:
            consumer.assign([tp])
            consumer.seek(tp, self._view.end)
            while consumer.position(tp) < end:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise DeadlineError(
                        "a change of schemas conflicted with others until the deadline",
                        expected=f"{self._timeout} s",
                    )
                consumer.poll(timeout=min(remaining_s, 1.0))


def _require_last(versions: list[RegisteredSchema], subject: str, missing: str) -> RegisteredSchema:
    """The last of these versions. Raises UnknownSchemaError without one."""
    if not versions:
        raise UnknownSchemaError(f"the subject {subject} does not have {missing}")
    return versions[-1]
