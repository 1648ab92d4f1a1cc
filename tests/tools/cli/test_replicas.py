"""Sets of directories: `replicas`, `elect`, `reassign`; and `backup`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import LockTimeoutError
from embedlog.tools.cli.verbs import replicas

PLACES = ("d1", "d2", "d3")


@pytest.fixture
def on_set(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """`run` on a set of three directories, with the topic `t` of two partitions on the nodes 1 and
    2.
    """
    paths = [tmp_path / name for name in PLACES]
    with embedlog.open(paths) as log:
        log.create_topic("t", assignment={0: [1, 2], 1: [2, 1]})
        with log.producer() as producer:
            for number in range(6):
                producer.send("t", b"%d" % number, partition=number % 2)
    monkeypatch.setenv("EMBEDLOG_DIR", ":".join(map(str, paths)))
    return lambda *arguments: run(*arguments)


def moved(path: Path, *replicas: list[int]) -> str:
    entries = [
        {"topic": "t", "partition": number, "replicas": nodes}
        for number, nodes in enumerate(replicas)
    ]
    path.write_text(json.dumps({"version": 1, "partitions": entries}))
    return str(path)


def test_replicas_are_described_and_compared(on_set: Callable[..., Any], tmp_path: Path) -> None:
    found = json.loads(on_set("replicas", "--topic", "t", "--json").out)
    assert [(each["leader"], each["replicas"], each["isr"]) for each in found["partitions"]] == [
        (1, [1, 2], [1, 2]),
        (2, [2, 1], [2, 1]),
    ]
    assert "d1" in on_set("replicas").out
    assert on_set("replicas", "--verify") == (0, "", "")
    segment = tmp_path / "d2" / "t-0" / "00000000000000000000.log"
    data = segment.read_bytes()
    at = len(data.rstrip(b"\0")) // 2
    segment.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    damaged = on_set("replicas", "--verify", "--json")
    assert damaged.status == 1
    assert [
        (each["topic"], each["partition"], each["node"], each["path"])
        for each in json.loads(damaged.out)
    ] == [("t", 0, 2, str(segment))]
    assert on_set("replicas", "--repair", "--json").status == 0
    assert on_set("replicas", "--verify").status == 0
    assert segment.read_bytes() == data


def test_a_repair_after_which_replicas_are_not_in_sync_is_a_finding(
    on_set: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may take longer than the rounds of the command. Before, its status was 0."""
    monkeypatch.setattr(replicas, "_find_incomplete", lambda log, topic: ["t-0"])
    repaired = on_set("replicas", "--repair")
    assert repaired.status == 1
    assert "t-0: not all replicas are in sync" in repaired.err


def test_a_directory_that_is_away_is_a_finding(on_set: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "d2").rename(tmp_path / "away")
    with embedlog.open([tmp_path / name for name in PLACES]) as log, log.producer() as producer:
        producer.send("t", b"more", partition=0).result(30)
    assert on_set("replicas", "--topic", "t").status == 1


def test_a_replica_that_cannot_be_loaded_differs(
    on_set: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "d2" / "t-0" / "partition.metadata").write_text("no number")
    compared = on_set("replicas", "--verify")
    assert compared.status == 1
    assert "d2/t-0/partition.metadata" in compared.out


def test_leaders_are_elected(on_set: Callable[..., Any], tmp_path: Path) -> None:
    assert on_set("elect", "--topic", "t", "--partition", "0").status == 0
    away = (tmp_path / "d1").rename(tmp_path / "away")
    with embedlog.open([tmp_path / name for name in PLACES]) as log, log.producer() as producer:
        producer.send("t", b"more", partition=0).result(30)
    away.rename(tmp_path / "d1")
    with embedlog.open(
        [tmp_path / name for name in PLACES], config={"auto.leader.rebalance.enable": False}
    ) as log:
        for _ in range(20):
            log.housekeep()
        assert log.replicas("t").partitions[0].leader == 2
    given = tmp_path / "partitions.json"
    given.write_text('{"partitions": [{"topic": "t", "partition": 0}]}')
    elected = on_set(
        "elect", "--election-type", "preferred", "--path-to-json-file", str(given), "--json"
    )
    assert (elected.status, json.loads(elected.out)) == (
        0,
        [{"topic": "t", "partition": 0, "leader": 1}],
    )


