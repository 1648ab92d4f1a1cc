"""The short paths of a reader of a set: the leader's own tail and single batches, until something
in the set changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import StorageError
from embedlog.replicas.partition.usual_reads import LeaderTail
from tests.support.opened_sets import QUIET, opened, send

PATIENT_S = 20.0


def made(root: Path, **options: Any) -> None:
    with opened(root) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config=options)


def reader(log: embedlog.Log) -> embedlog.Consumer[bytes, bytes]:
    return log.consumer("t", auto_offset_reset="earliest")


def polled(consumer: embedlog.Consumer[bytes, bytes], count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        records = consumer.poll(PATIENT_S)
        assert records, f"{len(found)} of {count} records"
        found += [record.value for record in records]
    return found


def tail_of(consumer: embedlog.Consumer[bytes, bytes]) -> LeaderTail | None:
    [cursor] = consumer._reading.rotation
    assert cursor.tail is None or isinstance(cursor.tail, LeaderTail)
    return cursor.tail


def followed(log: embedlog.Log, consumer: embedlog.Consumer[bytes, bytes]) -> None:
    """The reader stands at the end, with a tail of the leader."""
    for number in range(5):
        send(log, b"%d" % number)
        assert polled(consumer, 1) == [b"%d" % number]
    assert tail_of(consumer) is not None


def test_a_reader_at_the_end_uses_the_tail_of_the_leader(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, reader(log) as consumer:
        followed(log, consumer)
        tail = tail_of(consumer)
        send(log, b"next")
        assert polled(consumer, 1) == [b"next"]
        assert tail_of(consumer) is tail


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_tail_ends_with_the_next_leader(tmp_path: Path, elsewhere: bool) -> None:
    """The page of a removed directory shows its leader for ever: the reader must not wait for
    it.
    """
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other, reader(log) as consumer:
        followed(log, consumer)
        (tmp_path / "d1").rename(tmp_path / "removed")
        send(other if elsewhere else log, b"from the next leader")
        assert polled(consumer, 1) == [b"from the next leader"]
        followed(log, consumer)


def test_a_tail_does_not_return_what_an_unclean_election_has_cut(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other, reader(log) as consumer:
        followed(log, consumer)
        end = log.describe_topic("t").partitions[0].log_end_offset
        (tmp_path / "d2").rename(tmp_path / "away2")
        (tmp_path / "d3").rename(tmp_path / "away3")
        send(log, b"only in the first", acks=1, enable_idempotence=False)
        (tmp_path / "d1").rename(tmp_path / "away1")
        for name in ("2", "3"):
            (tmp_path / f"away{name}").rename(tmp_path / f"d{name}")
        other.housekeep()
        other.elect("t", 0, unclean=True, node=2)
        send(other, b"instead of it")
        assert other.describe_topic("t").partitions[0].log_end_offset == end + 1
        assert polled(consumer, 1) == [b"instead of it"]


def test_single_batches_are_read_from_the_leader(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, reader(log) as consumer:
        with log.producer(linger_ms=0) as producer:
            for number in range(50):
                producer.send("t", b"%d" % number).result(PATIENT_S)
        partition = log._engine.set.partition("t", 0)
        tp = embedlog.TopicPartition("t", 0)
        for number in (7, 31, 49, 0):
            consumer.seek(tp, number)
            [record] = consumer.poll(PATIENT_S, max_records=1)
            assert record.value == b"%d" % number
            found = partition.point(number, False)
            assert found is not None
            assert found.run.count >= 1
        version = log._engine.topics_version()
        log.create_topic("another")
        assert log._engine.topics_version() != version
        assert partition._calls._watch is not None
        assert not partition._calls._watch.is_unchanged()
        assert partition.point(3, False) is not None, "it looks for the leader again"


def test_a_read_only_log_uses_no_short_path(tmp_path: Path) -> None:
    made(tmp_path)
    with (
        opened(tmp_path) as log,
        embedlog.open(
            [tmp_path / f"d{node}" for node in (1, 2, 3)], read_only=True, config=QUIET
        ) as other,
    ):
        send(log, b"first")
        with reader(other) as consumer:
            assert polled(consumer, 1) == [b"first"]
            assert tail_of(consumer) is None


def test_an_error_of_a_short_path_is_met_by_the_general_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, reader(log) as consumer:
        followed(log, consumer)
        partition = log._engine.set.partition("t", 0)

        def failing(*arguments: Any) -> None:
            raise StorageError("a defect of the disk", path=tmp_path / "d1")

        monkeypatch.setattr(partition._calls.leader.partition, "point", failing)
        monkeypatch.setattr(partition._calls.leader.partition, "tail", failing)
        assert partition.point(0, False) is None
        assert partition.tail(5, "read_uncommitted") is None
        send(log, b"next")
        assert polled(consumer, 1) == [b"next"]
