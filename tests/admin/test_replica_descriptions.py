"""Description of a set: directories, leaders, ISRs, lags, decisions; also with failing, absent and hanging directories."""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

import embedlog
from embedlog.admin.replica_descriptions import ReplicaDescriber
from embedlog.log_directory import LogDirectory
from embedlog.replica import ReplicatedEngine
from embedlog.replica_description import ReplicaDescription, ReplicasDescription, ReplicatedPartitionDescription
from embedlog.replica_set.observation import directory_view
from embedlog.replica_set.observation.answers import Answers
from embedlog.replica_set.observation.directory_view import Observation
from embedlog.replication.events import CreateTopic

QUIET = {"housekeeping": False}
PATIENT_S = 20.0  # for results that come at once on an idle machine


def opened(root: Path, count: int = 3, **options: Any) -> embedlog.Log:
    return embedlog.open([root / f"d{node}" for node in range(1, count + 1)], config={**QUIET}, **options)


def created(log: embedlog.Log, partitions: int = 2, name: str = "t") -> None:
    """Replicas on the nodes 1, 2 and 3; partition p has its leader on node p % 3 + 1."""
    nodes = [1, 2, 3]
    log.create_topic(name, assignment={number: nodes[number % 3 :] + nodes[: number % 3] for number in range(partitions)})


def sent(log: embedlog.Log, count: int, partition: int = 0) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in range(count):
            producer.send("t", b"%03d" % number, partition=partition).result(PATIENT_S)


def states(found: ReplicasDescription) -> dict[int, str]:
    return {each.node: each.state for each in found.directories}


def replica(found: ReplicatedPartitionDescription, node: int) -> ReplicaDescription:
    return next(each for each in found.copies if each.node == node)


def used(log: embedlog.Log) -> set[str]:
    """The topics of the partitions that this process has opened."""
    return {name for directory in log._engine.directories for name, _ in directory.partitions}


def changed(found: ReplicasDescription) -> list[str]:
    return [text for each in found.decisions for text in each.changes]


def test_a_set_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 5)
        found = log.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "live"}
        assert [each.path for each in found.directories] == [str(tmp_path / f"d{node}") for node in (1, 2, 3)]
        assert [(each.leads, each.holds) for each in found.directories] == [(1, 2), (1, 2), (0, 2)]
        assert (found.voters, found.can_decide, found.term) == ((1, 2, 3), True, 1)
        first, second = found.partitions
        assert (first.topic, first.partition, first.leader, first.replicas) == ("t", 0, 1, (1, 2, 3))
        assert (sorted(first.isr), first.elr, first.adding, first.removing) == ([1, 2, 3], (), (), ())
        assert (first.high_watermark, first.state, first.leader_epoch, first.partition_epoch) == (5, "OnlinePartition", 0, 0)
        for node in (1, 2, 3):
            each = replica(first, node)
            assert (each.log_start, each.log_end, each.lag, each.lag_bytes, each.lag_seconds) == (0, 5, 0, 0, 0.0)
            assert (each.state, each.in_sync, each.leads) == ("OnlineReplica", True, node == 1)
            assert each.last_caught_up_ms is not None
            assert each.last_caught_up_ms >= found.observed_ms - 60_000
        assert second.high_watermark == 0
        assert changed(found)[-1] == "topic t created, 2 partitions"
        assert not any(each.under_replicated or each.under_min_isr or each.offline for each in found.partitions)


def test_an_unused_partition_is_not_opened(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log, 30)
        sent(log, 3, 7)
    with opened(tmp_path) as log:
        found = log.replicas()
        ends = [[each.log_end for each in partition.copies] for partition in found.partitions]
        assert ends == [[3 if number == 7 else 0] * 3 for number in range(30)]
        assert found.partitions[7].high_watermark == 3
        assert used(log) == {"__replica_state"}
        with opened(tmp_path) as other:
            sent(other, 2, 8)
            assert [each.log_end for each in log.replicas().partitions[8].copies] == [2, 2, 2]
        assert used(log) == {"__replica_state"}


