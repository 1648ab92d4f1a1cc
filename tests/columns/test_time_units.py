"""A time in seconds, where milliseconds belong, is said: it selects everything or nothing, and
looks like an answer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition

SECONDS = 1_795_922_613
T0 = TopicPartition("t", 0)
CALLS: dict[str, Callable[[embedlog.Log, Any], object]] = {
    "scan, start": lambda log, time: log.scan("t", start_time=time),
    "scan, end": lambda log, time: log.scan("t", end_time=time),
    "offsets_for_times": lambda log, time: log.consumer("t").offsets_for_times({T0: time}),
    "reset_group_offsets": lambda log, time: log.reset_group_offsets(
        "g", "t", to={"time": time}, dry_run=True
    ),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t")
        yield opened


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_time_in_seconds_warns_at_the_callers_line(
    log: embedlog.Log, call: Callable[[embedlog.Log, Any], object]
) -> None:
    with pytest.warns(RuntimeWarning, match="is in 1970, because it is in milliseconds") as caught:
        call(log, SECONDS)
    assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_times_do_not(log: embedlog.Log, call: Callable[[embedlog.Log, Any], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for time in (
            0,
            99_999_999,
            SECONDS * 1000,
            datetime.fromtimestamp(SECONDS, UTC),
            datetime(1970, 1, 15, tzinfo=UTC),
        ):
            call(log, time)
