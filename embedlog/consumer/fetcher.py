"""Fetches records and columns after the positions of a consumer.

- A fetch never moves a position over a record: it fills a cursor's cache, or returns columns with
  the position after them.
- A position has the leader epoch of the record before it. A new epoch begins at every truncation
  below published offsets. So the reader and the log diverge where that epoch now ends. This is
  checked before a fetch if the partition's epoch differs from the last check, and after a seek with
  an epoch.
- A damaged batch, or a record that the deserializer refuses, stops the reader at its offset, after
  all records before it were returned. The next fetch fails there again.
- The first fetch after a seek for few records reads one batch. The next one reads as much as usual,
  so that sequential reading costs the same.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from embedlog._native._rows import Record
from embedlog.columns.batch import records_of
from embedlog.columns.chunks import BATCH_GUESS, Chunk, read_chunk, read_run
from embedlog.columns.deserialization import Deserializers
from embedlog.consumer.positions import Cursor
from embedlog.errors import LogTruncationError, SerializationError
from embedlog.format.visibility import READ_COMMITTED, end_offset
from embedlog.partition.tail import BUFFER_BYTES as TAIL_BYTES
from embedlog.types import OffsetAndMetadata

if TYPE_CHECKING:
    from embedlog.config.callables import Deserializer
    from embedlog.partition.interfaces import TailedLog
    from embedlog.partition.log_context import Bounds


class Fetcher:
    """Fills cursors with records, and counts fetched records.

    A caller that takes few records after a seek tries `fill_point`, then `fill_few`; every other
    one calls `fill`. `fill_point` serves one usual batch, and answers False with nothing changed if
    it does not. `fill_few` and `fill` answer finally: False says that there is no record now.

    `fill` itself goes the shortest way that applies: the tail of a short log at the first fetch,
    then the tail at which the last fetch ended, then chunks.

    **Threads:** one at a time, the consumer's.
    """

    def __init__(
        self,
        *,
        isolation: str,
        max_bytes: int,
        counts_bytes: bool = False,
        key_deserializer: Deserializer[Any] | None = None,
        value_deserializer: Deserializer[Any] | None = None,
    ) -> None:
        self.isolation = isolation
        self._committed = isolation == READ_COMMITTED
        self.fetch_count = 0
        self.record_count = 0
        self.size_bytes = self.size_max_bytes = 0
        self.spent_s = self.spent_max_s = 0.0
        self._max_bytes = max_bytes
        # after a tail the unread bytes are not known
        self._begins = not counts_bytes and max_bytes >= TAIL_BYTES
        self._batch_bytes = BATCH_GUESS
        self._deserializers = Deserializers(key_deserializer, value_deserializer)
        self._deserializes = self._deserializers.is_needed

    def fill(self, cursor: Cursor) -> bool:
        """Fetch until the cursor has a record to return: False if the partition has no more.

        REQUIRES: the cursor has a position and no records fetched ahead. Raises as `read_chunk`
        does, and SerializationError if the first record cannot be deserialized.
        """
        if (
            self._begins
            and cursor.tail is None
            and cursor.checked_epoch < 0
            and self._fill_first(cursor)
        ):
            return True
        if cursor.tail is not None:
            has_records = self._fill_from_tail(cursor, cursor.tail)
            if has_records is not None:
                return has_records
        while not cursor.has_records:
            chunk = self._fetch_chunk(cursor)
            next_offset = cursor.position if chunk is None else chunk.next_offset
            if next_offset == cursor.seen_end:
                cursor.tail = cursor.partition.tail(next_offset, self.isolation)
            if chunk is None:
                return False
            records = (
                records_of(cursor.tp.topic, cursor.tp.partition, chunk.decoded)
                if chunk.decoded.count
                else []
            )
            self._fill_deserialized(cursor, records, chunk.next_offset, chunk.epoch)
        return True

    def _fill_first(self, cursor: Cursor) -> bool:
        """The first fetch of a short log: all its records by a tail. False: the usual fetch
        follows.
        """
        bounds = cursor.bounds = self._begin_fetch(cursor)
        if bounds is None:
            return False
        tail = cursor.partition.tail(cursor.position, self.isolation)
        if tail is None or not self._fill_from_tail(cursor, tail):
            return False
        cursor.tail = tail
        cursor.bounds = None
        cursor.lead.include(max(0, tail.offset - bounds.log_start))
        return True

    def fill_point(self, cursor: Cursor, limit: int) -> bool:
        """The shortest path to at most `limit` records after a seek: one visible batch, if it has
        as many; False otherwise.
        """
        if self._deserializes or cursor.seeks_epoch:
            return False
        began = perf_counter()
        point = cursor.partition.point(cursor.position, self._committed)
        if point is None or point.run.count < limit:
            return False
        run, size_bytes, log_start, cursor.seen_end, cursor.checked_epoch = point
        end = run.end
        cursor.lag.include(max(0, cursor.seen_end - end))
        cursor.lead.include(end - log_start)
        self._count_fetch(run.count, size_bytes, began)
        cursor.bounds = None
        cursor.fill_run(run, end, run.leader_epoch)
        return True

    def fill_few(self, cursor: Cursor, limit: int) -> bool:
        """As `fill`, for a caller that takes at most `limit` records after a seek: reads one batch,
        if it has as many.
        """
        began = perf_counter()
        bounds = None if self._deserializes else self._begin_fetch(cursor)
        if bounds is None:
            return self.fill(cursor)
        run = read_run(cursor.partition, cursor.position, isolation=self.isolation)
        if run is None or run.records.count < limit:
            return self.fill(cursor)
        self._note_fetch(cursor, bounds, run.next_offset, run.records.count, run.size_bytes, began)
        cursor.fill_run(run.records, run.next_offset, run.epoch)
        return True

    def take_arrivals(self, cursor: Cursor, limit: int) -> list[Record] | None:
        """The shortest path from an append to a waiting reader: the records after the end, if there
        is no other work.

        None in all other cases.
        """
        tail = cursor.tail
        if tail is None or self._deserializes or not cursor.stands_at(tail.offset):
            return None
        began = perf_counter()
        records = tail.records()
        if records is None:  # the tail has skipped data that it cannot decode
            cursor.tail = None
            return None  # `fill` reads it again
        cursor.seen_end = tail.end
        if not records:
            cursor.move(tail.offset, tail.epoch)  # control batches may have been skipped
            return records
        cursor.lag.count += 1
        self._count_fetch(len(records), tail.size_bytes, began)
        if len(records) <= limit:
            cursor.move(tail.offset, tail.epoch)
            return records
        cursor.fill(records, tail.offset, tail.epoch)
        return cursor.take(limit)

    def _fill_from_tail(self, cursor: Cursor, tail: TailedLog) -> bool | None:
        """The fast path: True with records, False without, None if the tail is closed (then it is
        dropped).
        """
        began = perf_counter()
        records = tail.records() if tail.offset == cursor.position else None
        if records is None:
            cursor.tail = None
            return None
        cursor.seen_end = tail.end
        if not records:
            cursor.move(tail.offset, tail.epoch)  # control batches may have been skipped
            return False
        if tail.end == tail.offset:
            cursor.lag.count += 1
        else:
            cursor.lag.include(tail.end - tail.offset)
        self._count_fetch(len(records), tail.size_bytes, began)
        self._fill_deserialized(cursor, records, tail.offset, tail.epoch)
        return True

    def _count_fetch(self, record_count: int, size_bytes: int, began: float) -> None:
        spent_s = perf_counter() - began
        self.fetch_count += 1
        self.record_count += record_count
        self.size_bytes += size_bytes
        self.spent_s += spent_s
        if size_bytes > self.size_max_bytes:
            self.size_max_bytes = size_bytes
        if spent_s > self.spent_max_s:
            self.spent_max_s = spent_s

    def _fill_deserialized(
        self, cursor: Cursor, records: list[Record], next_offset: int, epoch: int
    ) -> None:
        if self._deserializes:
            deserialized = self._deserialize(records)
            if len(deserialized) < len(records):
                next_offset = records[len(deserialized)].offset
                epoch = records[len(deserialized)].leader_epoch
            records = deserialized
        cursor.fill(records, next_offset, epoch)

    def fetch_columns(self, cursor: Cursor) -> Chunk | None:
        """The next chunk with records in it, as columns; None if the partition has no more.

        The position moves over batches without records; the caller moves it over the chunk.
        """
        cursor.drop_ahead()
        while True:
            chunk = self._fetch_chunk(cursor)
            if chunk is None or chunk.decoded.count:
                return chunk
            cursor.fill([], chunk.next_offset, chunk.epoch)

    def _fetch_chunk(self, cursor: Cursor) -> Chunk | None:
        began = perf_counter()
        bounds = self._begin_fetch(cursor)
        if bounds is None:
            return None
        chunk = read_chunk(
            cursor.partition,
            cursor.position,
            max_bytes=self._max_bytes,
            isolation=self.isolation,
            batch_bytes=self._batch_bytes,
        )
        if chunk is not None:
            self._batch_bytes = chunk.batch_bytes
            self._note_fetch(
                cursor, bounds, chunk.next_offset, chunk.decoded.count, chunk.size_bytes, began
            )
        return chunk

    def _begin_fetch(self, cursor: Cursor) -> Bounds | None:
        """The bounds of the partition now; None at its end: the usual result there, without access
        to the file.
        """
        position = cursor.position
        bounds = cursor.bounds or cursor.partition.bounds()
        cursor.bounds = None
        if bounds.epoch != cursor.checked_epoch:
            _check_position(cursor, bounds)
        # Read before the fetch: a later append then ends the wait. Not the position: only invisible
        # records may follow it.
        cursor.seen_end = end_offset(bounds, self.isolation)
        return None if position == cursor.seen_end and position >= bounds.log_start else bounds

    def _note_fetch(
        self,
        cursor: Cursor,
        bounds: Bounds,
        next_offset: int,
        count: int,
        size_bytes: int,
        began: float,
    ) -> None:
        cursor.lag.include(max(0, cursor.seen_end - next_offset))
        cursor.lead.include(max(0, next_offset - bounds.log_start))
        self._count_fetch(count, size_bytes, began)

    def _deserialize(self, records: list[Record]) -> list[Record]:
        """The records with deserialized keys and values, up to the first failure. Raises
        SerializationError if the first one fails.
        """
        deserialized: list[Record] = []
        for record in records:
            try:
                deserialized.append(self._deserializers.record(record))
            except SerializationError:
                if deserialized:
                    return deserialized
                raise
        return deserialized


def _check_position(cursor: Cursor, bounds: Bounds) -> None:
    """Raises LogTruncationError if the log no longer contains the records before the cursor's
    position. For an epoch of the partition that was not checked yet.
    """
    position = cursor.position
    epoch = cursor.epoch
    if epoch >= 0:
        known_epoch, end = cursor.partition.epoch_end(epoch)
        if known_epoch < 0 or end < position:
            diverging = None
            reason = "that epoch is unknown"
            if known_epoch >= 0:
                diverging = OffsetAndMetadata(end, leader_epoch=known_epoch)
                reason = f"that epoch ends at {end} now"
            partition_name = f"{cursor.tp.topic}-{cursor.tp.partition}"
            raise LogTruncationError(
                f"{partition_name}: the log was cut below the position {position} of leader epoch "
                f"{epoch}: {reason}",
                topic=cursor.tp.topic,
                partition=cursor.tp.partition,
                offset=position,
                diverging=diverging,
            )
    cursor.checked_epoch = bounds.epoch
