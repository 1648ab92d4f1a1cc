"""The last record of a partition: what is invisible at the end is passed over, and the log before
it is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import ConfigError, SerializationError, UnknownTopicOrPartitionError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", 2)
        yield opened


def abort(log: embedlog.Log, count: int) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(count):
            producer.send("t", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()


def test_a_partition_without_a_record_has_no_last_one(log: embedlog.Log) -> None:
    assert log.last_record("t", 0) is None
    with log.producer() as producer:
        producer.send("t", b"v", partition=1)
    assert log.last_record("t", 0) is None
    assert log.last_record("t", 1) == next(log.scan("t").records())
    log.delete_records({embedlog.TopicPartition("t", 1): 1})
    assert log.last_record("t", 1) is None
    with pytest.raises(UnknownTopicOrPartitionError):
        log.last_record("t", 2)
    with pytest.raises(ConfigError, match="isolation_level"):
        log.last_record("t", 0, isolation_level="committed")  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_it_is_the_last_of_its_batch_with_all_fields(log: embedlog.Log, codec: str) -> None:
    with log.producer(compression_type=codec) as producer:
        for number in range(100):
            producer.send("t", b"%d" % number, b"k", partition=0, headers=[("h", b"%d" % number)])
        producer.flush()
        assert log.last_record("t", 0) == list(log.scan("t").records())[-1]
        producer.send("t", None, b"k", partition=0).result()
    found = log.last_record("t", 0)
    assert found is not None
    assert (found.offset, found.value) == (100, None)


@pytest.mark.parametrize("aborted", [1, 50])
def test_markers_and_aborted_records_are_passed_over(log: embedlog.Log, aborted: int) -> None:
    with log.producer() as producer:
        producer.send("t", b"good", partition=0)
    abort(log, aborted)
    uncommitted = log.last_record("t", 0)
    committed = log.last_record("t", 0, isolation_level="read_committed")
    assert uncommitted is not None
    assert (uncommitted.offset, uncommitted.value) == (aborted, b"aborted"), (
        "the marker after it is no record"
    )
    assert committed is not None
    assert (committed.offset, committed.value) == (0, b"good")


def test_an_open_transaction_ends_what_is_committed(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"first", partition=0)
        with producer.transaction():
            producer.send("t", b"second", partition=0)
            producer.flush()
            committed = log.last_record("t", 0, isolation_level="read_committed")
            assert committed is not None
            assert committed.value == b"first"
        committed = log.last_record("t", 0, isolation_level="read_committed")
        assert committed is not None
        assert committed.value == b"second"


def test_offsets_that_compaction_removed_are_passed_over(log: embedlog.Log) -> None:
    log.create_topic(
        "c",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=0,
        segment_ms=1,
    )
    with log.producer() as producer:
        producer.send("c", b"kept", b"a", timestamp_ms=10**12).result()
        for number in range(20):
            producer.send(
                "c",
                None if number % 2 else b"v",
                b"%d" % (number // 2),
                timestamp_ms=10**12 + number,
            ).result()
        producer.send("c", None, b"a-last", timestamp_ms=10**12 + 50).result()
        for _ in range(2):
            log.housekeep()
    expected = list(log.scan("c").records())
    assert len(expected) < 22, "nothing was compacted: the test shows nothing"
    assert log.last_record("c", 0) == expected[-1]


def test_the_log_before_it_is_not_read(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("many", segment_bytes=2000)
    with log.producer() as producer:
        for number in range(100):
            producer.send("many", b"%0500d" % number).result()
    partition = log._engine.partition("many", 0)
    fetches: list[int] = []
    fetch = partition.fetch

    def counted(offset: int, **options: Any) -> Any:
        found = fetch(offset, **options)
        fetches.append(len(found.data))
        return found

    monkeypatch.setattr(partition, "fetch", counted)
    found = log.last_record("many", 0)
    assert found is not None
    assert found.value == b"%0500d" % 99
    assert len(fetches) == 1
    assert sum(fetches) < 700


def test_a_set_shows_its_last_committed_record(tmp_path: Path) -> None:
    with embedlog.open([tmp_path / "a", tmp_path / "b"]) as log, log.producer() as producer:
        log.create_topic("t", replication_factor=2)
        assert log.last_record("t", 0) is None
        producer.send("t", b"v").result()
        found = log.last_record("t", 0)
        assert found is not None
        assert found.value == b"v"


def test_scanned_records_pass_through_deserializers(log: embedlog.Log) -> None:
    with log.producer() as producer:
        for value in (b"1", None, b"x"):
            producer.send("t", value, b"k", partition=0)
    found = log.scan("t").records(key_deserializer=bytes.decode, value_deserializer=int)
    assert [(each.key, each.value) for each in (next(found), next(found))] == [
        ("k", 1),
        ("k", None),
    ]
    with pytest.raises(
        SerializationError, match="topic t, partition 0, offset 2, field value"
    ) as caught:
        next(found)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.field == "value"
    assert [each.key for each in log.scan("t").records(key_deserializer=bytes.decode)] == [
        "k",
        "k",
        "k",
    ]
    with pytest.raises(TypeError, match="key_deserializer is a callable"):
        log.scan("t").records(key_deserializer=5)  # type: ignore[call-overload]
