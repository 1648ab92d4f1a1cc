"""Decides whether a schema may follow the earlier versions of its subject.

- The levels are Confluent's. BACKWARD: the new schema reads data of the last version. FORWARD: the
  last version reads new data. FULL: both. TRANSITIVE: all versions instead of the last one.
- Avro is checked by Avro's own rules of resolution (the library `avro`). JSON Schema and Protobuf
  are not checked, only that the kind stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from embedlog import ConfigError, IncompatibleSchemaError, MissingExtraError
from embedlog.schemas.schema_records import RegisteredSchema, Schema

DEFAULT: Final = "BACKWARD"
LEVELS: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)


def check_level(level: str) -> str:
    if level not in LEVELS:
        raise ConfigError("the level of compatibility", expected=", ".join(LEVELS), found=level)
    return level


def check(subject: str, schema: Schema, versions: Sequence[RegisteredSchema], level: str) -> None:
    """Raises IncompatibleSchemaError with the version and the reasons. `versions` are in order,
    without deleted ones.
    """
    if level == "NONE":
        return
    for earlier in versions if level.endswith("_TRANSITIVE") else versions[-1:]:
        reasons = _find_reasons(schema, earlier.schema, level)
        if reasons:
            raise IncompatibleSchemaError(
                f"the schema is not {level} compatible with version {earlier.version} of "
                f"{subject}: {'; '.join(reasons)}",
                subject=subject,
                version=earlier.version,
            )


def _find_reasons(schema: Schema, earlier: Schema, level: str) -> list[str]:
    if schema.kind != earlier.kind:
        return [f"it is {schema.kind}, not {earlier.kind}"]
    if schema.kind != "AVRO" or schema.references or earlier.references:
        return []
    reasons: list[str] = []
    if level.startswith(("BACKWARD", "FULL")):
        reasons += _find_unreadable(reader=schema.text, writer=earlier.text)
    if level.startswith(("FORWARD", "FULL")):
        reasons += _find_unreadable(reader=earlier.text, writer=schema.text)
    return reasons


def _find_unreadable(reader: str, writer: str) -> list[str]:
    """The reasons for which the reader's schema cannot read data of the writer's."""
    try:
        import avro.schema
        from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    except ImportError as missing:
        raise MissingExtraError(
            "the comparison of Avro schemas needs avro", extra="avro"
        ) from missing
    result = ReaderWriterCompatibilityChecker().get_compatibility(
        avro.schema.parse(reader), avro.schema.parse(writer)
    )
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    return sorted(result.messages) or ["Avro's rules of resolution"]
