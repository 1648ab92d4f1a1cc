"""Assertions about the records, committed offsets and lags of a log.

- A failure is an AssertionError whose message has the first difference and the records around it.
- Order is what Kafka promises: in one partition all records, in several the records of each key.
- Aborted records, and those of open transactions, are not read unless `isolation_level` is
  "read_uncommitted".
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from embedlog import TopicPartition
from embedlog.config import keywords
from embedlog.testing.expectations import (
    UNSET,
    Expected,
    expected_record,
    field_count,
    show,
    show_record,
)

if TYPE_CHECKING:
    from embedlog import IsolationLevel, Log, Record

__all__ = [
    "assert_committed",
    "assert_key_order",
    "assert_lag",
    "assert_records",
    "records",
    "wait_for_records",
]

CONTEXT: Final = 2  # records shown before and after a difference
SHOWN_MAX: Final = 10  # records of a list in a message
COMMITTED: Final = "read_committed"


@keywords.checked_call
def records(
    log: Log,
    topic: str,
    *,
    partition: int | None = None,
    isolation_level: IsolationLevel = COMMITTED,
) -> list[Record[bytes, bytes]]:
    """The current records of a topic, or of one partition: by partition, then by offset. Aborted
    records are not present.

    Raises UnknownTopicOrPartitionError, ClosedError. **Threads:** any.
    """
    return list(log.scan(topic, partitions=partition, isolation_level=isolation_level).records())


@keywords.checked_call
def wait_for_records(
    log: Log,
    topic: str,
    count: int,
    timeout: float = 10.0,
    *,
    partition: int | None = None,
    isolation_level: IsolationLevel = COMMITTED,
) -> list[Record[bytes, bytes]]:
    """Wait until a topic, or one partition, has `count` readable records; returns all that are read
    by then, in order of arrival.

    The wait ends with the append of the record, of this or another process. `timeout` is in
    seconds. Raises AssertionError with the records that arrived, UnknownTopicOrPartitionError,
    ClosedError. **Threads:** any; it blocks, so call it in a thread (`asyncio.to_thread`) if the
    application runs in the event loop of the test.
    """
    numbers = range(log.describe_topic(topic).partition_count) if partition is None else [partition]
    arrived: list[Record[bytes, bytes]] = []
    deadline_s = time.monotonic() + timeout
    with log.consumer(
        config={"auto.offset.reset": "earliest", "isolation.level": isolation_level}
    ) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in numbers])
        while len(arrived) < count:
            remaining_s = deadline_s - time.monotonic()
            arrived += consumer.poll(max(0.0, remaining_s))
            if remaining_s <= 0 and len(arrived) < count:
                raise AssertionError(
                    f"topic {topic!r}: {len(arrived)} of {count} records after {timeout:g} "
                    f"s{_list_records(arrived)}"
                )
    return arrived


# ---- records -----------------------------------------------------------------------------------------


@keywords.checked_call
def assert_records(
    log: Log,
    topic: str,
    expected: Iterable[Any],
    *,
    partition: int | None = None,
    in_order: bool | None = None,
    isolation_level: IsolationLevel = COMMITTED,
) -> None:
    """Assert that a topic, or one partition, has exactly the expected records.

    An expected record is a value, a pair (key, value), or `record(…)` with any of the fields. Text
    is compared as UTF-8, a mapping or list as JSON. `in_order=None`: in one partition all records
    in order, in several those of each key; True: by partition, then by offset; False: in any
    order. Raises AssertionError. **Threads:** any.

        with embedlog.testing.open_log({"orders": 1}) as log, log.producer() as producer:
            producer.send("orders", b'{"state": "new"}', key=b"o-1").result()
            embedlog.testing.assert_records(log, "orders", [("o-1", {"state": "new"})])
    """
    __tracebackhide__ = True
    expectations = [expected_record(item) for item in expected]
    actual = records(log, topic, partition=partition, isolation_level=isolation_level)
    has_one_order = partition is not None or log.describe_topic(topic).partition_count == 1
    if in_order or (in_order is None and has_one_order):
        problem = _describe_ordered(expectations, actual)
    else:
        problem = _describe_unordered(expectations, actual, by_key=in_order is None)
    if problem:
        subject = f"topic {topic!r}"
        if partition is not None:
            subject += f", partition {partition}"
        count = _count_text(len(expectations))
        raise AssertionError(f"{subject}: expected {count}, found {len(actual)}\n{problem}")


def _count_text(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _describe_ordered(expectations: Sequence[Expected], actual: Sequence[Any]) -> str:
    """The first difference of two lists in the same order; "" if there is none."""
    for row, (expectation, record) in enumerate(zip(expectations, actual, strict=False)):
        if not expectation.matches(record):
            return "\n".join(_lines_around(row, expectations, actual))
    if len(expectations) == len(actual):
        return ""
    row = min(len(expectations), len(actual))
    return "\n".join(_lines_around(row, expectations, actual))


def _lines_around(
    row: int, expectations: Sequence[Expected], actual: Sequence[Any]
) -> Iterator[str]:
    """The first difference, its kind, and the records around it."""
    yield f"first difference at record {row}: {_kind_of(row, expectations, actual)}"
    for number in range(max(0, row - CONTEXT), row):
        yield f"    {number}: {show_record(actual[number])}"
    margin = " " * len(str(row))
    expected_text = expectations[row] if row < len(expectations) else "no record"
    found_text = show_record(actual[row]) if row < len(actual) else "no record"
    yield f"  > {row}: expected {expected_text}"
    yield f"    {margin}  found    {found_text}"
    if row < len(expectations) and row < len(actual):
        for line in expectations[row].differences(actual[row]):
            yield f"    {margin}  {line}"
    for number in range(row + 1, min(row + 1 + CONTEXT, len(actual))):
        yield f"    {number}: {show_record(actual[number])}"


def _kind_of(row: int, expectations: Sequence[Expected], actual: Sequence[Any]) -> str:
    if row >= len(actual):
        return f"{len(expectations) - row} missing at the end"
    if row >= len(expectations):
        return f"{len(actual) - row} too many at the end"
    if row + 1 < len(expectations) and expectations[row + 1].matches(actual[row]):
        return "a record is missing"
    if row + 1 < len(actual) and expectations[row].matches(actual[row + 1]):
        return "a record is not expected"
    return "another record"


def _describe_unordered(
    expectations: Sequence[Expected], actual: Sequence[Any], *, by_key: bool
) -> str:
    """The records that are missing or not expected; else, by key, those in another order."""
    record_of = _Matching(expectations, actual).record_of
    matched = set(record_of.values())
    surplus = [record for number, record in enumerate(actual) if number not in matched]
    lines = []
    for row, expectation in enumerate(expectations):
        if row not in record_of:
            lines.append(f"  missing: {expectation}{_describe_nearest(expectation, surplus)}")
    lines += [f"  not expected: {show_record(record)}" for record in surplus]
    if not lines and by_key:
        lines = _describe_early(expectations, actual, record_of)
    return "\n".join(_shorten(lines))


def _describe_early(
    expectations: Sequence[Expected], actual: Sequence[Any], record_of: Mapping[int, int]
) -> list[str]:
    """The records that come before an expected predecessor of the same key."""
    last_of_key: dict[Any, int] = {}
    lines = []
    for row in range(len(expectations)):
        number = record_of[row]
        record = actual[number]
        if record.key is None:
            continue
        if number < last_of_key.get(record.key, -1):
            lines.append(f"  order of key {show(record.key)}: {show_record(record)} is too early")
        last_of_key[record.key] = number
    return lines


class _Matching:
    """A record for as many expectations as possible: `record_of` has its index for each of them.

    Expectations with more fields choose first, and a choice is changed where another expectation
    needs the record (a maximum matching, by augmenting paths).
    """

    def __init__(self, expectations: Sequence[Expected], actual: Sequence[Any]) -> None:
        self._expectations = expectations
        self._actual = actual
        self._candidates: dict[int, list[int]] = {}
        self.record_of: dict[int, int] = {}
        self._expectation_of: dict[int, int] = {}
        # those that fit fewest records choose first
        rows = sorted(range(len(expectations)), key=lambda row: -field_count(expectations[row]))
        for row in rows:
            self._take_free(row)
        for row in rows:
            if row not in self.record_of:
                self._augment(row)

    def _take_free(self, row: int) -> None:
        """Give a record that no other expectation has to this one, if there is one."""
        expectation = self._expectations[row]
        for number, record in enumerate(self._actual):
            if number not in self._expectation_of and expectation.matches(record):
                self.record_of[row] = number
                self._expectation_of[number] = row
                return

    def _augment(self, first: int) -> None:
        """Give a record to an expectation, if others can take other records instead."""
        reached_from = dict[int, int]()
        queue = [first]
        for row in queue:  # it grows
            for number in self._find_candidates(row):
                if number in reached_from:
                    continue
                reached_from[number] = row
                if number not in self._expectation_of:
                    return self._exchange(number, reached_from)
                queue.append(self._expectation_of[number])

    def _find_candidates(self, row: int) -> list[int]:
        if row not in self._candidates:
            expectation = self._expectations[row]
            self._candidates[row] = [
                number for number, record in enumerate(self._actual) if expectation.matches(record)
            ]
        return self._candidates[row]

    def _exchange(self, number: int | None, reached_from: Mapping[int, int]) -> None:
        while number is not None:
            row = reached_from[number]
            before = self.record_of.get(row)
            self.record_of[row] = number
            self._expectation_of[number] = row
            number = before


def _describe_nearest(expectation: Expected, surplus: Sequence[Any]) -> str:
    """For a missing record: the differences from the surplus record of the same key, or from the
    only surplus record; "" without one.
    """
    if expectation.key is not UNSET:
        for record in surplus:
            if Expected(key=expectation.key).matches(record):
                return _list_differences("of the same key", expectation, record)
    if len(surplus) == 1:
        return _list_differences("of the only other record", expectation, surplus[0])
    return ""


def _list_differences(name: str, expectation: Expected, record: Any) -> str:
    lines = expectation.differences(record)
    return "".join(f"\n    {name}, at offset {record.offset}: {line}" for line in lines)


def _shorten(lines: Sequence[str]) -> list[str]:
    if len(lines) <= SHOWN_MAX:
        return list(lines)
    return [*lines[:SHOWN_MAX], f"  … and {len(lines) - SHOWN_MAX} more"]


def _list_records(actual: Sequence[Any]) -> str:
    lines = [f"  {show_record(record)}" for record in actual]
    return "".join(f"\n{line}" for line in _shorten(lines))


@keywords.checked_call
def assert_key_order(
    log: Log,
    topic: str,
    expected: Mapping[Any, Sequence[Any]],
    *,
    isolation_level: IsolationLevel = COMMITTED,
) -> None:
    """Assert that each key of `expected` has exactly these values in this order, and that they are
    in one partition.

    Keys that are not named are not checked. Raises AssertionError. **Threads:** any.
    """
    __tracebackhide__ = True
    actual = records(log, topic, isolation_level=isolation_level)
    for key, values in expected.items():
        of_key = [record for record in actual if Expected(key=key).matches(record)]
        partitions = sorted({record.partition for record in of_key})
        if len(partitions) > 1:
            raise AssertionError(
                f"topic {topic!r}: key {show(key)} is in partitions {partitions}, so its order "
                "is not defined"
            )
        problem = _describe_ordered([Expected(value=value) for value in values], of_key)
        if problem:
            count = f"expected {_count_text(len(values))}, found {len(of_key)}"
            raise AssertionError(f"topic {topic!r}, key {show(key)}: {count}\n{problem}")


# ---- groups ------------------------------------------------------------------------------------------


@keywords.checked_call
def assert_committed(
    log: Log, group_id: str, expected: Mapping[tuple[str, int], int | None]
) -> None:
    """Assert the committed offsets of a group: (topic, partition) to the offset of the next record;
    None for no commit.

    Partitions that are not named are not checked, and a group that does not exist has no commits.
    Raises AssertionError, and TypeError for another key. **Threads:** any.
    """
    __tracebackhide__ = True
    for tp in expected:
        if not isinstance(tp, tuple) or len(tp) != 2:
            raise TypeError(
                f"a key of expected is a TopicPartition or a pair (topic, partition), not {tp!r}"
            )
    commits = log.group_offsets(group_id)
    lines = []
    for tp, expected_offset in expected.items():
        commit = commits.get(TopicPartition(*tp))
        offset = None if commit is None else commit.offset
        if offset != expected_offset:
            lines.append(f"  {tp[0]}-{tp[1]}: expected {expected_offset}, found {offset}")
    if lines:
        title = f"group {group_id!r}: committed offsets differ"
        raise AssertionError("\n".join([title, *_shorten(lines)]))


@keywords.checked_call
def assert_lag(log: Log, group_id: str, expected: int, *, topic: str | None = None) -> None:
    """Assert the lag of a group: the records after its committed offsets, of all its topics or of
    one.

    The lag is not known, and equals no number, while a partition has no committed offset. Raises
    AssertionError, GroupNotFoundError. **Threads:** any.
    """
    __tracebackhide__ = True
    group = log.describe_group(group_id)
    partitions = [
        partition for partition in group.partitions if topic is None or partition.topic == topic
    ]
    lag = replace(group, partitions=tuple(partitions)).lag
    if lag == expected:
        return
    lines = [
        f"  {partition.topic}-{partition.partition}: committed {partition.position}, end "
        f"{partition.log_end_offset}, lag {partition.lag}"
        for partition in partitions
    ]
    lag_text = "none that is known" if lag is None else lag
    title = f"group {group_id!r}: expected a lag of {expected}, found {lag_text}"
    raise AssertionError("\n".join([title, *_shorten(lines)]))
