"""Idempotence and transactions inside one partition: what is refused, what is recognised, what readers may see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog import layout, record
from embedlog.columns import BytesColumn, Columns
from embedlog.errors import FencedError, InvalidTransactionStateError, OutOfOrderSequenceError
from embedlog.partition import Partition
from embedlog.record import EncodedRun, Stamp

A, B = 2**62 + 1, 2**62 + 2


def run_of(*values: bytes, batch_bytes: int = 1 << 20) -> EncodedRun:
    columns = Columns(len(values), BytesColumn.of(list(values)), timestamps=time.time_ns() // 1_000_000)
    (run,) = record.encode(columns, batch_bytes=batch_bytes, run_bytes=1 << 20)
    return run


def stamped(stamp: Stamp, sequence: int, *values: bytes, batch_bytes: int = 1 << 20) -> EncodedRun:
    run = run_of(*values, batch_bytes=batch_bytes)
    record.stamp(run, stamp, sequence)
    return run


def send(partition: Partition, stamp: Stamp, sequence: int, *values: bytes) -> tuple[int, int]:
    """First and last offset."""
    found = partition.append(stamped(stamp, sequence, *(values or (b"x",))), stamp=stamp)
    return found.base_offset, found.last_offset


def seen(partition: Partition, isolation: str = "read_uncommitted") -> list[bytes]:
    log = partition_log(partition)
    return [each.value or b"" for each in log.scan("events", isolation_level=isolation).records()]


LOGS: dict[int, embedlog.Log] = {}


def partition_log(partition: Partition) -> embedlog.Log:
    return LOGS[id(partition)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("events", config={"segment.bytes": 1 << 20})
        yield log


@pytest.fixture
def partition(log: embedlog.Log) -> Partition:
    found = log._partition("events", 0)
    LOGS[id(found)] = log
    return found


def test_a_batch_sent_twice_is_in_the_log_once(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    assert send(partition, stamp, 0, b"a", b"b") == (0, 1)
    assert send(partition, stamp, 2, b"c") == (2, 2)
    assert send(partition, stamp, 0, b"a", b"b") == (0, 1)
    assert send(partition, stamp, 2, b"c") == (2, 2)
    assert send(partition, stamp, 3, b"d") == (3, 3)
    assert seen(partition) == [b"a", b"b", b"c", b"d"]


def test_a_gap_is_refused(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    send(partition, stamp, 0, b"a")
    with pytest.raises(OutOfOrderSequenceError, match=r"expected sequence 1, found 2"):
        send(partition, stamp, 2, b"c")
    assert send(partition, stamp, 1, b"b") == (1, 1)


def test_an_older_epoch_is_fenced(partition: Partition) -> None:
    send(partition, Stamp(A, 1), 0)
    with pytest.raises(FencedError, match="expected 1, found 0"):
        send(partition, Stamp(A, 0), 1)


def test_transactions_open_and_end(partition: Partition) -> None:
    opening, going_on = Stamp(A, 0, True, True), Stamp(A, 0, True)
    with pytest.raises(FencedError, match="no transaction open"):
        send(partition, going_on, 0)
    assert send(partition, opening, 0, b"a") == (0, 0)
    assert send(partition, going_on, 1, b"b") == (1, 1)
    assert send(partition, Stamp(B, 0), 0, b"plain") == (2, 2)
    assert partition.open_transactions() == [(A, 0, 0)]
    assert partition.bounds().last_stable == 0
    with pytest.raises(InvalidTransactionStateError):
        send(partition, Stamp(A, 0), 2)
    assert seen(partition, "read_committed") == []
    assert partition.append_marker(A, 1, commit=False) == 3
    assert partition.append_marker(A, 1, commit=False) is None
    assert partition.stored_epoch(A) == 1
    assert partition.open_transactions() == []
    assert seen(partition, "read_committed") == [b"plain"]
    assert seen(partition) == [b"a", b"b", b"plain"]
    with pytest.raises(FencedError):
        send(partition, going_on, 2)
    assert send(partition, Stamp(A, 1, True, True), 0, b"again") == (4, 4)
    assert partition.append_marker(A, 2, commit=True) == 5
    assert seen(partition, "read_committed") == [b"plain", b"again"]
    entries = (partition.path / layout.file_name(0, layout.TRANSACTION_INDEX)).read_bytes()
    assert len(entries) == 34
