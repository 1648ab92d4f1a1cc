"""Settings, deletion of records, disk space: `configs`, `delete-records`, `du`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog


def test_settings_are_changed_and_reset(events: Callable[..., Any], tmp_path: Path) -> None:
    added = "retention.ms=5,cleanup.policy=[compact,delete]"
    done = events("configs", "--topic", "events", "--alter", "--add-config", added)
    assert (done.status, done.out) == (0, "Completed updating config for topic events.\n")
    shown = json.loads(
        events(
            "configs", "--entity-type", "topics", "--entity-name", "events", "--describe", "--json"
        ).out
    )
    assert shown == [
        {"topic": "events", "name": "cleanup.policy", "value": "compact,delete", "origin": "topic"},
        {"topic": "events", "name": "retention.ms", "value": "5", "origin": "topic"},
    ]
    every = {
        row["name"]: (row["value"], row["origin"])
        for row in json.loads(events("configs", "--all", "--json").out)
    }
    assert every["retention.ms"] == ("5", "topic")
    assert every["segment.bytes"] == ("1073741824", "default")
    assert (
        events("configs", "--topic", "events", "--alter", "--delete-config", "retention.ms").status
        == 0
    )
    (tmp_path / "settings").write_text("# comment\nretention.bytes=7\n")
    assert (
        events(
            "configs",
            "--topic",
            "events",
            "--alter",
            "--add-config-file",
            str(tmp_path / "settings"),
        ).status
        == 0
    )
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        assert dict(log.describe_topic("events").config) == {
            "cleanup.policy": "compact,delete",
            "retention.bytes": "7",
        }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--entity-type", "brokers"),
        ("--alter", "--add-config", "retention.ms=5"),
        ("--alter", "--topic", "events"),
        ("--add-config", "retention.ms=5"),
        ("--alter", "--topic", "events", "--add-config", "nonsense=5"),
        ("--alter", "--topic", "events", "--delete-config", "retention.ms"),
        ("--alter", "--topic", "events", "--add-config", "x"),
    ],
)
def test_a_wrong_change_is_refused(events: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    outcome = events("configs", *arguments)
    assert (outcome.status, outcome.out) == (2, "")


def test_no_settings_are_nothing_found(events: Callable[..., Any]) -> None:
    assert events("configs").status == 1
    assert events("configs", "--topic", "absent").status == 1


# ---- delete-records ------------------------------------------------------------------------------


@pytest.fixture
def filled(events: Callable[..., Any]) -> Callable[..., Any]:
    assert events("produce", "-t", "events", stdin=b"a\nb\nc\n").status == 0
    return events


def test_records_are_deleted_by_a_file_and_by_options(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    request = tmp_path / "request"
    request.write_text(
        '{"partitions": [{"topic": "events", "partition": 0, "offset": 1}], "version": 1}'
    )
    assert (
        filled("delete-records", "--offset-json-file", str(request)).out
        == "partition: events-0\tlow_watermark: 1\n"
    )
    assert filled("cat", "events").out == "b\nc\n"
    done = filled("delete-records", "--topic", "events", "--before-offset", "-1", "--json")
    assert json.loads(done.out) == [{"topic": "events", "partition": 0, "low_watermark": 3}]
    assert filled("cat", "events").status == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"partitions": []}',
        '{"partitions": 1}',
        '{"partitions": [1]}',
        '{"partitions": [{"topic": 1}]}',
        '{"partitions": [{"topic": "events", "partition": 0, "offset": "1"}]}',
        "[" * 5000,
        "null",
        '{"partitions": null}',
        '{"partitions": [{"topic": "events", "partition": 0, "offset": 1}], "version": 2}',
        '{"partitions": [{"topic": "events", "partition": 0, "offset": 1}, {"topic": "events", '
        '"partition": 0, "offset": 2}]}',
    ],
)
def test_a_hostile_request_is_refused(
    filled: Callable[..., Any], tmp_path: Path, text: str
) -> None:
    (tmp_path / "request").write_text(text)
    outcome = filled("delete-records", "--offset-json-file", str(tmp_path / "request"))
    assert (outcome.status, outcome.out) == (2, "")
    assert filled("offsets", "--time", "earliest").out == "events:0:0\n"


@pytest.fixture
def wide(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with a topic of three partitions, which have one record each."""
    assert run("topics", "--create", "--topic", "wide", "--partitions", "3").status == 0
    for number in ("0", "1", "2"):
        assert run("produce", "-t", "wide", "-p", number, stdin=b"x\n").status == 0
    return run


