"""Records of the decision log: Kafka's own bytes, keys, and hostile input."""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from embedlog.errors import CorruptRecordError, EmbedlogError, UnsupportedFormatError
from embedlog.replicas.rules import records
from embedlog.replicas.rules.records import (
    Change,
    DecidedConfig,
    DecidedPartition,
    DecidedTopic,
    NoOp,
    RegisterBroker,
    RemoveTopic,
    Tombstone,
    UnregisterBroker,
    decode,
    encode,
    key_of,
)
from tests.conftest import DATA

TYPES: dict[int, type[Change]] = {
    each.TYPE: each
    for each in (
        RegisterBroker,
        UnregisterBroker,
        DecidedTopic,
        DecidedPartition,
        DecidedConfig,
        RemoveTopic,
        NoOp,
    )
}
# the fields of ids, by their names in the JSON of Kafka's side
IDS = {
    "incarnation": "registration_id",
    "leader_incarnation": "leader_registration_id",
    "directory": "directory",
    "topic_id": "topic_uuid",
}
ID = UUID(int=7)
PARTITION = DecidedPartition(
    ID,
    0,
    (1, 2, 3),
    (1, 2),
    1,
    4,
    9,
    (ID, ID, ID),
    elr=(3,),
    removing=(2,),
    adding=(3,),
    leader_registration_id=ID,
)
NODE = RegisterBroker(1, ID, 12, ID, "/disk1/log", rack="a", generation=2)
SAMPLES: list[Change] = [
    NODE,
    replace(NODE, replicas=False, voter=False, leaving=True, rack=None),
    replace(NODE, slot=63),
    UnregisterBroker(1, 12),
    DecidedTopic("orders", ID),
    PARTITION,
    DecidedConfig(records.TOPIC, "orders", "min.insync.replicas", "2"),
    RemoveTopic(ID),
    NoOp(),
]


def record_of(kind: int, fields: dict[str, Any]) -> Change:
    """A record from the JSON of Kafka's side."""
    made: dict[str, Any] = {}
    for name, value in fields.items():
        if name in IDS:
            made[IDS[name]] = None if value is None else UUID(value)
        elif name == "directories":
            made[name] = tuple(map(UUID, value))
        elif name == "others":
            made[name] = tuple((tag, bytes.fromhex(data)) for tag, data in value)
        else:
            made[name] = tuple(value) if isinstance(value, list) else value
    return TYPES[kind](**made)


def written_by_kafka() -> Iterator[tuple[Change, bytes]]:
    with lzma.open(DATA / "metadata-records.jsonl.xz", "rt", encoding="utf-8") as lines:
        for each in map(json.loads, lines):
            yield record_of(each["type"], each["fields"]), bytes.fromhex(each["value"])


# ---- Kafka's own bytes ---------------------------------------------------------------------------


def test_values_are_the_bytes_of_kafkas_own_serializer() -> None:
    counts: Counter[type[Change]] = Counter()
    for record, value in written_by_kafka():
        assert encode(record) == (key_of(record), value), record
        assert decode(key_of(record), value) == record
        counts[type(record)] += 1
    assert set(counts) == set(TYPES.values())
    assert sum(counts.values()) == 400
    assert min(counts.values()) > 20


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_is_read_back(record: Change) -> None:
    assert decode(*encode(record)) == record
    kept = replace(record, others=((7, b""), (30_000, b"newer")))
    assert decode(*encode(kept)) == kept
    key = key_of(record)
    assert decode(*encode(Tombstone(key))) == Tombstone(key)


def test_a_partition_without_leader_is_read_back() -> None:
    offline = replace(
        PARTITION, leader=records.NO_LEADER, leader_registration_id=None, recovering=True, elr=()
    )
    assert decode(*encode(offline)) == offline


# ---- keys ----------------------------------------------------------------------------------------


def test_keys_name_the_subject_of_a_record() -> None:
    assert key_of(NODE) == b"\x00\x00\x00\x00\x01"
    assert key_of(UnregisterBroker(1, 12)) == b"\x01\x00\x00\x00\x01"
    assert key_of(DecidedTopic("orders", ID)) == b"\x02" + ID.bytes
    assert key_of(PARTITION) == b"\x03" + ID.bytes + b"\x00\x00\x00\x00"
    assert (
        key_of(DecidedConfig(records.TOPIC, "orders", "flush.ms", "1"))
        == b"\x04\x02\x07orders\x09flush.ms"
    )
    assert key_of(RemoveTopic(ID)) == b"\x09" + ID.bytes
    assert key_of(NoOp()) == b"\x14"


