"""Defines the bounds of a scan, and checks them for the partitions of a topic.

- A bound for a partition that is not read is an error, because it has no effect.
- Starts are inclusive, ends exclusive; None is no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from embedlog.columns.arrow_export import check_columns
from embedlog.config.times import milliseconds
from embedlog.errors import (
    ConfigError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.record_columns import OFFSET_MAX, OFFSET_MIN
from embedlog.format.visibility import READ_COMMITTED, READ_UNCOMMITTED, Isolation
from embedlog.types import TopicPartition, topic_partition

Time = int | datetime
OffsetBound = int | Mapping[TopicPartition, int] | Mapping[int, int] | None
"""A bound of `log.scan`: one offset for all partitions, or a mapping of partitions or of their
numbers; None is no bound.
"""


class ScanLimits(NamedTuple):
    """The bounds of a scan after their check; offsets by partition, None without a bound."""

    columns: tuple[str, ...]
    start_ms: int
    end_ms: int
    offsets: dict[int, tuple[int | None, int | None]]

    def check_order(self) -> None:
        """Raises ConfigError if a start is after its end."""
        for number, (start, end) in self.offsets.items():
            if start is not None and end is not None and start > end:
                raise ConfigError(
                    f"start_offset of partition {number}",
                    expected=f"at most end_offset, {end}",
                    found=start,
                )
        if self.start_ms > self.end_ms:
            raise ConfigError(
                "start_time", expected=f"at most end_time, {self.end_ms} ms", found=self.start_ms
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBounds:
    """The arguments of `Log.scan` that select records and columns."""

    partitions: int | Iterable[int] | None = None
    start_offset: OffsetBound = None
    end_offset: OffsetBound = None
    start_time: Time | None = None
    end_time: Time | None = None
    columns: Iterable[str] | None = None
    isolation_level: Isolation = READ_UNCOMMITTED

    def __post_init__(self) -> None:
        if self.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            expected = f"{READ_UNCOMMITTED} or {READ_COMMITTED}"
            raise ConfigError(
                "isolation_level", expected=expected, found=repr(self.isolation_level)
            )

    def within(self, topic: str, existing: list[int]) -> ScanLimits:
        """The limits for a topic that has these partitions.

        Raises UnknownTopicOrPartitionError, ConfigError, OffsetOutOfRangeError,
        InvalidTimestampError.
        """
        columns = check_columns(self.columns)
        start_ms = OFFSET_MIN
        if self.start_time is not None:
            start_ms = _check_time("start_time", self.start_time)
        end_ms = OFFSET_MAX
        if self.end_time is not None:
            end_ms = _check_time("end_time", self.end_time)
        numbers = _select_partitions(self.partitions, topic, existing)
        starts = _offsets_by_partition("start_offset", self.start_offset, topic, numbers)
        ends = _offsets_by_partition("end_offset", self.end_offset, topic, numbers)
        return ScanLimits(
            columns,
            start_ms,
            end_ms,
            {number: (starts.get(number), ends.get(number)) for number in numbers},
        )


def _check_time(name: str, time: Time) -> int:
    time_ms = milliseconds(time)
    if time_ms < 0:
        raise InvalidTimestampError(f"{name}: a time is not before 1970", found=time_ms)
    return time_ms


def _select_partitions(
    partitions: int | Iterable[int] | None, topic: str, existing: list[int]
) -> list[int]:
    """The partitions to read. Raises UnknownTopicOrPartitionError."""
    if partitions is None:
        return existing
    numbers = [partitions] if isinstance(partitions, int) else list(dict.fromkeys(partitions))
    for number in numbers:
        _check_int("partitions", number)
        if number not in existing:
            expected = f"one of {existing}"
            if existing == list(range(len(existing))):
                expected = f"0 to {len(existing) - 1}"
            raise UnknownTopicOrPartitionError(
                f"{topic} has no such partition", expected=expected, found=number
            )
    return numbers


def _offsets_by_partition(
    name: str, bound: OffsetBound, topic: str, numbers: list[int]
) -> dict[int, int]:
    """A bound by partition, of the partitions that are read."""
    if bound is None:
        return {}
    if not isinstance(bound, Mapping):
        return dict.fromkeys(numbers, _check_offset(name, bound))
    offsets: dict[int, int] = {}
    for key, offset in bound.items():
        number = _partition_of_key(name, key, topic, numbers)
        if number in offsets:
            raise ConfigError(
                f"{name} names partition {number} twice",
                expected="one offset for each",
                found=repr(key),
            )
        offsets[number] = _check_offset(name, offset)
    return offsets


def _partition_of_key(name: str, key: object, topic: str, numbers: list[int]) -> int:
    """The partition that a key of a bound names."""
    if isinstance(key, bool) or not isinstance(key, int | tuple):
        raise TypeError(
            f"{name}: a key is a TopicPartition or the number of a partition, not {key!r:.100}"
        )
    if isinstance(key, int):
        key_topic = topic
        number = key
    else:
        key_topic, number = topic_partition(key)
    if key_topic != topic or number not in numbers:
        read = f"partitions {', '.join(map(str, numbers))}" if numbers else "no partition"
        raise UnknownTopicOrPartitionError(
            f"{name} refers to a partition that is not read",
            expected=f"topic {topic!r}, {read}",
            found=repr(key),
        )
    return number


def _check_offset(name: str, offset: object) -> int:
    number = _check_int(name, offset)
    if number < 0:
        raise OffsetOutOfRangeError(f"{name}: an offset is not negative", found=number)
    return number


def _check_int(name: str, number: object) -> int:
    if type(number) is not int:
        raise TypeError(f"{name}: an int, not {type(number).__name__}")
    return number
