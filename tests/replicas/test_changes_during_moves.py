"""Another process deletes a topic, or is faster, while replicas are compared, moved, or join the
ISR.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.replicas.assignments import Assignments
from embedlog.replicas.partition import in_sync_replicas
from embedlog.replicas.verification.partition_repair import PartitionRepair
from tests.support.opened_sets import isr, made, opened, values


def once_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: Any) -> list[str]:
    """Make a change by another process before the first call."""
    before = getattr(owner, name)
    calls = list[str]()

    def call(*args: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            change()
        return before(*args, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_a_topic_that_is_deleted_meanwhile_does_not_end_a_comparison_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        log.create_topic("gone", 3)
        once_before(
            monkeypatch, PartitionRepair, "find_differences", lambda: other.delete_topic("gone")
        )
        assert log.verify_replicas() == []
        assert log.repair().left == {}
        log.create_topic("gone")
        once_before(
            monkeypatch, PartitionRepair, "find_differences", lambda: other.delete_topic("gone")
        )
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.verify_replicas("gone")


@pytest.mark.parametrize("name", ["reassign", "tend"])
def test_a_topic_that_is_deleted_meanwhile_does_not_end_a_retirement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 3]})
        log.housekeep()
        log.create_topic("gone", assignment={0: [3, 1]})
        calls = once_before(monkeypatch, Assignments, name, lambda: other.delete_topic("gone"))
        log.retire_directory(3)
        assert calls
        assert [each.node for each in log.replicas().directories] == [1, 2]
        assert values(log) == [b"first"]


def test_a_replica_that_another_process_adds_to_the_isr_meanwhile_has_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        log.reassign({embedlog.TopicPartition("t", 0): [1, 2, 3]})
        partition_id = next(iter(log._engine.set.decisions.counted_state().partitions))
        replicas = log._engine.set.replicas(partition_id, "t")
        until = system.boot_ns() + 20_000_000_000
        leader = replicas.leaders.find_leader(until)
        copy = in_sync_replicas.copy
        calls = list[int]()

        def copied(*args: Any, **named: Any) -> int:
            found = copy(*args, **named)
            calls.append(found)
            if len(calls) == 1:
                monkeypatch.setattr(in_sync_replicas, "copy", copy)
                there = other._engine.set.replicas(partition_id, "t")
                assert there.in_sync.add_to_isr(there.leaders.find_leader(until), 3, until)
            return found

        monkeypatch.setattr(in_sync_replicas, "copy", copied)
        assert replicas.in_sync.add_to_isr(leader, 3, until)
        assert isr(log) == [1, 2, 3]
