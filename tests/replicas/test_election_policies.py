"""A replica that may lack acknowledged records leads on request, by a setting, or if there is
nothing to compare with.
"""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import (
    EligibleLeadersNotAvailableError,
    EmbedlogError,
    LeaderNotAvailableError,
    NotEnoughDirectoriesError,
    StorageError,
)
from embedlog.replicas.members import open_directories
from embedlog.replicas.partition import leaders
from embedlog.replicas.rules.records import NO_LEADER
from embedlog.storage import files
from tests.support.stamped_batches import run_of

QUIET = {"housekeeping": False, "lock_timeout_ms": 1500, "auto_leader_rebalance_enable": False}
NODES = (1, 2, 3)


def opened(root: Path, **settings: Any) -> embedlog.Log:
    return embedlog.open([root / f"d{node}" for node in NODES], config={**QUIET, **settings})


def send(log: embedlog.Log, *values: bytes, **options: Any) -> None:
    with log.producer(linger_ms=0, **options) as producer:
        for value in values:
            producer.send("t", value, partition=0).result(30)


def values(log: embedlog.Log) -> list[bytes | None]:
    return [record.value for record in log.scan("t").records()]


def leader(log: embedlog.Log) -> int:
    return log.replicas("t").partitions[0].leader


def unavailable(log: embedlog.Log) -> str:
    """The error of a short search for a leader, of which there is none."""
    replicas = log._engine.set.replicas((log._engine.set.topics.topic_with_id("t")[1], 0), "t")  # type: ignore[attr-defined]
    with pytest.raises(LeaderNotAvailableError) as refused:
        replicas.leaders.find_leader(files.deadline_after(0.2))
    return str(refused.value)


def away(root: Path, node: int) -> None:
    (root / f"d{node}").rename(root / f"away{node}")


def back(root: Path, node: int) -> None:
    (root / f"away{node}").rename(root / f"d{node}")


def with_one_in_sync(root: Path, **config: Any) -> None:
    """A closed set, in which only d1 has the second record. `old` is a copy of d1 with the first
    one.
    """
    with opened(root) as log:
        log.create_topic("t", assignment={0: [1, 2]}, **config)
        send(log, b"first")
    shutil.copytree(root / "d1", root / "old")
    away(root, 2)
    with opened(root) as log:
        send(log, b"second")
        assert log.replicas("t").partitions[0].isr == (1,)
    back(root, 2)


def put_back(root: Path, node: int = 1) -> None:
    shutil.rmtree(root / f"d{node}")
    shutil.copytree(root / "old", root / f"d{node}")


def in_sync(log: embedlog.Log, nodes: tuple[int, ...]) -> None:
    for _ in range(50):
        if log.replicas("t").partitions[0].isr == nodes:
            return
        log.housekeep()
    raise AssertionError(str(log.replicas("t")))


