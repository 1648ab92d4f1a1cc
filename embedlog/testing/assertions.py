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
    shown,
    shown_record,
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
    """The present records of a topic, or of one partition: by partition, then by
    offset. Aborted records are not present.

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
    found: list[Record[bytes, bytes]] = []
    deadline_s = time.monotonic() + timeout
    with log.consumer(
        config={"auto.offset.reset": "earliest", "isolation.level": isolation_level}
    ) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in numbers])
        while len(found) < count:
            left_s = deadline_s - time.monotonic()
            found += consumer.poll(max(0.0, left_s))
            if left_s <= 0 and len(found) < count:
                raise AssertionError(
                    f"topic {topic!r}: {len(found)} of {count} records after {timeout:g} "
                    f"s{_listed(found)}"
                )
    return found


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
    in order, in several those of each key; True: by partition, then by offset; False:
    in any order. Raises AssertionError. **Threads:** any.

        with embedlog.testing.open_log({"orders": 1}) as log, log.producer() as producer:
            producer.send("orders", b'{"state": "new"}', key=b"o-1").result()
            embedlog.testing.assert_records(log, "orders", [("o-1", {"state": "new"})])
    """
    __tracebackhide__ = True
    wanted = [expected_record(each) for each in expected]
    found = records(log, topic, partition=partition, isolation_level=isolation_level)
    one = partition is not None or log.describe_topic(topic).partition_count == 1
    if in_order or (in_order is None and one):
        problem = _ordered_difference(wanted, found)
    else:
        problem = _unordered_difference(wanted, found, by_key=in_order is None)
    if problem:
        place = (
            f"topic {topic!r}" if partition is None else f"topic {topic!r}, partition {partition}"
        )
        raise AssertionError(
            f"{place}: expected {_counted(len(wanted))}, found {len(found)}\n{problem}"
        )


