"""Groups: `groups` lists, describes, resets, exports and imports plans, deletes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition


@pytest.fixture
def grouped(run: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Topics `a` (2 partitions, 4 records with times 10, 20, 30, 40 in the first) and `b`; group
    `g` at a-0:1 and b-0:0.
    """
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("a", 2)
        log.create_topic("b", 1)
        with log.producer() as producer:
            for time in (10, 20, 30, 40):
                producer.send("a", b"x", partition=0, timestamp_ms=time)
        log.reset_group_offsets("g", to={TopicPartition("a", 0): 1, TopicPartition("b", 0): 0})
        log.reset_group_offsets("h", to={TopicPartition("a", 0): 2})
    return run


def offsets(path: Path, group: str = "g") -> dict[str, int]:
    with embedlog.open(path / "data", read_only=True) as log:
        return {
            f"{tp.topic}-{tp.partition}": offset.offset
            for tp, offset in log.group_offsets(group).items()
        }


def test_groups_are_listed_with_their_states(grouped: Callable[..., Any]) -> None:
    assert grouped("groups").out == grouped("groups", "--list").out == "g\nh\n"
    assert grouped("groups", "--list", "--state").out.split() == [
        "GROUP",
        "TYPE",
        "STATE",
        *["g", "classic", "Empty", "h", "classic", "Empty"],
    ]
    assert grouped("groups", "--list", "--state", "stable").status == 1
    assert json.loads(grouped("groups", "--type", "classic", "--json").out)[0] == {
        "group": "g",
        "type": "classic",
        "state": "Empty",
    }


def test_offsets_and_lags_are_described(grouped: Callable[..., Any]) -> None:
    lines = [
        line.split() for line in grouped("groups", "--describe", "--group", "g").out.splitlines()
    ]
    assert lines[0] == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]
    assert lines[1:] == [
        ["g", "a", "0", "1", "4", "3", "-", "-", "-"],
        ["g", "b", "0", "0", "0", "0", "-", "-", "-"],
    ]
    found = json.loads(grouped("groups", "--describe", "--all-groups", "--json").out)
    assert [(each["group"], each["lag"]) for each in found] == [("g", 3), ("h", 2)]
    assert grouped("groups", "--describe", "--group", "absent").status == 1


def test_members_and_states_are_described(grouped: Callable[..., Any], tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "data") as log,
        log.consumer("a", group_id="m", client_id="c") as consumer,
    ):
        while not consumer.assignment():
            # the end of the loop is the assignment; the test's own timeout is its deadline
            consumer.poll(timeout=0.05)
        members = grouped(
            "groups", "--describe", "--group", "m", "--members", "--verbose"
        ).out.splitlines()
        states = grouped("groups", "--describe", "--group", "m", "--state").out.splitlines()
        refused = grouped("groups", "--delete", "--group", "m", "--group", "h")
    assert members[1].split()[-2:] == ["2", "a(0,1)"]
    assert states[1].split() == ["m", "range", "Stable", "1"]
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    assert refused.out == "Deletion of requested consumer groups ('h') was successful.\n"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 4),
        (("--to-current",), 1),
        (("--to-offset", "3"), 3),
        (("--to-offset", "99"), 4),
        (("--shift-by", "-1"), 0),
        (("--shift-by", "2"), 3),
        (("--to-datetime", "1970-01-01T00:00:00.030"), 2),
        (("--by-duration", "PT1S"), 4),
    ],
)
def test_a_reset_writes_only_with_execute(
    grouped: Callable[..., Any], tmp_path: Path, mode: tuple[str, ...], expected: int
) -> None:
    arguments = ("groups", "--reset-offsets", "--group", "g", "--topic", "a:0", *mode)
    for extra in ((), ("--dry-run",)):
        planned = grouped(*arguments, *extra)
        assert planned.out.splitlines()[1].split() == ["g", "a", "0", str(expected)]
        assert "Nothing was changed" in planned.err
        assert offsets(tmp_path) == {"a-0": 1, "b-0": 0}
    done = grouped(*arguments, "--execute", "--json")
    assert (done.status, json.loads(done.out)) == (
        0,
        [{"group": "g", "topic": "a", "partition": 0, "offset": expected}],
    )
    assert offsets(tmp_path) == {"a-0": expected, "b-0": 0}


