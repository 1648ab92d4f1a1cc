"""Processes one `send_batch`: distributes its rows over partitions, encodes them, and combines the
results.

- Rows keep their order within a partition; rows without keys stay in one partition, run by run.
- The result is complete when the last run is settled, and fails if any run failed, with the first
  error.
- No thread waits for another one's bookkeeping (`BatchSend`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from embedlog._native.lazy_numpy import np
from embedlog.errors import (
    DurabilityError,
    InvalidRecordError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from embedlog.format import record_batch
from embedlog.format.record_columns import HEADER_SIZE
from embedlog.producer import topic_judgement

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedlog._native._rows import ProducerBatch
    from embedlog.columns.ingest import ColumnPiece
    from embedlog.config.topic import TopicConfig
    from embedlog.format.record_columns import BytesColumn
    from embedlog.partitioners import Chooser
    from embedlog.producer.delivery_failures import DeliveryFailures
    from embedlog.producer.targets import TopicTarget

# Kafka's upper bound for a batch of one record, without key, value and headers
RECORD_OVERHEAD = HEADER_SIZE + 21
HEADER_OVERHEAD = 10  # the two lengths of a header
# of a partition's share of the rows distributed at once; with random variation still below a batch
SHARE_BYTES = 800 << 10
STICK = -1
UNKNOWN_OFFSET = -1  # with acks=0, or if records of other producers are between the parts


class Share(NamedTuple):
    """Rows of a piece for one partition; `rows` None: all; `partition` STICK: the current partition
    for rows without keys.
    """

    partition: int
    rows: NDArray[np.int64] | None


class RunSend:
    """One encoded run that is being sent, as a producer batch carries it."""

    expected_offset = None

    def __init__(
        self,
        batch_send: BatchSend,
        partition: int,
        encoded: record_batch.EncodedRun,
        settings: TopicConfig,
    ) -> None:
        self.encoded = encoded
        self.settings = settings  # of the topic, by which the rows were judged
        self._batch_send = batch_send
        self._partition = partition

    def report_result(
        self,
        pieces: tuple[tuple[int, int], ...],
        error: BaseException | None,
        append_time_ms: int = -1,
    ) -> None:
        """Report the result once: the offsets of the run, or its error."""
        lost = 0 if error is None else self.encoded.record_count
        if lost and not isinstance(error, DurabilityError):
            lost -= sum(end - base for base, end in pieces)
        self._batch_send.record_result(
            self._partition, pieces, error, size=self.encoded.size, lost=lost
        )


class _Arrival(NamedTuple):
    """A change of a `BatchSend`: `runs` more are under way, `size` more bytes are queued, and the
    result of some rows.
    """

    runs: int
    size: int
    topic: str
    partition: int = STICK
    pieces: tuple[tuple[int, int], ...] = ()
    error: BaseException | None = None
    lost: int = 0


class BatchSend:
    """All runs of one `send_batch`; completes its promise when the last run is settled and no more
    will be sent.

    No thread waits for its lock: a signal handler may interrupt the holder, and wait for the
    producer's thread. The holder also applies the changes that came meanwhile.
    """

    def __init__(self, topic: str, promise: ProducerBatch, failures: DeliveryFailures) -> None:
        self._topic = topic
        self._promise = promise
        self._failures = failures
        self.row_count = 0  # rows that were queued
        self._lost = 0  # rows that were not written
        self._lost_partition: int | None = None  # the partition of the first lost rows
        self._arrivals: deque[_Arrival] = deque()
        self._applying = threading.RLock()  # reentrant only so that its holder is known
        self._changed = threading.Lock()  # free: something has changed since the last wait
        self._size = 0  # bytes that are queued and not settled
        self._under_way = 1  # runs not settled, plus 1 that finish() removes
        self._extents: list[tuple[str, int, int, int]] = []
        # partition → index of its last entry in `_extents`
        self._last_extents: dict[tuple[str, int], int] = {}
        self._error: BaseException | None = None

    def add_run(self, size: int = 0) -> None:
        """One more run is queued."""
        self._apply(_Arrival(1, size, self._topic))

    def wait_below(self, size: int, timeout_s: float) -> None:
        """Wait until fewer than `size` bytes are unsettled, or for the timeout."""
        deadline = time.monotonic() + timeout_s
        while self._size >= size:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return
            self._changed.acquire(timeout=remaining_s)

    def record_result(
        self,
        partition: int,
        pieces: tuple[tuple[int, int], ...],
        error: BaseException | None,
        *,
        topic: str | None = None,
        size: int = 0,
        lost: int = 0,
    ) -> None:
        """Record the offsets of some rows, or their error. `topic` differs only if an interceptor
        changed it.
        """
        self._apply(
            _Arrival(
                runs=-1,
                size=-size,
                topic=topic or self._topic,
                partition=partition,
                pieces=pieces,
                error=error,
                lost=lost,
            )
        )

    def finish(self, error: Exception | None = None, lost: int = 0) -> None:
        """No further run will be sent; `lost` rows were never queued."""
        self.record_result(STICK, (), error, lost=lost)

    # ---- changes ---------------------------------------------------------------------------------

    def _apply(self, arrival: _Arrival) -> None:
        self._arrivals.append(arrival)
        while self._arrivals and not self._applying._is_owned():  # type: ignore[attr-defined]
            ended = False
            try:
                if not self._applying.acquire(blocking=False):
                    return  # its holder looks at the arrivals after the release
                while self._arrivals:
                    try:
                        self._apply_locked(self._arrivals.popleft())
                    finally:
                        ended = self._under_way == 0
            finally:
                for lock in (self._applying, self._changed):
                    try:
                        lock.release()
                    except RuntimeError:
                        pass  # not held
                if ended:
                    self._complete()

    def _apply_locked(self, arrival: _Arrival) -> None:
        if arrival.error is not None and self._error is None:
            self._error = arrival.error
            self._lost_partition = None if arrival.partition == STICK else arrival.partition
        self._lost += arrival.lost
        self._size += arrival.size
        self._under_way += arrival.runs
        try:
            for base, end in arrival.pieces:
                self._append_entry(arrival.topic, arrival.partition, base, end - base)
        except BaseException as problem:
            # no memory: the rows are written, but their offsets are lost
            self._error = self._error or problem
            if not isinstance(problem, Exception):
                raise

    def _complete(self) -> None:
        if self._error is None:
            self._promise.keep(self._extents)
        else:
            self._failures.fail(
                self._promise, self._topic, self._lost_partition, self._error, max(1, self._lost)
            )

    def _append_entry(self, topic: str, partition: int, base: int, count: int) -> None:
        """Append an entry, or extend the previous one of the partition if the offsets are adjacent.

        Offsets below 0 are unknown.
        """
        last_index = self._last_extents.get((topic, partition))
        if last_index is not None:
            _, _, first_offset, last_count = self._extents[last_index]
            if first_offset + last_count == base or first_offset == base == UNKNOWN_OFFSET:
                self._extents[last_index] = (topic, partition, first_offset, last_count + count)
                return
        self._last_extents[topic, partition] = len(self._extents)
        self._extents.append((topic, partition, base, count))


# ---- checks --------------------------------------------------------------------------------------


def check_piece(
    piece: ColumnPiece, topic_target: TopicTarget, timestamp_ms: int | None, request_limit: int
) -> int | None:
    """The earliest of the given timestamps. Raises if the piece cannot be written, before any part
    of it is.
    """
    check_sizes(piece, topic_target, request_limit)
    if topic_target.config.compacted and _has_nulls(piece.keys):
        raise topic_judgement.missing_key_error(topic_target.name)
    if piece.timestamps is not None:
        earliest_ms = int(np.min(piece.timestamps))
        latest_ms = int(np.max(piece.timestamps))
        topic_judgement.check_times(topic_target.config, topic_target.name, earliest_ms, latest_ms)
        return earliest_ms
    if timestamp_ms is not None:
        topic_judgement.check_times(
            topic_target.config, topic_target.name, timestamp_ms, timestamp_ms
        )
    return timestamp_ms


def check_sizes(piece: ColumnPiece, topic_target: TopicTarget, request_limit: int) -> None:
    """Raises RecordTooLargeError if a record is larger than max.request.size, and the errors of
    `check_record`.
    """
    columns = [
        np.diff(column.offsets) for column in (piece.values, piece.keys) if column is not None
    ]
    if piece.headers is not None:
        header_sizes = (
            np.diff(piece.headers.keys.offsets).astype(np.int64)
            + np.diff(piece.headers.values.offsets)
            + HEADER_OVERHEAD
        )
        header_ends = np.concatenate(([0], np.cumsum(header_sizes)))
        columns.append(
            header_ends[piece.headers.starts[1:]] - header_ends[piece.headers.starts[:-1]]
        )
    largest_parts = RECORD_OVERHEAD + sum(int(sizes.max()) for sizes in columns)
    if largest_parts <= min(request_limit, topic_target.record_limit):
        return  # even the sum of the largest parts fits: no need to add up every row
    largest = RECORD_OVERHEAD + int(np.max(sum(sizes.astype(np.int64) for sizes in columns)))
    if largest > request_limit:
        raise RecordTooLargeError(
            "a record is larger than max.request.size",
            expected=f"at most {request_limit} bytes",
            found=largest,
        )
    check_record(topic_target, largest)


def check_record(topic_target: TopicTarget, size: int) -> None:
    """Raises InvalidRecordError if a record's batch of `size` bytes is too large to be
    compressed.
    """
    if size - HEADER_SIZE > topic_target.record_limit:
        raise InvalidRecordError(
            f"a record for {topic_target.name}, which is compressed, is larger than "
            "max.decompressed.message.bytes",
            expected=f"at most {topic_target.record_limit} bytes",
            found=size - HEADER_SIZE,
        )


def _has_nulls(keys: BytesColumn | None) -> bool:
    if keys is None:
        return True
    if keys.validity is None:
        return False
    bits = np.unpackbits(keys.validity, count=keys.validity_offset + len(keys), bitorder="little")
    return not bits[keys.validity_offset :].all()


# ---- distribution over partitions ----------------------------------------------------------------


def share_rows(
    piece: ColumnPiece,
    topic_target: TopicTarget,
    partition: int | None,
    chooser: Chooser | None,
    keys_ignored: bool,
) -> Iterator[Share]:
    """Rows by partition. Raises UnknownTopicOrPartitionError."""
    count = topic_target.partition_count
    if partition is not None:
        check_partition(topic_target, partition)
        yield Share(partition, None)
        return
    numbers: NDArray[Any] | None = piece.partitions
    if chooser is not None:
        numbers = _call_partitioner(piece, numbers, chooser, topic_target)
    elif piece.keys is not None and not keys_ignored:
        hashed = record_batch.partitions_of(piece.keys, count)
        numbers = hashed if numbers is None else np.where(numbers < 0, hashed, numbers)
    if numbers is None or (numbers == STICK).all():
        yield Share(STICK, None)
        return
    check_partition(topic_target, int(numbers.max()))
    check_partition(topic_target, int(numbers.min()), lowest=STICK)
    is_loose = numbers == STICK
    if is_loose.any() and topic_target.route is not None:
        # Beside rows with a partition these take one partition at once: two shares of one partition
        # would lose the input order
        current = topic_target.route.stick(int(is_loose.sum()) * RECORD_OVERHEAD)
        numbers = np.where(is_loose, current, numbers)
    local_numbers = np.array(topic_target.numbers, np.int32)
    indexes = _indexes_of(topic_target, numbers, local_numbers)
    rows_at_once = _rows_at_once(piece, len(local_numbers))
    yield from _group_rows(indexes, local_numbers.tolist(), rows_at_once)


def _indexes_of(
    topic_target: TopicTarget, numbers: NDArray[Any], local_numbers: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The index of each number among the local partitions. Raises UnknownTopicOrPartitionError."""
    if not topic_target.is_sparse:
        return numbers.astype(np.int32, copy=False)
    indexes = np.searchsorted(local_numbers, numbers).astype(np.int32)
    missing = local_numbers[np.minimum(indexes, len(local_numbers) - 1)] != numbers
    if missing.any():
        check_partition(topic_target, int(numbers[missing][0]))
    return indexes


