"""Tables: no number and no name of a column is broken, at any width of a terminal."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.tools.cli.tables import columns_of, shorten, table_lines

LONG_TOPIC = "orders-of-the-european-warehouse-" + "2026." * 20 + "end"
LONG_GROUP = "readers of the european warehouse/" + "x" * 60
SHORTEST = 40


def test_a_row_that_does_not_fit_continues_with_whole_columns() -> None:
    head = ["group", "partition", "current-offset", "lag"]
    rows = [["readers", 0, 1234567890123456789, None], ["g" * 50, 12, 5, 3]]
    assert table_lines(head, rows, SHORTEST) == [
        "GROUP",
        "  PARTITION       CURRENT-OFFSET  LAG",
        "readers",
        "          0  1234567890123456789    -",
        "gggggggggggggggggggg…ggggggggggggggggggg",
        "         12                    5    3",
    ]


def test_a_table_without_a_limit_has_a_line_for_each_row_and_cuts_nothing() -> None:
    rows = [["a" * 300, 1], ["b\nc\x1b[31m", 2]]
    assert table_lines(["name", "count"], rows, None) == [
        f"{'NAME':<300}  COUNT",
        f"{'a' * 300}      1",
        f"{'b␊c␛[31m':<300}      2",
    ]


def test_a_sentence_continues_at_a_space() -> None:
    reason = "a setting of the broker: give it to open(), if it has a meaning there"
    lines = table_lines(["topic", "reason"], [["t", reason]], SHORTEST)
    assert all(columns_of(line) <= SHORTEST for line in lines)
    assert reason in " ".join(" ".join(lines).split())


def test_wide_characters_take_two_columns() -> None:
    assert columns_of("日本e\u0301") == 5
    assert shorten("日本日本日本", 7) == "日…日本"
    assert columns_of(shorten("日" * 50, 30)) <= 30


def test_tables_of_random_cells_fit_and_have_each_number_whole(rng: random.Random) -> None:
    for _ in range(300):
        head = [
            rng.choice(["n", "partition", "log-end-offset", "assignment-strategy"])
            for _ in range(rng.randrange(1, 10))
        ]
        texts = ["é", "x" * rng.randrange(1, 90), "日本" * 20, "and a word " * 9 + "y" * 90]
        numeric = [rng.random() < 0.5 for _ in head]
        rows = [
            [
                rng.randrange(10 ** rng.randrange(1, 19)) if is_number else rng.choice(texts)
                for is_number in numeric
            ]
            for _ in range(rng.randrange(4))
        ]
        width = rng.choice([SHORTEST, 80, 200])
        lines = table_lines(head, rows, width)
        assert max(map(columns_of, lines)) <= width
        words = {word for line in lines for word in line.split()}
        assert {name.upper() for name in head} <= words
        assert {
            str(cell)
            for row in rows
            for cell, is_number in zip(row, numeric, strict=True)
            if is_number
        } <= words


# ---- the tables of all verbs ---------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A log with long names and large numbers, in the directory `data`."""
    path = tmp_path / "data"
    with embedlog.open(path) as log:
        log.create_topic(
            LONG_TOPIC,
            2,
            config={"retention.ms": "9223372036854775807", "segment.bytes": "1073741824"},
        )
        log.create_topic("t")
        with log.producer(transactional_id=f"id {'y' * 60}") as producer:
            producer.init_transactions()
            with producer.transaction():
                for number in range(2):
                    producer.send_batch(LONG_TOPIC, [b"x" * 10] * 19255, partition=number)
        client_id = "worker-" + "z" * 40
        with log.consumer(
            LONG_TOPIC, group_id=LONG_GROUP, auto_offset_reset="earliest", client_id=client_id
        ) as reader:
            reader.poll(5)
            reader.commit()
    return path


TABLES = {
    "ls": ["ls"],
    "ls of a topic": ["ls", LONG_TOPIC],
    "du": ["du"],
    "du, bytes": ["du", "--bytes", "-a"],
    "topics": ["topics", "--describe"],
    "groups": ["groups", "--describe", "--all-groups"],
    "states of groups": ["groups", "--describe", "--all-groups", "--state"],
    "types of groups": ["groups", "--list", "--type"],
    "reset": ["groups", "--reset-offsets", "--all-groups", "--all-topics", "--to-earliest"],
    "transactions": ["transactions"],
    "configs": ["configs"],
    "all configs": ["configs", "--all"],
    "replicas": ["replicas"],
    "metrics": ["metrics"],
    "handover": ["handover", "to-kafka", "--dry-run"],
}


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("columns", [SHORTEST, 80, 200])
def test_each_table_of_a_verb_fits_and_has_each_number_whole(
    large: Path, run: Callable[..., Any], on_terminal: Callable[..., bytes], columns: int
) -> None:
    for name, arguments in TABLES.items():
        plain = run(*arguments).out
        shown = on_terminal(*arguments, columns=columns).decode()
        words = set(shown.split())
        lost = {
            word for word in plain.split() if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", word)
        } - words
        assert not lost, (name, shown)
        head = {
            word
            for line in plain.splitlines()
            for word in line.split()
            if re.fullmatch(r"[A-Z][A-Z-]{2,}", word)
        }
        assert head <= words, (name, shown)
        first = shown.splitlines()
        if name not in ("topics", "handover"):  # a sentence is above or below the table
            assert max(map(columns_of, first)) <= columns, (name, shown)
