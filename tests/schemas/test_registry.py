"""The registry of schemas: ids and versions between processes, compatibility, deletion, and the
records in the topic.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

import embedlog
from embedlog import ConfigError, IncompatibleSchemaError, SerializationError, UnknownSchemaError
from embedlog.schemas import Schema, SchemaReference, SchemaRegistry

USER = Schema('{"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}')


def user(*more: dict[str, Any]) -> Schema:
    fields = [{"name": "name", "type": "string"}, *more]
    return Schema(json.dumps({"type": "record", "name": "User", "fields": fields}))


WITH_AGE = user({"name": "age", "type": "int"})
WITH_DEFAULT = user({"name": "age", "type": "int", "default": 0})


def stored(log: embedlog.Log) -> list[tuple[Any, Any]]:
    return [
        (json.loads(record.key), None if record.value is None else json.loads(record.value))
        for record in log.scan("_schemas").records()
    ]


def test_the_same_schema_has_one_id_and_one_version(
    log: embedlog.Log, registry: SchemaRegistry
) -> None:
    assert registry.subjects() == []
    assert registry.register("users-value", USER) == 1
    assert registry.register("users-value", Schema(USER.text.replace(" ", ""))) == 1
    assert registry.register("people-value", USER) == 1
    assert registry.register("users-value", WITH_DEFAULT) == 2
    other = SchemaRegistry(log)
    assert other.register("users-value", WITH_DEFAULT) == 2
    assert [(each.version, each.id) for each in other.versions("users-value")] == [(1, 1), (2, 2)]
    assert other.latest("users-value").schema == WITH_DEFAULT.normal
    assert other.version("users-value", 1).schema == other.schema(1) == USER.normal
    assert other.lookup("people-value", USER).id == 1
    assert other.subjects() == ["people-value", "users-value"]


def test_the_records_are_those_of_a_schema_registry(
    log: embedlog.Log, registry: SchemaRegistry
) -> None:
    registry.register("users-value", USER)
    registry.register(
        "p-value", Schema("Cg==", "PROTOBUF", (SchemaReference("a.proto", "a.proto", 1),))
    )
    registry.set_compatibility("FULL", "users-value")
    registry.set_compatibility("NONE")
    registry.delete("users-value")
    record = next(iter(log.scan("_schemas").records()))
    assert record.key == b'{"keytype":"SCHEMA","subject":"users-value","version":1,"magic":1}'
    text = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}'
    reference = {"name": "a.proto", "subject": "a.proto", "version": 1}
    assert stored(log) == [
        (
            {"keytype": "SCHEMA", "subject": "users-value", "version": 1, "magic": 1},
            {"subject": "users-value", "version": 1, "id": 1, "schema": text, "deleted": False},
        ),
        (
            {"keytype": "SCHEMA", "subject": "p-value", "version": 1, "magic": 1},
            {
                "subject": "p-value",
                "version": 1,
                "id": 2,
                "schemaType": "PROTOBUF",
                "references": [reference],
                "schema": "Cg==",
                "deleted": False,
            },
        ),
        (
            {"keytype": "CONFIG", "subject": "users-value", "magic": 0},
            {"compatibilityLevel": "FULL"},
        ),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "NONE"}),
        (
            {"keytype": "DELETE_SUBJECT", "subject": "users-value", "magic": 0},
            {"subject": "users-value", "version": 1},
        ),
    ]
    assert log.describe_topic("_schemas").config["cleanup.policy"] == "compact"


def test_what_a_schema_registry_wrote_is_read(log: embedlog.Log, registry: SchemaRegistry) -> None:
    """With key types and fields that this library does not write."""
    log.create_topic("_schemas", config={"cleanup.policy": "compact"})
    records = [
        (b'{"keytype":"NOOP","magic":0}', None),
        (b'{"keytype":"MODE","subject":null,"magic":0}', b'{"mode":"READWRITE"}'),
        (b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"FULL"}'),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            b'{"subject":"s","version":1,"id":100001,"md5":"x","schema":"\\"string\\"","deleted":false,"ts":1}',
        ),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
            b'{"subject":"s","version":2,"id":100002,"schema":"\\"bytes\\"","deleted":true}',
        ),
        (
            b'{"keytype":"SCHEMA","subject":"t","version":1,"magic":1}',
            b'{"subject":"t","version":1,"id":7,"schema":"\\"int\\""}',
        ),
        (b'{"keytype":"SCHEMA","subject":"t","version":1,"magic":1}', None),
    ]
    with log.producer() as producer:
        for key, value in records:
            producer.send("_schemas", value, key).result(10)
    assert registry.compatibility() == "FULL"
    assert [(each.version, each.id, each.schema) for each in registry.versions("s")] == [
        (1, 100001, Schema('"string"'))
    ]
    assert registry.schema(100002) == Schema('"bytes"')
    assert registry.subjects() == ["s"]
    assert registry.register("new", Schema('"long"')) == 100003
    assert registry.register("s", Schema('"string"')) == 100001


def test_damaged_records_are_errors_with_their_place(
    log: embedlog.Log, registry: SchemaRegistry
) -> None:
    log.create_topic("_schemas", config={"cleanup.policy": "compact"})
    with log.producer() as producer:
        producer.send("_schemas", b"{}", b'{"keytype":"SCHEMA","subject":"s","version":1}').result(
            10
        )
    with pytest.raises(SerializationError, match="schema registry") as caught:
        registry.subjects()
    assert (caught.value.topic, caught.value.offset) == ("_schemas", 0)


@pytest.mark.parametrize(
    ("level", "refused"),
    [
        ("BACKWARD", [WITH_AGE]),
        ("FORWARD", [Schema('{"type": "record", "name": "User", "fields": []}')]),
        ("FULL", [WITH_AGE, Schema('{"type": "record", "name": "User", "fields": []}')]),
        ("NONE", []),
    ],
)
def test_a_level_decides_what_may_follow(
    registry: SchemaRegistry, level: str, refused: list[Schema]
) -> None:
    assert registry.compatibility("users-value") == "BACKWARD"
    registry.set_compatibility(level, "users-value")
    registry.register("users-value", USER)
    schemas = [WITH_AGE, WITH_DEFAULT, Schema('{"type": "record", "name": "User", "fields": []}')]
    for schema in schemas:
        if schema in refused:
            with pytest.raises(
                IncompatibleSchemaError, match=f"not {level} compatible with version 1"
            ) as caught:
                registry.check_compatible("users-value", schema)
            assert (caught.value.subject, caught.value.version) == ("users-value", 1)
        else:
            registry.check_compatible("users-value", schema)
    with pytest.raises(ConfigError, match="BACKWARD_TRANSITIVE"):
        registry.set_compatibility("backwards")


def test_a_transitive_level_compares_all_versions(registry: SchemaRegistry) -> None:
    empty = Schema('{"type": "record", "name": "User", "fields": []}')
    registry.register("s", empty)
    registry.register(
        "s",
        WITH_DEFAULT._replace(
            text=WITH_DEFAULT.text.replace('"type": "string"', '"type": "string", "default": ""')
        ),
    )
    registry.check_compatible("s", USER)
    registry.set_compatibility("BACKWARD_TRANSITIVE")
    with pytest.raises(IncompatibleSchemaError, match="version 1"):
        registry.register("s", USER)
    with pytest.raises(IncompatibleSchemaError, match="it is JSON, not AVRO"):
        registry.register("s", Schema("{}", "JSON"))


def test_a_deleted_version_stays_readable_by_its_id_and_keeps_its_number(
    log: embedlog.Log, registry: SchemaRegistry
) -> None:
    registry.register("s", USER)
    registry.register("s", WITH_DEFAULT)
    assert registry.delete("s", 2) == [2]
    assert registry.delete("s") == [1]
    for call in (
        lambda: registry.latest("s"),
        lambda: registry.delete("s"),
        lambda: registry.lookup("s", USER),
    ):
        with pytest.raises(UnknownSchemaError):
            call()
    fresh = SchemaRegistry(log)
    assert fresh.subjects() == fresh.versions("s") == []
    assert fresh.schema(2) == WITH_DEFAULT.normal
    assert fresh.version("s", 2).deleted
    assert fresh.register("s", USER) == 1
    assert fresh.latest("s").version == 3
    with pytest.raises(UnknownSchemaError, match="99"):
        fresh.schema(99)


def test_a_text_that_is_no_json_is_refused(registry: SchemaRegistry) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        registry.register("s", Schema("{"))


def test_registries_that_register_at_once_agree_on_ids(log: embedlog.Log) -> None:
    """Each of them decides on a view of its own, so only the expected offset keeps them apart."""
    schemas = [
        Schema(json.dumps({"type": "fixed", "name": f"F{number}", "size": 1}))
        for number in range(4)
    ]
    found: list[dict[str, int]] = [{} for _ in range(4)]

    def work(own: dict[str, int], start: int) -> None:
        registry = SchemaRegistry(log)
        barrier.wait(10)
        for at in range(len(schemas)):
            schema = schemas[(start + at) % len(schemas)]
            own[schema.text] = registry.register(f"s{start + at}", schema)

    barrier = threading.Barrier(4)
    threads = [
        threading.Thread(target=work, args=(own, number)) for number, own in enumerate(found)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(own == found[0] for own in found)
    assert sorted(found[0].values()) == [1, 2, 3, 4]
    keys = [json.dumps(key) for key, _ in stored(log)]
    assert len(keys) == len(set(keys))