def _rows_at_once(piece: ColumnPiece, partition_count: int) -> int:
    """Rows that fill about one batch per partition: more rows would be read from memory once for
    every partition.
    """
    columns = [column for column in (piece.values, piece.keys) if column is not None]
    size = sum(int(column.offsets[-1]) - int(column.offsets[0]) for column in columns) + piece.count
    return max(1, SHARE_BYTES * partition_count * piece.count // size)


def _group_rows(
    indexes: NDArray[np.int32], local_numbers: list[int], rows_at_once: int
) -> Iterator[Share]:
    for start in range(0, len(indexes), rows_at_once):
        chunk = indexes[start : start + rows_at_once]
        for number, rows in zip(
            local_numbers, record_batch.group_by_partition(chunk, len(local_numbers)), strict=True
        ):
            if len(rows):
                yield Share(number, rows + start if start else rows)


def check_partition(topic_target: TopicTarget, partition: int, lowest: int = 0) -> None:
    if partition < lowest or (partition >= 0 and topic_target.target_of(partition) is None):
        numbers = topic_target.numbers
        expected = f"0 to {len(numbers) - 1}"
        if topic_target.is_sparse:
            listed = ", ".join(map(str, numbers[:8]))
            if len(numbers) > 8:
                listed += ", …"
            expected = f"one of the local partitions: {listed}"
        raise UnknownTopicOrPartitionError(
            f"{topic_target.name} has no partition {partition}", expected=expected, found=partition
        )


def _call_partitioner(
    piece: ColumnPiece, numbers: NDArray[Any] | None, chooser: Chooser, topic_target: TopicTarget
) -> NDArray[np.int64]:
    """Call the user's partitioner for every row that has no partition yet."""
    if numbers is None:
        chosen = np.full(piece.count, -1, dtype=np.int64)
    else:
        chosen = numbers.astype(np.int64)
    for row in np.flatnonzero(chosen < 0):
        key = None if piece.keys is None else piece.keys[int(row)]
        chosen[row] = chooser.of_key(key, topic_target.every, topic_target.numbers)
    return chosen
