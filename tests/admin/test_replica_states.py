"""States of Kafka's controller over open directories; descriptions while directories hang or have
damaged files.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

import embedlog
from embedlog.admin.replica_descriptions import ReplicaDescriber
from embedlog.engine.log_directory import LogDirectory
from embedlog.replica import ReplicatedEngine
from embedlog.replicas.observation import directory_view
from embedlog.replicas.observation.answers import Answers
from embedlog.replicas.observation.directory_view import DirectoryObservation
from embedlog.replicas.rules.events import CreateTopic
from tests.support.described_sets import PATIENT_S, changed, created, opened, replica, sent, states

# ---- states of Kafka's controller ----------------------------------------------------------------


def test_the_states_of_a_partition_from_its_decision_to_its_deletion(tmp_path: Path) -> None:
    def shown(log: embedlog.Log) -> tuple[str, dict[int, str]]:
        (found,) = log.replicas("t").partitions
        return found.state, {each.node: each.state for each in found.copies}

    topic_id = UUID(int=77)
    with opened(tmp_path) as log:
        replicas = cast("ReplicatedEngine", log._engine).set
        replicas.decide(
            lambda state: CreateTopic("t", topic_id, replicas.live_nodes(), assignment=((1, 2),))
        )
        assert shown(log) == ("NewPartition", {1: "NewReplica", 2: "NewReplica"}), (
            "decided, and not installed"
        )
        sent(log, 1)
        assert shown(log) == ("OnlinePartition", {1: "OnlineReplica", 2: "OnlineReplica"})
        (tmp_path / "d2").rename(tmp_path / "removed")
        sent(log, 1)
        assert shown(log) == ("OnlinePartition", {1: "OnlineReplica", 2: "OfflineReplica"})
        (tmp_path / "d1").rename(tmp_path / "removed1")
        assert shown(log) == ("OfflinePartition", {1: "OfflineReplica", 2: "OfflineReplica"})
        (tmp_path / "removed1").rename(tmp_path / "d1")
        (tmp_path / "removed").rename(tmp_path / "d2")
        log.housekeep()
        assert shown(log) == ("OnlinePartition", {1: "OnlineReplica", 2: "OnlineReplica"})
        (tmp_path / "d3" / "t-0").mkdir()
        assert shown(log)[1][3] == "ReplicaDeletionStarted", (
            "a directory outside of the assignment is to be removed"
        )
        (tmp_path / "d3" / "t-0").rmdir()
        log.delete_topic("t")
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.replicas("t")
        assert log.replicas().partitions == ()


def test_a_reassignment_is_shown_until_its_end(tmp_path: Path) -> None:
    tp = embedlog.TopicPartition("t", 0)
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2]})
        sent(log, 3)
        (tmp_path / "d3").rename(tmp_path / "removed")
        log.reassign({tp: [3, 1]})
        (found,) = log.replicas("t").partitions
        assert (found.replicas, found.adding, found.removing, found.reassigning) == (
            (3, 1, 2),
            (3,),
            (2,),
            True,
        )
        assert replica(found, 3).state == "OfflineReplica"
        assert not found.under_replicated, "a replica that is added does not count"
        assert log.metrics()["ReassigningPartitions"] == 1
        (tmp_path / "removed").rename(tmp_path / "d3")
        for _ in range(3):
            log.housekeep()
        (found,) = log.replicas("t").partitions
        assert (found.replicas, found.reassigning, sorted(found.isr)) == ((3, 1), False, [1, 3])
        assert {each.node: each.state for each in found.copies} == {
            3: "OnlineReplica",
            1: "OnlineReplica",
        }
        assert log.metrics()["ReassigningPartitions"] == 0


def test_one_process_decides_in_a_term_and_the_others_see_it(tmp_path: Path) -> None:
    """Kafka's election of a controller: the first process that decides has the term, and the others
    follow it.
    """
    with opened(tmp_path) as first, opened(tmp_path) as second:
        begun = second.replicas().term
        second.create_topic("a")
        own = second.replicas().term
        assert own > begun, "another process decides in a term of its own"
        assert first.replicas().term == own
        second.create_topic("b")
        assert second.replicas().term == own, "the process that has the term continues it"
        first.create_topic("c")
        assert first.replicas().term == second.replicas().term > own
        terms = {
            text: each.term
            for each in first.replicas().decisions
            for text in each.changes
            if text.startswith("topic")
        }
        assert [terms[f"topic {name} created, 1 partition"] - own for name in "ab"] == [0, 0]
        with pytest.raises(embedlog.TopicExistsError):
            second.create_topic("c")


def test_no_lock_is_needed(tmp_path: Path) -> None:
    with opened(tmp_path) as log, opened(tmp_path) as other, ExitStack() as held:
        created(log, 1)
        sent(log, 2)
        sent(other, 1)
        for directory in other._engine.directories:
            for partition in list(directory.partitions.values()):
                held.enter_context(partition.replica.exclusive())
        found = log.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "live"}
        assert [each.log_end for each in found.partitions[0].copies] == [3, 3, 3]
        assert changed(found)[-1] == "topic t created, 1 partition"


# ---- directories that hang -----------------------------------------------------------------------


class Hanging:
    """Observations of one directory that do not return until `go_on` is set; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.path = path
        self.go_on = threading.Event()
        self.count = 0
        self.active = True
        self._real = directory_view.observe
        monkeypatch.setattr(directory_view, "observe", self.observe)

    def observe(self, directory: LogDirectory, places: Any) -> DirectoryObservation:
        if directory.path == self.path and self.active:
            self.count += 1
            assert self.go_on.wait(PATIENT_S)
        return self._real(directory, places)