def test_an_exported_plan_is_imported(grouped: Callable[..., Any], tmp_path: Path) -> None:
    one = grouped(
        "groups", "--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--export"
    )
    assert (one.out, one.err) == ("a,0,4\nb,0,0\n", "")
    several = grouped(
        "groups", "--reset-offsets", "--all-groups", "--all-topics", "--to-earliest", "--export"
    )
    assert several.out == "g,a,0,0\ng,b,0,0\nh,a,0,0\n"
    plan = tmp_path / "plan.csv"
    plan.write_text(several.out)
    done = grouped(
        "groups",
        "--reset-offsets",
        "--group",
        "g",
        "--group",
        "h",
        "--from-file",
        str(plan),
        "--execute",
    )
    assert done.status == 0
    assert (offsets(tmp_path), offsets(tmp_path, "h")) == ({"a-0": 0, "b-0": 0}, {"a-0": 0})
    plan.write_text(one.out)
    assert (
        grouped(
            "groups", "--reset-offsets", "--group", "g", "--from-file", str(plan), "--execute"
        ).status
        == 0
    )
    assert offsets(tmp_path) == {"a-0": 4, "b-0": 0}


@pytest.mark.parametrize(
    "line",
    [
        "a,0",
        "a,x,1",
        "a,0,-1",
        "other,a,0,1",
        '"a',
        "a,0,1,2,3",
        pytest.param("a,0," + "9" * 5000, id="long"),
        pytest.param("a,0," + "9" * 200_000, id="too-long"),
        "\udcff,0,1,1",
    ],
)
def test_a_hostile_plan_is_refused(grouped: Callable[..., Any], tmp_path: Path, line: str) -> None:
    (tmp_path / "plan").write_bytes(f"a,0,1\n{line}\n".encode("utf-8", "surrogateescape"))
    outcome = grouped(
        "groups",
        "--reset-offsets",
        "--group",
        "g",
        "--from-file",
        str(tmp_path / "plan"),
        "--execute",
    )
    assert outcome.status == 2
    assert "line 2" in outcome.err
    assert offsets(tmp_path) == {"a-0": 1, "b-0": 0}


def test_offsets_and_groups_are_deleted(grouped: Callable[..., Any], tmp_path: Path) -> None:
    done = grouped("groups", "--delete-offsets", "--group", "g", "--topic", "a", "--json")
    assert (done.status, json.loads(done.out)) == (
        0,
        [{"group": "g", "topic": "a", "partition": 0, "offset": 1}],
    )
    assert offsets(tmp_path) == {"b-0": 0}
    assert grouped("groups", "--delete-offsets", "--group", "g", "--topic", "a").status == 1
    assert grouped("groups", "--delete", "--group", "g").status == 0
    assert grouped("groups").out == "h\n"
    assert grouped("groups", "--delete", "--group", "g").status == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--describe",),
        ("--reset-offsets", "--group", "g", "--all-topics"),
        ("--delete-offsets", "--group", "g"),
        ("--reset-offsets", "--group", "g", "--to-latest"),
        ("--reset-offsets", "--group", "g", "--to-latest", "--topic", "a:x"),
        ("--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--shift-by", "1"),
        (
            "--reset-offsets",
            "--group",
            "g",
            "--all-topics",
            "--to-latest",
            "--dry-run",
            "--execute",
        ),
        ("--reset-offsets", "--group", "g", "--all-topics", "--to-datetime", "soon"),
        ("--reset-offsets", "--group", "g", "--all-topics", "--by-duration", "1D"),
        ("--reset-offsets", "--group", "g", "--all-topics", "--by-duration", "P"),
        ("--reset-offsets", "--group", "g", "--all-topics", "--to-latest", "--export", "--json"),
    ],
)
def test_an_incomplete_request_is_refused(
    grouped: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    refused = grouped("groups", *arguments)
    assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)


