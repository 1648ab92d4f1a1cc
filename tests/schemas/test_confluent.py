"""Bytes of Confluent's own serializers are read here, and those of this library there."""

from __future__ import annotations

import json
from typing import Any

import pytest

import embedlog
from embedlog.schemas import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistry,
)
from tests.support.schema_examples import ORDER, POINT, message_types

pytestmark = pytest.mark.slow
theirs = pytest.importorskip("confluent_kafka.schema_registry", exc_type=ImportError)


def client() -> Any:
    return theirs.SchemaRegistryClient.new_client({"url": "mock://embedlog"})


def test_avro(log: embedlog.Log, registry: SchemaRegistry) -> None:
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro", exc_type=ImportError)
    context = pytest.importorskip("confluent_kafka.serialization").SerializationContext(
        "orders", "value"
    )
    there = client()
    write = avro.AvroSerializer(there, json.dumps(ORDER))
    data = write({"n": 7}, context)
    ours = AvroSerializer(registry, ORDER)
    made = ours.serialize("orders", [], {"n": 7})
    assert made is not None
    assert made[5:] == data[5:]
    assert AvroDeserializer(registry).deserialize("orders", [], made[:5] + data[5:]) == {"n": 7}
    assert avro.AvroDeserializer(there)(data[:5] + made[5:], context) == {"n": 7}


def test_protobuf(log: embedlog.Log, registry: SchemaRegistry) -> None:
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf", exc_type=ImportError)
    context = pytest.importorskip("confluent_kafka.serialization").SerializationContext(
        "orders", "value"
    )
    user, _, item = message_types()
    for kind, message in ((user, user(name="u")), (item, item(name="i"))):
        there = client()
        data = protobuf.ProtobufSerializer(kind, there, {"use.deprecated.format": False})(
            message, context
        )
        made = ProtobufSerializer(registry, kind).serialize("orders", [], message)
        assert made is not None
        assert made[5:] == data[5:]
        assert (
            ProtobufDeserializer(registry, kind).deserialize("orders", [], made[:5] + data[5:])
            == message
        )
        assert (
            protobuf.ProtobufDeserializer(kind, {"use.deprecated.format": False})(
                data[:5] + made[5:], context
            )
            == message
        )


def test_json(log: embedlog.Log, registry: SchemaRegistry) -> None:
    theirs_json = pytest.importorskip(
        "confluent_kafka.schema_registry.json_schema", exc_type=ImportError
    )
    context = pytest.importorskip("confluent_kafka.serialization").SerializationContext(
        "orders", "value"
    )
    there = client()
    data = theirs_json.JSONSerializer(json.dumps(POINT), there)({"x": 1}, context)
    made = JsonSchemaSerializer(registry, POINT).serialize("orders", [], {"x": 1})
    assert made is not None
    assert JsonSchemaDeserializer(registry).deserialize("orders", [], made[:5] + data[5:]) == {
        "x": 1
    }
    read = theirs_json.JSONDeserializer(json.dumps(POINT), schema_registry_client=there)
    assert read(data[:5] + made[5:], context) == {"x": 1}