def starts(run: Callable[..., Any]) -> str:
    return " ".join(run("offsets", "--topic", "wide", "--time", "earliest").out.split())


def test_of_several_partitions_one_or_all_are_named(wide: Callable[..., Any]) -> None:
    refused = wide("delete-records", "-t", "wide", "--before-offset", "-1")
    assert (refused.status, refused.out) == (2, "")
    assert (
        "--partition: wide has the partitions 0,1,2: give one of them, or --all-partitions"
        in refused.err
    )
    assert starts(wide) == "wide:0:0 wide:1:0 wide:2:0"
    assert (
        wide("delete-records", "-t", "wide", "-p", "1", "--before-offset", "-1").out
        == "partition: wide-1\tlow_watermark: 1\n"
    )
    assert starts(wide) == "wide:0:0 wide:1:1 wide:2:0"
    done = wide(
        "delete-records", "-t", "wide", "--all-partitions", "--before-offset", "-1", "--json"
    )
    assert [(each["partition"], each["low_watermark"]) for each in json.loads(done.out)] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    assert starts(wide) == "wide:0:1 wide:1:1 wide:2:1"


def test_an_absent_partition_deletes_nothing(wide: Callable[..., Any]) -> None:
    refused = wide("delete-records", "-t", "wide", "-p", "3", "--before-offset", "-1")
    assert (refused.status, refused.out) == (1, "")
    assert wide("delete-records", "-t", "absent", "--before-offset", "-1").status == 1
    assert (
        wide("delete-records", "-t", "wide", "--all-partitions", "--before-offset", "9").status == 1
    )
    assert starts(wide) == "wide:0:0 wide:1:0 wide:2:0"


def test_an_offset_outside_of_the_log_deletes_nothing(filled: Callable[..., Any]) -> None:
    assert filled("delete-records", "--topic", "events", "--before-offset", "9").status == 1
    assert filled("delete-records", "--topic", "events").status == 2
    assert filled("offsets", "--time", "earliest").out == "events:0:0\n"


# ---- du ------------------------------------------------------------------------------------------


def test_space_has_the_document_of_kafka(filled: Callable[..., Any], tmp_path: Path) -> None:
    size = (tmp_path / "data" / "events-0" / f"{0:020}.log").stat().st_size
    found = json.loads(filled("du", "--json", "--describe").out)
    assert found["version"] == 1
    (directory,) = found["brokers"][0]["logDirs"]
    assert (directory["logDir"], directory["error"]) == (str(tmp_path / "data"), None)
    assert {"partition": "events-0", "size": size, "offsetLag": 0, "isFuture": False} in directory[
        "partitions"
    ]
    assert filled("du", "--bytes", "--topic-list", "events").out.split()[-3:] == [
        str(tmp_path / "data"),
        "events-0",
        str(size),
    ]
    assert filled("du", "--topic-list", "absent").status == 1


def test_each_directory_of_a_set_is_a_broker(run: Callable[..., Any], tmp_path: Path) -> None:
    places = [str(tmp_path / name) for name in ("a", "b", "c")]
    chosen = [option for place in places for option in ("-d", place)]
    assert (
        run(
            *chosen,
            "topics",
            "--create",
            "--topic",
            "events",
            "--partitions",
            "1",
            "--replication-factor",
            "2",
        ).status
        == 0
    )
    assert run(*chosen, "produce", "-t", "events", "--acks", "all", stdin=b"a\n").status == 0
    outcome = run(*chosen, "du", "--topic-list", "events", "--json")
    assert outcome.status == 0, outcome.err
    brokers = json.loads(outcome.out)["brokers"]
    assert len({each["broker"] for each in brokers}) == 3
    assert [each["logDirs"][0]["logDir"] for each in brokers] == places
    sizes = [
        part["size"]
        for each in brokers
        for part in each["logDirs"][0]["partitions"]
        if part["partition"] == "events-0"
    ]
    assert len(sizes) == 2
    assert len(set(sizes)) == 1
