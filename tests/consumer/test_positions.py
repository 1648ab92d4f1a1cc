"""Positions of a cursor: advance, rewind, reset policy, and the order of the partitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from embedlog._native._rows import Record
from embedlog.consumer.positions import Cursor, Reset, Rotation
from embedlog.errors import NoOffsetForPartitionError, StateError
from embedlog.types import OffsetAndTimestamp, TopicPartition

T0 = TopicPartition("t", 0)


class Bounds(NamedTuple):
    log_start: int = 3
    log_end: int = 20
    high_watermark: int = 18
    last_stable: int = 15
    epoch: int = 0


class Dated:
    """A partition with bounds, and one record per second from offset 3."""

    topic = "t"
    number = 0

    def bounds(self) -> Bounds:
        return Bounds()

    def offset_for_time(self, time_ms: int, isolation: str) -> OffsetAndTimestamp | None:
        offset = max(3, 3 + -(-time_ms // 1000))
        return OffsetAndTimestamp(offset, (offset - 3) * 1000, 0) if offset < 20 else None


def record(offset: int) -> Record:
    return Record("t", 0, offset, 0, 0, None, b"%d" % offset)


def cursor(*offsets: int, next_offset: int | None = None) -> Cursor:
    made = Cursor(T0, Dated(), None)
    made.seek(offsets[0] if offsets else 0)
    made.fill(
        [record(offset) for offset in offsets],
        offsets[-1] + 1 if next_offset is None else next_offset,
    )
    return made


@pytest.mark.parametrize(
    ("policy", "isolation", "offset"),
    [
        ("earliest", "read_uncommitted", 3),
        ("latest", "read_uncommitted", 18),
        ("latest", "read_committed", 15),
        ("by_duration:PT8S", "read_uncommitted", 5),
        ("by_duration:PT0S", "read_uncommitted", 13),
        ("by_duration:P1D", "read_committed", 3),
    ],
)
def test_a_policy_leads_to_an_offset(policy: str, isolation: str, offset: int) -> None:
    assert (
        Reset(policy).find_position(Dated(), Dated().bounds(), isolation, lambda: 10_000)[0]
        == offset
    )


def test_a_duration_that_meets_no_record_leads_to_the_end() -> None:
    assert (
        Reset("by_duration:PT1S").find_position(
            Dated(), Dated().bounds(), "read_committed", lambda: 10**9
        )[0]
        == 15
    )


def test_no_policy_names_the_partition() -> None:
    with pytest.raises(NoOffsetForPartitionError, match="t-0"):
        Reset("none").find_position(Dated(), Dated().bounds(), "read_uncommitted", lambda: 0)


def test_the_position_is_the_next_record_across_gaps() -> None:
    standing = cursor(5, 9, 10, next_offset=14)
    assert standing.position == 5
    assert [each.offset for each in standing.take(1)] == [5]
    assert standing.position == 9
    assert [each.offset for each in standing.take(10)] == [9, 10]
    assert standing.position == 14
    assert standing.take(1) == []


def test_a_lent_iterator_moves_the_position_as_it_is_read() -> None:
    standing = cursor(5, 6, 7)
    iterator = standing.open_iterator()
    assert standing.position == 5
    next(iterator)
    assert standing.position == 6
    next(iterator)
    next(iterator)
    assert standing.position == 8
    assert next(iterator, None) is None
    assert standing.position == 8


def test_a_recalled_iterator_is_exhausted_and_its_rest_is_handed_out_next() -> None:
    standing = cursor(5, 6, 7)
    iterator = standing.open_iterator()
    next(iterator)
    standing.close_iterator()
    assert next(iterator, None) is None
    assert [each.offset for each in standing.take(9)] == [6, 7]


def test_a_seek_ends_a_lent_iterator() -> None:
    standing = cursor(5, 6, 7)
    iterator = standing.open_iterator()
    next(iterator)
    standing.seek(40)
    assert next(iterator, None) is None
    assert standing.position == 40
    assert not standing.has_records


def test_dropping_what_was_fetched_keeps_the_position() -> None:
    standing = cursor(5, 6, 7)
    standing.take(1)
    standing.drop_ahead()
    assert (standing.position, standing.has_records) == (6, False)


def named(*names: str) -> list[Cursor]:
    return [Cursor(TopicPartition(name, 0), None, None) for name in names]


def row(rotation: Rotation) -> list[str]:
    return [each.tp.topic for each in rotation.readable_cursors()]


def test_a_drained_partition_goes_to_the_back() -> None:
    rotation = Rotation()
    a, b, c = named("a", "b", "c")
    rotation.replace([a, b, c])
    rotation.end_turn(a)
    assert row(rotation) == ["b", "c", "a"]
    rotation.end_turn(c)
    assert row(rotation) == ["b", "a", "c"]


def test_a_new_assignment_keeps_the_row_of_those_that_stay() -> None:
    rotation = Rotation()
    a, b, c, d = named("a", "b", "c", "d")
    rotation.replace([a, b, c])
    rotation.end_turn(a)
    rotation.replace([a, c, d])
    assert row(rotation) == ["c", "a", "d"]


def test_paused_partitions_have_no_turn() -> None:
    rotation = Rotation()
    a, b = named("a", "b")
    rotation.replace([a, b])
    a.paused = True
    assert row(rotation) == ["b"]


def test_a_partition_that_is_not_assigned_is_named() -> None:
    with pytest.raises(StateError, match="t-0 is not assigned"):
        Rotation().get(T0)


def test_pick_without_names_is_all() -> None:
    rotation = Rotation()
    cursors: list[Any] = named("a", "b")
    rotation.replace(cursors)
    assert rotation.pick([]) == cursors
    assert rotation.pick([TopicPartition("b", 0)]) == cursors[1:]
