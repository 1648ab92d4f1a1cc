"""Committed reading of real logs: records after an open transaction wait; which process can end it,
and which cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.coordination.transactions.transactional_id_owner import TransactionalIdOwner
from embedlog.format import record_batch

T0 = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", 2)
        yield opened


def write(
    log: embedlog.Log, owner: TransactionalIdOwner | None, *values: bytes, partition: int = 0
) -> None:
    """One batch each; with an owner, of its present transaction."""
    target = log._engine.partition("t", partition)
    for sequence, value in enumerate(values):
        column = record_batch.BytesColumn(
            np.frombuffer(value, np.uint8), np.array([0, len(value)], np.int32)
        )
        run = next(
            iter(
                record_batch.encode(
                    record_batch.Columns(1, column, timestamps=time.time_ns() // 1_000_000)
                )
            )
        )
        if owner is None:
            target.append(run)
        else:
            record_batch.stamp(run, owner.stamp, sequence)
            owner.append(target, run)


def began(
    log: embedlog.Log, name: str, *values: bytes, timeout_ms: int = 60_000
) -> TransactionalIdOwner:
    owner = log._engine.transactions.owner(name, timeout_ms)
    owner.init()
    write(log, owner, *values)
    return owner


def values_of(records: list[Any]) -> list[bytes]:
    return [each.value for each in records]


def test_a_dead_owners_transaction_is_ended_by_who_waits_behind_it(log: embedlog.Log) -> None:
    write(log, None, b"before")
    owner = began(log, "x", b"never decided")
    write(log, None, b"after")
    with log.consumer(
        "t", auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        assert values_of(reader.poll()) == [b"before"]
        assert reader.poll(timeout=0.3) == []  # its owner is alive, and its timeout is not over
        owner.close()
        assert values_of(reader.poll(timeout=30)) == [b"after"]
        assert reader.end_offsets([T0]) == {T0: 4}  # with the marker


def test_a_transaction_that_is_out_of_time_is_ended_by_who_waits_behind_it(
    log: embedlog.Log,
) -> None:
    owner = began(log, "x", b"too slow", timeout_ms=200)
    write(log, None, b"after")
    with log.consumer(
        "t", auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        assert values_of(reader.poll(timeout=30)) == [b"after"]
    with pytest.raises(embedlog.FencedError):
        owner.end(True)
    owner.close()


def test_a_loop_and_columns_end_it_too(log: embedlog.Log) -> None:
    ways: list[Callable[[embedlog.Consumer], bytes | None]] = [
        lambda reader: next(iter(reader)).value,
        lambda reader: next(reader.batches(timeout=30)).values[0],
    ]
    for way in ways:
        with log.consumer(
            "t", isolation_level="read_committed", consumer_timeout_ms=30_000
        ) as reader:
            began(log, "x", b"left").close()
            write(log, None, b"after")
            assert way(reader) == b"after"


def test_a_read_only_reader_changes_nothing_and_shows_what_it_waits_for(log: embedlog.Log) -> None:
    write(log, None, b"before")
    began(log, "x", b"left").close()
    write(log, None, b"after")
    with (
        embedlog.open(log.path, read_only=True) as watching,
        watching.consumer(
            "t", auto_offset_reset="earliest", isolation_level="read_committed"
        ) as reader,
    ):
        assert values_of(reader.poll(timeout=10)) == [b"before"]
        assert reader.poll(timeout=0.3) == []
        assert (reader.position(T0), reader.current_lag(T0)) == (1, 2)
        with log.consumer("t", isolation_level="read_committed") as helper:
            helper.poll(timeout=0.5)
        assert values_of(reader.poll(timeout=10)) == [b"after"]
        assert reader.current_lag(T0) == 0


def test_every_way_of_reading_sees_the_same_transactions(log: embedlog.Log) -> None:
    committed = began(log, "one", b"1", b"2")
    aborted = began(log, "two", b"gone")
    write(log, None, b"plain")
    write(log, committed, partition=1)
    aborted.end(False)
    committed.end(True)
    write(log, None, b"last")
    for isolation, expected in (
        ("read_committed", [b"1", b"2", b"plain", b"last"]),
        ("read_uncommitted", [b"1", b"2", b"gone", b"plain", b"last"]),
    ):
        config = {"auto_offset_reset": "earliest", "isolation_level": isolation}
        with log.consumer("t", **config) as reader:
            assert values_of(reader.poll()) == expected
        with log.consumer("t", **config, consumer_timeout_ms=0) as reader:
            assert values_of(list(reader)) == expected
        with log.consumer("t", **config) as reader:
            assert [
                value for batch in reader.batches(timeout=0) for value in batch.values
            ] == expected
        assert values_of(list(log.scan("t", isolation_level=isolation).records())) == expected
    for owner in (committed, aborted):
        owner.close()


def tail_of(reader: embedlog.Consumer) -> object:
    return reader._reading.rotation.get(T0).tail


def test_a_reader_at_the_end_follows_transactions_as_they_end(log: embedlog.Log) -> None:
    """The fast path continues over open transactions and markers; after an abort the ordinary one
    takes over.
    """
    owner = log._engine.transactions.owner("x", 60_000)
    owner.init()
    write(log, None, b"first")
    with (
        log.consumer(
            "t", auto_offset_reset="earliest", isolation_level="read_committed"
        ) as committed,
        log.consumer("t", auto_offset_reset="earliest") as uncommitted,
    ):
        assert values_of(uncommitted.poll()) == values_of(committed.poll()) == [b"first"]
        assert uncommitted.poll() == committed.poll() == []
        short = tail_of(uncommitted)
        same = tail_of(committed)
        assert short is not None
        for turn in range(6):
            kept = turn % 3 < 2
            owner.begin()
            write(log, owner, b"%d" % turn)
            assert values_of(uncommitted.poll()) == [b"%d" % turn]
            assert committed.poll() == []
            owner.end(kept)
            assert uncommitted.poll() == []
            assert values_of(committed.poll()) == ([b"%d" % turn] if kept else [])
            assert (tail_of(committed) is same) == (turn < 2)
            write(log, None, b"plain %d" % turn)
            assert (
                values_of(uncommitted.poll()) == values_of(committed.poll()) == [b"plain %d" % turn]
            )
            assert (
                uncommitted.position(T0)
                == committed.position(T0)
                == uncommitted.end_offsets([T0])[T0]
            )
        assert tail_of(uncommitted) is short
    owner.close()


def test_a_committed_reader_at_the_end_takes_what_is_stable_below_an_open_transaction(
    log: embedlog.Log,
) -> None:
    write(log, None, b"first")
    with log.consumer(
        "t", auto_offset_reset="earliest", isolation_level="read_committed"
    ) as reader:
        assert values_of(reader.poll()) == [b"first"]
        assert reader.poll() == []
        write(log, None, b"stable")
        owner = began(log, "x", b"open")
        write(log, None, b"after")
        assert values_of(reader.poll()) == [b"stable"]
        assert reader.poll() == []
        owner.end(True)
        assert values_of(reader.poll()) == [b"open", b"after"]
        owner.close()
