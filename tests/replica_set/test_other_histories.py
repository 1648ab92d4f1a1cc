"""Directories of a copy of the whole set that was opened by itself: their decisions replace none that count in the set."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import embedlog
from embedlog._native import system
from embedlog.config.topic import TopicConfig
from embedlog.errors import NotEnoughDirectoriesError, ReplicaSetError, StorageError
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.replica_description import ReplicasDescription
from embedlog.replica_set import membership
from embedlog.replica_set.decisions import promise, shared_records
from embedlog.replica_set.decisions.copies import Copy, LockedCopy
from embedlog.storage import checkpoints
from embedlog.storage.file_names import EPOCHS
from tests.support import decision_logs
from tests.support.decision_logs import NODES, Process, batches_of, begun, copy_path, killed_with, made, numbers_of


def forked(root: Path, ours: Iterable[int], theirs: Iterable[int], nodes: tuple[int, ...] = NODES, node: int = 1) -> None:
    """A set after these decisions, and one of its directories from a copy of the set after other decisions."""
    begun(root, nodes)
    shutil.copytree(root, root / "copy")
    for place, numbers in ((root, ours), (root / "copy", theirs)):
        for number in numbers:
            with Process(place, nodes) as process:  # each one has another term
                process.decide(number)
    shutil.rmtree(root / f"d{node}")
    shutil.move(root / "copy" / f"d{node}", root / f"d{node}")
    shutil.rmtree(root / "copy")


def logs(root: Path) -> list[list[tuple[int, int, bytes]]]:
    return [batches_of(root, node) for node in NODES if copy_path(root, node).exists()]


@pytest.mark.parametrize("theirs", [(10,), (10, 11), (10, 11, 12)], ids=["shorter", "equal terms", "longer"])
def test_the_history_of_a_majority_counts(tmp_path: Path, theirs: tuple[int, ...]) -> None:
    forked(tmp_path, (2, 3), theirs)
    before = batches_of(tmp_path, 1)
    with Process(tmp_path) as process:
        process.decide(4)
        assert set(process.log.other_histories()) == {1}
        assert process.log.nodes == (2, 3), "no decision of the other history is shown"
        assert process.log.hint() == process.log.settled()
    assert numbers_of(tmp_path, 2) == numbers_of(tmp_path, 3) == [1, 2, 3, 4]
    assert batches_of(tmp_path, 1) == before


def test_without_a_majority_of_one_history_nothing_is_written(tmp_path: Path) -> None:
    forked(tmp_path, (2, 3), (10, 11, 12), (1, 2))
    before = logs(tmp_path)
    expected = pytest.raises(ReplicaSetError, match="different decisions")
    with Process(tmp_path, (1, 2), voters=(1, 2)) as process, expected as caught:
        process.decide(4)
    assert sorted(caught.value.paths) == [str(tmp_path / "d1"), str(tmp_path / "d2")]
    assert logs(tmp_path) == before


def test_a_copy_that_has_only_the_common_part_is_no_majority(tmp_path: Path) -> None:
    root = begun(tmp_path / "set")
    copy = shutil.copytree(root, tmp_path / "copy")
    earlier = shutil.copytree(root / "d3", tmp_path / "earlier")
    for place, number in ((root, 2), (copy, 10)):
        with Process(place) as process:
            process.decide(number)
    for node, source in ((1, copy / "d1"), (3, earlier)):
        shutil.rmtree(root / f"d{node}")
        shutil.copytree(source, root / f"d{node}")
    before = logs(root)
    with Process(root) as process, pytest.raises(ReplicaSetError, match="different decisions"):
        process.decide(3)
    assert logs(root) == before


def test_a_process_continues_the_history_of_its_decisions(tmp_path: Path) -> None:
    """Also without a majority: the other directory stays away."""
    root = begun(tmp_path / "set", (1, 2))
    copy = shutil.copytree(root, tmp_path / "copy")
    with Process(copy, (1, 2), voters=(1, 2)) as other:
        other.decide(10)
        other.decide(11)
    with Process(root, (1, 2), voters=(1, 2)) as process:
        process.decide(2)
        before = logs(root)
        process.detach(1)
        process.attach(copy, 1)
        with pytest.raises(NotEnoughDirectoriesError):
            process.decide(3)
        assert set(process.log.other_histories()) == {1}
        assert process.log.hint() == process.log.settled()
        assert logs(root) == before


def test_a_copy_with_more_counted_decisions_than_a_known_majority_is_another_history(tmp_path: Path) -> None:
    """The set has decided nothing since the copy was made: no record differs."""
    root = begun(tmp_path / "set")
    with Process(root) as process:
        process.log.level()
        copy = shutil.copytree(root, tmp_path / "copy")
        with Process(copy, boot=2) as other:
            other.decide(10)
        process.detach(1)
        process.attach(copy, 1, boot=2)
        process.decide(2)
        assert set(process.log.other_histories()) == {1}
    assert numbers_of(root, 2) == numbers_of(root, 3) == [1, 2]


def test_a_tail_that_counts_nowhere_is_cut_although_its_terms_are_those_of_others(tmp_path: Path) -> None:
    root = begun(tmp_path / "set")
    killed_with(root, NODES, lambda process: process.decide(2), 2)
    with Process(root, (2, 3)) as process:
        process.decide(3)
    with Process(root) as process:
        process.decide(4)
        assert not process.log.other_histories()
    assert [numbers_of(root, node) for node in NODES] == [[1, 3, 4]] * 3


def test_compared_copies_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path)
    compared = list[object]()
    read = shared_records.agreed_end

    def agreed_end(one: LockedCopy, other: LockedCopy) -> int:
        compared.append(one)
        return read(one, other)

    monkeypatch.setattr(shared_records, "agreed_end", agreed_end)
    with Process(tmp_path) as process:
        for number in range(2, 6):
            process.decide(number)
        assert len(compared) == len(NODES) - 1
        process.detach(3)
        process.attach(tmp_path, 3)
        process.decide(6)
        assert len(compared) == len(NODES)


def test_another_directory_under_a_planned_number_is_no_vote(tmp_path: Path) -> None:
    """A process adds a directory with a number that another process has given to another one."""
    root, other = made(begun(tmp_path / "set", (1, 2)), (3,)), made(tmp_path / "other", (3,))
    with Process(root, voters=(1, 2)) as process, Process(other, (3,)) as adding:
        process.add(3)
        process.detach(2)
        process.detach(3)
        process.log.attach(Copy(3, adding.partitions[3], directory=UUID(int=1)))
        before = logs(root)
        with pytest.raises(NotEnoughDirectoriesError):
            process.decide(2)
        assert "another directory is node 3" in str(process.log.failures()[3])
        assert logs(root) == before
        assert batches_of(other, 3) == []
        process.log.attach(Copy(3, adding.partitions[3], directory=UUID(int=10**6 + 3)))
        process.decide(3)


# ---- open sets -----------------------------------------------------------------------------------


def opened(root: Path, prefix: str = "d", names: Iterable[str] | None = None) -> embedlog.Log:
    return embedlog.open([root / name for name in names or [f"{prefix}{node}" for node in NODES]], lock_timeout_ms=3000)


def copied(root: Path) -> None:
    for node in NODES:
        shutil.copytree(root / f"d{node}", root / f"c{node}")


def put_back(root: Path, node: int) -> None:
    shutil.rmtree(root / f"d{node}", ignore_errors=True)
    (root / f"c{node}").rename(root / f"d{node}")


def send(log: embedlog.Log, topic: str, *values: bytes) -> None:
    with log.producer(acks="all") as producer:
        for value in values:
            producer.send(topic, value, partition=0).result(60)


def values(log: embedlog.Log, topic: str) -> list[bytes | None]:
    return [record.value for record in log.scan(topic).records()]


def in_order(found: ReplicasDescription) -> bool:
    return all(len(each.isr) == 3 for each in found.partitions) and {each.state for each in found.directories} == {"live"}


def check(log: embedlog.Log) -> None:
    deadline = time.monotonic() + 60
    while not in_order(log.replicas()):
        assert time.monotonic() < deadline
        log.housekeep()
    assert (values(log, "t"), values(log, "new")) == ([b"before", b"after"], [b"new"])
    assert log.verify_replicas() == []


def work_on(root: Path) -> None:
    with opened(root) as log:
        send(log, "t", b"after")
        log.create_topic("new", replication_factor=3, config={"min.insync.replicas": "2"})
        send(log, "new", b"new")


def begin(root: Path) -> None:
    with opened(root) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": "2"})
        send(log, "t", b"before")
    copied(root)


@pytest.mark.parametrize(("openings", "node"), [(1, 1), (2, 1), (3, 2)])
def test_a_directory_of_a_backup_that_was_opened_is_compared(tmp_path: Path, openings: int, node: int) -> None:
    begin(tmp_path)
    work_on(tmp_path)
    for number in range(openings):
        with opened(tmp_path, "c") as log:
            assert b"before" in values(log, "t")
            send(log, "t", b"of the copy %d" % number)
    put_back(tmp_path, node)
    for each in {1, 2, 3} - {node}:
        shutil.rmtree(tmp_path / f"c{each}")
    with opened(tmp_path) as log:
        check(log)
    with opened(tmp_path) as log:
        check(log)


@pytest.mark.parametrize("damaged", [False, True], ids=["missing", "damaged"])
def test_a_directory_of_a_backup_without_its_decisions_is_compared(tmp_path: Path, damaged: bool) -> None:
    """Its broker epoch is above the decided one (REGISTRATION-9)."""
    begin(tmp_path)
    work_on(tmp_path)
    for number in range(3):
        with opened(tmp_path, "c") as log:
            send(log, "t", b"of the copy %d" % number)
    put_back(tmp_path, 1)
    if damaged:
        path = max(copy_path(tmp_path, 1).glob("*.log"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    else:
        shutil.rmtree(copy_path(tmp_path, 1))
    for each in (2, 3):
        shutil.rmtree(tmp_path / f"c{each}")
    earlier = membership.read(tmp_path / "d1")
    with opened(tmp_path) as log:
        check(log)
    own = membership.read(tmp_path / "d1")
    assert own is not None
    assert earlier is not None
    assert own.registered_id == own.registration_id != earlier.registration_id, "processes that use another copy notice it"
    with opened(tmp_path) as log:
        check(log)


def test_a_directory_of_each_history_is_refused(tmp_path: Path) -> None:
    """A set of two has no majority of either history."""
    paths = [tmp_path / "d1", tmp_path / "d2"]
    with embedlog.open(paths) as log:
        log.create_topic("t", replication_factor=2)
    for path in paths:
        shutil.copytree(path, tmp_path / f"c{path.name[1:]}")
    for places in (paths, [tmp_path / "c1", tmp_path / "c2"]):
        with embedlog.open(places) as log:
            send(log, "t", b"record")
    put_back(tmp_path, 1)
    before = [batches_of(tmp_path, node) for node in (1, 2)]
    with pytest.raises(ReplicaSetError, match="different decisions"):
        embedlog.open(paths)
    assert [batches_of(tmp_path, node) for node in (1, 2)] == before
    shutil.rmtree(tmp_path / "d1")
    with embedlog.open(paths, read_only=True) as log:
        assert log.topics()


def test_a_directory_of_a_backup_is_put_back_while_the_log_is_open(tmp_path: Path) -> None:
    begin(tmp_path)
    for _ in range(3):
        with opened(tmp_path, "c"):
            pass
    work_on(tmp_path)
    with opened(tmp_path) as log:
        (tmp_path / "d1").rename(tmp_path / "lost")
        put_back(tmp_path, 1)
        check(log)


def test_a_witness_of_a_backup_overrules_no_directory(tmp_path: Path) -> None:
    with embedlog.open([tmp_path / "d1", tmp_path / "d2"]) as log:
        log.add_directory(tmp_path / "d3", replicas=False)
    copied(tmp_path)
    with opened(tmp_path) as log:
        log.create_topic("new", replication_factor=2)
        send(log, "new", b"new")
    for _ in range(3):
        with opened(tmp_path, "c"):
            pass
    put_back(tmp_path, 3)
    with opened(tmp_path) as log:
        assert values(log, "new") == [b"new"]
        assert {each.state for each in log.replicas().directories} == {"live", "witness"}


def test_a_copy_of_a_directory_in_use_is_refused_if_it_was_opened_by_itself(tmp_path: Path) -> None:
    """The set has decided nothing since the copy was made."""
    begin(tmp_path)
    with opened(tmp_path) as log:
        for node in NODES:
            shutil.rmtree(tmp_path / f"c{node}")
        copied(tmp_path)
        with opened(tmp_path, "c"):
            pass
        with pytest.raises(ReplicaSetError, match="another copy of the directory"):
            opened(tmp_path, names=["c1", "d2", "d3"]).close()
        send(log, "t", b"after")
        log.create_topic("new", replication_factor=3)
        send(log, "new", b"new")
        check(log)


@contextlib.contextmanager
def renewed_from_a_compacted_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process of a set whose copy 3 was made from copy 1 after a compaction: its terms have other starts (SHAREDRECORDS-1)."""
    small = TopicConfig(cleanup_policy=("compact",), segment_bytes=400, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0)
    monkeypatch.setattr(decision_logs, "COMPACTED", small)
    begun(root)
    for number in range(2, 12):
        with Process(root) as process:  # each one has another term
            process.decide(number)
    with Process(root) as process:
        process.log.settle()
        process.partitions[1].compact(0, 1 << 26, system.wall_ms() + 10**9)
    shutil.rmtree(root / "d3")
    made(root, (3,))
    promise.write(copy_path(root, 3), promise.Promise(incomplete=True))
    with Process(root) as process:
        process.decide(12)
    starts = [checkpoints.read_epochs(copy_path(root, node) / EPOCHS).entries for node in (1, 3)]
    assert starts[0] != starts[1]
    with Process(root) as process:
        yield process