def _counted(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _ordered_difference(wanted: Sequence[Expected], found: Sequence[Any]) -> str:
    first = next(
        (
            at
            for at, (want, have) in enumerate(zip(wanted, found, strict=False))
            if not want.matches(have)
        ),
        None,
    )
    if first is None:
        if len(wanted) == len(found):
            return ""
        first = min(len(wanted), len(found))
    return "\n".join(_around(first, wanted, found))


def _around(at: int, wanted: Sequence[Expected], found: Sequence[Any]) -> Iterator[str]:
    """The first difference, its kind, and the records around it."""
    yield f"first difference at record {at}: {_kind(at, wanted, found)}"
    for number in range(max(0, at - CONTEXT), at):
        yield f"    {number}: {shown_record(found[number])}"
    yield f"  > {at}: expected {wanted[at] if at < len(wanted) else 'no record'}"
    yield (
        f"    {' ' * len(str(at))}  found    "
        f"{shown_record(found[at]) if at < len(found) else 'no record'}"
    )
    if at < len(wanted) and at < len(found):
        yield from (
            f"    {' ' * len(str(at))}  {line}" for line in wanted[at].differences(found[at])
        )
    for number in range(at + 1, min(at + 1 + CONTEXT, len(found))):
        yield f"    {number}: {shown_record(found[number])}"


def _kind(at: int, wanted: Sequence[Expected], found: Sequence[Any]) -> str:
    if at >= len(found):
        return f"{len(wanted) - at} missing at the end"
    if at >= len(wanted):
        return f"{len(found) - at} too many at the end"
    if at + 1 < len(wanted) and wanted[at + 1].matches(found[at]):
        return "a record is missing"
    if at + 1 < len(found) and wanted[at].matches(found[at + 1]):
        return "a record is not expected"
    return "another record"


def _unordered_difference(wanted: Sequence[Expected], found: Sequence[Any], *, by_key: bool) -> str:
    matched = _Matching(wanted, found).record_of
    left = [have for number, have in enumerate(found) if number not in set(matched.values())]
    missing = [want for at, want in enumerate(wanted) if at not in matched]
    lines = [f"  missing: {want}{_nearest(want, left)}" for want in missing]
    lines += [f"  not expected: {shown_record(have)}" for have in left]
    return "\n".join(_shortened(lines or (_moved(wanted, found, matched) if by_key else [])))


def _moved(
    wanted: Sequence[Expected], found: Sequence[Any], matched: Mapping[int, int]
) -> list[str]:
    """The records that come before an expected predecessor of the same key."""
    places: dict[Any, int] = {}
    moved = []
    for at in range(len(wanted)):
        have = found[matched[at]]
        if have.key is not None:
            if matched[at] < places.get(have.key, -1):
                moved.append(f"  order of key {shown(have.key)}: {shown_record(have)} is too early")
            places[have.key] = matched[at]
    return moved


class _Matching:
    """A record for as many expectations as possible: `record_of` has its index for each of them.

    Expectations with more fields choose first, and a choice is changed where another expectation
    needs the record (a maximum matching, by augmenting paths).
    """

    def __init__(self, wanted: Sequence[Expected], found: Sequence[Any]) -> None:
        self._wanted = wanted
        self._found = found
        self._fitting: dict[int, list[int]] = {}
        self.record_of: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        late = [
            at
            for at in sorted(range(len(wanted)), key=lambda at: -field_count(wanted[at]))
            if not self._take_free(at)
        ]
        for at in late:
            self._augment(at)

    def _take_free(self, at: int) -> bool:
        want = self._wanted[at]
        number = next(
            (
                number
                for number, have in enumerate(self._found)
                if number not in self._taken and want.matches(have)
            ),
            None,
        )
        if number is not None:
            self.record_of[at] = number
            self._taken[number] = at
        return number is not None

    def _augment(self, first: int) -> None:
        """Give a record to an expectation, if others can take other records instead."""
        reached = dict[int, int]()
        queue = [first]
        for at in queue:  # it grows
            for number in self._fits(at):
                if number in reached:
                    continue
                reached[number] = at
                if number not in self._taken:
                    return self._exchange(number, reached)
                queue.append(self._taken[number])

    def _fits(self, at: int) -> list[int]:
        if at not in self._fitting:
            self._fitting[at] = [
                number for number, have in enumerate(self._found) if self._wanted[at].matches(have)
            ]
        return self._fitting[at]

    def _exchange(self, number: int | None, reached: Mapping[int, int]) -> None:
        while number is not None:
            at = reached[number]
            before = self.record_of.get(at)
            self.record_of[at] = number
            self._taken[number] = at
            number = before


def _nearest(want: Expected, left: Sequence[Any]) -> str:
    """For a missing record: the differences from the record of the same key that is left, or from
    the only one that is left.
    """
    same = (
        [] if want.key is UNSET else [each for each in left if Expected(key=want.key).matches(each)]
    )
    near = same[:1] or (left if len(left) == 1 else [])
    name = "of the same key" if same else "of the only other record"
    return "".join(
        f"\n    {name}, at offset {each.offset}: {line}"
        for each in near
        for line in want.differences(each)
    )


def _shortened(lines: Sequence[str]) -> list[str]:
    more = [f"  … and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
    return [*lines[:SHOWN_MAX], *more]


def _listed(found: Sequence[Any]) -> str:
    return "".join(
        f"\n{line}" for line in _shortened([f"  {shown_record(each)}" for each in found])
    )


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
    found = records(log, topic, isolation_level=isolation_level)
    for key, values in expected.items():
        same = [each for each in found if Expected(key=key).matches(each)]
        partitions = sorted({each.partition for each in same})
        if len(partitions) > 1:
            raise AssertionError(
                f"topic {topic!r}: key {shown(key)} is in partitions {partitions}, so its order "
                "is not defined"
            )
        problem = _ordered_difference([Expected(value=value) for value in values], same)
        if problem:
            count = f"expected {_counted(len(values))}, found {len(same)}"
            raise AssertionError(f"topic {topic!r}, key {shown(key)}: {count}\n{problem}")


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
    for place in expected:
        if not isinstance(place, tuple) or len(place) != 2:
            raise TypeError(
                f"a key of expected is a TopicPartition or a pair (topic, partition), not {place!r}"
            )
    offsets = log.group_offsets(group_id)
    lines = []
    for place, wanted in expected.items():
        found = offsets.get(TopicPartition(*place))
        if (None if found is None else found.offset) != wanted:
            lines.append(
                f"  {place[0]}-{place[1]}: expected {wanted}, found "
                f"{None if found is None else found.offset}"
            )
    if lines:
        raise AssertionError(
            "\n".join([f"group {group_id!r}: committed offsets differ", *_shortened(lines)])
        )


@keywords.checked_call
def assert_lag(log: Log, group_id: str, expected: int, *, topic: str | None = None) -> None:
    """Assert the lag of a group: the records after its committed offsets, of all its topics or of
    one.

    The lag is not known, and equals no number, while a partition has no committed offset. Raises
    AssertionError, GroupNotFoundError. **Threads:** any.
    """
    __tracebackhide__ = True
    group = log.describe_group(group_id)
    parts = [each for each in group.partitions if topic is None or each.topic == topic]
    lag = replace(group, partitions=tuple(parts)).lag
    if lag == expected:
        return
    lines = [
        f"  {each.topic}-{each.partition}: committed {each.position}, end {each.log_end_offset}, "
        f"lag {each.lag}"
        for each in parts
    ]
    found = "none that is known" if lag is None else lag
    raise AssertionError(
        "\n".join(
            [f"group {group_id!r}: expected a lag of {expected}, found {found}", *_shortened(lines)]
        )
    )
