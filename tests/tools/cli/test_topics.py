"""Topics and offsets: `topics`, `ls`, `offsets`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog


def test_topics_are_created_changed_and_deleted(run: Callable[..., Any], tmp_path: Path) -> None:
    made = run(
        "topics",
        "--create",
        "--topic",
        "a.b",
        "--partitions",
        "2",
        "--config",
        "retention.ms=5",
        "--json",
    )
    assert (made.status, json.loads(made.out)) == (0, {"topic": "a.b", "created": True})
    assert run("topics", "--create", "--topic", "a.b").status == 1
    assert run("topics", "--create", "--topic", "a.b", "--if-not-exists") == (0, "", "")
    assert run("topics", "--alter", "--topic", "a.b", "--partitions", "3").status == 0
    (found,) = json.loads(run("topics", "--describe", "--topic", "a.b", "--json").out)
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        assert found["topic_id"] == log.describe_topic("a.b").topic_id
    assert (found["topic"], found["internal"], found["config"]) == (
        "a.b",
        False,
        {"retention.ms": "5"},
    )
    assert [(each["partition"], each["log_end_offset"]) for each in found["partitions"]] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert run("topics", "--delete", "--topic", "a.b").status == 0
    empty = run("topics")
    assert empty[:2] == (1, "")
    assert "there is no topic in " in empty.err
    assert run("topics", "--delete", "--topic", "a.b").status == 1
    assert run("topics", "--delete", "--topic", "a.b", "--if-exists").status == 0


def test_a_topic_is_a_pattern_except_for_create(run: Callable[..., Any]) -> None:
    for name in ("one", "onetwo", "two"):
        run("topics", "--create", "--topic", name)
    assert run("topics", "--list", "--topic", "one.*").out == "one\nonetwo\n"
    assert run("topics", "--topic", "on").status == 1
    assert run("topics", "--create", "--topic", "x.*").status == 2
    assert run("topics", "--describe", "--topics-with-overrides", "--json").out == "[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--create",),
        ("--create", "--topic", "t", "--config", "nonsense=1"),
        ("--create", "--topic", "t", "--config", "x"),
        ("--create", "--topic", "t", "--replication-factor", "2"),
        ("--create", "--topic", "t", "--replica-assignment", "a"),
        ("--alter", "--topic", "events"),
        ("--list", "--topic", "("),
    ],
)
def test_a_wrong_request_is_refused(events: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    outcome = events("topics", *arguments)
    assert (outcome.status, outcome.out) == (2, "")


def test_internal_topics_are_listed_on_request(events: Callable[..., Any], tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.reset_group_offsets("g", "events", to="earliest")
    assert events("topics", "--exclude-internal").out == "events\n"
    assert events("topics").out == "events\n"
    assert events("topics", "--include-internal").out == "__consumer_offsets\nevents\n"
    assert [row["topic"] for row in json.loads(events("ls", "--json").out)] == ["events"]
    assert [row["topic"] for row in json.loads(events("ls", "-a", "--json").out)] == [
        "__consumer_offsets",
        "events",
    ]


@pytest.fixture
def timed(run: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Timestamps 5, 9, 9, 7 in partition 0 of `a`; partition 1 and topic `b` are empty."""
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("a", 2)
        log.create_topic("b", 1)
        with log.producer() as producer:
            for time in (5, 9, 9, 7):
                producer.send("a", b"x", partition=0, timestamp_ms=time)
    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "a:0:4 a:1:0 b:0:0"),
        (("--time", "-2"), "a:0:0 a:1:0 b:0:0"),
        (("--time", "max-timestamp"), "a:0:1"),
        (("--time", "-5"), ""),
        (("--time", "6"), "a:0:1"),
        (("--topic", "a", "--partitions", "1"), "a:1:0"),
        (("--topic-partitions", "a:0,b"), "a:0:4 b:0:0"),
        (("--topic-partitions", "a:0-1"), "a:0:4"),
        (("--topic-partitions", ".*:1-"), "a:1:0"),
        (("--topic-partitions", ":-1"), "a:0:4 b:0:0"),
    ],
)
def test_offsets_are_printed_as_kafka_does(
    timed: Callable[..., Any], arguments: tuple[str, ...], expected: str
) -> None:
    outcome = timed("offsets", *arguments)
    assert (outcome.status, outcome.out.split(), outcome.err) == (0, expected.split(), "")
    found = json.loads(timed("offsets", *arguments, "--json").out)
    assert [
        f"{each['topic']}:{each['partition']}:{each['offset']}" for each in found
    ] == expected.split()


