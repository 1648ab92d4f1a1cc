"""Serializers with schemas: frames, evolution, subjects, other messages and damaged bytes."""

from __future__ import annotations

import random
import sys
from dataclasses import asdict
from typing import Any

import jsonschema
import pyarrow
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import embedlog
from embedlog import MissingExtraError, SerializationError, UnknownSchemaError, serializers
from embedlog.schemas import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaRegistry,
    record_name,
    topic_record_name,
)
from embedlog.schemas.framing import add_frame, after_message_path, message_path, remove_frame
from tests.support.schema_examples import ORDER, POINT, Order, message_types

NEWER = {
    **ORDER,
    "fields": [*ORDER["fields"], {"name": "user", "type": "string", "default": "none"}],
}  # type: ignore[misc]


def values(log: embedlog.Log, deserializer: Any) -> list[Any]:
    return [record.value for record in log.scan("orders").records(value_deserializer=deserializer)]


# ---- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "data"),
    [([0], "00"), ([1], "0202"), ([0, 0], "040000"), ([2, 1], "040402"), ([100], "02c801")],
)
def test_a_message_path_is_written_as_confluent_writes_it(path: list[int], data: str) -> None:
    assert message_path(path).hex() == data
    found, rest = after_message_path(memoryview(bytes.fromhex(data) + b"rest"))
    assert (found, bytes(rest)) == (path, b"rest")


def test_bytes_without_a_frame_are_refused(rng: random.Random) -> None:
    assert add_frame(0x01020304, b"x") == b"\0\1\2\3\4x"
    assert remove_frame(add_frame(7, b"x"))[0] == 7
    for data in (b"", b"\0\0\0\0", b"\1\0\0\0\7x", b"{}"):
        with pytest.raises(ValueError, match="frame"):
            remove_frame(data)
    for _ in range(500):
        data = rng.randbytes(rng.randint(0, 12))
        try:
            path, rest = after_message_path(memoryview(data))
        except ValueError:
            continue
        assert len(path) + len(rest) <= len(data) or path == [0]


# ---- Avro ----------------------------------------------------------------------------------------


def test_an_old_reader_and_a_new_one_read_both_versions(
    log: embedlog.Log, registry: SchemaRegistry
) -> None:
    with log.producer(value_serializer=AvroSerializer(registry, ORDER)) as producer:
        producer.send("orders", {"n": 1}).result(10)
        producer.send("orders", None).result(10)
    with log.producer(value_serializer=AvroSerializer(registry, NEWER, asdict)) as producer:
        producer.send("orders", Order(2, "u")).result(10)
    other = SchemaRegistry(log)
    assert values(log, AvroDeserializer(other)) == [{"n": 1}, None, {"n": 2, "user": "u"}]
    assert values(log, AvroDeserializer(other, ORDER)) == [{"n": 1}, None, {"n": 2}]
    assert values(log, AvroDeserializer(other, NEWER, lambda each: Order(**each))) == [
        Order(1),
        None,
        Order(2, "u"),
    ]
    data = [record.value[:5] for record in log.scan("orders").records() if record.value]
    assert data == [b"\0\0\0\0\1", b"\0\0\0\0\2"]
    assert [each.id for each in registry.versions("orders-value")] == [1, 2]


def test_subjects_are_named_by_topic_and_record(
    log: embedlog.Log, registry: SchemaRegistry
) -> None:
    for subject in (record_name, topic_record_name):
        assert AvroSerializer(registry, ORDER, field="key", subject=subject).serialize(
            "orders", [], {"n": 1}
        )
    assert AvroSerializer(registry, '"string"', field="key").serialize("orders", [], "text")
    assert registry.subjects() == ["orders-key", "orders-shop.Order", "shop.Order"]


def test_without_auto_register_the_schema_must_be_there(registry: SchemaRegistry) -> None:
    serializer = AvroSerializer(registry, ORDER, auto_register=False)
    with pytest.raises(UnknownSchemaError, match="orders-value"):
        serializer.serialize("orders", [], {"n": 1})
    registry.register("orders-value", Schema('"string"'))
    registry.set_compatibility("NONE")
    number = registry.register("orders-value", AvroSerializer(registry, ORDER)._ids._schema)
    data = serializer.serialize("orders", [], {"n": 1})
    assert data is not None
    assert remove_frame(data)[0] == number


def test_a_failure_names_the_record(log: embedlog.Log, registry: SchemaRegistry) -> None:
    with log.producer(value_serializer=AvroSerializer(registry, ORDER)) as producer:
        with pytest.raises(SerializationError):
            producer.send("orders", {"n": "text"})
        producer.send("orders", {"n": 1}).result(10)
    (good,) = [record.value for record in log.scan("orders").records()]
    bad = [b"plain", good[:5], good + b"x", b"\0\0\0\0\x63x", good[:5] + b"\xff" * 12]
    read = AvroDeserializer(SchemaRegistry(log)).deserialize
    assert read("orders", [], good) == {"n": 1}
    for data in bad:
        with pytest.raises((ValueError, EOFError, UnknownSchemaError, IndexError)):
            read("orders", [], data)
    with log.producer() as producer:
        producer.send("orders", bad[0]).result(10)
    with pytest.raises(SerializationError) as caught:
        values(log, AvroDeserializer(registry))
    assert (caught.value.topic, caught.value.offset, caught.value.field) == ("orders", 1, "value")


