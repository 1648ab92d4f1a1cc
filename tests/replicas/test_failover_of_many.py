"""One directory fails that led many partitions: the files of their next leaders are prepared, and
synced together.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import StorageError, UnknownTopicOrPartitionError
from embedlog.partition.epoch_file import EpochFile
from embedlog.partition.replication.replica_log import Staging
from embedlog.partition.state import PartitionState
from embedlog.replicas.decisions.proposals import Proposal
from embedlog.replicas.observation.replica_events import ReplicaEvents
from embedlog.replicas.partition import staged_epochs
from embedlog.replicas.partition.leaders import Leaders
from embedlog.replicas.rules.events import Elect
from embedlog.replicas.rules.state import State
from embedlog.storage import checkpoints, file_names, files, locks
from embedlog.storage.checkpoints import EpochCache

PARTITIONS = 24


def set_of(root: Path) -> list[Path]:
    return [root / f"d{node}" for node in (1, 2, 3)]


def fail_over(root: Path) -> None:
    """Write to all partitions, lose a directory that led a third of them, and write again."""
    with (
        embedlog.open(set_of(root), housekeeping=False) as log,
        log.producer(linger_ms=0) as producer,
    ):
        log.create_topic("t", PARTITIONS, replication_factor=3)
        for number in range(PARTITIONS):
            producer.send("t", b"before", partition=number)
        producer.flush()
        node = log._engine.partition("t", 0).node  # type: ignore[attr-defined]
        (root / f"d{node}").rename(root / "lost")
        for number in range(PARTITIONS):
            producer.send("t", b"after", partition=number)
        producer.flush()
        (root / "lost").rename(root / f"d{node}")
    with embedlog.open(set_of(root), housekeeping=False) as log:
        assert (
            sorted(record.value for record in log.scan("t").records())
            == [b"after"] * PARTITIONS + [b"before"] * PARTITIONS
        )
        for _ in range(10):
            log.housekeep()
        assert log.verify_replicas() == []
    for number in range(PARTITIONS):
        found = {
            tuple(checkpoints.read_epochs(path / f"t-{number}" / file_names.EPOCHS).entries[:2])
            for path in set_of(root)
        }
        assert len(found) == 1, "the epochs that have a batch"


def test_one_decision_elects_the_leaders_of_all_that_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replicas of one partition fail at the first look; it is elected when it is
    used.
    """
    elections: list[list[int]] = []
    observe = ReplicaEvents.observe
    election = Leaders.make_election
    failed = list[int]()

    def observed(events: ReplicaEvents, proposal: Proposal) -> None:
        elected = [each.partition_id[1] for each in proposal.events if isinstance(each, Elect)]
        elections.extend([elected] if elected else [])
        observe(events, proposal)

    def failing(leaders: Leaders, state: State, offset: int) -> Elect:
        if not failed and leaders._members.number:
            failed.append(leaders._members.number)
            raise StorageError("the replicas fail", errno=errno.EIO)
        return election(leaders, state, offset)

    monkeypatch.setattr(ReplicaEvents, "observe", observed)
    monkeypatch.setattr(Leaders, "make_election", failing)
    fail_over(tmp_path)
    assert elections[0][0] == 0
    assert failed[0] not in elections[0]
    assert elections[1] == failed
    assert len(elections[0]) + 1 == PARTITIONS // 3


def test_a_decision_loads_no_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes wait for the locks of a decision: a process that lost a directory opens the
    others' replicas before it.
    """
    with embedlog.open(set_of(tmp_path), housekeeping=False) as log:
        log.create_topic("t", PARTITIONS, replication_factor=3)
        with log.producer() as producer:
            for number in range(PARTITIONS):
                producer.send("t", b"before", partition=number)
    loaded = list[tuple[str, bool]]()
    load = PartitionState._open_for_writing
    with (
        embedlog.open(set_of(tmp_path), housekeeping=False) as log,
        log.producer(linger_ms=0) as producer,
    ):
        decisions = log._engine.set.decisions  # type: ignore[attr-defined]

        def opened(state: PartitionState) -> None:
            loaded.append((state.name, locks.is_owned(decisions._mutex)))
            load(state)

        monkeypatch.setattr(PartitionState, "_open_for_writing", opened)
        node = log._engine.partition("t", 0).node  # type: ignore[attr-defined]
        for number in range(PARTITIONS):
            assert log._engine.partition("t", number)
        (tmp_path / f"d{node}").rename(tmp_path / "lost")
        for number in range(PARTITIONS):
            producer.send("t", b"after", partition=number).result()
        (tmp_path / "lost").rename(tmp_path / f"d{node}")
    assert len(loaded) > 2 * PARTITIONS // 3
    assert [name for name, deciding in loaded if deciding and name.startswith("t-")] == []


def temporaries(root: Path) -> list[Path]:
    return list(root.glob("d?/*/*.tmp"))


def test_prepared_files_are_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[Path] = []
    put_in_place = files.put_in_place
    monkeypatch.setattr(
        files,
        "put_in_place",
        lambda temporary, path: (placed.append(path), put_in_place(temporary, path)),
    )
    fail_over(tmp_path)
    assert len(set(placed)) >= PARTITIONS // 3, "of the leaders and of their followers"
    assert temporaries(tmp_path) == []


def test_a_failed_sync_leaves_the_work_to_the_usual_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_epochs.files, "sync_all", lambda fds: [False] * len(fds))
    fail_over(tmp_path)
    assert temporaries(tmp_path) == []


def test_another_content_is_written_and_the_prepared_file_removed(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / file_names.EPOCHS, 0o666)
    staging = file.stage(EpochCache([(0, 0), (1, 5)]))
    assert files.sync_all([staging.fd]) == [True]
    staging.finish(synced=True)
    assert len(list(tmp_path.glob("*.tmp"))) == 1
    file.write(EpochCache([(0, 0), (1, 7)]))
    assert checkpoints.read_epochs(file.path).entries == [(0, 0), (1, 7)]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_prepared_file_that_was_removed_is_written_again(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / file_names.EPOCHS, 0o666)
    epochs = EpochCache([(0, 0), (1, 5)])
    staging = file.stage(epochs)
    staging.finish(synced=True)
    Path(staging.staged.temporary).unlink()
    file.write(epochs)
    assert checkpoints.read_epochs(file.path).entries == epochs.entries


def test_all_files_are_synced_and_each_has_its_result(tmp_path: Path) -> None:
    for count in (0, 1, 2, 64, 65, 130):
        fds = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(count)]
        try:
            assert files.sync_all(fds) == [True] * count
            if count > 1:
                assert files.sync_all([fds[0], -1, fds[1]]) == [True, False, True]
        finally:
            for fd in fds:
                os.close(fd)
    assert system.sync_all([0] * 65)[0] < 0, "more than the C core takes"


class Peer:
    """A partition of the decision; a deleted one raises."""

    def __init__(self, *, deleted: bool = False) -> None:
        self.deleted = deleted
        self.staged = 0

    def stage_epochs(self, state: State) -> Iterator[Staging]:
        self.staged += 1
        if self.deleted:
            raise UnknownTopicOrPartitionError("topic 'd' was deleted")
        return iter(())


def test_a_deleted_partition_of_the_same_decision_fails_no_other_one() -> None:
    partitions = [Peer(), Peer(), Peer(deleted=True), Peer()]
    epochs = staged_epochs.EpochStaging(partitions)
    state = State("cluster")
    for partition in (partitions[0], partitions[1], partitions[3]):
        epochs.prepare(partition, state)
    assert [partition.staged for partition in partitions] == [1, 1, 1, 1]