def test_changes_are_printed_as_json(run: Callable[..., Any]) -> None:
    for name in ("a.x", "a.y"):
        run("topics", "--create", "--topic", name)
    altered = run("topics", "--alter", "--topic", "a\\..", "--partitions", "3", "--json")
    assert (altered.status, json.loads(altered.out)) == (
        0,
        [{"topic": "a.x", "partitions": 3}, {"topic": "a.y", "partitions": 3}],
    )
    deleted = run("topics", "--delete", "--topic", "a\\..", "--json")
    assert (deleted.status, json.loads(deleted.out)) == (0, ["a.x", "a.y"])
    absent = run("topics", "--delete", "--topic", "a\\..", "--if-exists", "--json")
    assert (absent.status, json.loads(absent.out)) == (0, [])


def test_a_partition_that_no_topic_has_is_an_error(timed: Callable[..., Any]) -> None:
    refused = timed("offsets", "--partitions", "0,5,1,7")
    assert (refused.status, refused.out) == (1, "")
    assert "no topic that matches has such a partition: expected 0,1, found 5,7" in refused.err
    assert timed("offsets", "--topic", "b", "--partitions", "0,1").status == 1
    assert timed("offsets", "--partitions", "0,1").out == "a:0:4\na:1:0\nb:0:0\n"


def test_offsets_of_nothing_are_an_error(timed: Callable[..., Any]) -> None:
    assert timed("offsets", "--topic", "absent").status == 1
    assert timed("offsets", "--time", "soon").status == 2
    assert timed("offsets", "--topic", "a", "--topic-partitions", "b").status == 2


def test_ls_shows_topics_and_their_partitions(timed: Callable[..., Any], tmp_path: Path) -> None:
    lines = timed("ls").out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["TOPIC", "PARTITIONS", "RECORDS"],
        ["a", "2", "4"],
        ["b", "1", "0"],
    ]
    rows = json.loads(timed("ls", "a", "--json").out)
    assert [(row["partition"], row["log_end_offset"], row["path"]) for row in rows] == [
        (0, 4, str(tmp_path / "data" / "a-0")),
        (1, 0, str(tmp_path / "data" / "a-1")),
    ]
    assert timed("ls", "absent").status == 1


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--alter", "--partitions", "3", "--config", "retention.ms=1"), "--config"),
        (("--alter", "--partitions", "3", "--replication-factor", "1"), "--replication-factor"),
        (("--create", "--partitions", "5", "--replica-assignment", "1,1"), "--partitions"),
        (("--create", "--at-min-isr-partitions"), "--at-min-isr-partitions"),
        (("--delete", "--partitions", "1"), "--partitions"),
        (("--list", "--under-replicated-partitions"), "--under-replicated-partitions"),
        (("--describe", "--if-not-exists"), "--if-not-exists"),
    ],
)
def test_an_option_that_the_action_does_not_use_is_refused(
    run: Callable[..., Any], words: tuple[str, ...], option: str
) -> None:
    assert run("topics", "--create", "--topic", "t").status == 0
    before = run("topics", "--describe", "--json").out
    outcome = run("topics", "--topic", "t", *words)
    assert (outcome.status, outcome.out) == (2, "")
    assert option in outcome.err
    assert run("topics", "--describe", "--json").out == before


def test_directories_before_and_after_the_verb_are_refused(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    assert run("topics", "--create", "--topic", "t").status == 0
    data = str(tmp_path / "data")
    outcome = run("-d", data, "topics", "-d", str(tmp_path / "other"))
    assert (outcome.status, outcome.out) == (2, "")
    assert "before and after the verb" in outcome.err
    assert run("-d", data, "topics", "-d", data).out == "t\n"