# ---- JSON Schema ---------------------------------------------------------------------------------


def test_json_is_validated_on_both_sides(log: embedlog.Log, registry: SchemaRegistry) -> None:
    with log.producer(value_serializer=JsonSchemaSerializer(registry, POINT)) as producer:
        producer.send("orders", {"x": 1, "ä": None}).result(10)
        with pytest.raises(SerializationError, match="required"):
            producer.send("orders", {})
    assert values(log, JsonSchemaDeserializer(registry)) == [{"x": 1, "ä": None}]
    (data,) = [record.value for record in log.scan("orders").records()]
    assert data == b"\0\0\0\0\1" + '{"x":1,"ä":null}'.encode()
    with pytest.raises(jsonschema.ValidationError):
        JsonSchemaDeserializer(registry, {"type": "array"}).deserialize("orders", [], data)
    assert registry.latest("orders-value").schema.kind == "JSON"


# ---- Protobuf ------------------------------------------------------------------------------------


def test_messages_are_read_as_they_were_written(
    log: embedlog.Log, registry: SchemaRegistry
) -> None:
    user, order, item = message_types()
    made = order(user=user(name="u"))
    made.at.seconds = 5
    with log.producer(value_serializer=ProtobufSerializer(registry, order)) as producer:
        producer.send("orders", made).result(10)
        producer.send("orders", None).result(10)
        with pytest.raises(SerializationError, match="not a Order"):
            producer.send("orders", user(name="u"))
    assert values(log, ProtobufDeserializer(SchemaRegistry(log), order)) == [made, None]
    data = next(iter(log.scan("orders").records())).value
    assert data == b"\0\0\0\0\2" + b"\2\2" + made.SerializeToString()
    assert [each.name for each in registry.latest("orders-value").schema.references] == [
        "shop/user.proto"
    ]
    nested = ProtobufSerializer(registry, item, subject=record_name).serialize(
        "orders", [], item(name="i")
    )
    assert nested is not None
    assert nested[:8] == b"\0\0\0\0\2" + b"\4\2\0"
    with pytest.raises(ValueError, match=r"a shop.Order.Item, not a shop.Order"):
        ProtobufDeserializer(registry, order).deserialize("orders", [], nested)
    with pytest.raises(ValueError, match="no message at"):
        ProtobufDeserializer(registry, order).deserialize("orders", [], b"\0\0\0\0\2\2\x10")
    assert registry.subjects() == ["orders-value", "shop.Order.Item", "shop/user.proto"]


# ---- without schemas ------------------------------------------------------------------------------


def test_msgpack_and_arrow_values(log: embedlog.Log) -> None:
    batch = pyarrow.record_batch({"n": [1, 2], "text": ["a", None]})
    assert (
        serializers.msgpack(None)
        is serializers.from_msgpack(None)
        is serializers.arrow(None)
        is serializers.from_arrow(None)
        is None
    )
    with log.producer(value_serializer=serializers.msgpack) as producer:
        producer.send("orders", {"n": 1, "bytes": b"\0", "list": [None, 1.5]}).result(10)
    assert values(log, serializers.from_msgpack) == [{"n": 1, "bytes": b"\0", "list": [None, 1.5]}]
    log.create_topic("batches")
    with log.producer(value_serializer=serializers.arrow) as producer:
        producer.send("batches", batch).result(10)
        producer.send("batches", pyarrow.Table.from_batches([batch])).result(10)
        with pytest.raises(SerializationError, match="RecordBatch"):
            producer.send("batches", {"n": 1})
    found = [
        record.value
        for record in log.scan("batches").records(value_deserializer=serializers.from_arrow)
    ]
    assert found == [pyarrow.Table.from_batches([batch])] * 2


# ---- without the libraries ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("fastavro", "avro", lambda registry: AvroSerializer(registry, ORDER)),
        ("fastavro", "avro", AvroDeserializer),
        (
            "jsonschema.validators",
            "jsonschema",
            lambda registry: JsonSchemaSerializer(registry, POINT),
        ),
        ("google.protobuf", "protobuf", lambda registry: ProtobufSerializer(registry, Timestamp)),
        ("msgpack", "msgpack", lambda registry: serializers.msgpack(1)),
        ("pyarrow.ipc", "arrow", lambda registry: serializers.from_arrow(b"")),
        (
            "avro.compatibility",
            "avro",
            lambda registry: [registry.register("s", Schema(text)) for text in ('"int"', '"long"')],
        ),
    ],
)
def test_a_missing_library_names_its_extra(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, module: str, extra: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"embedlog\[{extra}\]"):
        make(registry)