def test_a_partition_gets_its_only_leader_back_at_once_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An election of a partition without a leader undoes no other one, and has no pause."""
    monkeypatch.setattr(open_directories, "PAUSES_NS", (60_000_000_000,))
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [3]})
        for number in range(3):
            send(log, b"%d" % number)
            away(tmp_path, 3)
            directories = log._engine.set.members.directories  # type: ignore[attr-defined]
            directories.fail(3, StorageError("absent", errno=errno.ENOENT, path=tmp_path / "d3"))
            unavailable(log)
            assert leader(log) == NO_LEADER
            back(tmp_path, 3)
            directories.member(3).retry_ns = 0
            log.housekeep()
            assert leader(log) == 3
        assert values(log) == [b"0", b"1", b"2"]


# ---- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_only_member_of_an_isr_that_was_put_back_leads_never(tmp_path: Path, node: int) -> None:
    with_one_in_sync(tmp_path)
    (tmp_path / "d1").rename(tmp_path / "right")
    (tmp_path / "d1").mkdir()
    put_back(tmp_path)
    with opened(tmp_path) as log:
        refused = unavailable(log)
        assert "put back to an earlier copy" in refused
        assert "replace_directory(1, " in refused
        assert str(tmp_path / "d1") in refused
        with pytest.raises(EligibleLeadersNotAvailableError):
            log.elect("t", 0, preferred=False)
        if node == 2:
            log.elect("t", 0, unclean=True, node=2)
    shutil.rmtree(tmp_path / "d1")
    (tmp_path / "right").rename(tmp_path / "d1")  # the directory that has the record
    with opened(tmp_path) as log:
        assert values(log) == ([b"first", b"second"] if node == 1 else [b"first"])
        in_sync(log, (1, 2))
        send(log, b"third")
        assert values(log) == [b"first", *[b"second"][: 2 - node], b"third"]


def test_two_strangers_wait_for_a_majority(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        send(log, b"first")
    for node in (1, 2):
        with embedlog.open(tmp_path / f"d{node}", alone=True, config=QUIET) as log:
            send(log, b"alone")
    with opened(tmp_path) as log:
        assert {each.state for each in log.replicas().directories if each.node < 3} == {"away"}
        with pytest.raises(NotEnoughDirectoriesError):
            log.replace_directory(1, tmp_path / "d1")


@pytest.mark.parametrize("running", [False, True], ids=["closed", "in use"])
def test_a_copy_of_the_whole_set_opens_and_works(tmp_path: Path, running: bool) -> None:
    (tmp_path / "set").mkdir()
    with opened(tmp_path / "set") as log:
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"first")
        if running:
            shutil.copytree(tmp_path / "set", tmp_path / "backup")
    if not running:
        shutil.copytree(tmp_path / "set", tmp_path / "backup")
    with opened(tmp_path / "set") as log:
        send(log, b"second")
    shutil.rmtree(tmp_path / "set")
    (tmp_path / "backup").rename(tmp_path / "set")
    with embedlog.open(
        [tmp_path / "set" / f"d{node}" for node in NODES], restored=running, config=QUIET
    ) as log:
        assert values(log) == [b"first"]
        in_sync(log, (2, 1, 3))
        send(log, b"third")
        assert values(log) == [b"first", b"third"]


# ---- unclean.leader.election.enable ----------------------------------------------------------------------


@pytest.mark.parametrize("level", ["topic", pytest.param("log", marks=pytest.mark.slow)])
def test_the_setting_elects_a_replica_outside_the_isr_with_a_warning(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_one_in_sync(tmp_path)
    away(tmp_path, 1)
    monkeypatch.setattr(leaders, "UNCLEAN_NS", 1)
    with opened(tmp_path) as log:
        unavailable(log)
        if level == "topic":
            log.alter_topic("t", {"unclean.leader.election.enable": True})
    settings = {"unclean_leader_election_enable": True} if level == "log" else {}
    with caplog.at_level(logging.WARNING, "embedlog"), opened(tmp_path, **settings) as log:
        assert values(log) == [b"first"]
        assert leader(log) == 2
        assert log.metrics()["UncleanLeaderElectionsPerSec"]["Count"] == 1
        back(tmp_path, 1)
        in_sync(log, (1, 2))
        send(log, b"third")
        assert values(log) == [b"first", b"third"]
    (line,) = [line for line in caplog.messages if "unclean" in line]
    assert "node 2 (its log ends at 1) does not have, also if [1] have them" in line
    assert list((tmp_path / "d1" / "t-0").glob("embedlog.cut-*")), "the lost record is kept"


@pytest.mark.slow
def test_a_setting_of_a_topic_counts_before_that_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_one_in_sync(tmp_path, config={"unclean.leader.election.enable": "false"})
    away(tmp_path, 1)
    monkeypatch.setattr(leaders, "UNCLEAN_NS", 1)
    with opened(tmp_path, unclean_leader_election_enable=True) as log:
        for _ in range(3):
            unavailable(log)


@pytest.mark.slow
def test_a_directory_that_is_absent_for_a_moment_loses_nothing_by_the_setting(
    tmp_path: Path,
) -> None:
    with_one_in_sync(tmp_path, config={"unclean.leader.election.enable": "true"})
    with opened(tmp_path) as log:
        assert values(log) == [b"first", b"second"]
        away(tmp_path, 1)
        with pytest.raises(EmbedlogError):
            log._engine.partition("t", 0).append(run_of(b"third"))
        back(tmp_path, 1)
        log.housekeep()
        assert values(log) == [b"first", b"second"]
        assert leader(log) == 1


def test_the_setting_elects_after_a_crash_without_waiting_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_one_in_sync(tmp_path, config={"unclean.leader.election.enable": "true"})
    put_back(tmp_path)
    monkeypatch.setattr(leaders, "UNCLEAN_NS", 1)
    with opened(tmp_path) as log:
        assert values(log) == [b"first"]
        assert leader(log) == 2
        log.replace_directory(1, tmp_path / "d1")
        in_sync(log, (1, 2))
