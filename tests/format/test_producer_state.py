"""Producer state of a partition: a broker's snapshots to the byte, a replay of a broker's log,
damage with its own error.

Also sequences after an overflow, interleaved transactions, and the last stable offset against a
reference implementation.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.aborted_transactions import AbortedTransaction, decode
from embedlog.format.producer_state import (
    Marker,
    Producer,
    ProducerState,
    Sequences,
    add_sequence,
    select_snapshots,
)
from embedlog.format.record_batch import batch_dtype

# Written by Kafka: producer 4000 in epoch 2, last batch 45-49 with sequences 10-14, a transaction
# open from 45 on.
SNAPSHOT = bytes.fromhex(
    "0001019cf0dc000000010000000000000fa000020000000e0000000000000031000000040000018bcfe5680000000009000000000000002d"
)
NO_PRODUCERS = bytes.fromhex("000148674bc700000000")


def rows(*batches: dict[str, int]) -> Any:
    """batch rows; missing fields are those of a data batch of one record."""
    found = np.zeros(len(batches), batch_dtype())
    found["producer_id"] = -1
    for row, batch in zip(found, batches, strict=True):
        for name, value in batch.items():
            row[name] = value
    return found


def data(
    offset: int,
    producer: int,
    sequence: int = 0,
    *,
    count: int = 1,
    epoch: int = 0,
    transactional: bool = True,
) -> dict[str, int]:
    return {
        "base_offset": offset,
        "producer_id": producer,
        "base_sequence": sequence,
        "last_offset_delta": count - 1,
        "records": count,
        "producer_epoch": epoch,
        "attributes": 0x10 if transactional else 0,
        "max_timestamp": 1000 + offset,
    }


def end(offset: int, producer: int, epoch: int = 0) -> dict[str, int]:
    return data(offset, producer, -1, epoch=epoch) | {"attributes": 0x30}


def replayed(
    *batches: dict[str, int], aborts: tuple[int, ...] = (), state: ProducerState | None = None
) -> tuple[ProducerState, list[AbortedTransaction]]:
    state = ProducerState() if state is None else state
    found = rows(*batches)
    ended = state.replay(found, lambda row: Marker(int(found["base_offset"][row]) not in aborts, 7))
    return state, ended


# ---- snapshots -----------------------------------------------------------------------------------


def test_kafkas_snapshot_is_read_and_written_back_to_the_byte() -> None:
    state = ProducerState.decode(SNAPSHOT, 51)
    (producer,) = state.producers.values()
    assert (
        producer.producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        producer.transaction_start,
    ) == (4000, 2, 9, 45)
    assert list(producer.batches) == [Sequences(10, 14, 49, 4, 0x18BCFE56800)]
    assert state.offset == 51
    assert state.encode() == SNAPSHOT


def test_no_producers_are_ten_bytes() -> None:
    assert ProducerState().encode() == NO_PRODUCERS
    assert ProducerState.decode(NO_PRODUCERS, 0).producers == {}


def test_a_brokers_snapshots_are_read_and_written_back_to_the_byte(golden: Path) -> None:
    paths = sorted(golden.glob("*/log/*/*.snapshot"))
    assert len(paths) > 40
    with_producers = 0
    for path in paths:
        state = ProducerState.decode(path.read_bytes(), int(path.stem), path)
        assert state.encode() == path.read_bytes(), path
        with_producers += bool(state.producers)
    assert with_producers >= 5


@pytest.mark.parametrize("position", range(len(SNAPSHOT)))
def test_a_flipped_bit_in_a_snapshot_is_told(position: int) -> None:
    damaged = bytearray(SNAPSHOT)
    damaged[position] ^= 4
    with pytest.raises((CorruptRecordError, UnsupportedFormatError), match=r"51\.snapshot"):
        ProducerState.decode(bytes(damaged), 51, "51.snapshot")


@pytest.mark.parametrize("size", range(len(SNAPSHOT)))
def test_a_snapshot_cut_short_is_told(size: int) -> None:
    with pytest.raises(CorruptRecordError):
        ProducerState.decode(SNAPSHOT[:size], 51)


def test_each_damage_has_its_own_message() -> None:
    cases = {
        "expected checksum 019cf0dc, found": SNAPSHOT[:-1] + b"\x00",
        "expected 10 bytes, found 3": SNAPSHOT[:3],
        "1 entries in the snapshot: expected 56 bytes, found 57": SNAPSHOT + b"\x00",
        "-1 entries in the snapshot": SNAPSHOT[:6] + b"\xff" * 4 + SNAPSHOT[10:],
        "version of the snapshot: expected 1, found 2": b"\x00\x02" + SNAPSHOT[2:],
    }
    for message, damaged in cases.items():
        with pytest.raises((CorruptRecordError, UnsupportedFormatError)) as caught:
            ProducerState.decode(damaged, 51)
        assert message in str(caught.value)


def test_a_producer_of_whom_only_a_marker_is_known() -> None:
    state, _ = replayed(data(0, 5), end(1, 5, epoch=1))
    assert state.encode()[10:] == struct.pack(">qhiqiqiq", 5, 1, -1, -1, 0, 1001, 7, -1)
    assert ProducerState.decode(state.encode(), 2).producers == state.producers


@pytest.mark.parametrize(
    ("present", "kept"),
    [
        ([100], {100}),  # at the end of the log
        ([10, 20, 100], {10, 20, 100}),
        # of those between segments only the newest, above the last base
        ([10, 15, 20, 60, 90], {10, 20, 90}),
        ([15], set()),
        ([0, 5, 10, 101], {10}),  # at or below the log start, above the log end
    ],
)
def test_snapshots_that_stay(present: list[int], kept: set[int]) -> None:
    assert select_snapshots(present, [0, 10, 20], log_start=5, log_end=100) == kept


def test_the_newest_snapshot_of_a_broker_stays(golden: Path) -> None:
    for path in golden.glob("clean*/log/*"):
        present = [int(each.stem) for each in path.glob("*.snapshot")]
        bases = [int(each.stem) for each in path.glob("*.log")]
        if present:
            start = min(bases) if min(bases) > 0 else -1
            assert max(present) in select_snapshots(present, bases, start, max(present)), path


# ---- replay --------------------------------------------------------------------------------------


def headers(path: Path) -> Iterator[tuple[dict[str, int], bytes]]:
    """The batches of a segment, read slowly and in Python."""
    log = path.read_bytes()
    position = 0
    while position + 61 <= len(log):
        head = struct.unpack_from(">qiibIhiqqqhii", log, position)
        (
            base,
            length,
            leader,
            _,
            crc,
            attributes,
            delta,
            first_ms,
            max_ms,
            producer,
            epoch,
            sequence,
            count,
        ) = head
        if length <= 0:
            return
        batch = {
            "position": position,
            "size": length + 12,
            "leader_epoch": leader,
            "base_offset": base,
            "base_timestamp": first_ms,
            "max_timestamp": max_ms,
            "producer_id": producer,
            "last_offset_delta": delta,
            "base_sequence": sequence,
            "records": count,
            "attributes": attributes,
            "producer_epoch": epoch,
            "crc": crc,
        }
        yield batch, log[position : position + length + 12]
        position += length + 12


def marker_in(batch: bytes) -> Marker:
    """Worked example in format.md 13.3: the key's type and the value's coordinator epoch lie at
    fixed places.
    """
    kind = struct.unpack_from(">h", batch, 68)[0]
    coordinator_epoch = struct.unpack_from(">i", batch, 73)[0]
    return Marker(kind == 1, coordinator_epoch)


def test_a_brokers_log_gives_a_brokers_snapshots_and_transaction_indexes(golden: Path) -> None:
    """Every snapshot that Kafka wrote is reached by replaying the log from the start, and every
    `.txnindex` too.
    """
    compared = aborted = 0
    for directory in sorted(golden.glob("clean*/log/*")):
        if (
            directory.name.startswith(("compacted", "records-deleted", "__"))
            or not directory.is_dir()
        ):
            continue  # the beginning of these logs is gone
        state = ProducerState()
        snapshots = {int(path.stem): path for path in directory.glob("*.snapshot")}
        for path in sorted(directory.glob("*.log")):
            ended = []
            for batch, body in headers(path):
                ended += state.replay(rows(batch), lambda row, body=body: marker_in(body))  # type: ignore[misc]
                if state.offset in snapshots:
                    expected = ProducerState.decode(
                        snapshots[state.offset].read_bytes(), state.offset
                    )
                    assert sorted(entries_of(state)) == sorted(entries_of(expected)), snapshots[
                        state.offset
                    ]
                    compared += 1
            index = path.with_suffix(".txnindex")
            written = (
                decode(index.read_bytes(), int(path.stem), index).tolist() if index.exists() else []
            )
            assert [each[1:] for each in written] == [tuple(each) for each in ended], index
            aborted += len(ended)
    assert compared > 20
    assert aborted > 10


def entries_of(state: ProducerState) -> list[bytes]:
    body = state.encode()[10:]
    return [body[at : at + 46] for at in range(0, len(body), 46)]


def test_batches_below_the_snapshot_are_not_taken_twice() -> None:
    state = ProducerState.decode(SNAPSHOT, 51)
    batches = rows(
        data(45, 4000, 10, count=5, epoch=2),
        data(50, 4000, 15, epoch=2),
        data(51, 4000, 16, epoch=2),
    )
    state.replay(batches, lambda row: None)
    assert list(state.producers[4000].batches)[1:] == [Sequences(16, 16, 51, 0, 1051)]
    assert state.offset == 52


def test_the_last_five_batches_are_remembered_and_an_epoch_clears_them() -> None:
    state, _ = replayed(*(data(offset, 1, offset, transactional=False) for offset in range(7)))
    producer = state.producers[1]
    assert [each.first_sequence for each in producer.batches] == [2, 3, 4, 5, 6]
    assert producer.duplicate_of(0, 2, 2) == Sequences(2, 2, 2, 0, 1002)
    assert producer.duplicate_of(0, 1, 1) is None
    assert producer.duplicate_of(0, 2, 3) is None
    assert producer.duplicate_of(1, 2, 2) is None
    state.replay(rows(data(7, 1, 0, epoch=1)), lambda row: None)
    assert [each.first_sequence for each in producer.batches] == [0]


def test_sequences_go_round() -> None:
    assert add_sequence(2**31 - 1, 1) == 0
    assert add_sequence(2**31 - 3, 5) == 2
    assert add_sequence(1, -3) == 2**31 - 2
    state, _ = replayed(data(0, 1, 2**31 - 2, count=4))
    assert state.producers[1].last_sequence == 1
    assert (
        ProducerState.decode(state.encode(), 4).producers[1].batches[0].first_sequence == 2**31 - 2
    )


def test_markers_keep_the_batches_of_their_epoch() -> None:
    state, _ = replayed(data(0, 1), end(1, 1))
    assert state.producers[1].last_sequence == 0
    state, _ = replayed(data(0, 1), end(1, 1, epoch=1))
    assert state.producers[1].last_sequence == -1


def test_an_emptied_marker_is_passed_over() -> None:
    state = ProducerState()
    state.replay(rows(data(0, 1), end(1, 1)), lambda row: None)
    assert state.open_transactions() == [(1, 0)]
    assert state.offset == 2


def test_aborts_of_interleaved_transactions() -> None:
    state, ended = replayed(
        data(0, 1),
        data(1, 2),
        data(2, 1, 1),
        data(3, 9, transactional=False),
        end(4, 2),
        end(5, 1),
        end(6, 1),
        aborts=(4, 5, 6),
    )
    assert ended == [AbortedTransaction(2, 1, 4, 0), AbortedTransaction(1, 0, 5, 6)]
    assert state.open_transactions() == []


def test_the_last_stable_offset_waits_for_the_oldest_transaction() -> None:
    state, _ = replayed(data(0, 9, transactional=False), data(1, 1), data(2, 2), end(3, 1))
    assert (state.first_unstable(4), state.last_stable(4)) == (2, 2)
    state, _ = replayed(data(0, 1), end(1, 1))
    assert (state.first_unstable(2), state.last_stable(2)) == (-1, 2)


def test_a_decision_above_the_high_watermark_is_not_stable() -> None:
    state, _ = replayed(data(0, 1), end(1, 1), data(2, 2))
    assert state.last_stable(1) == 0
    assert state.last_stable(2) == 2
    assert state.last_stable(3) == 2


def test_idle_producers_are_forgotten_and_open_transactions_never() -> None:
    state, _ = replayed(
        data(0, 1), data(1, 2, transactional=False), data(2, 3, transactional=False)
    )
    assert state.expire(1001 + 60_000, 60_000) == [2]
    assert sorted(state.producers) == [1, 3]


def test_random_logs_against_a_slow_twin(rng: random.Random) -> None:
    """Transactions of a few producers, interleaved at random: the reference keeps whole lists and
    searches them.
    """
    for _ in range(60):
        batches = []
        aborts = []
        opened = {}
        reference = []
        offset = 0
        for _ in range(rng.randrange(1, 60)):
            producer = rng.randrange(4)
            if producer in opened and rng.random() < 0.4:
                first = opened.pop(producer)
                batches.append(end(offset, producer))
                if rng.random() < 0.5:
                    aborts.append(offset)
                    reference.append(
                        AbortedTransaction(
                            producer, first, offset, min(opened.values(), default=offset + 1)
                        )
                    )
                offset += 1
            else:
                count = rng.randrange(1, 4)
                batches.append(data(offset, producer, count=count))
                opened.setdefault(producer, offset)
                offset += count
        state, ended = replayed(*batches, aborts=tuple(aborts))
        assert ended == reference
        assert state.last_stable(offset) == min(opened.values(), default=offset)
        cut = rng.randrange(len(batches) + 1)
        early, _ = replayed(*batches[:cut], aborts=tuple(aborts))
        late = ProducerState.decode(early.encode(), early.offset)
        replayed(*batches, aborts=tuple(aborts), state=late)
        assert sorted(entries_of(late)) == sorted(entries_of(state)), (
            "a snapshot and the rest of the log make the whole"
        )


def test_many_batches_at_once_leave_what_they_leave_one_by_one(rng: random.Random) -> None:
    """At once, those that leave no trace are passed over."""
    for _ in range(150):
        batches = []
        aborts = []
        epochs = [0] * 3
        for offset in range(rng.randrange(16, 150)):
            producer = rng.randrange(3)
            if rng.random() < 0.15:
                epochs[producer] += rng.randrange(2)
                batches.append(end(offset, producer, epochs[producer]))
                aborts += [offset] if rng.random() < 0.5 else []
            else:
                batches.append(
                    data(
                        offset,
                        producer,
                        offset,
                        epoch=epochs[producer],
                        transactional=rng.random() < 0.6,
                    )
                )
        at_once, ended = replayed(*batches, aborts=tuple(aborts))
        one_by_one = ProducerState()
        ended_singly = []
        for each in batches:
            ended_singly += replayed(each, aborts=tuple(aborts), state=one_by_one)[1]
        assert at_once.producers == one_by_one.producers
        assert ended == ended_singly
        assert at_once.first_unstable(len(batches)) == one_by_one.first_unstable(len(batches))


def test_producers_that_were_heard_of_lately_stay_whatever_their_records_say() -> None:
    state = ProducerState()
    for offset, (producer, now_ms) in enumerate(((1, 5000), (2, 9000))):
        state.noted_ms = now_ms
        state.replay(rows(data(offset, producer, transactional=False)), lambda row: None)
    assert state.expire(65_000, 60_000, noted=True) == [1]
    assert sorted(state.producers) == [2]


def test_a_new_producer_is_empty() -> None:
    assert Producer(5).last_sequence == -1
