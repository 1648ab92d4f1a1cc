"""An append, a decision or a deletion that goes on at the next leader: nothing is lost, repeated,
or left with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError, NotEnoughReplicasAfterAppendError, StorageError
from embedlog.format.record_batch import EncodedRun, Stamp
from embedlog.partition.log_context import AppendProgress
from embedlog.partition.replication.followers import Followers
from embedlog.partition.replication.replica_epochs import ReplicaEpochs
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.replicas.decisions.proposals import Steps
from embedlog.replicas.members.open_directories import ReopenedError
from embedlog.replicas.partition.leader import Leader, LeaderChanged
from embedlog.replicas.rules.events import Elect, Election
from tests.support.replica_partitions import Decisions, Process, a_set
from tests.support.replica_sets import PARTITION_ID, seen
from tests.support.stamped_batches import run_of, stamped

USES = range(40)  # of a directory, until each call below has ended


def far() -> int:
    return system.boot_ns() + 20_000_000_000


def values(process: Process) -> bytes:
    """The bytes of all records that readers see."""
    partition = process.partition
    found = b""
    offset = process.partition.bounds().log_start
    while len((fetched := partition.fetch(offset)).batches):
        found += bytes(fetched.data)
        offset = fetched.next_offset
    return found


def deleted_by_another_process(process: Process) -> None:
    """Write other records to the next leader, and delete them."""
    for number in range(1, 5):
        assert process.partition.append(run_of(b"other")).base_offset == number
    assert process.partition.delete_records(4) == 4
    for node in (2, 3):  # as in a process that reads its epochs now
        process.disks[node].log._engine.partition("t", 0)._reader.epochs.forget()  # type: ignore[attr-defined]


def appended_by_the_leader_alone(
    process: Process, run: EncodedRun, stamp: Stamp | None = None
) -> AppendProgress:
    """The progress of an append that only the first directory has, which is lost then. The others
    are there.
    """
    for node in (2, 3):
        process.disks[node].broken = True
    progress = AppendProgress(run)
    with pytest.raises(NotEnoughReplicasAfterAppendError):
        process.partition.append(run, stamp=stamp, progress=progress)
    assert progress.complete
    process.disks[1].broken = True
    for node in (2, 3):
        process.disks[node].broken = False
    process.forgive()
    process.replicas.in_sync.add_to_isr(process.replicas.leaders.find_leader(far()), 2, far())
    return progress


def test_a_lost_record_below_the_log_start_of_the_next_leader_is_appended_again(
    tmp_path: Path,
) -> None:
    """The next leader has other records there, and has deleted them: its epochs begin above, and
    show nothing.

    It knows the producer, so the sequence shows that the record was never there.
    """
    with a_set(tmp_path, min_insync_replicas="2") as (_, [process]):
        stamp = Stamp(7, 0)
        process.partition.append(stamped(stamp, 0, b"first"), stamp=stamp)
        run = stamped(stamp, 1, b"second")
        progress = appended_by_the_leader_alone(process, run, stamp)
        deleted_by_another_process(process)
        assert process.partition.append(run, stamp=stamp, progress=progress).base_offset == 5
        assert b"second" in values(process)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_record_of_a_producer_that_the_next_leader_does_not_know_is_not_appended_again(
    tmp_path: Path, epoch: int
) -> None:
    """A leader that began again above the record takes any sequence as new: the record was read
    twice, with idempotence.
    """
    with a_set(tmp_path, min_insync_replicas="1") as (decisions, [process]):
        first = Stamp(7, 0)
        stamp = Stamp(7, epoch)
        process.partition.append(stamped(first, 0, b"first"), stamp=first)
        process.disks[3].broken = True
        run = stamped(stamp, 1 - epoch, b"second")
        progress = AppendProgress(run)
        process.partition.append(run, stamp=stamp, progress=progress)
        # the process is slow before it sees the commit
        progress.committed = progress.seen_committed = 0
        process.disks[1].broken = True
        for _ in range(3):
            process.partition.append(run_of(b"other"))
        assert b"second" in values(process)
        assert process.partition.delete_records(4) == 4
        process.disks[3].broken = False
        process.forgive()
        process.disks[1].broken = True
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 3, far()
        )
        process.disks[2].broken = True
        process.partition.append(run_of(b"later"))
        assert (decisions.partition.leader, process.published(3).log_start) == (3, 4)
        with pytest.raises(NotEnoughReplicasAfterAppendError, match="may have been committed"):
            process.partition.append(run, stamp=stamp, progress=progress)
        assert b"second" not in values(process)


def many(stamp: Stamp, count: int) -> EncodedRun:
    """A run of so many batches, each in a segment of its own."""
    run = stamped(
        stamp, 1, *(b"%d:%01400d" % (number, 0) for number in range(count)), batch_bytes=1
    )
    assert len(run.batches) == count
    return run


def test_many_batches_that_were_deleted_keep_their_places(tmp_path: Path) -> None:
    """More than a leader remembers of a producer. They were read, and appended a second time in the
    next epoch.
    """
    with a_set(tmp_path, min_insync_replicas="1") as (_, [process]):
        stamp = Stamp(7, 0)
        process.partition.append(stamped(stamp, 0, b"first"), stamp=stamp)
        run = many(stamp, 8)
        progress = AppendProgress(run)
        process.partition.append(run, stamp=stamp, progress=progress)
        # the process is slow before it sees the commit
        progress.committed = progress.seen_committed = 0
        process.disks[1].broken = True
        assert process.partition.append(run_of(b"other")).base_offset == 9
        assert process.partition.delete_records(10) == 10
        done = process.partition.append(run, stamp=stamp, progress=progress)
        assert (done.base_offset, done.last_offset, progress.committed) == (1, 8, 9)
        assert process.published(2).log_end == 10


def test_of_deleted_batches_the_missing_ones_are_appended_again(tmp_path: Path) -> None:
    """Replicas had the first five before. The sequences show that the leader, which was lost, alone
    had the others.
    """
    with a_set(tmp_path, min_insync_replicas="2") as (_, [process]):
        stamp = Stamp(7, 0)
        process.partition.append(stamped(stamp, 0, b"first"), stamp=stamp)
        process.partition.append(many(stamp, 5), stamp=stamp)
        run = many(stamp, 8)
        progress = appended_by_the_leader_alone(process, run, stamp)
        for number in range(6, 10):
            assert process.partition.append(run_of(b"other")).base_offset == number
        assert process.partition.delete_records(10) == 10
        done = process.partition.append(run, stamp=stamp, progress=progress)
        assert (done.base_offset, done.last_offset, done.pieces[-1]) == (1, 12, (12, 13))
        assert [number for number in range(8) if b"%d:0" % number in values(process)] == [5, 6, 7]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("copied", [0, 1, 40, 700, 999])
def test_few_batches_of_a_long_run_are_looked_for_at_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    """Each look can read an interval of the index: for each batch, that took longer than the
    timeout of the append.
    """
    with a_set(tmp_path, min_insync_replicas="2") as (_, [process]):
        stamp = Stamp(7, 0)
        looks = list[int]()
        process.partition.append(stamped(stamp, 0, b"first"), stamp=stamp)
        run, first = (
            stamped(stamp, 1, *(b"v" for _ in range(count)), batch_bytes=1)
            for count in (1000, copied or 1)
        )
        assert len(run.batches) == 1000
        if copied:
            process.partition.append(first, stamp=stamp)
        progress = appended_by_the_leader_alone(process, run, stamp)
        process.partition.append(run_of(b"other"))
        find = ReplicaEpochs._read_batch_from

        def counted(self: ReplicaEpochs, offset: int) -> tuple[int, int] | None:
            looks.append(offset)
            return find(self, offset)

        monkeypatch.setattr(ReplicaEpochs, "_read_batch_from", counted)
        done = process.partition.append(run, stamp=stamp, progress=progress)
        assert len(looks) < 25
        assert (done.base_offset, done.last_offset) == (1 if copied else 2, 1001)
        assert process.published(2).log_end == 1002


@pytest.mark.parametrize("committed", [False, True])
def test_without_a_sequence_an_append_below_the_log_start_of_the_next_leader_fails(
    tmp_path: Path, committed: bool
) -> None:
    """It may have been committed, and read. Repeated, it would be read twice. An append that saw
    its commit is acknowledged.
    """
    with a_set(tmp_path, min_insync_replicas="2") as (_, [process]):
        process.partition.append(run_of(b"first"))
        run = run_of(b"second")
        progress = appended_by_the_leader_alone(process, run)
        deleted_by_another_process(process)
        if committed:
            progress.committed = 2
            assert process.partition.append(run, progress=progress).base_offset == 1
        else:
            with pytest.raises(NotEnoughReplicasAfterAppendError, match="may have been committed"):
                process.partition.append(run, progress=progress)
        assert b"second" not in values(process)


def test_a_record_that_is_appended_again_after_an_unclean_election_is_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed at a higher offset before. That acknowledged it at the lower one, with the
    new leader alone.
    """
    with a_set(tmp_path) as (decisions, [process]):
        process.partition.append(run_of(b"0"))
        for node in (2, 3):
            process.disks[node].broken = True
        for _ in range(5):
            process.partition.append(run_of(b"one replica"))
        run = run_of(b"value")
        progress = AppendProgress(run)
        process.partition.append(run, progress=progress)
        lead_uncleanly(process, decisions, 2)
        assert process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(far()), 3, far()
        )
        # another thread copies to them
        monkeypatch.setattr(Followers, "_enter", lambda followers: [])
        done = process.partition.append(run, progress=progress)
        monkeypatch.undo()
        assert done.base_offset == 1
        assert {node: process.published(node).log_end for node in (2, 3)} == {2: 2, 3: 2}