def test_a_subject_has_one_key_and_a_key_one_subject() -> None:
    assert key_of(replace(PARTITION, isr=(1,), partition_epoch=10)) == key_of(PARTITION)
    others = [
        DecidedConfig(records.TOPIC, "a", "bc", None),
        DecidedConfig(records.TOPIC, "ab", "c", None),
        DecidedConfig(records.NODE, "a", "bc", None),
        replace(PARTITION, number=1),
        replace(NODE, node=2),
    ]
    keys = [key_of(each) for each in (*SAMPLES, *others) if each not in SAMPLES[1:3]]
    assert len(set(keys)) == len(keys)


def test_a_key_of_another_record_is_refused() -> None:
    _, value = encode(PARTITION)
    for key in (b"", key_of(NODE), key_of(replace(PARTITION, number=1)), key_of(PARTITION) + b"\0"):
        with pytest.raises(CorruptRecordError, match="its key"):
            decode(key, value)
    for key in (b"", b"\x05", b"\xff" * 100):
        with pytest.raises(UnsupportedFormatError, match="tombstone"):
            decode(key, None)


# ---- hostile input -------------------------------------------------------------------------------


def test_every_cut_and_every_surplus_is_found() -> None:
    for record in SAMPLES:
        key, value = encode(record)
        assert value is not None
        for size in range(len(value)):
            with pytest.raises(CorruptRecordError):
                decode(key, value[:size])
        with pytest.raises(CorruptRecordError, match="1 bytes follow its end"):
            decode(key, value + b"\0")


def test_damaged_bytes_are_a_typed_error_or_another_sound_record(rng: random.Random) -> None:
    values = [(key, value) for key, value in map(encode, SAMPLES) if value is not None]
    refused = 0
    for _ in range(20_000):
        key, value = rng.choice(values)
        damaged = bytearray(value)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice(
                [0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
        try:
            record = decode(key, bytes(damaged))
        except (CorruptRecordError, UnsupportedFormatError):
            refused += 1
            continue
        assert decode(*encode(record)) == record
        assert not isinstance(record, DecidedPartition) or records.inconsistency(record) == ""
    assert refused > 5_000


@pytest.mark.parametrize(
    "length", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x08"]
)
def test_a_huge_length_costs_no_memory(length: bytes) -> None:
    head = b"\x01\x03\x02" + bytes(4) + ID.bytes
    for value in (
        head + length,  # replicas
        b"\x01\x02\x00" + length + b"name",
        b"\x01\x14\x00" + length,  # tagged fields
        b"\x01\x14\x00\x01\x05" + length,  # the size of one
        head + b"\x01" * 4 + bytes(12) + length,  # directories
    ):
        with pytest.raises(CorruptRecordError):
            decode(b"", value)


def test_unknown_frames_types_and_versions_are_named() -> None:
    for value, what in (
        (b"\x02\x14\x00\x00", "frame"),
        (b"\x01\x15\x00\x00", "type"),
        (b"\x01\x14\x01\x00", "version of type 20"),
    ):
        with pytest.raises(UnsupportedFormatError, match=what):
            decode(b"\x14", value)


def test_tags_are_ascending_and_unique() -> None:
    for tags in (b"\x02\x05\x00\x05\x00", b"\x02\x06\x00\x05\x00"):
        with pytest.raises(CorruptRecordError, match="not ascending"):
            decode(b"\x14", b"\x01\x14\x00" + tags)


@pytest.mark.parametrize(
    "changes",
    [
        {"isr": (1, 4)},
        {"isr": ()},
        {"isr": (2,)},
        {"isr": (1, 1)},
        {"elr": (2,)},
        {"elr": (9,)},
        {"replicas": (1, 2, 2)},
        {"replicas": ()},
        {"leader": 3},
        {"leader": -2},
        {"leader_epoch": -1},
        {"partition_epoch": -1},
        {"number": -1},
        {"directories": (ID,)},
        {"adding": (8,)},
        {"removing": (2, 2)},
        {"replicas": (1, 2, -3), "elr": (), "adding": ()},
    ],
    ids=str,
)
def test_a_partition_that_no_decision_produces_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecordError):
        decode(*encode(replace(PARTITION, **changes)))


@pytest.mark.parametrize("name", ["_VOTER", "_GENERATION", "_PATH", "_DIRECTORIES"])
def test_a_registration_without_a_field_of_embedlog_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, name, 11_000)
        key, value = encode(NODE)
    with pytest.raises(CorruptRecordError, match=r"missing|log directories"):
        decode(key, value)


def test_an_error_is_one_of_the_library_for_any_bytes(rng: random.Random) -> None:
    for _ in range(3_000):
        with pytest.raises(EmbedlogError):
            decode(rng.randbytes(rng.randrange(9)), b"\x01" + rng.randbytes(rng.randrange(60)))
