"""Contains Kafka's rules for the append of a producer: sequences, epochs and open transactions
(format.md 6.3).

SEQUENCE-1  a batch that is in the partition is a duplicate: the result is its offsets, and nothing
    is written
SEQUENCE-2  an older epoch is fenced; a newer one begins at sequence 0; within an epoch the
    sequences are consecutive, and 0 follows 2^31-1
SEQUENCE-3  an unknown producer may begin with any sequence, because its state may have expired
SEQUENCE-4  a transactional batch needs an open transaction of its id and epoch, or the right to
    open one. Any other batch needs that none is open
SEQUENCE-5  functions of rows and state: the module uses no file, no lock and no clock
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
    if (problem := _not_as_stamped(stamp, row)) is not None:
        return problem
    producer = state.producers.get(stamp.producer_id)
    if producer is None:
        producer = Producer(stamp.producer_id)
    if (duplicates := _duplicates(producer, stamp, table)) > 0:
        return duplicates
    return (
        _fenced(producer, stamp)
        or _out_of_order(producer, stamp, row.base_sequence)
        or _not_open(producer, stamp)
        or 0
    )


def admit(state: ProducerState, stamp: Stamp) -> EmbedlogError | None:
    """The error that forbids every append of this producer, or None."""
    producer = state.producers.get(stamp.producer_id) or Producer(stamp.producer_id)
    return _fenced(producer, stamp) or _not_open(producer, stamp)


def _not_as_stamped(stamp: Stamp, row: Sequenced) -> EmbedlogError | None:
    carried = (row.producer_id, row.producer_epoch, bool(row.attributes & TRANSACTIONAL))
    if carried == stamp[:3] and row.base_sequence >= 0:
        return None
    expected = f"id, epoch, transactional {tuple(stamp[:3])}"
    found = f"{carried}, sequence {row.base_sequence}"
    return InvalidRecordError(
        "the batches do not have the producer fields of their stamp", expected=expected, found=found
    )


def _duplicates(producer: Producer, stamp: Stamp, table: Any) -> int:
    """The number of leading batches in the partition: up to the last one of this producer if
    included, else those remembered.

    A run is appended in order, so every batch before one that is in the partition is there too.
    """
    if producer.epoch != stamp.epoch or not producer.batches:
        return 0
    rows: Batches = np.frombuffer(table, batch_dtype())
    last = producer.batches[-1]
    same = np.flatnonzero(
        (rows["base_sequence"] == last.first_sequence)
        & (rows["last_offset_delta"] == last.offset_delta)
    )
    if len(same):
        return int(same[0]) + 1
    remembered = {(each.first_sequence, each.offset_delta) for each in producer.batches}
    carried = zip(rows["base_sequence"].tolist(), rows["last_offset_delta"].tolist(), strict=True)
    return next(
        (number for number, each in enumerate(carried) if each not in remembered), len(rows)
    )


def _fenced(producer: Producer, stamp: Stamp) -> EmbedlogError | None:
    if stamp.epoch >= producer.epoch:
        return None
    return FencedError(
        f"producer {stamp.producer_id} has a newer epoch in this partition",
        expected=producer.epoch,
        found=stamp.epoch,
    )


def _out_of_order(producer: Producer, stamp: Stamp, first: int) -> EmbedlogError | None:
    if producer.epoch < 0:
        return None
    following = producer.last_sequence if stamp.epoch == producer.epoch else -1
    expected = add_sequence(following, 1)
    if first == expected:
        return None
    return OutOfOrderSequenceError(
        f"producer {stamp.producer_id}, epoch {stamp.epoch}",
        expected=f"sequence {expected}",
        found=first,
    )


def _not_open(producer: Producer, stamp: Stamp) -> EmbedlogError | None:
    opened = producer.transaction_start >= 0
    name = f"producer {stamp.producer_id}"
    if not stamp.transactional:
        if not opened:
            return None
        return InvalidTransactionStateError(
            f"{name} has an open transaction in this partition, and this batch is not part of it"
        )
    if opened and producer.epoch == stamp.epoch:
        return None
    if opened:
        return InvalidTransactionStateError(
            f"{name}: the transaction of epoch {producer.epoch} is still open in this partition"
        )
    if stamp.opens:
        return None
    return FencedError(
        f"{name} has no open transaction in epoch {stamp.epoch} in this partition: another "
        "process ended it"
    )
