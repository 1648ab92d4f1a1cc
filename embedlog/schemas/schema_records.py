"""Contains the records of the topic of schemas, in the JSON of Confluent's Schema Registry, and the
view that they add up to.

- The key names the subject and the version, so compaction keeps each version. The order of its
  fields is Confluent's: equal keys are equal bytes.
- A deleted version stays readable by its id, and its number and id are never used again.
- Keys of other types are passed over: a Schema Registry writes NOOP and MODE.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF"]
ANY_SUBJECT = ""


class SchemaReference(NamedTuple):
    """A name that a schema uses, and the registered schema that defines it."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema: its text, the kind of the text, and the schemas that it refers to.

    The text of Protobuf is the base64 of a FileDescriptorProto, which a Schema Registry accepts as
    well as a .proto file.
    """

    text: str
    kind: Kind = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    @property
    def normal(self) -> Schema:
        """The same schema in the form that is stored and compared: JSON without white space. Raises
        ValueError.
        """
        if self.kind == "PROTOBUF":
            return self
        content = json.loads(self.text)
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        return self._replace(text=text)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    deleted: bool = False


# ---- records -------------------------------------------------------------------------------------


def _compact(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def schema_key(subject: str, version: int) -> bytes:
    return _compact({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def schema_value(registered: RegisteredSchema) -> bytes:
    schema = registered.schema
    content: dict[str, Any] = {
        "subject": registered.subject,
        "version": registered.version,
        "id": registered.id,
    }
    if schema.kind != "AVRO":
        content["schemaType"] = schema.kind
    if schema.references:
        content["references"] = [reference._asdict() for reference in schema.references]
    return _compact(content | {"schema": schema.text, "deleted": registered.deleted})


def deletion(subject: str, version: int) -> tuple[bytes, bytes]:
    """Key and value of the deletion of a subject: its versions up to this one."""
    key = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
    return _compact(key), _compact({"subject": subject, "version": version})


def level_record(subject: str, level: str) -> tuple[bytes, bytes]:
    """Key and value of the compatibility level of a subject, or of all others."""
    key = {"keytype": "CONFIG", "subject": subject or None, "magic": 0}
    return _compact(key), _compact({"compatibilityLevel": level})


# ---- the view ------------------------------------------------------------------------------------


@dataclass(slots=True)
class SchemaView:
    """All schemas up to an offset."""

    subjects: dict[str, dict[int, RegisteredSchema]] = field(default_factory=dict)
    by_id: dict[int, Schema] = field(default_factory=dict)
    ids: dict[Schema, int] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    end: int = 0  # the offset after the last applied record

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record. Raises ValueError, KeyError or TypeError for content that is no record
        of a registry.
        """
        name = json.loads(key) if key is not None else {}
        content = None if value is None else json.loads(value)
        kind = name.get("keytype")
        if kind == "SCHEMA":
            self._apply_schema(str(name["subject"]), int(name["version"]), content)
        elif kind == "DELETE_SUBJECT" and content is not None:
            versions = self.subjects.get(str(content["subject"]), {})
            for registered in list(versions.values()):
                if registered.version <= int(content["version"]):
                    versions[registered.version] = replace(registered, deleted=True)
        elif kind == "CONFIG":
            subject = name.get("subject") or ANY_SUBJECT
            if content is None:
                self.levels.pop(subject, None)
            else:
                self.levels[subject] = str(content["compatibilityLevel"])

    def _apply_schema(self, subject: str, version: int, content: dict[str, Any] | None) -> None:
        versions = self.subjects.setdefault(subject, {})
        if content is None:  # deleted for good
            versions.pop(version, None)
            return
        references = tuple(
            SchemaReference(
                str(reference["name"]), str(reference["subject"]), int(reference["version"])
            )
            for reference in content.get("references") or ()
        )
        schema = Schema(str(content["schema"]), content.get("schemaType") or "AVRO", references)
        registered = RegisteredSchema(
            subject, version, int(content["id"]), schema, bool(content.get("deleted", False))
        )
        versions[version] = registered
        self.by_id[registered.id] = schema
        self.ids.setdefault(schema, registered.id)

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """The versions that are not deleted, by rising number."""
        versions = self.subjects.get(subject, {})
        return [versions[number] for number in sorted(versions) if not versions[number].deleted]

    def next_version(self, subject: str) -> int:
        return max(self.subjects.get(subject, {}), default=0) + 1

    def id_for(self, schema: Schema) -> int:
        """The id of this schema in any subject, or the next one."""
        return self.ids.get(schema) or max(self.by_id, default=0) + 1

    def level(self, subject: str) -> str | None:
        return self.levels.get(subject) or self.levels.get(ANY_SUBJECT)