def test_a_directory_that_hangs_is_described_as_failed_and_is_not_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
        describer = log._describer
        assert isinstance(describer, ReplicaDescriber)
        hanging = Hanging(monkeypatch, tmp_path / "d2")
        describer._answers = Answers(timeout_s=1.0)
        try:
            found = log.replicas()
            assert states(found)[2] == "failed"
            assert "has not answered" in (found.directories[1].reason or "")
            assert replica(found.partitions[0], 2).log_end is None
            # the others may be slow, too, on a busy machine
            if states(found) == {1: "live", 2: "failed", 3: "live"}:
                assert found.can_decide
                assert replica(found.partitions[0], 1).log_end == 2
            assert states(log.replicas())[2] == "failed"
            assert hanging.count == 1
        finally:
            hanging.active = False
            hanging.go_on.set()
        describer._answers._hanging[2].wait_for_end(PATIENT_S)
        describer._answers._timeout_s = PATIENT_S
        assert states(log.replicas()) == {1: "live", 2: "live", 3: "live"}


def test_copies_of_the_decision_log_that_hang_leave_the_last_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
        describer = log._describer
        assert isinstance(describer, ReplicaDescriber)
        describer._answers = Answers(timeout_s=1.0)
        go_on = threading.Event()
        monkeypatch.setattr(describer._set.decisions, "view", lambda: go_on.wait(PATIENT_S))
        try:
            found = log.replicas()
            assert [(each.topic, each.leader, sorted(each.isr)) for each in found.partitions] == [
                ("t", 1, [1, 2, 3]),
                ("t", 2, [1, 2, 3]),
            ]
            assert found.term == 1
        finally:
            monkeypatch.undo()
            go_on.set()
        assert describer._answers._hanging[-1].wait_for_end(PATIENT_S)


def test_metrics_of_a_reader(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        with opened(tmp_path, read_only=True) as reader:
            sent(log, 1)
            assert reader.metrics()["PartitionCount"] == log.metrics()["PartitionCount"] == 6
            assert reader.metrics()["ReplicationBytesInPerSec"]["Count"] == 0
            assert log.metrics()["ReplicationBytesInPerSec"]["Count"] > 0


def test_errors_of_the_process_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as log:

        def defect(directory: LogDirectory, places: Any) -> DirectoryObservation:
            raise ZeroDivisionError

        monkeypatch.setattr(directory_view, "observe", defect)
        with pytest.raises(ZeroDivisionError):
            log.replicas()


def test_damaged_files_of_a_directory_make_only_that_one_failed(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        path = tmp_path / "d2" / "log-start-offset-checkpoint"
        for data in (b"\xff" * 100, b"0\n1\nt 0 -5\n", b"9\n"):
            path.write_bytes(data)
            found = log.replicas()
            assert states(found) == {1: "live", 2: "failed", 3: "live"}, data
            assert str(path) in (found.directories[1].reason or "")
        path.unlink()
        os.truncate(tmp_path / "d3" / "embedlog.replicas", 7)
        assert states(log.replicas()) == {1: "live", 2: "live", 3: "failed"}


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"\0" * 8192, b"\xff" * 8192, bytes(range(256)) * 32],
    ids=["empty", "x", "0", "255", "bytes"],
)
def test_a_damaged_page_of_an_unused_partition_leaves_its_offsets_unknown(
    tmp_path: Path, data: bytes
) -> None:
    with opened(tmp_path) as log:
        created(log, 3)
        sent(log, 2)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        sent(other, 1)
        page = tmp_path / "d2" / "t-0" / "embedlog.page"
        before = page.read_bytes()
        try:
            page.write_bytes(data)
            found = log.replicas()
            assert states(found) == {1: "live", 2: "live", 3: "live"}
            assert [each.log_end for each in found.partitions[0].copies] == [3, None, 3]
            assert replica(found.partitions[0], 2).lag is None
        finally:
            page.write_bytes(before)
        assert [each.log_end for each in log.replicas().partitions[0].copies] == [3, 3, 3]


def test_a_set_that_maps_no_files(tmp_path: Path) -> None:
    with opened(tmp_path, shared="locks") as log:
        created(log)
        sent(log, 2)
        found = log.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "live"}
        assert [each.log_end for each in found.partitions[0].copies] == [2, 2, 2]
    with opened(tmp_path, shared="locks") as log:
        assert [each.log_end for each in log.replicas().partitions[0].copies] == [2, 2, 2]