def lead_uncleanly(process: Process, decisions: Decisions, node: int) -> None:
    process.disks[1].broken = True
    for each in (2, 3):
        process.disks[each].broken = False
    process.forgive()
    epoch = decisions.partition.partition_epoch
    found = seen("2 3", {2: (0, 1), 3: (0, 1)})
    decisions.propose(
        Steps([lambda state, offset: Elect(PARTITION_ID, Election.UNCLEAN, epoch, found, node)])
    )
    assert decisions.partition.leader == node


# ---- the directory of a leader fails at any of its uses --------------------------------------------------------------


@contextmanager
def second_leader_failing(
    process: Process, uses: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The second directory fails after some more uses, once it leads."""
    leader = process.replicas.leaders.find_leader

    def led(*arguments: Any, **options: Any) -> Leader:
        found: Leader = leader(*arguments, **options)
        disk = process.disks[2]
        if found.node == 2 and not disk.broken:
            disk.broken = True
            disk.fuse = uses
        return found

    with monkeypatch.context() as patched:
        patched.setattr(process.replicas.leaders, "find_leader", led)
        yield


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("uses", USES)
def test_an_append_is_not_repeated_if_the_directory_of_the_next_leader_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: int
) -> None:
    """All replicas had it. The error of the next leader must not forget that: the one after it has
    it, too.
    """
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        progress = AppendProgress(run_of(b"value"))
        process.partition.append(progress.run, progress=progress)
        process.disks[1].broken = True
        with second_leader_failing(process, uses, monkeypatch):
            assert process.partition.append(progress.run, progress=progress).base_offset == 1
        assert process.published(3).log_end == 2


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("uses", USES)
def test_a_decision_is_looked_for_at_the_third_leader_if_the_directory_of_the_second_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: int
) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.partition.append(run_of(b"first"))
        lost = list[int]()
        commit = process.replicas.in_sync.commit

        def losing(leader: Leader, end: int, deadline_ns: int, **options: Any) -> int:
            found: int = commit(leader, end, deadline_ns, **options)
            if leader.node == 1 and not lost:
                lost.append(1)
                process.disks[1].broken = True
                raise LeaderChanged
            return found

        monkeypatch.setattr(process.replicas.in_sync, "commit", losing)
        with second_leader_failing(process, uses, monkeypatch), process.partition.exclusive():
            process.partition.append_held(bytes(run_of(b"held").buffer))
        assert lost == [1]
        assert b"held" in values(process)


def deleted(process: Process) -> None:
    assert process.partition.delete_records(1) == 1


def committed(process: Process) -> None:
    found = process.replicas.leaders.find_leader(far())
    try:
        process.replicas.in_sync.commit_for_all(found, 2, far())
    except LeaderChanged:
        assert process.disks[1].broken


def synced(process: Process) -> None:
    assert process.partition.sync() == 2
    assert process.partition.durable_offset in (0, 2)  # 0 while a member is not reached


def flushed(process: Process) -> None:
    process.partition.flush_if_due(2, far())


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("call", [deleted, committed, synced, flushed])
@pytest.mark.parametrize("uses", USES)
def test_a_leader_that_fails_at_any_use_is_replaced(
    tmp_path: Path, call: Callable[[Process], None], uses: int
) -> None:
    with a_set(tmp_path) as (_, [process]):
        process.replicas.in_sync.least_default = 2
        process.partition.append(run_of(b"first"))
        process.partition.append(run_of(b"second"))
        assert process.partition.bounds().high_watermark == 2
        process.disks[1].broken = True
        process.disks[1].fuse = uses
        call(process)


@pytest.mark.parametrize("error", [ReopenedError, StorageError])
def test_an_error_of_a_directory_that_has_left_the_set_fails_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[EmbedlogError]
) -> None:
    """Another process retires a directory while this one is about to copy to it. The error was that
    of no directory then.
    """
    with embedlog.open(
        [tmp_path / f"d{node}" for node in (1, 2, 3, 4)], config={"housekeeping": False}
    ) as log:
        log.create_topic("t", assignment={0: [1, 4]})
        commit = ReplicaLog.commit
        retired = list[int]()

        def late(self: ReplicaLog, *arguments: Any, **options: Any) -> int:
            if self._state.path == tmp_path / "d1" / "t-0" and not retired:
                retired.append(4)
                path = log._engine.set.members.directories.get(4).directory.path  # type: ignore[attr-defined]
                log.retire_directory(4)
                raise error("the directory is not used any more", path=path / "t-0")
            return commit(self, *arguments, **options)

        monkeypatch.setattr(ReplicaLog, "commit", late)
        with log.producer(linger_ms=0) as producer:
            assert producer.send("t", b"v").result(60).offset == 0
        assert retired == [4]
        assert [record.value for record in log.scan("t").records()] == [b"v"]