def test_partitions_move(on_set: Callable[..., Any], tmp_path: Path) -> None:
    topics = tmp_path / "topics.json"
    file = tmp_path / "plan.json"
    topics.write_text('{"version": 1, "topics": [{"topic": "t"}]}')
    plan = json.loads(
        on_set(
            "reassign",
            "--generate",
            "--topics-to-move-json-file",
            str(topics),
            "--nodes",
            "2,3",
            "--json",
        ).out
    )
    assert [each["replicas"] for each in plan["current"]["partitions"]] == [[1, 2], [2, 1]]
    assert {node for each in plan["proposed"]["partitions"] for node in each["replicas"]} == {2, 3}
    assert (
        "Current partition replica assignment\n{"
        in on_set("reassign", "--generate", "--topics-to-move-json-file", str(topics)).out
    )
    file.write_text(json.dumps(plan["proposed"]))
    assert on_set("reassign", "--verify", "--reassignment-json-file", str(file)).status == 1
    done = on_set("reassign", "--execute", "--reassignment-json-file", str(file), "--json")
    assert (done.status, [each["in_progress"] for each in json.loads(done.out)]) == (
        0,
        [False, False],
    )
    assert on_set("reassign", "--verify", "--reassignment-json-file", str(file)).status == 0
    assert sorted((tmp_path / "d3").glob("t-*")) == [
        tmp_path / "d3" / "t-0",
        tmp_path / "d3" / "t-1",
    ]
    with embedlog.open([tmp_path / name for name in PLACES], read_only=True) as log:
        assert sorted(record.value for record in log.scan("t").records()) == [
            b"%d" % number for number in range(6)
        ]


def test_a_reassignment_is_cancelled(on_set: Callable[..., Any], tmp_path: Path) -> None:
    plan = moved(tmp_path / "plan.json", [3, 2], [3, 1])
    (tmp_path / "d3").rename(tmp_path / "away")  # so it cannot end
    assert (
        on_set("reassign", "--execute", "--no-wait", "--reassignment-json-file", plan).status == 0
    )
    assert len(json.loads(on_set("reassign", "--list", "--json").out)) == 2
    assert on_set("reassign", "--cancel", "--reassignment-json-file", plan).status == 0
    assert json.loads(on_set("reassign", "--list", "--json").out) == []


def test_an_assignment_that_is_not_reached_is_not_complete(
    on_set: Callable[..., Any], tmp_path: Path
) -> None:
    """The nodes in another order, a cancelled reassignment, and partitions that do not exist."""

    def verified(plan: str) -> tuple[list[list[str]], list[dict[str, Any]]]:
        text, found = (
            on_set("reassign", "--verify", "--reassignment-json-file", plan, *more)
            for more in ((), ("--json",))
        )
        assert (
            text.status
            == found.status
            == (0 if all(each["complete"] for each in json.loads(found.out)) else 1)
        )
        return [line.split(maxsplit=3) for line in text.out.splitlines()[1:]], json.loads(found.out)

    rows, found = verified(moved(tmp_path / "plan.json", [2, 1], [2, 1]))
    assert rows == [
        ["t", "0", "1,2", "replica set is 1,2 rather than 2,1"],
        ["t", "1", "2,1", "complete"],
    ]
    assert found == [
        {
            "topic": "t",
            "partition": 0,
            "replicas": [1, 2],
            "in_progress": False,
            "wanted": [2, 1],
            "complete": False,
        },
        {
            "topic": "t",
            "partition": 1,
            "replicas": [2, 1],
            "in_progress": False,
            "wanted": [2, 1],
            "complete": True,
        },
    ]
    rows, found = verified(moved(tmp_path / "plan.json", [1, 2], [2, 1], [1, 2]))
    assert rows[2] == ["t", "2", "-", "unknown partition"]
    assert (found[2]["replicas"], found[2]["wanted"], found[2]["complete"]) == ([], [1, 2], False)
    plan = moved(tmp_path / "plan.json", [3, 2], [2, 1])
    (tmp_path / "d3").rename(tmp_path / "away")  # so it cannot end
    on_set("reassign", "--execute", "--no-wait", "--reassignment-json-file", plan)
    rows, found = verified(plan)
    assert (rows[0][-1], found[0]["in_progress"], found[0]["complete"]) == (
        "in progress",
        True,
        False,
    )
    cancelled = on_set("reassign", "--cancel", "--reassignment-json-file", plan)
    assert (cancelled.status, cancelled.out.splitlines()[1].split(maxsplit=3)[-1]) == (
        0,
        "replica set is 2,1 rather than 3,2",
    )
    rows, found = verified(plan)
    assert (rows[0][-1], found[0]["in_progress"], found[0]["complete"]) == (
        "replica set is 2,1 rather than 3,2",
        False,
        False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("reassign",),
        ("reassign", "--execute"),
        ("reassign", "--generate"),
        ("elect",),
        ("elect", "--topic", "t", "--all-topic-partitions"),
        ("reassign", "--execute", "--reassignment-json-file", "FILE"),
        ("elect", "--path-to-json-file", "FILE"),
        ("reassign", "--generate", "--topics-to-move-json-file", "FILE"),
    ],
)
def test_a_command_line_that_cannot_be_read_changes_nothing(
    on_set: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "bad.json").write_text('{"partitions": 7, "topics": [1]}')
    outcome = on_set(
        *(str(tmp_path / "bad.json") if each == "FILE" else each for each in arguments)
    )
    assert (outcome.status, outcome.out) == (2, "")


