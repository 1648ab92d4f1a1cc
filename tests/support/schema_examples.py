"""Schemas of Avro, JSON and Protobuf for tests of serializers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import Timestamp

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "n", "type": "long"}],
}


@dataclass
class Order:
    n: int
    user: str = "none"


POINT = {
    "title": "Point",
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
}


def message_types() -> tuple[Any, Any, Any]:
    """A nested message, the second of its file, a type of an imported file, and one with a
    timestamp.
    """
    pool = descriptor_pool.DescriptorPool()
    string = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    message = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    pool.AddSerializedFile(Timestamp.DESCRIPTOR.file.serialized_pb)
    base = descriptor_pb2.FileDescriptorProto(
        name="shop/user.proto", package="shop", syntax="proto3"
    )
    base.message_type.add(name="User").field.add(name="name", number=1, type=string, label=1)
    pool.Add(base)
    file = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto", package="shop", syntax="proto3"
    )
    file.dependency.extend(["shop/user.proto", "google/protobuf/timestamp.proto"])
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    order.field.add(name="user", number=1, type=message, type_name=".shop.User", label=1)
    order.field.add(
        name="at", number=2, type=message, type_name=".google.protobuf.Timestamp", label=1
    )
    order.nested_type.add(name="Item").field.add(name="name", number=1, type=string, label=1)
    pool.Add(file)
    names = ("shop.User", "shop.Order", "shop.Order.Item")
    found = tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names
    )
    return found  # type: ignore[return-value]
