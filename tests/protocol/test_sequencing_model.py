"""Idempotence against reference implementations and a plain model: stamping, header walks,
producers in several processes.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    FencedError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from embedlog.format import record_batch
from embedlog.format.record_batch import Chain, Stamp, scan
from embedlog.format.record_columns import batch_dtype
from tests.support.batches import Row, batch, crc32c
from tests.support.stamped_batches import run_of, send

# ---- reference implementations -----------------------------------------------------------------------------


def test_stamping_a_run_against_a_slow_twin(rng: random.Random) -> None:
    for _ in range(40):
        count = rng.randrange(1, 60)
        transactional = rng.random() < 0.5
        run = run_of(
            *(rng.randbytes(rng.randrange(200)) for _ in range(count)),
            batch_bytes=rng.choice((100, 300, 5000)),
        )
        sequence = rng.choice((0, 5, 2**31 - 20))
        stamp = Stamp(rng.getrandbits(62), rng.randrange(2**15), transactional)
        slow = bytearray(run.buffer)
        expected = sequence
        for row in run.batches:
            at = int(row["position"])
            size = int(row["size"])
            attributes = slow[at + 22] & ~0x10 | (0x10 if transactional else 0)
            slow[at + 22] = attributes
            struct.pack_into(">qhi", slow, at + 43, stamp.producer_id, stamp.epoch, expected)
            struct.pack_into(">I", slow, at + 17, crc32c(bytes(slow[at + 21 : at + size])))
            expected = (expected + int(row["last_offset_delta"]) + 1) % 2**31
        assert record_batch.stamp(run, stamp, sequence) == expected
        assert bytes(run.buffer) == slow
        told = [
            name for name in batch_dtype().names or () if name != "min_timestamp"
        ]  # which a header alone does not always prove
        found = scan(run.buffer, Chain(gaps_allowed=True)).batches
        assert (found[told] == run.batches[told]).all() or len(run.batches) > 1
        record_batch.stamp(run, stamp, 0)
        record_batch.stamp(run, stamp, sequence)
        assert bytes(run.buffer) == slow, "again, with other values in between"


def test_walking_over_headers_against_a_scan(tmp_path: Path, rng: random.Random) -> None:
    data = bytearray()
    offset = 40
    for _ in range(200):
        rows = [
            Row(rng.randbytes(rng.randrange(100)), timestamp_ms=rng.randrange(10**9))
            for _ in range(rng.randrange(1, 5))
        ]
        data += batch(
            offset,
            rows,
            producer_id=rng.randrange(-1, 3),
            producer_epoch=rng.randrange(9),
            base_sequence=offset,
        )
        offset += len(rows) + rng.choice((0, 0, 3))
    path = tmp_path / "log"
    path.write_bytes(data + b"what is behind the size is not read")
    expected = scan(data, Chain(gaps_allowed=True)).batches
    with path.open("rb") as file:
        for capacity in (7, 1000):
            found = []
            position = 0
            while position < len(data):
                rows = np.empty(capacity, batch_dtype())
                count, position = system.walk_headers(file.fileno(), position, len(data), rows, 0)
                found.append(rows[:count].copy())
            assert (np.concatenate(found) == expected).all()
        for size in (len(data) - 1, len(data) + 10):
            rows = np.empty(1000, batch_dtype())
            with pytest.raises(CorruptRecordError):  # the last batch does not end there
                system.walk_headers(file.fileno(), 0, size, rows, 0)


# ---- against a plain model -----------------------------------------------------------------------------


class Model:
    """One partition as a list of entries; every lookup is a walk through it."""

    def __init__(self) -> None:
        # base offset, stamp, first sequence, count
        self.batches: list[tuple[int, Stamp, int, int]] = []
        self.epochs: dict[int, int] = {}
        self.opened: dict[int, int] = {}
        self.end = 0

    def send(self, stamp: Stamp, sequence: int, count: int) -> int | type[EmbedlogError]:
        epoch = self.epochs.get(stamp.producer_id, -1)
        own = [
            each
            for each in self.batches
            if each[1].producer_id == stamp.producer_id and each[1].epoch == stamp.epoch
        ]
        if epoch == stamp.epoch:
            for base, _, first, size in own[-5:]:
                if (first, size) == (sequence, count):
                    return base
        following = own[-1][2] + own[-1][3] if own and epoch == stamp.epoch else 0
        opened = self.opened.get(stamp.producer_id)
        if stamp.epoch < epoch:
            return FencedError
        if epoch >= 0 and sequence != following:
            return OutOfOrderSequenceError
        if (
            (opened is not None)
            if not stamp.transactional
            else (opened is not None and epoch != stamp.epoch)
        ):
            return InvalidTransactionStateError
        if stamp.transactional and opened is None and not stamp.opens:
            return FencedError
        self.batches.append((self.end, stamp, sequence, count))
        self.epochs[stamp.producer_id] = stamp.epoch
        if stamp.transactional:
            self.opened.setdefault(stamp.producer_id, self.end)
        self.end += count
        return self.end - count

    def mark(self, producer: int, epoch: int) -> int | None:
        if self.epochs.get(producer, -1) >= epoch:
            return None
        self.epochs[producer] = epoch
        self.opened.pop(producer, None)
        self.end += 1
        return self.end - 1


def test_random_producers_in_several_processes_against_a_plain_model(
    tmp_path: Path, rng: random.Random
) -> None:
    """Several handles of one directory; a few producers that repeat, skip and come late; now and
    then all handles close.
    """
    model = Model()
    producers = [2**62 + number for number in range(4)]
    config: dict[str, Any] = {"segment.bytes": 3000}
    logs = [embedlog.open(tmp_path / "log", config={"housekeeping": False}) for _ in range(3)]
    logs[0].create_topic("events", config=config)
    for number in range(600):
        if number % 200 == 199:
            for each in logs:
                each.close()
            logs = [
                embedlog.open(tmp_path / "log", config={"housekeeping": False}) for _ in range(3)
            ]
        partition = rng.choice(logs)._engine.partition("events", 0)
        producer = rng.choice(producers)
        epoch = max(model.epochs.get(producer, 0) + rng.choice((0, 0, 0, 0, 0, 0, -1, 1)), 0)
        if rng.random() < 0.2:
            assert partition.append_marker(
                producer, epoch, commit=rng.random() < 0.5
            ) == model.mark(producer, epoch)
            continue
        own = [
            each
            for each in model.batches
            if each[1].producer_id == producer and each[1].epoch == epoch
        ]
        following = own[-1][2] + own[-1][3] if own else 0
        sequence = following
        count = rng.randrange(1, 4)
        if own and rng.random() < 0.3:
            _, _, sequence, count = own[-1]  # the last one only: a snapshot has no more
        elif rng.random() < 0.1:
            sequence += 1
        transactional = producer != producers[0] and rng.random() < 0.8
        stamp = Stamp(producer, epoch, transactional, transactional and rng.random() < 0.8)
        expected = model.send(stamp, sequence, count)
        if isinstance(expected, int):
            assert (
                send(partition, stamp, sequence, *(b"%0200d" % at for at in range(count)))[0]
                == expected
            )
        else:
            with pytest.raises(expected):
                send(partition, stamp, sequence, *(b"%0200d" % at for at in range(count)))
        if rng.random() < 0.1:
            check_state(logs, model)
    check_state(logs, model)
    for each in logs:
        each.close()


def check_state(logs: list[embedlog.Log], model: Model) -> None:
    for log in logs:
        partition = log._engine.partition("events", 0)
        opened = sorted((first, producer) for producer, first in model.opened.items())
        assert [(first, producer) for producer, _, first in partition.open_transactions()] == opened
        assert partition.bounds().last_stable == min(model.opened.values(), default=model.end)
        assert {each: partition.stored_epoch(each) for each in model.epochs} == model.epochs