def test_one_directory_has_no_replicas_to_move(events: Callable[..., Any], tmp_path: Path) -> None:
    assert events("replicas").status == 0
    assert events("replicas", "--verify").status == 0
    assert events("elect", "--all-topic-partitions").status == 2
    assert events("reassign", "--list", "--json").out == "[]\n"
    refused = events(
        "reassign", "--execute", "--reassignment-json-file", moved(tmp_path / "plan.json", [1, 2])
    )
    assert (refused.status, refused.out) == (2, "")


def test_a_backup_is_a_log(events: Callable[..., Any], tmp_path: Path) -> None:
    events("produce", "-t", "events", stdin=b"a\nb\n")
    made = events("backup", str(tmp_path / "copy"), "--json")
    assert (made.status, json.loads(made.out)["destination"]) == (0, str(tmp_path / "copy"))
    with embedlog.open(tmp_path / "copy", read_only=True) as log:
        assert [record.value for record in log.scan("events").records()] == [b"a", b"b"]
    assert events("backup", str(tmp_path / "copy")).status == 2


# ---- directories ---------------------------------------------------------------------------------


def nodes(outcome: Any) -> list[tuple[int, str, int]]:
    return [(each["node"], each["state"], each["holds"]) for each in json.loads(outcome.out)]


def test_a_log_grows_to_a_set_whose_lost_directory_is_replaced(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in PLACES]
    with embedlog.open(paths[0]) as log:
        log.create_topic("t", 2)
    monkeypatch.setenv("EMBEDLOG_DIR", str(paths[0]))
    assert run("directories", "--add", str(paths[1])).status == 0
    monkeypatch.setenv("EMBEDLOG_DIR", ":".join(map(str, paths[:2])))
    assert nodes(run("directories", "--json")) == [(1, "live", 2), (2, "live", 0)]
    assert "one copy only (t)" in run("directories").out
    grown = run("directories", "--add", str(paths[2]), "--replicate", "3", "--json")
    assert nodes(grown) == [(1, "live", 2), (2, "live", 2), (3, "live", 2)]
    monkeypatch.setenv("EMBEDLOG_DIR", ":".join(map(str, paths)))
    (tmp_path / "d2").rename(tmp_path / "lost")
    away = run("directories", "--json")
    assert (away.status, nodes(away)[1]) == (1, (2, "away", 2))
    replaced = run("directories", "--replace", "2", "--json")
    assert (replaced.status, nodes(replaced)) == (
        0,
        [(1, "live", 2), (2, "live", 2), (3, "live", 2)],
    )
    assert run("replicas", "--verify").status == 0
    refused = run("directories", "--replace", "2")
    assert (refused.status, refused.out) == (2, "")
    assert "answers" in refused.err
    (tmp_path / "d3").rename(tmp_path / "lost too")
    assert run("directories", "--retire", "3").status == 2
    assert nodes(run("directories", "--retire", "3", "--force", "--json")) == [
        (1, "live", 2),
        (2, "live", 2),
    ]


def test_a_wait_for_copies_goes_on_while_another_process_does_the_housekeeping(
    on_set: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    housekeep = embedlog.Log.housekeep

    def refused(log: embedlog.Log) -> None:
        housekeep(log)
        raise LockTimeoutError("lock not free before the deadline; held by another housekeeper")

    (tmp_path / "d2").rename(tmp_path / "lost")
    with monkeypatch.context() as patch:
        patch.setattr(embedlog.Log, "housekeep", refused)
        replaced = on_set("directories", "--replace", "2", "--json")
    assert (replaced.status, nodes(replaced)) == (
        0,
        [(1, "live", 2), (2, "live", 2), (3, "live", 0)],
    )
    assert on_set("replicas", "--verify").status == 0


@pytest.mark.parametrize(
    "words", [["--witness"], ["--path", "x"], ["--force"], ["--no-wait"], ["--replace", "9"]]
)
def test_options_of_another_action_are_refused(
    on_set: Callable[..., Any], words: list[str]
) -> None:
    outcome = on_set("directories", *words)
    assert (outcome.status, outcome.out) == (2, "")
