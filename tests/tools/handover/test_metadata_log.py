"""A metadata log: snapshots and segments, read and written, whole and damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from embedlog._native._rows import encode_batch
from embedlog.errors import CorruptRecordError, EmbedlogError
from embedlog.storage.identity import new_id
from embedlog.tools.handover import metadata_image, metadata_log
from embedlog.tools.handover import metadata_records as records
from embedlog.tools.handover.metadata_records import (
    ConfigRecord,
    FeatureLevel,
    PartitionRecord,
    TopicRecord,
)

ID = new_id()
TOPIC = records.encode_topic(TopicRecord("t", ID))
BEGIN, END, ABORT, NO_OP = (b"\1" + bytes((kind,)) + b"\0\0" for kind in (23, 24, 25, 20))


def setting(name: str, value: str | None, kind: int = 2) -> bytes:
    return records.encode_config(ConfigRecord(kind, "t", name, value))


def batch(offset: int, *values: bytes, epoch: int = 1) -> bytes:
    made = bytearray(encode_batch([(None, value) for value in values], 0, 0, -1, -1, -1))
    metadata_log._stamp(made, 0, offset, epoch)
    return bytes(made)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / metadata_log.NAME
    place.mkdir()
    return place


def log_file(place: Path, base: int, data: bytes) -> Path:
    path = place / f"{base:020d}.log"
    path.write_bytes(data)
    return path


def test_without_a_directory_the_log_is_empty(tmp_path: Path) -> None:
    assert not metadata_log.read(tmp_path)
    assert metadata_image.read(tmp_path)[0] == metadata_image.Image()


def test_a_snapshot_is_read_back(place: Path) -> None:
    # more than one batch
    values = [TOPIC, *(setting(f"s{number}", "x" * 2000) for number in range(1000))]
    raft = {metadata_log.RAFT_VERSION: b"\0\0\0\1\0", 6: b"voters"}
    data = metadata_log.snapshot(values, raft, 5, 123)
    (place / metadata_log.snapshot_name(17, 5)).write_bytes(data)
    found = metadata_log.read(place.parent)
    assert [each.value for each in found.entries] == values
    assert (found.raft, found.end, found.epoch) == (raft, 17, 5)


def test_records_after_the_newest_snapshot_count(place: Path) -> None:
    log_file(place, 0, batch(0, TOPIC) + batch(1, setting("a", "1"), setting("b", "1")))
    log_file(place, 3, batch(3, setting("a", "2"), epoch=2))
    image, log = metadata_image.read(place.parent)
    assert (image.settings_of("t"), log.end, log.epoch) == ({"a": "2", "b": "1"}, 4, 2)
    older = metadata_log.snapshot([TOPIC], {}, 1, 0)
    (place / metadata_log.snapshot_name(1, 1)).write_bytes(older)
    (place / metadata_log.snapshot_name(3, 1)).write_bytes(
        metadata_log.snapshot([TOPIC, setting("c", "9")], {}, 1, 0)
    )
    image, log = metadata_image.read(place.parent)
    assert (image.settings_of("t"), log.end, log.epoch) == ({"a": "2", "c": "9"}, 4, 2)
    # after the log, which it replaces
    (place / metadata_log.snapshot_name(50, 2)).write_bytes(older)
    image, log = metadata_image.read(place.parent)
    assert (image.settings_of("t"), log.end, log.epoch) == ({}, 50, 2)


def test_aborted_and_unfinished_metadata_transactions_do_not_count(place: Path) -> None:
    log_file(
        place,
        0,
        batch(0, TOPIC, BEGIN, setting("a", "1"))
        + batch(3, ABORT, BEGIN, setting("b", "1"), END)
        + batch(7, NO_OP)
        + batch(8, BEGIN, setting("c", "1")),
    )
    image, log = metadata_image.read(place.parent)
    assert (image.settings_of("t"), image.others, log.end) == ({"b": "1"}, [], 10)


def test_the_image_follows_changes_of_topics_and_partitions(place: Path) -> None:
    made = PartitionRecord(ID, 0, (1,), (1,), 1, 5, 6, ())
    directory = new_id()
    other = new_id()
    image = metadata_image.Image()
    acl = b"\1\x12\0\0"
    for record in (
        TopicRecord("t", ID),
        made,
        records.PartitionChange(ID, 0, leader=-1),
        records.PartitionChange(ID, 0, directories=(directory,)),
        ConfigRecord(2, "t", "a", "1"),
        ConfigRecord(2, "t", "b", "2"),
        ConfigRecord(2, "t", "a", None),
        ConfigRecord(4, "", "c", "3"),
        FeatureLevel("metadata.version", 25),
        FeatureLevel("x", 2),
        FeatureLevel("x", 0),
        records.RegisterBrokerRecord(1, 4, (directory,)),
        records.RegistrationChange(1, (directory, other)),
    ):
        image.apply(b"", record)
    image.apply(acl, records.decode(acl))
    assert image.topics[ID].partitions == {
        0: PartitionRecord(ID, 0, (1,), (1,), -1, 6, 8, (directory,))
    }
    assert image.settings == {(2, "t"): {"b": "2"}, (4, ""): {"c": "3"}}
    assert (image.features, image.brokers[1].directories, image.others[-1]) == (
        {"metadata.version": 25},
        (directory, other),
        acl,
    )
    image.apply(b"", records.RemoveTopicRecord(ID))
    assert not image.topics
    assert image.settings == {(4, ""): {"c": "3"}}
    for unknown in (records.RemoveTopicRecord(ID), made, records.PartitionChange(ID, 0)):
        with pytest.raises(CorruptRecordError, match="unknown topic"):
            image.apply(b"", unknown)


# ---- damage --------------------------------------------------------------------------------------


def test_a_torn_batch_ends_the_last_segment_only(place: Path) -> None:
    whole = batch(0, TOPIC)
    torn = bytearray(batch(1, setting("a", "1")))
    torn[-3] ^= 1
    log_file(place, 0, whole + torn)
    assert metadata_log.read(place.parent).end == 1
    log_file(place, 0, whole + torn[:-1])
    assert metadata_log.read(place.parent).end == 1
    log_file(place, 0, whole + torn)
    log_file(place, 2, batch(2, setting("b", "1")))
    with pytest.raises(CorruptRecordError, match="checksum"):
        metadata_log.read(place.parent)


def test_missing_records_are_damage(place: Path) -> None:
    log_file(place, 5, batch(5, TOPIC))
    with pytest.raises(CorruptRecordError, match="offset in the metadata log"):
        metadata_log.read(place.parent)


def test_a_snapshot_without_its_end_is_damage(place: Path) -> None:
    data = metadata_log.snapshot([TOPIC], {}, 1, 0)
    path = place / metadata_log.snapshot_name(3, 1)
    footer = len(data) - 75  # the size of that batch
    for cut in (0, 1, 83, footer, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(CorruptRecordError, match="the end of a metadata snapshot"):
            metadata_log.read(place.parent)


def test_any_damage_is_an_error_or_seen_as_the_end(place: Path, rng: random.Random) -> None:
    data = metadata_log.snapshot([TOPIC, setting("a", "1")], {5: b"\0\0\0\1\0"}, 1, 0)
    whole = metadata_log.read(place.parent)
    path = place / metadata_log.snapshot_name(3, 1)
    for _ in range(500):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            found = metadata_log.read(place.parent)
        except EmbedlogError:
            continue
        # bytes that Kafka's checksum leaves out
        assert [each.value for each in found.entries] == [TOPIC, setting("a", "1")]
    assert not whole
