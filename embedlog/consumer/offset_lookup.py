"""Finds start and end offsets of partitions, and offsets by time, without a position.

- The end depends on the isolation level: the last stable offset for read_committed, else the high
  watermark.
- A search by time does not find records that the reader cannot see yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from embedlog.config.times import milliseconds
from embedlog.errors import InvalidTimestampError
from embedlog.format.visibility import end_offset
from embedlog.types import OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine


class OffsetLookup:
    """Queries the log's partitions, assigned or not."""

    def __init__(self, engine: Engine, isolation: str) -> None:
        self._engine = engine
        self._isolation = isolation

    def find_beginnings(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: int(self._engine.partition(*tp).bounds().log_start) for tp in tps}

    def find_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: end_offset(self._engine.partition(*tp).bounds(), self._isolation) for tp in tps}

    def find_offsets_for_times(
        self, times: Mapping[TopicPartition, Any]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        times_ms = {tp: milliseconds(time) for tp, time in times.items()}
        for tp, time_ms in times_ms.items():  # before any look-up
            if time_ms < 0:
                raise InvalidTimestampError(
                    f"{tp.topic}-{tp.partition}: a time is not negative", found=time_ms
                )
        return {tp: self._find_offset(tp, time_ms) for tp, time_ms in times_ms.items()}

    def _find_offset(self, tp: TopicPartition, time_ms: int) -> OffsetAndTimestamp | None:
        partition = self._engine.partition(*tp)
        record: OffsetAndTimestamp | None = partition.offset_for_time(time_ms, self._isolation)
        if record is None or record.offset >= end_offset(partition.bounds(), self._isolation):
            return None
        return record
