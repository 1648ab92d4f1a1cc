"""Comparison and repair of replicas: damage and differences are found, replaced by a complete
replica, and reported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.replicas.rules.records import NO_LEADER
from embedlog.replicas.verification import partition_repair
from embedlog.replicas.verification.comparison import Difference, compare
from embedlog.storage import file_names
from tests.support.verified_sets import (
    COUNT,
    QUIET,
    WANTED,
    assert_equal_copies,
    filled,
    flip,
    isr,
    leader,
    opened,
    segment_of,
    values,
)

Compared = Difference | None


def test_equal_replicas_have_no_difference(tmp_path: Path) -> None:
    compared: list[int] = []
    with filled(tmp_path) as log:
        assert log.verify_replicas(progress=compared.append) == []
        assert log.verify_replicas("t", repair=True) == []
        assert log.repair() == embedlog.RepairReport((), {})
        assert compared[-1] >= 2 * sum(map(len, WANTED))
        with pytest.raises(embedlog.errors.UnknownTopicOrPartitionError):
            log.verify_replicas("other")


def test_one_directory_has_no_differences(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        assert log.verify_replicas() == []
        with pytest.raises(embedlog.errors.ReplicaSetError):
            log.repair()


def test_a_damaged_follower_is_found_and_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(tmp_path) as log:
        assert leader(log) == 1
        flip(segment_of(tmp_path, 2))
        [found] = log.verify_replicas("t")
        assert (found.topic, found.partition, found.node, found.kind) == ("t", 0, 2, "damaged")
        assert 0 < found.first_offset < COUNT == found.end_offset
        assert Path(found.path) == segment_of(tmp_path, 2)
        with caplog.at_level(logging.WARNING, "embedlog"):
            report = log.repair("t", 0)
        [done] = report.repaired
        assert (done.node, done.source, done.first_offset, done.end_offset) == (
            2,
            1,
            found.first_offset,
            COUNT,
        )
        assert not report.left
        assert "offsets" in caplog.text
        assert "copied from node 1" in caplog.text
        assert list((tmp_path / "d2" / "t-0").glob(f"{file_names.CUT}*")), "the cut bytes are kept"
        assert isr(log) == [1, 2, 3]
        assert log.verify_replicas() == []
        assert values(log) == WANTED
    assert_equal_copies(tmp_path)


def test_a_damaged_leader_hands_over_before_its_repair(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        flip(segment_of(tmp_path, 1))
        [found] = log.verify_replicas(repair=True)
        assert (found.node, found.kind) == (1, "damaged")
        assert leader(log) != 1
        assert isr(log) == [1, 2, 3]
        assert log.verify_replicas() == []
        assert values(log) == WANTED
    assert_equal_copies(tmp_path)


def test_a_reader_of_a_damaged_leader_gets_the_bytes_of_another_replica(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        flip(segment_of(tmp_path, 1))
        with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=2000) as consumer:
            assert [record.value for record in consumer] == WANTED
        assert leader(log) != 1
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert log.verify_replicas() == []
    assert_equal_copies(tmp_path)


def test_damage_in_different_places_of_all_followers_is_repaired(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        flip(segment_of(tmp_path, 2), 0.2)
        flip(segment_of(tmp_path, 3), 0.8)
        assert sorted(each.node for each in log.repair().repaired) == [2, 3]
        assert isr(log) == [1, 2, 3]
        assert values(log) == WANTED
    assert_equal_copies(tmp_path)


def test_the_only_copy_is_left_as_it_is(tmp_path: Path) -> None:
    with filled(tmp_path, factor=1) as log:
        flip(segment_of(tmp_path, 1))
        before = segment_of(tmp_path, 1).read_bytes()
        report = log.repair()
        assert not report.repaired
        assert [each.node for each in report.left] == [1]
        assert segment_of(tmp_path, 1).read_bytes() == before
        with pytest.raises(embedlog.errors.CorruptRecordError):
            values(log)


def two_logs(
    root: Path,
    ours: list[tuple[bytes, bytes | None]],
    theirs: list[tuple[bytes, bytes | None]],
    policy: str,
) -> Compared:
    """What the comparison of two logs with these records finds."""
    with contextlib.ExitStack() as stack:
        partitions = []
        for name, records in (("ours", ours), ("theirs", theirs)):
            log = stack.enter_context(embedlog.open(root / name, config=QUIET))
            log.create_topic("t", 1, config={"cleanup.policy": policy})
            with log.producer(linger_ms=0, enable_idempotence=False) as producer:
                for number, (key, value) in enumerate(records):
                    producer.send("t", value, key=key, timestamp_ms=number + 1).result(20)
            partitions.append(log._engine.partition("t", 0))
        return compare(*partitions)


RECORDS: list[tuple[bytes, bytes | None]] = [
    (b"%d" % (number % 5), b"%03d" % number) for number in range(20)
]


def test_the_first_batch_with_other_bytes_is_the_difference(tmp_path: Path) -> None:
    found = two_logs(tmp_path, RECORDS, [*RECORDS[:7], (b"2", b"xyz"), *RECORDS[8:]], "delete")
    assert found is not None
    assert (found.kind, found.first, found.end, found.anew) == ("different", 7, 20, False)


def test_equal_records_are_equal_bytes(tmp_path: Path) -> None:
    assert two_logs(tmp_path, RECORDS, RECORDS, "delete") is None


def test_of_a_compacted_topic_the_last_values_count(tmp_path: Path) -> None:
    earlier = [(key, b"old") for key, _ in RECORDS[:5]] + RECORDS[5:]
    assert two_logs(tmp_path, RECORDS, earlier, "compact") is None


@pytest.mark.parametrize("last", [b"xyz", None])
def test_another_last_value_in_a_compacted_topic_is_a_difference(
    tmp_path: Path, last: bytes | None
) -> None:
    found = two_logs(tmp_path, RECORDS, [*RECORDS[:-1], (RECORDS[-1][0], last)], "compact")
    assert found is not None
    assert (found.kind, found.first, found.anew) == ("different", 19, True)


POINTS = ["cut-intent", "cut-begun", "cut-indexes", "cut-published", "repair-cut"]


def killed_in_a_repair(root: Path, point: str) -> None:
    """A process fills a set, damages a follower, and is killed at a point of its repair."""
    child = os.fork()
    if child == 0:
        try:
            with filled(root) as log:
                flip(segment_of(root, 2))
                system.fault_arm(["point"], 1, "kill_before", name=point)
                log.repair()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it was killed"


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_repair_is_completed_by_the_next_one(tmp_path: Path, point: str) -> None:
    killed_in_a_repair(tmp_path, point)
    with opened(tmp_path) as log:
        log.housekeep()
        assert values(log) == WANTED
        assert isr(log) == [1, 2, 3]
        log.repair()
        assert isr(log) == [1, 2, 3]
        assert log.verify_replicas() == []
        assert values(log) == WANTED
    assert_equal_copies(tmp_path)


def test_a_replica_whose_repair_was_interrupted_before_the_cut_begins_again(tmp_path: Path) -> None:
    killed_in_a_repair(tmp_path, "repair-role")
    with opened(tmp_path) as log:
        assert isr(log) == [1, 3]
        log.housekeep()
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert log.verify_replicas() == []
        assert values(log) == WANTED
    assert_equal_copies(tmp_path)


def test_a_different_replica_of_a_compacted_topic_is_copied_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path, cleanup_policy="compact") as log:
        path = segment_of(tmp_path, 3).parent
        found = [Difference("different", path, 10, COUNT, "another last value", anew=True)]
        monkeypatch.setattr(partition_repair, "compare", lambda *_: found.pop() if found else None)
        replicas = next(iter(log._engine.set._replicas.values()))
        done = partition_repair.PartitionRepair(replicas, log._engine.set.deadline).repair(3)
        assert done is not None
        assert (done.node, done.first_offset, done.end_offset) == (3, 10, COUNT)
        monkeypatch.undo()
        assert not list(path.glob(f"{file_names.CUT}*")), "the log began again"
        assert isr(log) == [1, 2, 3]
        assert log.verify_replicas() == []
        assert values(log) == WANTED
    assert_equal_copies(tmp_path)


def test_a_reader_reports_a_replica_that_cannot_be_loaded(tmp_path: Path) -> None:
    """No process writes, so no page shows an ISR."""
    with filled(tmp_path):
        pass
    flip(segment_of(tmp_path, 2), 0.4)
    with embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)], read_only=True) as log:
        assert [(each.node, each.kind, each.path) for each in log.verify_replicas()] == [
            (2, "damaged", str(segment_of(tmp_path, 2)))
        ]


def test_a_replica_is_not_eligible_to_lead_while_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that leaves an ISR below `min.insync.replicas` becomes eligible. It was cut, elected, and
    records were lost.
    """
    seen = list[tuple[int, ...]]()

    def lost(*_: object) -> None:
        [decided] = log._engine.set.decisions.counted_state().partitions.values()
        seen.append(decided.elr)
        raise KeyboardInterrupt

    with filled(tmp_path, factor=2, min_insync_replicas="2"):
        flip(segment_of(tmp_path, 2))
    with embedlog.open(
        [tmp_path / f"d{n}" for n in (1, 2, 3)], config=QUIET | {"lock.timeout.ms": 2000}
    ) as log:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(partition_repair.PartitionRepair, "_copy_again", lost)
            log.repair("t")
        assert seen == [()]
        (tmp_path / "d1").rename(tmp_path / "away")
        log.housekeep()
        assert leader(log) == NO_LEADER
        (tmp_path / "away").rename(tmp_path / "d1")
        log.housekeep()
        assert values(log) == WANTED
