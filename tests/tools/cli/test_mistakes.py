"""The likely mistakes of a first hour: each message says what, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog

MISTAKES: list[tuple[list[str], str]] = [
    (["produce", "events"], "FILES: no such file: events; the topic is given by -t TOPIC"),
    (["produce", "-t", "events", "."], "FILES: . is a directory: give files"),
    (["produce", "-t", "evnts"], "topic 'evnts' is unknown; did you mean 'events'?"),
    (
        ["produce", "-t", "events", "-z", "brotli"],
        "'-z' / '--compression-codec': 'brotli' is not one of 'none', 'gzip'",
    ),
    (
        ["produce", "-t", "events", "-X", "linger.ms=abc"],
        "linger.ms: expected a number from 0, found 'abc'",
    ),
    (["cat", "events", "-o", "2026-01-31"], "a time begins with @: -o @2026-01-31"),
    (
        ["cat", "events", "-o", "yesterday"],
        "-o: expected beginning, end, stored, an offset, -n, @time",
    ),
    (["cat", "events", "-p", "9"], "topic 'events' has no partition 9: expected 0 to 0, found 9"),
    (["cat", "zzz"], "topic 'zzz' is unknown; topics --create creates it, and ls lists all"),
    (
        ["cat", "events", "-X", "group.id=g"],
        "-X group.id: a member of a group is -G g; -o stored begins at its offsets",
    ),
    (
        ["consume", "-t", "events", "-G", "g", "-o", "5"],
        "embedlog groups --reset-offsets changes its positions",
    ),
    (
        ["topics", "--delete", "--topic", "zzz"],
        "--topic: no topic matches 'zzz': the whole name must match; embedlog ls lists",
    ),
    (
        ["offsets", "--topic", "zzz"],
        "--topic: no topic matches 'zzz': the whole name must match; embedlog ls lists",
    ),
    (
        ["topics", "--create", "--topic", "x", "--config", "retention=5"],
        "did you mean retention.ms?",
    ),
    (["du", "--topic-list", "zzz,events"], "--topic-list: no topic zzz in "),
    (
        ["dump", "events"],
        "expected TOPIC-NUMBER, such as web-0; embedlog ls TOPIC lists the partitions of a topic",
    ),
    (["dump", "--files", "absent.txt"], ""),
    (["groups", "--describe", "--group", "zzz"], "groups --list has the names of all"),
    (["groups", "--delete", "--group", "zzz"], "no such group; groups --list has the names of all"),
    (["groups"], "there is no group in "),
    (["configs"], "no topic has settings of its own; --all prints the effective ones"),
    (
        ["configs", "--topic", "events"],
        "events has no settings of its own; --all prints the effective ones",
    ),
    (
        ["transactions", "--describe", "--transactional-id", "zzz"],
        "no transactional id 'zzz': embedlog transactions lists all",
    ),
    (
        ["transactions", "--abort", "--transactional-id", "zzz"],
        "no transactional id 'zzz': embedlog transactions lists all",
    ),
    (
        ["mirror", "--to", "localhost:9092"],
        "expected kafka://localhost:9092 for a Kafka cluster, or directories that exist",
    ),
    (["who"], "no process of this machine that is visible to this user has "),
]


@pytest.mark.parametrize(
    ("arguments", "text"),
    MISTAKES,
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_a_likely_mistake_is_told_with_the_way_out(
    tmp_path: Path,
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("events")
    outcome = run(*arguments)
    assert outcome.status in (1, 2)
    assert outcome.err.startswith("embedlog: ") or "no such file" in outcome.out
    assert outcome.err.count("\n") == (1 if outcome.err else 0)
    assert text in outcome.err
    assert not (tmp_path / "localhost").exists()


def test_a_line_that_is_no_json_names_the_verb_for_lines(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    (tmp_path / "lines.jsonl").write_text("plain text\n")
    refused = run("import", "-t", "t", str(tmp_path / "lines.jsonl"), "--create")
    assert refused.status == 1
    assert "line 1 is not JSON: " in refused.err
    assert "embedlog produce -t TOPIC -l FILE" in refused.err
    assert not (tmp_path / "data").exists()