def test_a_topic_is_selected(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        log.create_topic("u", replication_factor=1)
        assert {each.topic for each in log.replicas().partitions} == {"t", "u"}
        assert [each.partition for each in log.replicas("t").partitions] == [0, 1]
        assert sum(each.holds for each in log.replicas("u").directories) == 7, "the counts are those of the whole set"
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.replicas("v")
    with pytest.raises(embedlog.ClosedError):
        log.replicas()


@pytest.mark.parametrize("lost", [1, 3])
def test_a_directory_that_was_removed_and_returns(tmp_path: Path, lost: int) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
        before = log.replicas()
        (tmp_path / f"d{lost}").rename(tmp_path / "removed")
        sent(log, 3)
        found = log.replicas()
        assert states(found) == {node: "failed" if node == lost else "live" for node in (1, 2, 3)}
        failed = found.directories[lost - 1]
        assert failed.reason
        assert str(tmp_path / f"d{lost}") in failed.reason
        assert failed.since_ms is not None
        assert failed.since_ms >= before.observed_ms
        assert found.can_decide
        first = found.partitions[0]
        assert lost not in first.isr
        assert first.leader != lost
        assert first.under_replicated
        gone = replica(first, lost)
        assert (gone.state, gone.log_end, gone.lag, gone.in_sync) == ("OfflineReplica", None, None, False)
        assert (first.leader_epoch, first.high_watermark) == (1 if lost == 1 else 0, 5)
        assert any(f"node {lost} is failed" in text for text in found.warnings)
        change = next(text for text in changed(found) if text.startswith("t-0: "))
        assert ("leader 1 -> " in change and "in epoch 1" in change) == (lost == 1)
        assert "ISR [1, 2, 3] -> " in change
        again = log.replicas()
        assert again.directories[lost - 1].since_ms == failed.since_ms, "the begin does not move"
    (tmp_path / "removed").rename(tmp_path / f"d{lost}")
    with opened(tmp_path, read_only=True) as log:
        found = log.replicas()
        late = replica(found.partitions[0], lost)
        assert (late.state, late.log_end, late.lag, late.in_sync) == ("OnlineReplica", 2, 3, False)
        assert late.lag_bytes is not None
        assert late.lag_bytes > 3 * 60
        assert late.last_caught_up_ms is not None
        assert before.observed_ms <= late.last_caught_up_ms <= found.observed_ms
        assert late.lag_seconds is not None
        assert late.lag_seconds >= 0
    with opened(tmp_path) as log:
        log.housekeep()
        found = log.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "live"}
        assert sorted(found.partitions[0].isr) == [1, 2, 3]
        assert replica(found.partitions[0], lost).lag == 0


def test_the_bytes_of_missing_records_are_counted_over_segments(tmp_path: Path) -> None:
    with opened(tmp_path, 2) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={"segment.bytes": 400})
        sent(log, 7)
        size = log.replicas().partitions[0]
        assert replica(size, 2).lag_bytes == 0
        (tmp_path / "d2").rename(tmp_path / "removed")
        with log.producer(acks=1, enable_idempotence=False, linger_ms=0) as producer:
            for number in range(20):
                producer.send("t", b"%03d" % number).result(PATIENT_S)
        leader = tmp_path / "d1" / "t-0"
    (tmp_path / "removed").rename(tmp_path / "d2")
    with opened(tmp_path, 2, read_only=True) as log:
        late = replica(log.replicas().partitions[0], 2)
        total = sum(path.stat().st_size for path in leader.glob("*.log"))
        kept = sum(path.stat().st_size for path in (tmp_path / "d2" / "t-0").glob("*.log"))
        assert late.lag == 20
        assert late.lag_bytes == total - kept


