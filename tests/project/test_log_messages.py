"""Messages of the logging module: one line for each change, at INFO; none for each record; names
stay one line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.telemetry import log_messages
from embedlog.types import BRIEF_MAX, brief

QUIET = {"housekeeping": False}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=QUIET) as opened:
        opened.create_topic("orders", 3, {"segment.bytes": 500})
        yield opened


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[str]]:
    """The lines from a level on, of all that was logged since the last look."""
    caplog.set_level(logging.DEBUG, logger="embedlog")

    def look(level: int = logging.INFO) -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.levelno >= level]
        caplog.clear()
        return found

    return look


def test_a_groups_life_is_told_line_by_line(
    log: embedlog.Log, lines: Callable[..., list[str]]
) -> None:
    with log.producer() as producer:
        producer.send_batch("orders", [b"%d" % number for number in range(300)]).result(10)
    lines()
    with log.consumer("orders", group_id="g", auto_offset_reset="earliest") as consumer:
        while not consumer.poll(0.1):
            pass
        said = lines()
        assert [each for each in said if "joins for ['orders']" in each and "'g'" in each], said
        assert [
            each for each in said if "has orders[0-2] (new: orders[0-2]; revoked: nothing)" in each
        ], said
        assert [
            each
            for each in said
            if "no committed offsets of orders[0-2]: auto.offset.reset=earliest" in each
        ], said
        while consumer.poll(0.0):
            pass
        assert lines() == [], "reading logs nothing"
        consumer.commit()
        with log.consumer("orders", group_id="g", auto_offset_reset="earliest") as second:
            while not (consumer.assignment() and second.assignment()):
                consumer.poll(0.05)
                second.poll(0.05)
            said = lines()
            assert [each for each in said if "revokes orders[0-2]" in each], said
        assert [each for each in lines() if "leaves, and revokes orders" in each]
    lines()
    log.reset_group_offsets("g", "orders", to=0)
    log.delete_group_offsets("g", [TopicPartition("orders", 0)])
    log.delete_group("g")
    assert lines() == [
        "group 'g': offsets of orders[0-2] are reset",
        "group 'g': offsets of orders[0] are deleted",
        "group 'g' is deleted",
    ]


def test_topics_rolls_and_deletions_are_told(
    log: embedlog.Log, lines: Callable[..., list[str]]
) -> None:
    log.create_topic("few", 2, retention_ms=5)
    assert lines() == ["created topic few: 2 partitions, settings {'retention.ms': '5'}"]
    log.alter_topic("few", retention_ms=6)
    assert lines() == ["topic few has the settings {'retention.ms': '6'}"]
    with log.producer() as producer:
        for number in range(5):
            producer.send(
                "orders", bytes(300), partition=0, timestamp_ms=1_600_000_000_000 + number
            ).result(10)
    said = [re.sub(r" \(\d+ more since the last such message\)", "", each) for each in lines()]
    assert said[0] == "orders-0: segment 1 begins"
    assert {re.sub(r"\d+ begins", "N begins", each) for each in said} == {
        "orders-0: segment N begins"
    }, "a record is no line"
    for number in range(5):
        log.delete_records({TopicPartition("orders", 0): number})
    assert lines()[-1] == "orders-0: records below offset 4 are deleted by delete_records()"
    log.alter_topic("orders", retention_ms=1)
    lines()
    log.housekeep()
    assert [
        each for each in lines() if each.startswith("orders-0: ") and "deleted by retention" in each
    ]
    log.delete_topic("few")
    assert lines() == ["deleting topic few with 2 partitions"]


def test_a_compaction_is_told_with_its_sizes(
    log: embedlog.Log, lines: Callable[..., list[str]]
) -> None:
    log.alter_topic("orders", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    with log.producer() as producer:
        for _ in range(4):
            producer.send("orders", bytes(300), key=b"k", partition=2).result(10)
    lines()
    log.housekeep()
    said = [each for each in lines() if each.startswith("orders-2: compacted up to offset 3 in ")]
    assert len(said) == 1
    before, after = map(int, re.findall(r"(\d+) to (\d+) bytes", said[0])[0])
    assert before > after
    log.housekeep()
    assert not [each for each in lines() if "compacted" in each], "without work there is no line"


def test_frequent_rolls_are_few_lines_with_a_count(
    log: embedlog.Log, lines: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(log_messages._frequent, "_clock_s", lambda: now[0])
    with log.producer() as producer:
        for number in range(5):
            now[0] += 10 if number == 4 else 1
            producer.send("orders", bytes(300), partition=1).result(10)
    assert lines(logging.DEBUG)[-4:] == [
        "orders-1: segment 1 begins",
        "orders-1: segment 2 begins",
        "orders-1: segment 3 begins",
        "orders-1: segment 4 begins (2 more since the last such message)",
    ]
    with log.producer() as producer:
        producer.send("orders", bytes(300), partition=1).result(10)
        producer.send("orders", bytes(300), partition=2).result(10)
        producer.send("orders", bytes(300), partition=2).result(10)
    assert lines() == ["orders-2: segment 1 begins"], "each partition has its own lines"


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([], "nothing"),
        ([("a", 3)], "a[3]"),
        ([("b", 0), ("a", 2), ("a", 1), ("a", 0), ("a", 5), ("b", 1)], "a[0-2,5] b[0-1]"),
    ],
)
def test_partitions_are_told_briefly(places: list[tuple[str, int]], text: str) -> None:
    assert brief(places) == text


def test_very_many_partitions_are_one_line_of_bounded_length() -> None:
    assert len(brief((f"topic-{number}", number) for number in range(10_000))) == BRIEF_MAX


def test_a_name_with_control_characters_forges_no_line(
    log: embedlog.Log, lines: Callable[..., list[str]]
) -> None:
    evil = "x\nERROR forged \x1b[2J"
    with (
        log.producer(client_id=evil, acks=1),
        log.consumer("orders", group_id=evil, client_id=evil) as consumer,
    ):
        consumer.poll(0.2)
        assert repr(consumer).isprintable()
    said: list[Any] = lines(logging.DEBUG)
    assert [each for each in said if "forged" in each]
    assert [each for each in said if not each.isprintable()] == []
