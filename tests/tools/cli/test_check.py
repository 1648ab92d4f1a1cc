"""The verbs `check`, `repair` and `restore`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.support.damaged_logs import TOPIC, extents, rows

Run = Callable[..., Any]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of `run`."""
    return tmp_path / "data"


def damage(directory: Path, number: int = 1) -> Path:
    """Flip a bit in one batch."""
    segment = min((directory / f"{TOPIC}-0").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[extents(segment)[number].end - 4] ^= 2
    segment.write_bytes(data)
    return segment


def filled(directory: Path) -> None:
    with embedlog.open(directory) as log, log.producer(linger_ms=0) as producer:
        log.create_topic(TOPIC)
        for number in range(5):
            producer.send(TOPIC, b"%d" % number * 10).result(20)


def test_check_prints_damage_meaning_and_remedy(run: Run, directory: Path) -> None:
    filled(directory)
    good = run("check")
    assert (good.status, good.err) == (0, "")
    assert good.out.endswith("in order\n")
    segment = damage(directory)
    bad = run("check")
    assert (bad.status, bad.err) == (1, "")
    assert str(segment) in bad.out
    assert "means: " in bad.out
    assert "remedy: " in bad.out
    [finding] = json.loads(run("check", "--json").out)["findings"]
    assert (
        finding["severity"],
        finding["path"],
        finding["first_offset"],
        finding["end_offset"],
    ) == (
        "damage",
        str(segment),
        1,
        2,
    )


def test_repair_needs_execute(run: Run, directory: Path) -> None:
    filled(directory)
    segment = damage(directory)
    before = segment.read_bytes()
    shown = run("repair")
    assert shown.status == 1
    assert "nothing was changed" in shown.err
    assert segment.read_bytes() == before
    done = run("repair", "--execute")
    assert (done.status, done.err) == (0, "")
    assert "kept in embedlog.cut-" in done.out
    assert sorted(rows(directory)) == [0, 2, 3, 4]
    assert run("check").status == 0


@pytest.mark.slow  # a reader waits for the writer, which cannot load the partition
def test_repair_refuses_an_open_log(run: Run, directory: Path) -> None:
    filled(directory)
    damage(directory)
    with embedlog.open(directory):
        refused = run("repair", "--execute")
    assert refused.status == 2
    assert len(refused.err.splitlines()) == 1


def test_check_of_a_set_names_the_replica(run: Run, tmp_path: Path) -> None:
    places = [tmp_path / "1", tmp_path / "2"]
    with embedlog.open(places) as log:
        log.create_topic(TOPIC, replication_factor=2)
        with log.producer(linger_ms=0) as producer:
            for number in range(5):
                producer.send(TOPIC, b"%d" % number * 10).result(20)
        leader = log.replicas(TOPIC).partitions[0].leader
        follower = next(
            Path(each.path) for each in log.replicas().directories if each.node != leader
        )
    both = [part for place in places for part in ("-d", str(place))]
    assert run("check", *both).status == 0
    damage(follower)
    found = run("check", *both)
    assert found.status == 1
    assert str(follower) in found.out
    assert run("repair", "--execute", *both).status == 0
    assert run("check", *both).status == 0


def test_a_backup_is_restored(run: Run, directory: Path, tmp_path: Path) -> None:
    filled(directory)
    assert run("backup", str(tmp_path / "copy")).status == 0
    restored = run("restore", str(tmp_path / "copy"), "-d", str(tmp_path / "again"))
    assert (restored.status, restored.err) == (0, "")
    assert rows(tmp_path / "again") == rows(directory)
    assert run("restore", str(tmp_path / "copy"), "-d", str(directory)).status == 2
    damage(tmp_path / "copy")
    refused = run("restore", str(tmp_path / "copy"), "-d", str(tmp_path / "third"))
    assert refused.status == 1
    assert len(refused.err.splitlines()) == 1
    assert not (tmp_path / "third").exists()


def test_lists_show_what_is_not_damaged_and_name_the_damage(run: Run, directory: Path) -> None:
    filled(directory)
    with embedlog.open(directory) as log:
        log.create_topic("whole", 1, config={"retention.ms": "1000000000"})
        log.reset_group_offsets("readers", [TOPIC, "whole"], to="earliest")
    segment = damage(directory)
    for words in (
        ("ls",),
        ("topics", "--describe"),
        ("du",),
        ("offsets",),
        ("configs",),
        ("ls", "whole", TOPIC),
        ("ls", "--json"),
    ):
        found = run(*words)
        assert found.status == 1, words
        assert "whole" in found.out, words
        assert str(segment) in found.err, words
        assert len([line for line in found.err.splitlines() if "hidden" not in line]) == 1, words
    assert run("groups") == (0, "readers\n", "")
    [group] = json.loads(run("groups", "--describe", "--group", "readers", "--json").out)
    assert {each["topic"]: each["log_end_offset"] for each in group["partitions"]} == {
        TOPIC: None,
        "whole": 0,
    }
    assert run("metrics", "--prometheus").status == 0
