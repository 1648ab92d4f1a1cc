"""Pages show each record of a topic once and in order, and a search shows those that a slow
comparison finds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Log, Record
from embedlog.tools.console.model import pages
from embedlog.tools.console.model.filters import FilterError, Filters, parse_moment, parse_pattern
from embedlog.tools.console.model.pages import Line, PageCursor, RecordPage
from embedlog.tools.console.model.reader import Task

NOW_MS = 1_750_000_000_000


def task() -> Task:
    return Task("test", lambda task: None, reader=None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """Three partitions with gaps by markers and deleted records, and one that is empty."""
    source = random.Random(20231114)
    with embedlog.open(
        tmp_path_factory.mktemp("pages") / "log", config={"transaction.state.log.num.partitions": 1}
    ) as made:
        made.create_topic("t", 4, {"retention.ms": "-1"})
        with made.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for _ in range(60):
                producer.begin_transaction()
                for _ in range(source.randrange(20)):
                    number = source.randrange(3)
                    producer.send(
                        "t",
                        b"v%d" % source.randrange(100),
                        source.choice([None, b"a", b"b"]),
                        partition=number,
                        headers=[("h", b"%d" % source.randrange(5))] * source.randrange(3),
                        timestamp_ms=NOW_MS - source.randrange(1000),
                    )
                producer.commit_transaction()
        made.delete_records({embedlog.TopicPartition("t", 0): 40})
        yield made


def every_page(
    log: Log, cursor: PageCursor, count: int, filters: Filters | None = None
) -> list[RecordPage]:
    found = []
    following: PageCursor | None = cursor
    while following is not None:
        if filters is None:
            page = pages.read_page(log, "t", following, count)
        else:
            page = pages.search_page(log, "t", following, count, filters.compile(NOW_MS), task())
        found.append(page)
        following = page.following
        assert len(found) < 2000, "the pages have no end"
    return found


def offsets(lines: list[Line], number: int) -> list[int]:
    return [line.offset for line in lines if line.partition == number]


@pytest.mark.parametrize("newest_first", [True, False])
def test_all_pages_have_each_record_once_in_the_order_of_its_partition(
    log: Log, newest_first: bool, rng: random.Random
) -> None:
    cursor = (
        pages.cursor_at_end(log, "t", ())
        if newest_first
        else pages.cursor_at_offset(log, "t", (), 0)
    )
    count = rng.choice([1, 7, 100, 10_000])
    found = every_page(log, cursor, count)
    assert [len(page.lines) for page in found[:-1]] == [count] * (len(found) - 1)
    lines = [line for page in found for line in page.lines]
    for number in range(4):
        expected = [record.offset for record in log.scan("t", partitions=number).records()]
        assert offsets(lines, number) == (expected[::-1] if newest_first else expected)


def test_partitions_are_merged_by_time(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", 3)
        with log.producer() as producer:
            for number in range(30):
                producer.send("t", b"v", partition=number * 7 % 3, timestamp_ms=NOW_MS + number)
        times = [
            line.timestamp_ms - NOW_MS
            for page in every_page(log, pages.cursor_at_end(log, "t", ()), 4)
            for line in page.lines
        ]
        assert times == list(range(29, -1, -1))
        cursor = pages.cursor_at_time(log, "t", (), NOW_MS + 12)
        times = [
            line.timestamp_ms - NOW_MS for page in every_page(log, cursor, 4) for line in page.lines
        ]
        assert times == list(range(12, 30))
        cursor = pages.cursor_at_time(log, "t", (1,), NOW_MS + 10_000)
        assert pages.read_page(log, "t", cursor, 4).lines == ()


def slow(filters: Filters, record: Record[Any, Any]) -> bool:
    """Whether a record is selected, by other means than the search."""

    def holds(text: str, data: bytes | None) -> bool:
        if data is None:
            return False
        found = re.fullmatch("/(.*)/(i?)", text)
        if found is None:
            return text in data.decode()
        return re.search(found[1], data.decode(), re.IGNORECASE if found[2] else 0) is not None

    name, _, wanted = filters.header.partition("=")
    return (
        (not filters.key or holds(filters.key, record.key))
        and (not filters.value or holds(filters.value, record.value))
        and (
            not filters.header
            or any(each == name and holds(wanted, value) for each, value in record.headers)
        )
        and (not filters.since or record.timestamp_ms >= int(filters.since))
        and (not filters.until or record.timestamp_ms < int(filters.until))
    )


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_search_finds_what_a_slow_comparison_finds(
    log: Log, newest_first: bool, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PIECE_BYTES", 600)
    for _ in range(10):
        filters = Filters(
            rng.choice(["", "", "a", "/^[ab]$/"]),
            rng.choice(["", "1", "v7", "/V[0-4]./i", "/v(1|é)/"]),
            rng.choice(["", "", "h", "h=3", "h=/[12]/", "g"]),
            rng.choice(["", str(NOW_MS - 500)]),
            rng.choice(["", str(NOW_MS - 200)]),
        )
        cursor = (
            pages.cursor_at_end(log, "t", ())
            if newest_first
            else pages.cursor_at_offset(log, "t", (), 0)
        )
        lines = [
            line
            for page in every_page(log, cursor, rng.choice([1, 5, 50]), filters)
            for line in page.lines
        ]
        for number in range(4):
            found = [
                record.offset
                for record in log.scan("t", partitions=number).records()
                if slow(filters, record)
            ]
            assert offsets(lines, number) == (found[::-1] if newest_first else found), filters


def test_a_cancelled_search_continues_where_it_stopped(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PIECE_BYTES", 600)
    cancelled = task()
    cancelled.cancelled.set()
    cursor = pages.cursor_at_end(log, "t", ())
    matcher = Filters(value="v").compile(NOW_MS)
    page = pages.search_page(log, "t", cursor, 50, matcher, cancelled)
    assert (page.lines, page.following, page.complete) == ((), cursor, False)
    resumed = task()
    assert len(pages.search_page(log, "t", cursor, 50, matcher, resumed).lines) == 50
    assert resumed.progress is not None
    assert 0 < resumed.progress[0] < resumed.progress[1]


def test_a_deleted_record_is_no_record(log: Log) -> None:
    assert pages.read_record(log, "t", 0, 3) is None
    start = log.describe_topic("t").partitions[0].log_start_offset
    assert any(
        pages.read_record(log, "t", 0, offset) is not None for offset in range(start, start + 5)
    )


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("", None),
        ("123", 123),
        ("-5m", NOW_MS - 300_000),
        ("-2d", NOW_MS - 172_800_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T22:13:20+01:00", 1_699_996_400_000),
    ],
)
def test_times(text: str, time_ms: int | None) -> None:
    assert parse_moment("since", text, NOW_MS) == time_ms


@pytest.mark.parametrize("text", ["yesterday", "1969-01-01", "-5", "2026-13-01", "9" * 30])
def test_a_time_without_meaning_is_named(text: str) -> None:
    with pytest.raises(FilterError, match="since: "):
        parse_moment("since", text, NOW_MS)


def test_an_expression_without_meaning_is_named() -> None:
    with pytest.raises(FilterError, match="value: not a regular expression: "):
        parse_pattern("value", "/(/")
    assert (
        parse_pattern("value", ""),
        parse_pattern("value", "/a"),
        parse_pattern("value", "é"),
    ) == (
        None,
        b"/a",
        "é".encode(),
    )
