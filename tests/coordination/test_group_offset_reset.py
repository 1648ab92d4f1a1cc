"""Reset targets: the forms of `to=`, and their offsets, as in Kafka's own tool; ambiguous input is
refused.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from embedlog.coordination.groups.group_offset_reset import Target, clamp, parse_target
from embedlog.errors import ConfigError, InvalidTimestampError, NoOffsetForPartitionError
from embedlog.types import OffsetAndMetadata, TopicPartition

TP = TopicPartition("t", 0)
HOUR_MS = 3_600_000


def place(to: Any, committed: int | None = 12, found: int | None = 15) -> int:
    """Where `to` leads in a partition that holds the offsets 5 to 19."""
    return parse_target(to).offset(TP, start=5, end=20, committed=committed, offset_for_time=found)


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("earliest", 5),
        ("latest", 20),
        ("current", 12),
        (7, 7),
        (0, 0),
        (99, 99),
        ({"offset": 9}, 9),
        ({"shift": -3}, 9),
        ({"shift": 100}, 112),
        ({"shift": -100}, -88),
        (datetime(2024, 1, 1, tzinfo=UTC), 15),
        ({"time": 0}, 15),
        (timedelta(hours=1), 15),
        ({"duration": "PT1H"}, 15),
        ("by_duration:P1D", 15),
        ({TP: 8}, 8),
        ({("t", 0): OffsetAndMetadata(11)}, 11),
    ],
)
def test_where_it_leads(to: Any, offset: int) -> None:
    assert place(to) == offset


@pytest.mark.parametrize("to", [{"time": 5}, timedelta(0), "by_duration:PT1S"])
def test_a_time_behind_the_last_record_is_the_end(to: Any) -> None:
    assert place(to, found=None) == 20


def test_current_where_nothing_is_committed_is_the_end() -> None:
    assert place("current", committed=None) == 20


def test_a_shift_needs_a_committed_offset() -> None:
    with pytest.raises(NoOffsetForPartitionError, match="t-0"):
        place({"shift": 1}, committed=None)


@pytest.mark.parametrize(
    ("offset", "kept"), [(-88, 5), (4, 5), (5, 5), (12, 12), (20, 20), (21, 20)]
)
def test_an_offset_outside_the_log_is_moved_to_its_nearer_bound(offset: int, kept: int) -> None:
    assert clamp(offset, 5, 20) == kept


def test_an_empty_partition_has_one_place() -> None:
    assert {clamp(offset, 7, 7) for offset in (0, 7, 8)} == {7}


@pytest.mark.parametrize(
    ("to", "time_ms"),
    [
        ({"time": 77}, 77),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1000),
        (timedelta(hours=1), 9 * HOUR_MS),
        ({"duration": timedelta(hours=2)}, 8 * HOUR_MS),
        ({"duration": "PT2H"}, 8 * HOUR_MS),
        (timedelta(days=400), 0),
        ("latest", None),
        (5, None),
        ({"shift": 1}, None),
    ],
)
def test_the_time_that_is_looked_up(to: Any, time_ms: int | None) -> None:
    assert parse_target(to).time_ms(10 * HOUR_MS) == time_ms


@pytest.mark.parametrize(
    "to",
    [
        "",
        "Earliest",
        "to-earliest",
        "none",
        "P1D",
        "by_duration:",
        "by_duration:1 day",
        "12",
        "2024-01-01",
        {},
        {"to": 1},
        {"offset": 1, "shift": 1},
        {"time": 1, TP: 1},
        -1,
        {"offset": -1},
        {TP: -1},
        timedelta(seconds=-1),
        {"duration": "-P1D"},
    ],
)
def test_what_is_no_target_is_refused_with_what_is(to: Any) -> None:
    with pytest.raises(ConfigError, match=r"^to"):
        parse_target(to)


@pytest.mark.parametrize(
    "to",
    [
        None,
        True,
        1.5,
        b"earliest",
        {"offset": "5"},
        {"shift": 1.0},
        {"duration": 60},
        {TP: None},
        [5],
    ],
)
def test_what_is_of_another_type_is_refused(to: Any) -> None:
    with pytest.raises(TypeError):
        parse_target(to)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(TypeError, match="time zone"):
        parse_target(datetime(2024, 1, 1))
    with pytest.raises(InvalidTimestampError):
        parse_target({"time": -1})


def test_targets_compare_by_what_they_say() -> None:
    assert (
        parse_target({"duration": "P1D"})
        == parse_target(timedelta(days=1))
        == Target("duration", 86_400_000)
    )
