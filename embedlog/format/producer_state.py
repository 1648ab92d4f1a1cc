"""Contains the state of the producers of a partition (sequences, epochs, open transactions) and
Kafka's snapshots of it.

- The state is a function of the batches up to `offset`: a snapshot saves time, the log is
  authoritative.
- Functions of bytes and batch headers: the module uses no file, no clock and no lock.
- The last stable offset never passes the first record of a transaction that is undecided, or
  decided above the high watermark by a marker that this object applied: snapshots do not have those.
- A snapshot contains one batch of each producer, memory the last five: after a restart only a
  repeat of the last one is detected.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from embedlog._native import codec
from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.format.record_batch import CONTROL, TRANSACTIONAL, Batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

SNAPSHOT_VERSION = 1
FEW_ROWS = 16
REMEMBERED_BATCHES = 5  # Kafka's maximum of batches in flight
SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER = -1
_OF_DATA = [
    "producer_id",
    "producer_epoch",
    "attributes",
    "base_sequence",
    "last_offset_delta",
    "max_timestamp",
]
_OF_LOG = [*_OF_DATA, "base_offset"]

_HEAD = struct.Struct(">hIi")  # version, CRC-32C of what follows the CRC, number of entries
_CHECKED_FROM = 6
_ENTRY = struct.Struct(
    ">q"  # producer id
    "h"  # producer epoch
    "i"  # last sequence, -1 if this epoch has only a marker
    "q"  # last offset of the last data batch, -1 if none
    "i"  # offset delta of that batch
    "q"  # timestamp
    "i"  # coordinator epoch of the last marker, -1
    "q"  # first offset of the open transaction, -1
)


class Marker(NamedTuple):
    """The content of the control batch that ends a transaction."""

    committed: bool
    coordinator_epoch: int


class Sequences(NamedTuple):
    """The sequences and offsets of one remembered batch."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


@dataclass(slots=True)
class Producer:
    """One producer in one partition. It is kept for a day after its last batch, so it is small."""

    producer_id: int
    epoch: int = -1
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = -1  # first offset of the open transaction
    # time of its last batch by the caller's clock; -1: it was not applied since the snapshot
    noted_ms: int = -1
    batches: tuple[Sequences, ...] = ()  # the last ones, the newest last

    def __eq__(self, other: object) -> bool:
        """By what snapshots contain."""
        return isinstance(other, Producer) and _snapshot_entry(self) == _snapshot_entry(other)

    @property
    def last_sequence(self) -> int:
        """The last sequence written in this epoch, -1 if none."""
        return self.batches[-1].last_sequence if self.batches else -1

    def has(self, sequence: int) -> bool:
        """Whether a record with a sequence was written in this epoch: the last one has the same, or
        a later one.
        """
        if not self.batches:
            return False
        return add_sequence(self.last_sequence, -sequence) <= SEQUENCE_MAX // 2

    def duplicate_of(self, epoch: int, first_sequence: int, last_sequence: int) -> Sequences | None:
        """The remembered batch with exactly these sequences: the same batch was sent before."""
        if epoch != self.epoch:
            return None
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def enter(self, epoch: int) -> None:
        """Begin another epoch, in which sequences start again."""
        if epoch != self.epoch:
            self.batches = ()
            self.epoch = epoch

    def remember(self, batch: Sequences) -> None:
        """Add a batch and drop the oldest one beyond REMEMBERED_BATCHES."""
        self.batches = (*self.batches[1 - REMEMBERED_BATCHES :], batch)


def _snapshot_entry(producer: Producer) -> tuple[object, ...]:
    return (
        producer.producer_id,
        producer.epoch,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.transaction_start,
        producer.batches,
    )


