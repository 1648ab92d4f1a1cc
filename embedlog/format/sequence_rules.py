"""Contains Kafka's rules for the append of a producer: sequences, epochs and open transactions
(format.md 6.3).

- A batch that is in the partition is a duplicate: the result is its offsets, and nothing is
  written.
- An older epoch is fenced; a newer one begins at sequence 0; within an epoch the sequences are
  consecutive, and 0 follows 2^31-1.
- An unknown producer may begin with any sequence, because its state may have expired.
- A transactional batch needs an open transaction of its id and epoch, or the right to open one. Any
  other batch needs that none is open.
- Functions of rows and state: the module uses no file, no lock and no clock.
"""

from __future__ import annotations

from typing import Any

from embedlog._native.lazy_numpy import np
from embedlog.errors import (
    EmbedlogError,
    FencedError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from embedlog.format.producer_state import Producer, ProducerState, add_sequence
from embedlog.format.record_columns import (
    TRANSACTIONAL,
    Batches,
    Sequenced,
    Stamp,
    batch_dtype,
    first_sequenced,
)


def check_sequences(state: ProducerState, stamp: Stamp, table: Any) -> int | EmbedlogError:
    """How many of the first batches are in the partition already, or the error that forbids the
    first one.

    `table` is a buffer of batch rows.
    """
    row = first_sequenced(table)
    error = _check_stamp(stamp, row)
    if error is not None:
        return error
    producer = state.producers.get(stamp.producer_id)
    if producer is None:
        producer = Producer(stamp.producer_id)
    duplicate_count = _count_duplicates(producer, stamp, table)
    if duplicate_count > 0:
        return duplicate_count
    error = _check_epoch(producer, stamp)
    if error is None:
        error = _check_order(producer, stamp, row.base_sequence)
    if error is None:
        error = _check_transaction(producer, stamp)
    return 0 if error is None else error


def admit(state: ProducerState, stamp: Stamp) -> EmbedlogError | None:
    """The error that forbids every append of this producer, or None."""
    producer = state.producers.get(stamp.producer_id) or Producer(stamp.producer_id)
    error = _check_epoch(producer, stamp)
    if error is None:
        error = _check_transaction(producer, stamp)
    return error


def _check_stamp(stamp: Stamp, row: Sequenced) -> EmbedlogError | None:
    fields = (row.producer_id, row.producer_epoch, bool(row.attributes & TRANSACTIONAL))
    stamped = (stamp.producer_id, stamp.epoch, stamp.transactional)
    if fields == stamped and row.base_sequence >= 0:
        return None
    return InvalidRecordError(
        "the batches do not have the producer fields of their stamp",
        expected=f"id, epoch, transactional {stamped}",
        found=f"{fields}, sequence {row.base_sequence}",
    )


def _count_duplicates(producer: Producer, stamp: Stamp, table: Any) -> int:
    """The number of leading batches in the partition: up to the last one of this producer if
    included, else those remembered.

    A run is appended in order, so every batch before one that is in the partition is there too.
    """
    if producer.epoch != stamp.epoch or not producer.batches:
        return 0
    rows: Batches = np.frombuffer(table, batch_dtype())
    last = producer.batches[-1]
    equal_rows = np.flatnonzero(
        (rows["base_sequence"] == last.first_sequence)
        & (rows["last_offset_delta"] == last.offset_delta)
    )
    if len(equal_rows):
        return int(equal_rows[0]) + 1
    remembered = {(batch.first_sequence, batch.offset_delta) for batch in producer.batches}
    sequences = rows["base_sequence"].tolist()
    deltas = rows["last_offset_delta"].tolist()
    for number, batch in enumerate(zip(sequences, deltas, strict=True)):
        if batch not in remembered:
            return number
    return len(rows)


def _check_epoch(producer: Producer, stamp: Stamp) -> EmbedlogError | None:
    if stamp.epoch >= producer.epoch:
        return None
    return FencedError(
        f"producer {stamp.producer_id} has a newer epoch in this partition",
        expected=producer.epoch,
        found=stamp.epoch,
    )


def _check_order(producer: Producer, stamp: Stamp, first: int) -> EmbedlogError | None:
    if producer.epoch < 0:
        return None
    last_sequence = producer.last_sequence if stamp.epoch == producer.epoch else -1
    expected = add_sequence(last_sequence, 1)
    if first == expected:
        return None
    return OutOfOrderSequenceError(
        f"producer {stamp.producer_id}, epoch {stamp.epoch}",
        expected=f"sequence {expected}",
        found=first,
    )


def _check_transaction(producer: Producer, stamp: Stamp) -> EmbedlogError | None:
    is_open = producer.transaction_start >= 0
    name = f"producer {stamp.producer_id}"
    if not stamp.transactional:
        if not is_open:
            return None
        return InvalidTransactionStateError(
            f"{name} has an open transaction in this partition, and this batch is not part of it"
        )
    if is_open and producer.epoch == stamp.epoch:
        return None
    if is_open:
        return InvalidTransactionStateError(
            f"{name}: the transaction of epoch {producer.epoch} is still open in this partition"
        )
    if stamp.opens:
        return None
    return FencedError(
        f"{name} has no open transaction in epoch {stamp.epoch} in this partition: another "
        "process ended it"
    )
