"""Damage of a replica while processes have it open: removed and cut segments, also after a killed
append.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import StorageError
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.storage import file_names
from tests.support.damaged_sets import killed_append, send
from tests.support.killed_processes import killed_during
from tests.support.renewed_replicas import (
    truncated,
    until_in_sync,
    without_directory,
    without_segment,
)
from tests.support.verified_sets import (
    QUIET,
    WANTED,
    assert_equal_copies,
    filled,
    flip,
    isr,
    opened,
    segment_of,
    values,
)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", [without_segment, truncated, without_directory])
def test_damage_after_a_killed_append_is_replaced(
    tmp_path: Path, damage: Callable[[Path, int], None], node: int
) -> None:
    """The repair of the append finds the damage."""
    with filled(tmp_path) as log, opened(tmp_path) as other:
        assert values(other) == WANTED  # its page and descriptors are those of before the damage
        killed_append(tmp_path, node)
        damage(tmp_path, node)
        send(log, "t", b"more")
        send(other, "t", b"of the other")
        found = values(log)
        assert [value for value in found if value != b"lost"] == [*WANTED, b"more", b"of the other"]
        until_in_sync(log)
        assert log.verify_replicas() == other.verify_replicas() == []
        assert values(other) == found
        # without node 1, as long as it rests after the damage that this process has seen
        send(other, "t", b"last")
        other.housekeep()
        until_in_sync(other)
    assert_equal_copies(tmp_path)
    with opened(tmp_path) as log:
        assert values(log) == [*found, b"last"]


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", [without_segment, truncated])
def test_a_process_that_opens_a_damaged_segment_appends_nothing_to_it(
    tmp_path: Path, damage: Callable[[Path, int], None], node: int
) -> None:
    """An append would leave a hole, and a replica in the ISR without its earlier records."""
    with filled(tmp_path) as log, opened(tmp_path) as other:
        damage(tmp_path, node)
        send(other, "t", b"more")
        assert node not in isr(other)
        until_in_sync(other)
        assert log.verify_replicas() == other.verify_replicas() == []
        send(log, "t", b"last")
        assert values(log) == values(other) == [*WANTED, b"more", b"last"]
    assert_equal_copies(tmp_path)


def test_a_missing_segment_leaves_the_other_partitions_in_sync(tmp_path: Path) -> None:
    """It is damage of one replica, and no failure of its directory."""
    with filled(tmp_path) as log:
        log.create_topic("u", assignment={0: [2, 1, 3]})
        killed_append(tmp_path, 2)
        without_segment(tmp_path, 2)
        send(log, "t", b"more")
        send(log, "u", b"u")
        assert 2 not in isr(log)
        found = log.replicas("u").partitions[0]
        assert (found.leader, sorted(found.isr)) == (2, [1, 2, 3])
        assert log.replicas().directories[1].state == "live"


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(
    "point",
    ["renew-left", "cut-intent", "cut-begun", "cut-manifest", "cut-segment", "cut-published"],
)
def test_a_process_that_is_killed_while_a_damaged_log_begins_again(
    tmp_path: Path, point: str
) -> None:
    """Another process completes it: the intent is in the page."""
    with filled(tmp_path) as log:
        killed_append(tmp_path, 2)
        truncated(tmp_path, 2)
        send(log, "t", b"more")

        def repair(other: embedlog.Log) -> None:
            for number in range(10):
                send(other, "t", b"%d" % number)
                other.housekeep()

        killed_during(repair, partial(opened, tmp_path), "point", "kill_before", point)
        found = values(log)
        assert b"more" in found
        until_in_sync(log)
        assert log.verify_replicas() == []
        assert values(log) == found
        send(log, "t", b"last")
    assert_equal_copies(tmp_path)


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("which", [1, -1])
def test_a_removed_segment_is_found_by_a_verification(
    tmp_path: Path, which: int, node: int
) -> None:
    """An open descriptor still reads a removed file."""
    paths = [tmp_path / f"d{n}" for n in (1, 2, 3)]
    with embedlog.open(paths, config=QUIET) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"segment.bytes": "16384"})
        with log.producer(linger_ms=0) as producer:
            for number in range(60):
                producer.send("t", b"%03d" % number * 200).result(20)
        wanted = values(log)
        assert log.verify_replicas() == []
        found = sorted((tmp_path / f"d{node}" / "t-0").glob("*.log"))
        assert len(found) > 2
        found[which].unlink()
        assert [(each.node, each.path) for each in log.verify_replicas()] == [
            (node, str(found[which]))
        ]
        log.verify_replicas(repair=True)
        until_in_sync(log)
        assert log.verify_replicas() == []
        assert values(log) == wanted
        send(log, "t", b"more")
    assert_equal_copies(tmp_path)


def test_damage_after_a_killed_swap_is_replaced(tmp_path: Path) -> None:
    """The repair completes the swap, and then finds no active segment. The generation of the page
    is still odd.
    """
    with opened(tmp_path) as log:
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": "16384",
            "min.cleanable.dirty.ratio": "0.01",
        }
        log.create_topic("t", assignment={0: [1, 2, 3]}, config=config)
        with log.producer(linger_ms=0) as producer:
            for number in range(90):
                producer.send(
                    "t", b"%03d" % number * 300, key=b"%d" % (number if number % 3 else 0)
                ).result(20)
        killed_during(
            embedlog.Log.housekeep, partial(opened, tmp_path), "point", "kill_before", "swap-step"
        )
        (swap,) = tmp_path.glob("d*/t-0/*.log.swap")
        max(swap.parent.glob("*.log")).unlink()
        send(log, "t", b"more")
        until_in_sync(log)
        assert log.verify_replicas() == []
    with opened(tmp_path) as log:
        assert log.verify_replicas() == []
        assert {*values(log)} >= {
            b"more",
            *(b"%03d" % number * 300 for number in range(90) if number % 3),
        }
        assert not [*tmp_path.glob("d*/t-0/*.swap"), *tmp_path.glob("d*/t-0/*.cleaned")]


def test_two_processes_begin_a_replica_again_at_once(tmp_path: Path) -> None:
    """One of them stops before the cut, until the other one has completed it, and the replica has
    joined and taken more.
    """
    with filled(tmp_path) as log:
        killed_append(tmp_path, 2)
        truncated(tmp_path, 2)
        child = os.fork()
        if child == 0:
            try:
                with opened(tmp_path) as other:
                    send(other, "t", b"of the other")
                    system.fault_arm(["point"], 1, "stop_before", name="renew-left")
                    other.housekeep()
                    send(other, "t", b"after the stop")
            finally:
                os._exit(0)
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        send(log, "t", b"more")
        until_in_sync(log)
        send(log, "t", b"in all replicas")
        found = values(log)
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
        assert isr(log) == [1, 2, 3]
        assert log.verify_replicas() == []
        assert values(log) == [*found, b"after the stop"]
    assert_equal_copies(tmp_path)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [1, 2], ids=["the leader", "a follower"])
@pytest.mark.parametrize("before", ["nothing", "verify", "housekeep"])
def test_a_missing_partition_is_reported_and_copied_again_with_the_others(
    tmp_path: Path, node: int, before: str
) -> None:
    """Before, the comparison of a follower without its directory was an error, and that of the
    other partitions ended with it.
    """
    with filled(tmp_path) as log:
        log.create_topic("u", assignment={0: [1, 2, 3]})
        for _ in range(20):
            send(log, "u", b"x" * 100)
        without_directory(tmp_path, node)
        flip(file_names.segment_path(tmp_path / "d3" / "u-0", 0))
        if before == "verify":
            log.verify_replicas()
        elif before == "housekeep":
            log.housekeep()
        wanted = [("t", node, "damaged"), ("u", 3, "damaged")]
        assert (
            sorted((each.topic, each.node, each.kind) for each in log.verify_replicas()) == wanted
        )
        report = log.repair()
        assert report.left == {}
        assert sorted((each.topic, each.node) for each in report.repaired) == [
            ("t", node),
            ("u", 3),
        ]
        until_in_sync(log)
        assert log.verify_replicas() == []
        assert values(log) == WANTED
    assert_equal_copies(tmp_path)


def test_a_directory_that_fails_during_a_comparison_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path) as log:
        flip(segment_of(tmp_path, 3))
        read = ReplicaLog.read

        def failing(self: ReplicaLog, *args: Any) -> Any:
            if self._state.path == tmp_path / "d2" / "t-0":
                raise StorageError("cannot read", errno=errno.EIO, path=self._state.path)
            return read(self, *args)

        monkeypatch.setattr(ReplicaLog, "read", failing)
        assert [each.node for each in log.verify_replicas()] == [3]
        assert [each.state for each in log.replicas().directories] == ["live", "failed", "live"]