def test_a_copy_of_a_compacted_log_is_of_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with renewed_from_a_compacted_copy(tmp_path, monkeypatch) as process:
        process.decide(13)
        assert not process.log.other_histories()
    assert {numbers_of(tmp_path, node)[-1] for node in NODES} == {13}


def test_a_decision_cuts_no_copy_of_a_compacted_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """COPY-5: the records are equal."""
    with renewed_from_a_compacted_copy(tmp_path, monkeypatch) as process:
        for way in ("_can_be_cut", "_begin_again"):
            monkeypatch.setattr(LockedCopy, way, lambda *_: pytest.fail("a copy is cut"))
        process.decide(13)
    assert {numbers_of(tmp_path, node)[-1] for node in NODES} == {13}


def test_an_error_of_the_best_copy_leaves_that_copy_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that is copied from it."""
    begun(tmp_path)
    read, bring_to, failed = ReplicaLog.read, LockedCopy.bring_to, list[Path]()

    def failing(self: ReplicaLog, *args: Any) -> Any:
        if not failed:
            failed.append(self._state.path)
            raise StorageError("no read", path=self._state.path, errno=errno.EIO)
        return read(self, *args)

    def brought(self: LockedCopy, best: LockedCopy, term: int) -> None:
        if self.end < best.end:
            monkeypatch.setattr(ReplicaLog, "read", failing)
        bring_to(self, best, term)

    with Process(tmp_path) as process:
        process.detach(3)
        process.decide(2)
        process.attach(tmp_path, 3)
        monkeypatch.setattr(LockedCopy, "bring_to", brought)
        process.decide(3)
    assert len(failed) == 1
    left_out = {"d1": 1, "d2": 2}[failed[0].parent.name]
    assert [numbers_of(tmp_path, node)[-1] for node in NODES if node != left_out] == [3, 3]
