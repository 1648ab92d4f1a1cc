"""Crashes during the deletion of a topic with committed offsets.

Invariant: the first process may die at every call, and the completing process, too. The topic
exists with all of its offsets, or is gone with all of them. A new topic of its name has none.
Offsets for other topics stay.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import embedlog
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.faults.harness.processes import Died, Nursery, RemoteError, Victim
from tests.faults.harness.tasks import Stage, task
from tests.faults.partition.crashes import KINDS, MODES, Point
from tests.support.transactional_producers import begun

CONFIG: dict[str, Any] = {
    "housekeeping": False,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 1,
}
GROUPS = ("a", "b", "c", "d")  # over all partitions
GONE = TopicPartition("t", 0)
KEPT = TopicPartition("kept", 0)


@task
def commit_offsets(
    stage: Stage, group_id: str, offsets: dict[Any, Any], identity: GroupMetadata | None = None
) -> None:
    stage.opened._engine.groups.commit(group_id, offsets, identity)


@task
def committed_offsets(stage: Stage, group_id: str) -> dict[Any, Any]:
    return stage.opened._engine.groups.read_committed(group_id)


def prepare(directory: Path) -> None:
    """Two topics, and offsets for both, of which those of one group are part of an open
    transaction's.
    """
    with embedlog.open(directory, config=CONFIG) as log:
        for topic in ("t", "kept"):
            log.create_topic(topic, 2)
        for name in GROUPS:
            log._engine.groups.commit(name, {GONE: 5, KEPT: 6})
        begun(log).owner.add_offsets({GONE._replace(partition=1): 7}, GroupMetadata("pending"))


def deleter(nursery: Nursery, directory: Path) -> Victim:
    victim = nursery.spawn()
    victim.call("open", str(directory), config=CONFIG)
    return victim


def count_calls(nursery: Nursery, directory: Path) -> dict[str, int]:
    prepare(directory)
    victim = deleter(nursery, directory)
    victim.call("counters", True)
    victim.call("on_log", "delete_topic", "t")
    counts: dict[str, int] = victim.call("counters")
    nursery.end(victim)
    shutil.rmtree(directory)
    return counts


def crash_at(
    nursery: Nursery, directory: Path, point: Point, nested: Point | None, witness: bool
) -> list[str]:
    """One deletion that dies at `point`, its completion at `nested`; with a witness another process
    has the directory open.
    """
    prepare(directory)
    opened = embedlog.open(directory, config=CONFIG) if witness else None
    try:
        if opened is not None:
            opened._engine.groups.read_committed("a")
        victim = deleter(nursery, directory)
        victim.arm(point.kinds, point.mode, nth=point.nth)
        with contextlib.suppress(Died):
            victim.call("on_log", "delete_topic", "t")
        nursery.end(victim)
        if nested is not None:
            finish_and_die(nursery, directory, nested)
        if opened is None:
            opened = embedlog.open(directory, config=CONFIG)
        return [f"{point} nested {nested} witness {witness}: {found}" for found in judge(opened)]
    finally:
        if opened is not None:
            opened.close()
        shutil.rmtree(directory)


def finish_and_die(nursery: Nursery, directory: Path, point: Point) -> None:
    second = nursery.spawn()
    second.arm(point.kinds, point.mode, nth=point.nth)
    try:
        second.call("open", str(directory), config=CONFIG)
        second.call("create_topic", "another")
    except (Died, RemoteError):
        pass
    finally:
        nursery.end(second)


def judge(log: embedlog.Log) -> list[str]:
    wrong = []
    groups = log._engine.groups
    if "t" in log.topics():
        expected = {GONE: OffsetAndMetadata(5), KEPT: OffsetAndMetadata(6)}
        log.create_topic("one-more")
    else:
        expected = {KEPT: OffsetAndMetadata(6)}
        log.create_topic("t", 2)  # which first completes the deletion
    wrong += [
        f"{name}: {found}" for name in GROUPS if (found := groups.read_committed(name)) != expected
    ]
    begun(log)  # the last owner of the id is gone: its open transaction is aborted
    if found := groups.read_committed("pending"):
        wrong.append(f"pending: {found}")
    if "t" in log.topics():
        groups.commit("a", {GONE: 9})
        if groups.read_committed("a", [GONE]) != {GONE: OffsetAndMetadata(9)}:
            wrong.append("a new commit does not count")
    return wrong


def points(counts: dict[str, int]) -> list[Point]:
    """Every place where the deleter can die."""
    torn = [Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)]
    return torn + [
        Point(nth, mode)
        for nth in range(1, sum(counts.values()) + 1)
        for mode in MODES
        if mode != "torn_kill"
    ]


def nested_point(rng: random.Random) -> Point:
    return Point(rng.randint(1, 300), rng.choice(MODES), KINDS)
