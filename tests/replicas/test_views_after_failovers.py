"""Views of an internal topic in a set: what a failover takes back is not acted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embedlog._native import system
from embedlog.coordination.internal_topic import InternalTopic
from embedlog.errors import LeaderNotAvailableError, NotEnoughReplicasAfterAppendError
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition
from embedlog.storage import files
from tests.support.replica_partitions import Process, a_set


class Newest(dict[bytes, bytes | None]):
    """The last value of every key."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        self[key] = value


class Host:
    """The part of an engine that an internal topic of one partition needs."""

    def __init__(self, process: Process) -> None:
        self._partition = process.partition

    def mapped_topics_version(self) -> int:
        return 0

    def partition_count(self, name: str) -> int:
        return 1

    def partition(self, name: str, number: int) -> Any:
        return self._partition


def topic_of(process: Process) -> InternalTopic[Newest]:
    host: Any = Host(process)
    return InternalTopic(host, "t", partitions=1, config={}, view=Newest)


def decide(topic: InternalTopic[Newest], value: bytes, seconds: float = 20) -> None:
    with topic.lock_for_decision(0, files.deadline_after(seconds)) as decision:
        decision.append([(b"k", value)])


def lose_followers(process: Process) -> None:
    process.disks[2].broken = process.disks[3].broken = True


def fail_over(process: Process) -> None:
    """Node 1 fails, the others return and lead."""
    process.disks[1].broken = True
    process.disks[2].broken = process.disks[3].broken = False
    process.forgive()
    until = files.deadline_after(20)
    leader = process.replicas.leaders.find_leader(until)
    assert leader.node in (2, 3)
    assert process.replicas.in_sync.add_to_isr(leader, 5 - leader.node, until)


def test_a_view_is_read_again_if_its_leader_is_lost_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another decision at the same offset is committed: the view has records that no leader has."""
    confirm = ReplicatedPartition.confirm
    done = list[int]()

    def later(self: ReplicatedPartition, *arguments: Any) -> Any:
        if not done:
            done.append(1)
            fail_over(process)
            decide(topic_of(process), b"other")
        return confirm(self, *arguments)

    with a_set(tmp_path, min_insync_replicas="2") as (_, [process]):
        topic = topic_of(process)
        decide(topic, b"first")
        with (
            pytest.raises(NotEnoughReplicasAfterAppendError),
            topic.lock_for_decision(0, files.deadline_after(0.5)) as decision,
        ):
            lose_followers(process)
            decision.append([(b"k", b"lost")])
        monkeypatch.setattr(ReplicatedPartition, "confirm", later)
        assert topic.view(0) == {b"k": b"other"}
        assert done


def test_what_another_thread_decides_meanwhile_is_returned_after_its_commit_only(
    tmp_path: Path,
) -> None:
    """All threads of a process share the view: it has the decision before the commit."""
    seen = list[bytes | None]()

    def reading(view: Newest) -> bytes | None:
        if not seen:
            with (
                pytest.raises(NotEnoughReplicasAfterAppendError),
                topic.lock_for_decision(0, files.deadline_after(0.5)) as decision,
            ):
                lose_followers(process)
                decision.append([(b"k", b"lost")])
            fail_over(process)
            decide(topic_of(process), b"other")
        seen.append(view[b"k"])
        return seen[-1]

    with a_set(tmp_path, min_insync_replicas="2") as (_, [process]):
        topic = topic_of(process)
        decide(topic, b"first")
        assert topic.read(0, reading) == b"other"
        assert seen[0] == b"lost"


def test_a_view_of_another_leader_each_time_ends_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_set(tmp_path) as (_, [process]):
        topic = topic_of(process)
        decide(topic, b"first")
        monkeypatch.setattr(ReplicatedPartition, "confirm", lambda *arguments: False)
        monkeypatch.setattr(ReplicatedPartition, "deadline", lambda self: system.boot_ns())
        with pytest.raises(LeaderNotAvailableError, match="t-0"):
            topic.view(0)


def test_a_decision_of_an_earlier_leader_is_not_applied_to_the_view_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread read the view again from the next leader, which ends at the same offset."""
    held = ReplicatedPartition.append_held
    views = list[Newest]()

    def renewing(self: ReplicatedPartition, *arguments: Any) -> Any:
        found = held(self, *arguments)
        monkeypatch.undo()
        (keeper,) = topic._keepers.values()
        later = Newest(keeper.state.view)
        keeper.state = keeper.state._replace(epoch=keeper.state.epoch + 1, view=later)
        views.append(later)
        return found

    with a_set(tmp_path) as (_, [process]):
        topic = topic_of(process)
        decide(topic, b"first")
        monkeypatch.setattr(ReplicatedPartition, "append_held", renewing)
        decide(topic, b"second")
        assert views == [{b"k": b"first"}]
        assert topic.view(0) == {b"k": b"second"}