def test_a_directory_that_was_not_opened_is_away(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
    (tmp_path / "d2").rename(tmp_path / "removed")
    with opened(tmp_path) as log:
        found = log.replicas()
        assert states(found) == {1: "live", 2: "away", 3: "live"}
        assert found.directories[1].reason
        assert found.can_decide
        assert replica(found.partitions[0], 2).state == "OfflineReplica"


def test_without_a_majority(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
    for node in (2, 3):
        (tmp_path / f"d{node}").rename(tmp_path / f"removed{node}")
    for read_only in (False, True):
        with opened(tmp_path, read_only=read_only) as log:
            found = log.replicas()
            assert states(found) == {1: "live", 2: "away", 3: "away"}
            assert not found.can_decide
            assert any("no majority" in text for text in found.warnings)
            assert replica(found.partitions[0], 1).log_end == 2
            assert found.partitions[0].state == "OnlinePartition"
            assert found.partitions[1].state == "OfflinePartition"
            assert changed(found)[-1] == "topic t created, 2 partitions"
            assert "NO majority" in str(found)


def test_a_reader_describes_a_set_that_others_write_and_one_that_no_process_has_open(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        with opened(tmp_path, read_only=True) as reader:
            sent(log, 4)
            found = reader.replicas()
            assert [each.log_end for each in found.partitions[0].copies] == [4, 4, 4]
            assert found.partitions[0].high_watermark == 4
            assert states(found) == {1: "live", 2: "live", 3: "live"}
    with opened(tmp_path, read_only=True) as reader:
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        found = reader.replicas()
        assert [each.log_end for each in found.partitions[0].copies] == [4, 4, 4]
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "a reader changes nothing"


def test_a_directory_that_crashed_waits_for_a_majority_to_register_it(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        sent(log, 2)
    pid = os.fork()
    if pid == 0:
        sent(opened(tmp_path), 1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    for node in (2, 3):
        (tmp_path / f"d{node}").rename(tmp_path / f"removed{node}")
    with opened(tmp_path) as log:
        found = log.replicas()
        assert states(found) == {1: "live", 2: "away", 3: "away"}
        assert "not closed in order" in (found.directories[0].reason or "")
        assert found.partitions[0].state == "OfflinePartition", "it leads nothing"
        assert replica(found.partitions[0], 1).log_end is None, "only a recovery knows it"
    for node in (2, 3):
        (tmp_path / f"removed{node}").rename(tmp_path / f"d{node}")
    with opened(tmp_path) as log:
        log.housekeep()
        found = log.replicas()
        assert [each.reason for each in found.directories] == [None, None, None]
        assert found.partitions[0].state == "OnlinePartition"


def test_a_directory_that_was_written_without_the_set_is_foreign(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
    with embedlog.open(tmp_path / "d3", alone=True, config=QUIET):
        pass
    with opened(tmp_path, read_only=True) as reader:
        found = reader.replicas()
        assert states(found) == {1: "live", 2: "live", 3: "foreign"}
        assert replica(found.partitions[0], 3).log_end is None, "its offsets say nothing about the set"


# ---- states of Kafka's controller ----------------------------------------------------------------


def test_the_states_of_a_partition_from_its_decision_to_its_deletion(tmp_path: Path) -> None:
    def shown(log: embedlog.Log) -> tuple[str, dict[int, str]]:
        (found,) = log.replicas("t").partitions
        return found.state, {each.node: each.state for each in found.copies}

    topic_id = UUID(int=77)
    with opened(tmp_path) as log:
        replicas = cast("ReplicatedEngine", log._engine).set
        replicas.decide(lambda state: CreateTopic("t", topic_id, replicas.live(), assignment=((1, 2),)))
        assert shown(log) == ("NewPartition", {1: "NewReplica", 2: "NewReplica"}), "decided, and not installed"
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
        assert shown(log)[1][3] == "ReplicaDeletionStarted", "a directory outside of the assignment is to be removed"
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
        assert (found.replicas, found.adding, found.removing, found.reassigning) == ((3, 1, 2), (3,), (2,), True)
        assert replica(found, 3).state == "OfflineReplica"
        assert not found.under_replicated, "a replica that is added does not count"
        assert log.metrics()["ReassigningPartitions"] == 1
        (tmp_path / "removed").rename(tmp_path / "d3")
        for _ in range(3):
            log.housekeep()
        (found,) = log.replicas("t").partitions
        assert (found.replicas, found.reassigning, sorted(found.isr)) == ((3, 1), False, [1, 3])
        assert {each.node: each.state for each in found.copies} == {3: "OnlineReplica", 1: "OnlineReplica"}
        assert log.metrics()["ReassigningPartitions"] == 0


def test_one_process_decides_in_a_term_and_the_others_see_it(tmp_path: Path) -> None:
    """Kafka's election of a controller: the first process that decides has the term, and the others follow it."""
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
        terms = {text: each.term for each in first.replicas().decisions for text in each.changes if text.startswith("topic")}
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
        self.path, self.go_on, self.count, self.active = path, threading.Event(), 0, True
        self._real = directory_view.observe
        monkeypatch.setattr(directory_view, "observe", self.observe)

    def observe(self, directory: LogDirectory, places: Any) -> Observation:
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
            if states(found) == {1: "live", 2: "failed", 3: "live"}:  # the others may be slow, too, on a busy machine
                assert found.can_decide
                assert replica(found.partitions[0], 1).log_end == 2
            assert states(log.replicas())[2] == "failed"
            assert hanging.count == 1
        finally:
            hanging.active = False
            hanging.go_on.set()
        describer._answers._hanging[2].ended(PATIENT_S)
        describer._answers._timeout_s = PATIENT_S
        assert states(log.replicas()) == {1: "live", 2: "live", 3: "live"}


def test_errors_of_the_process_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as log:

        def defect(directory: LogDirectory, places: Any) -> Observation:
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
    "data", [b"", b"x", b"\0" * 8192, b"\xff" * 8192, bytes(range(256)) * 32], ids=["empty", "x", "0", "255", "bytes"]
)
def test_a_damaged_page_of_an_unused_partition_leaves_its_offsets_unknown(tmp_path: Path, data: bytes) -> None:
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


# ---- one directory, and texts --------------------------------------------------------------------


def test_one_directory_has_one_replica_of_each_partition(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t", 2)
        sent(log, 3)
        for found in (log.replicas(), log.replicas("t")):
            assert [each.state for each in found.directories] == ["live"]
            node = found.directories[0].node
            assert [(each.leader, each.isr, each.high_watermark) for each in found.partitions] == [
                (node, (node,), 3),
                (node, (node,), 0),
            ]
            assert (found.decisions, found.can_decide, found.warnings) == ((), True, ())
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.replicas("u")
    with embedlog.open(tmp_path, read_only=True) as log:
        assert [each.high_watermark for each in log.replicas().partitions] == [3, 0]


def test_the_table_the_html_and_the_dict_show_the_same(tmp_path: Path) -> None:
    strange = tmp_path / "a <b> & \n c"
    strange.mkdir()
    with opened(strange) as log:
        created(log)
        sent(log, 2)
        found = log.replicas()
    text, html, content = str(found), found._repr_html_(), json.loads(json.dumps(found.as_dict()))
    assert "3 directories; term 1, voters [1, 2, 3], a majority answers" in text
    assert "t-0" in text
    assert "t-0" in html
    assert all("\n c" not in line for line in text.splitlines())
    assert "a <b> & \\n c" in text
    assert "<b>" not in html
    assert "a &lt;b&gt; &amp; \\n c" in html
    assert html.count("<table>") == 4 == html.count("</table>")
    assert [each["node"] for each in content["directories"]] == [1, 2, 3]
    assert content["partitions"][0]["copies"][0]["log_end"] == 2
    assert content["warnings"] == list(found.warnings)
    assert "one device" in found.warnings[0]
    assert hash(found)
    assert found == found