def test_a_refusal_names_the_expected_form(grouped: Callable[..., Any]) -> None:
    scope = ("groups", "--reset-offsets", "--group", "g", "--all-topics")
    assert (
        "--by-duration: expected PnDTnHnMnS such as P1DT12H, found '1D'"
        in grouped(*scope, "--by-duration", "1D").err
    )
    assert (
        "--export and --json exclude each other"
        in grouped(*scope, "--to-latest", "--export", "--json").err
    )
    assert (
        "--export and --json exclude each other"
        in grouped("--json", *scope, "--to-latest", "--export").err
    )


# ---- groups of a broker --------------------------------------------------------------------------


def text(word: bytes) -> bytes:
    return struct.pack(">h", len(word)) + word


def compact(word: bytes) -> bytes:
    return bytes((len(word) + 1,)) + word


def directory_with_groups_of_a_broker(path: Path) -> None:
    """The share group `sg` with one member, and the streams group `st` without one, as Kafka 4.4
    writes them.
    """
    epochs = struct.pack(">hiq", 0, 1, 0) + b"\0"
    member = (
        b"\0\0\0" + compact(b"client") + compact(b"/10.0.0.1") + b"\2" + compact(b"web") + b"\0"
    )
    rows: list[tuple[bytes, bytes | None]] = [
        (struct.pack(">h", 11) + text(b"sg"), epochs),
        (struct.pack(">h", 10) + text(b"sg") + text(b"member-1"), member),
        (struct.pack(">h", 17) + text(b"st"), epochs),
    ]
    with embedlog.open(path, config={"offsets.topic.num.partitions": 1}) as log:
        log.create_topic("web", 2)
        log.reset_group_offsets("own", ["web"], to="earliest")
        coordinator = log._engine.groups
        with coordinator.topic.lock_for_decision(0, coordinator.deadline(None)) as decision:
            decision.append(rows)


def test_groups_of_a_broker_are_listed_and_described(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    directory_with_groups_of_a_broker(tmp_path / "data")
    listed = run("groups", "--list")
    assert (listed.status, sorted(listed.out.split())) == (0, ["own", "sg", "st"])
    kinds = {
        each["group"]: (each["type"], each["state"])
        for each in json.loads(run("groups", "--list", "--json").out)
    }
    assert kinds == {
        "own": ("classic", "Empty"),
        "sg": ("share", "Stable"),
        "st": ("streams", "Empty"),
    }
    assert run("groups", "--list", "--type", "share").out.split()[3:] == ["sg", "share", "Stable"]
    members = run("groups", "--describe", "--group", "sg", "--members")
    assert "member-1" in members.out
    assert "/10.0.0.1" in members.out
    described = run("groups", "--describe", "--group", "sg")
    assert [line.split()[:6] for line in described.out.splitlines()[1:]] == [
        ["sg", "web", "0", "-", "0", "-"],
        ["sg", "web", "1", "-", "0", "-"],
    ]
    assert (
        "embedlog: sg is a share group: its positions are in __share_group_state" in described.err
    )


REFUSED: dict[str, Callable[[embedlog.Log], object]] = {
    "a reset": lambda log: log.reset_group_offsets("sg", ["web"], to="earliest"),
    "a commit": lambda log: log.consumer(group_id="sg").commit(
        {embedlog.TopicPartition("web", 0): 0}
    ),
    "a deletion": lambda log: log.delete_group("sg"),
    "a member": lambda log: log.consumer("web", group_id="sg").poll(5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_id_of_a_share_group_is_refused(tmp_path: Path, name: str) -> None:
    directory_with_groups_of_a_broker(tmp_path)
    with embedlog.open(tmp_path) as log:
        before = log.describe_group("sg")
        with pytest.raises(
            embedlog.InconsistentGroupProtocolError,
            match=r"'sg' is a share group.*choose another group id",
        ):
            REFUSED[name](log)
        assert log.describe_group("sg") == before