class ProducerState:
    """The producers of one partition as of `offset` (exclusive).

    **Threads**: replay and append require the lock of the partition.
    """

    def __init__(self, offset: int = 0, producers: Iterable[Producer] = ()) -> None:
        self.offset = offset
        # the time that applied batches give their producers as `noted_ms`; the caller sets it
        self.noted_ms = -1
        self.producers = {producer.producer_id: producer for producer in producers}
        # (first offset, marker's offset) of ended transactions, by marker; not in snapshots, as in
        # Kafka: it is empty after `decode`
        self._decided: list[tuple[int, int]] = []

    # ---- replay ----------------------------------------------------------------------------------

    def replay(
        self, batches: Batches, marker_of: Callable[[int], Marker | None]
    ) -> list[AbortedTransaction]:
        """Apply the next batches of the log; returns the transactions that they abort, in order of
        their markers.

        `batches` are batch rows; those below `offset` are skipped. `marker_of(row)` reads the
        marker in a control batch, and returns None if the batch is empty or of another kind. After
        an error of `marker_of` this object must be dropped: some of the batches are applied.
        """
        aborted = list[AbortedTransaction]()
        relevant = batches
        start = self.offset
        rows: Sequence[int] = range(len(batches))
        if len(batches) >= FEW_ROWS:  # a call of numpy takes as long as a few rows
            numbers = np.flatnonzero(
                (batches["producer_id"] != NO_PRODUCER) & (_last_offsets(batches) >= start)
            )
            if len(numbers) >= FEW_ROWS:
                numbers = numbers[_is_relevant(batches[numbers])]
            relevant = batches[numbers]
            rows = numbers.tolist()
        for row, (producer_id, epoch, bits, sequence, delta, timestamp, base) in zip(
            rows, relevant[_OF_LOG].tolist(), strict=True
        ):
            if producer_id == NO_PRODUCER or base + delta < start:
                continue
            if not bits & CONTROL:
                self._apply_data(
                    (producer_id, epoch),
                    (base, base + delta),
                    sequence,
                    timestamp,
                    bool(bits & TRANSACTIONAL),
                )
            elif (marker := marker_of(row)) is not None:
                aborted += self._apply_marker((producer_id, epoch), base, timestamp, marker)
        if len(batches):
            self.offset = max(self.offset, int(_last_offsets(batches[-1:])[0]) + 1)
        return aborted

    def follow(self, batches: Batches, base_offset: int, append_time_ms: int = -1) -> None:
        """Apply data batches of a producer directly after their append, unlike `replay`, which reads
        them from the log: their rows do not contain their offsets.
        """
        rows = batches[_OF_DATA].tolist()
        for producer_id, epoch, attributes, sequence, delta, timestamp in rows:
            last_offset = base_offset + delta
            self._apply_data(
                (producer_id, epoch),
                (base_offset, last_offset),
                sequence,
                append_time_ms if append_time_ms >= 0 else timestamp,
                bool(attributes & TRANSACTIONAL),
            )
            base_offset = last_offset + 1
            self.offset = base_offset

    def follow_marker(
        self, producer_id: int, epoch: int, marker: Marker, offset: int, timestamp: int
    ) -> None:
        """Apply a marker directly after its append."""
        self._apply_marker((producer_id, epoch), offset, timestamp, marker)
        self.offset = offset + 1

    def _apply_data(
        self,
        identity: tuple[int, int],
        offsets: tuple[int, int],
        first_sequence: int,
        timestamp: int,
        opens: bool,
    ) -> None:
        """`identity`: id and epoch; `offsets`: the first and the last one."""
        producer_id, epoch = identity
        first_offset, last_offset = offsets
        producer = self._find_or_add_producer(producer_id)
        producer.noted_ms = self.noted_ms
        producer.enter(epoch)
        delta = last_offset - first_offset
        last_sequence = add_sequence(first_sequence, delta)
        producer.remember(Sequences(first_sequence, last_sequence, last_offset, delta, timestamp))
        producer.timestamp = timestamp
        if opens and producer.transaction_start < 0:
            producer.transaction_start = first_offset

    def _apply_marker(
        self, identity: tuple[int, int], offset: int, timestamp: int, marker: Marker
    ) -> list[AbortedTransaction]:
        producer_id, epoch = identity
        producer = self._find_or_add_producer(producer_id)
        first = producer.transaction_start
        producer.noted_ms = self.noted_ms
        producer.enter(epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.timestamp = timestamp
        producer.transaction_start = -1
        if first < 0:  # a marker without an open transaction changes nothing for readers
            return []
        self._decided.append((first, offset))
        if marker.committed:
            return []
        stable = min((start for _, start in self.open_transactions()), default=offset + 1)
        return [AbortedTransaction(producer.producer_id, first, offset, stable)]

    def _find_or_add_producer(self, producer_id: int) -> Producer:
        return self.producers.setdefault(producer_id, Producer(producer_id))

    # ---- reads by readers and housekeeping -------------------------------------------------------

    def open_transactions(self) -> list[tuple[int, int]]:
        """(producer id, first offset) of every open transaction, the oldest first."""
        transactions = [
            (producer.producer_id, producer.transaction_start)
            for producer in self.producers.values()
            if producer.transaction_start >= 0
        ]
        return sorted(transactions, key=lambda transaction: transaction[1])

    def forget_decided(self, high_watermark: int) -> None:
        """Forget the transactions whose markers are below the high watermark, which never falls."""
        self._decided = [pair for pair in self._decided if pair[1] >= high_watermark]

    def first_unstable(self, high_watermark: int) -> int:
        """The first offset that read_committed readers must not pass, -1 if there is none."""
        starts = [start for _, start in self.open_transactions()]
        starts += [first for first, marker in self._decided if marker >= high_watermark]
        return min(starts, default=-1)

    def last_stable(self, high_watermark: int) -> int:
        """The last stable offset."""
        unstable = self.first_unstable(high_watermark)
        return high_watermark if unstable < 0 else min(unstable, high_watermark)

    def expire(self, now_ms: int, expiration_ms: int, *, noted: bool = False) -> list[int]:
        """Remove producers that were idle for `producer.id.expiration.ms` and have no open
        transaction; returns their ids.

        The time is that of their records, as in Kafka, or the time at which they were `noted`. A
        producer that writes old records is not idle. With `noted`, one that comes from a snapshot
        counts as idle, unless the caller has set its `noted_ms`.
        """
        idle_ids = []
        for producer in self.producers.values():
            last_ms = producer.noted_ms if noted else producer.timestamp
            if producer.transaction_start < 0 and now_ms - last_ms >= expiration_ms:
                idle_ids.append(producer.producer_id)
        for producer_id in idle_ids:
            del self.producers[producer_id]
        return idle_ids

    # ---- snapshots -------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """A snapshot in Kafka's format; its file is `<offset>.snapshot`."""
        entries = []
        for producer in self.producers.values():
            batch = producer.batches[-1] if producer.batches else Sequences(-1, -1, -1, 0, -1)
            entries.append(
                _ENTRY.pack(
                    producer.producer_id,
                    producer.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.offset_delta,
                    producer.timestamp,
                    producer.coordinator_epoch,
                    producer.transaction_start,
                )
            )
        checked = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", SNAPSHOT_VERSION, codec.crc32c(checked)) + checked

    @classmethod
    def decode(
        cls, data: bytes, offset: int, path: str | os.PathLike[str] | None = None
    ) -> ProducerState:
        """The state in a snapshot. Raises CorruptRecordError if it is damaged,
        UnsupportedFormatError if it is newer.
        """
        if len(data) < _HEAD.size:
            raise CorruptRecordError(
                "the snapshot is truncated",
                path=path,
                expected=f"{_HEAD.size} bytes",
                found=len(data),
            )
        version, stored, count = _HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise UnsupportedFormatError(
                "version of the snapshot", path=path, expected=SNAPSHOT_VERSION, found=version
            )
        size = _HEAD.size + count * _ENTRY.size
        if count < 0 or len(data) != size:
            raise CorruptRecordError(
                f"{count} entries in the snapshot",
                path=path,
                expected=f"{size} bytes",
                found=len(data),
            )
        computed = codec.crc32c(data[_CHECKED_FROM:])
        if computed != stored:
            raise CorruptRecordError(
                "snapshot",
                path=path,
                position=_CHECKED_FROM,
                expected=f"checksum {stored:08x}",
                found=f"{computed:08x}",
            )
        entries = _ENTRY.iter_unpack(data[_HEAD.size :])
        return cls(offset, (_producer_of(*entry) for entry in entries))


def _last_offsets(batches: Batches) -> NDArray[np.int64]:
    """The last offset of each batch."""
    ends: NDArray[np.int64] = batches["base_offset"] + batches["last_offset_delta"]
    return ends


def _is_relevant(batches: Batches) -> NDArray[np.bool_]:
    """Which batches change the state: markers, the last five of each producer and epoch, and
    openers of transactions.
    """
    # stable: in log order within an epoch of a producer
    order = np.lexsort((batches["producer_epoch"], batches["producer_id"]))
    ids = batches["producer_id"][order]
    epochs = batches["producer_epoch"][order]
    bits = batches["attributes"][order]
    change = (ids[1:] != ids[:-1]) | (epochs[1:] != epochs[:-1])
    starts = np.concatenate(([0], np.flatnonzero(change) + 1, [len(ids)]))
    control = (bits & CONTROL) != 0
    data = np.cumsum(~control)
    # how many later data batches the same producer and epoch has
    later = np.repeat(data[starts[1:] - 1], np.diff(starts)) - data
    opens = ((bits & TRANSACTIONAL) != 0) & ~control
    # one directly after another one of the same producer and epoch opens nothing
    opens[1:] &= ~(opens[:-1] & ~change)
    is_relevant = np.empty(len(ids), np.bool_)
    is_relevant[order] = control | opens | (later < REMEMBERED_BATCHES)
    return is_relevant


def _producer_of(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    delta: int,
    timestamp: int,
    coordinator: int,
    start: int,
) -> Producer:
    producer = Producer(producer_id, epoch, timestamp, coordinator, start)
    if last_sequence >= 0:
        first = add_sequence(last_sequence, -delta)
        producer.remember(Sequences(first, last_sequence, last_offset, delta, timestamp))
    return producer


def add_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records later, or earlier if negative; 0 follows 2^31-1."""
    return (sequence + count) % (SEQUENCE_MAX + 1)


def select_snapshots(
    offsets: Iterable[int], segment_bases: Iterable[int], log_start: int, log_end: int
) -> set[int]:
    """Which snapshot files are kept, by Kafka's rules: those at segment bases, and the newest other
    one if no base is above it.

    Those above the log end, and those at or below the log start, are always removed.
    """
    snapshot_offsets = set(offsets)
    bases = set(segment_bases)
    newest = max(snapshot_offsets - bases, default=-1)
    required = snapshot_offsets & bases
    if newest >= max(bases, default=0):
        required.add(newest)
    return {offset for offset in required if log_start < offset <= log_end}
