"""Serializers with schemas, and their registry in a topic of the log, in the formats of Confluent's
Schema Registry.

    from embedlog.schemas import AvroDeserializer, AvroSerializer, SchemaRegistry

    registry = SchemaRegistry(log)
    producer = log.producer(value_serializer=AvroSerializer(registry, schema))
    consumer = log.consumer("orders", value_deserializer=AvroDeserializer(registry))

Everything public is named in `__all__`. The libraries of the formats are extras, imported when a
serializer is made.
"""

from __future__ import annotations

from embedlog.schemas.avro import AvroDeserializer, AvroSerializer
from embedlog.schemas.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer
from embedlog.schemas.protobuf import ProtobufDeserializer, ProtobufSerializer
from embedlog.schemas.registry import SchemaRegistry
from embedlog.schemas.schema_records import RegisteredSchema, Schema, SchemaReference
from embedlog.schemas.subjects import record_name, topic_name, topic_record_name

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "JsonSchemaDeserializer",
    "JsonSchemaSerializer",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "RegisteredSchema",
    "Schema",
    "SchemaReference",
    "SchemaRegistry",
    "record_name",
    "topic_name",
    "topic_record_name",
]
