"""Verbs on a set while a directory is away: lists print what can be read, and name the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog

PLACES = ("d1", "d2", "d3")


@pytest.fixture
def on_set(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """`run` on a set whose second directory is away, and with it the partition 1 of `t`; `u` and
    `v` have all copies.
    """
    paths = [tmp_path / name for name in PLACES]
    with embedlog.open(paths, config={"offsets.topic.num.partitions": 2}) as log:
        log.create_topic("t", assignment={0: [1], 1: [2], 2: [3]})
        for topic in ("u", "v"):
            log.create_topic(topic, assignment={0: [1, 2, 3]})
        with log.producer() as producer:
            for partition in range(3):
                producer.send("t", b"t%d" % partition, partition=partition)
            producer.send("u", b"u")
        with log.consumer("t", "u", group_id="g", auto_offset_reset="earliest") as consumer:
            read = 0
            while read < 4:
                read += len(consumer.poll(1))
            consumer.commit()
    (tmp_path / "d2").rename(tmp_path / "away")
    monkeypatch.setenv("EMBEDLOG_DIR", ":".join(map(str, paths)))
    return lambda *arguments: run(*arguments)


def test_ls_prints_what_can_be_read(on_set: Callable[..., Any]) -> None:
    found = on_set("ls", "--json")
    assert [(each["topic"], each["records"]) for each in json.loads(found.out)] == [
        ("t", 2),
        ("u", 1),
        ("v", 0),
    ]
    assert found.status == 1
    assert "t-1" in found.err
    found = on_set("ls", "t", "--json")
    assert [each["partition"] for each in json.loads(found.out)] == [0, 2]
    assert found.status == 1
    assert on_set("ls", "u", "v").status == 0


def test_a_partition_without_a_leader_is_described(on_set: Callable[..., Any]) -> None:
    found = on_set("topics", "--describe", "--topic", "t", "--json")
    (topic,) = json.loads(found.out)
    rows = [
        (each["partition"], each["replicas"], each["log_end_offset"], each["size_bytes"])
        for each in topic["partitions"]
    ]
    assert rows[1] == (1, [2], None, None)
    assert [row[:3] for row in rows[::2]] == [(0, [1], 1), (2, [3], 1)]
    assert found.status == 1
    assert "t-1" in found.err


def test_partitions_without_a_leader_are_listed(on_set: Callable[..., Any]) -> None:
    found = on_set(
        "topics", "--describe", "--unavailable-partitions", "--exclude-internal", "--json"
    )
    listed = [
        (topic["topic"], [each["partition"] for each in topic["partitions"]])
        for topic in json.loads(found.out)
    ]
    assert listed == [("t", [1])]
    assert (
        on_set("topics", "--describe", "--unavailable-partitions", "--exclude-internal").out.count(
            "\n"
        )
        == 3
    )
    assert on_set("topics", "--describe", "--unavailable-partitions", "--topic", "u", "--json")[
        :2
    ] == (0, "[]\n")


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    ("options", "lines", "status"),
    [
        (["--topic", "u"], ["u:0:1"], 0),
        (["--topic-partitions", "u:0,v"], ["u:0:1", "v:0:0"], 0),
        (["--topic", "t"], ["t:0:1", "t:2:1"], 1),
        (["--topic", "t", "--partitions", "1"], [], 1),
        (["--exclude-internal-topics"], ["t:0:1", "t:2:1", "u:0:1", "v:0:0"], 1),
        (["--exclude-internal-topics", "--time", "0"], ["t:0:0", "t:2:0", "u:0:0"], 1),
    ],
)
def test_offsets_of_partitions_with_a_leader(
    on_set: Callable[..., Any], options: list[str], lines: list[str], status: int
) -> None:
    found = on_set("offsets", *options)
    assert found.out.splitlines() == lines
    assert found.status == status
    assert ("t-1" in found.err) == bool(status)


def test_groups_are_listed_and_described(on_set: Callable[..., Any]) -> None:
    assert on_set("groups", "--list")[:2] == (0, "g\n")
    (group,) = json.loads(on_set("groups", "--describe", "--group", "g", "--json").out)
    places = [
        (each["topic"], each["partition"], each["offset"], each["log_end_offset"])
        for each in group["partitions"]
    ]
    assert places == [("t", 0, 1, 1), ("t", 1, 1, None), ("t", 2, 1, 1), ("u", 0, 1, 1)]


def test_records_of_partitions_with_a_leader_are_printed(on_set: Callable[..., Any]) -> None:
    assert on_set("cat", "t", "-p", "0")[:2] == (0, "t0\n")
    assert on_set("cat", "t", "-p", "0,2")[:2] == (0, "t0\nt2\n")
    for options in (("-p", "1"), ("-p", "0,1")):
        found = on_set("cat", "t", *options)
        assert (found.status, found.out) == (1, "")
        assert "t-1" in found.err


@pytest.mark.parametrize(
    "options", [("cat",), ("consume", "-o", "beginning", "-e"), ("cat", "-X", "max.poll.records=1")]
)
def test_all_records_that_can_be_read_are_printed_before_the_failure(
    on_set: Callable[..., Any], options: tuple[str, ...]
) -> None:
    found = on_set(*options, "t", "u")
    assert found.out.splitlines() == ["t0", "t2", "u"]
    assert found.status == 1
    assert "t-1" in found.err
    assert on_set(*options, "u")[:2] == (0, "u\n")


def test_a_check_reports_what_it_could_not_read(on_set: Callable[..., Any], tmp_path: Path) -> None:
    found = on_set("check", "--json")
    findings = [
        (each["kind"], each["path"], each["topic"], each["partition"])
        for each in json.loads(found.out)["findings"]
    ]
    assert findings == [("away", str(tmp_path / "d2"), None, None), ("leader", "t-1", "t", 1)]
    assert found.status == 1
    assert "in order" not in on_set("check").out


def test_the_space_in_other_directories_is_printed(
    on_set: Callable[..., Any], tmp_path: Path
) -> None:
    found = on_set("du", "--topic-list", "t,u", "--json")
    rows = {
        (each["broker"], directory["logDir"]): (
            directory["error"],
            [part["partition"] for part in directory["partitions"]],
        )
        for each in json.loads(found.out)["brokers"]
        for directory in each["logDirs"]
    }
    error, partitions = rows.pop((2, str(tmp_path / "d2")))
    assert "d2" in error
    assert not partitions
    assert rows == {
        (1, str(tmp_path / "d1")): (None, ["t-0", "u-0"]),
        (3, str(tmp_path / "d3")): (None, ["t-2", "u-0"]),
    }
    assert found.status == 1
    assert "d2: no such log directory" in found.err
    table = on_set("du", "--topic-list", "t,u")
    assert table.status == 1
    assert len(table.out.splitlines()) == 5
