"""Contains the serializer and the deserializer of Protobuf messages.

- The schema of a message type is the descriptor of its file. Files that it imports are registered
  first, under their own names as subjects; those of google/protobuf are known to every reader.
- The reader's message type decides: Protobuf keeps unknown fields, and absent ones have defaults.
"""

from __future__ import annotations

import base64
from typing import Any, Generic, Protocol, Self, TypeVar

from embedlog import MissingExtraError
from embedlog.schemas.framing import add_frame, after_message_path, message_path, remove_frame
from embedlog.schemas.registered import RegisteredIds
from embedlog.schemas.registry import SchemaRegistry
from embedlog.schemas.schema_records import Schema, SchemaReference
from embedlog.schemas.subjects import Field, SubjectName, topic_name

KNOWN = "google/protobuf/"


class ProtobufMessage(Protocol):
    """A generated message: `google.protobuf.message.Message`."""

    DESCRIPTOR: Any

    def SerializeToString(self) -> bytes: ...  # noqa: N802  (Protobuf's name)
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...  # noqa: N802  (Protobuf's name)


M = TypeVar("M", bound=ProtobufMessage)


class ProtobufSerializer(Generic[M]):
    """Serializes messages of one type. Raises MissingExtraError without protobuf. Threads: any."""

    def __init__(
        self,
        registry: SchemaRegistry,
        message_type: type[M],
        *,
        field: Field = "value",
        subject: SubjectName = topic_name,
        auto_register: bool = True,
    ) -> None:
        _import_descriptors()
        self._registry = registry
        self._type = message_type
        self._auto_register = auto_register
        self._path = message_path(_path_of(message_type.DESCRIPTOR))
        self._field = field
        self._subject = subject
        self._registered: RegisteredIds | None = None

    def serialize(self, topic: str, headers: Any, data: M) -> bytes | None:
        """The framed message; None stays None. Raises TypeError for a message of another type."""
        message: object = data
        if message is None:
            return None
        if not isinstance(message, self._type):
            raise TypeError(f"the message is a {type(data).__name__}, not a {self._type.__name__}")
        if self._registered is None:
            self._registered = self._make_ids()
        return add_frame(self._registered.of_topic(topic), self._path + data.SerializeToString())

    def _make_ids(self) -> RegisteredIds:
        descriptor = self._type.DESCRIPTOR
        schema = _register_file(self._registry, descriptor.file, self._auto_register)
        return RegisteredIds(
            self._registry,
            schema,
            field=self._field,
            subject=self._subject,
            record=descriptor.full_name,
            auto_register=self._auto_register,
        )


class ProtobufDeserializer(Generic[M]):
    """Deserializes framed messages as one type. Raises MissingExtraError without protobuf. Threads:
    any.
    """

    def __init__(self, registry: SchemaRegistry, message_type: type[M]) -> None:
        self._registry = registry
        self._type = message_type
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}
        self._descriptor_pb2 = _import_descriptors()

    def deserialize(self, topic: str, headers: Any, data: bytes) -> M:
        """The message. Raises UnknownSchemaError, Protobuf's DecodeError, and ValueError for other
        bytes or another type.
        """
        schema_id, framed_message = remove_frame(data)
        path, payload = after_message_path(framed_message)
        key = (schema_id, tuple(path))
        name = self._names.get(key)
        if name is None:
            name = self._read_message_name(schema_id, tuple(path))
            self._names[key] = name
        if name != self._type.DESCRIPTOR.full_name:
            raise ValueError(f"the message is a {name}, not a {self._type.DESCRIPTOR.full_name}")
        return self._type.FromString(bytes(payload))

    def _read_message_name(self, schema_id: int, path: tuple[int, ...]) -> str:
        """The full name of a message of a registered file; the reader's name if the schema is the
        text of a .proto file.
        """
        schema = self._registry.schema(schema_id)
        if schema.kind != "PROTOBUF":
            raise ValueError(f"schema {schema_id} is {schema.kind}, not PROTOBUF")
        try:
            file = self._descriptor_pb2.FileDescriptorProto.FromString(
                base64.b64decode(schema.text, validate=True)
            )
        except ValueError:
            return str(self._type.DESCRIPTOR.full_name)
        names = [file.package] if file.package else []
        messages = file.message_type
        for number in path:
            if not 0 <= number < len(messages):
                raise ValueError(f"schema {schema_id} has no message at {list(path)}")
            names.append(messages[number].name)
            messages = messages[number].nested_type
        return ".".join(names)


def _import_descriptors() -> Any:
    try:
        from google.protobuf import descriptor_pb2
    except ImportError as missing:
        raise MissingExtraError("Protobuf messages need protobuf", extra="protobuf") from missing
    return descriptor_pb2


def _path_of(descriptor: Any) -> list[int]:
    """The numbers of the messages around a message, from the outermost one, and its own."""
    outer = descriptor.containing_type
    if outer is None:
        names = [message.name for message in descriptor.file.message_types_by_name.values()]
        return [names.index(descriptor.name)]
    names = [message.name for message in outer.nested_types]
    return [*_path_of(outer), names.index(descriptor.name)]


def _register_file(registry: SchemaRegistry, file: Any, auto_register: bool) -> Schema:
    """The schema of a file, after the files that it imports."""
    references = []
    for imported in file.dependencies:
        if imported.name.startswith(KNOWN):
            continue
        schema = _register_file(registry, imported, auto_register)
        if auto_register:
            registry.register(imported.name, schema)
        registered = registry.lookup(imported.name, schema)
        references.append(SchemaReference(imported.name, registered.subject, registered.version))
    return Schema(base64.b64encode(file.serialized_pb).decode(), "PROTOBUF", tuple(references))
