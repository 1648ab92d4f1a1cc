"""The epoch of the last batch, from a checkpoint that was compared, and whether a log has the
record of an epoch.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from embedlog._native.replication import ROLE_FOLLOWER, ROLE_LEADER, Leading, Replica
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from embedlog.partition import epoch_file
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_epochs import ReplicaEpochs
from embedlog.storage import checkpoints, file_names, files
from tests.support import replica_logs
from tests.support.stamped_batches import run_of


def of_the_batch(partition: Partition) -> int:
    """The reference: it is read."""
    now = partition.published()
    if now.log_end == now.log_start:
        return -1
    return int(partition.replica.read(now.log_end - 1, 0, now.log_end).batches["leader_epoch"][-1])


def damage(path: Path, data: bytes) -> None:
    """Change a file so that its times show it."""
    before = files.facts_of(path)
    while files.facts_of(path) == before:
        path.write_bytes(data)


def check(partitions: list[Partition], rng: random.Random) -> None:
    for each in rng.sample(partitions, len(partitions)):
        expected = of_the_batch(each)
        each.replica.epochs._last = (-1, -1), -1
        for _ in range(2):
            assert each.replica.last_epoch(*each.replica.published()) == expected


@pytest.mark.parametrize("settled_ms", [-1, 1000], ids=["known", "young"])
def test_it_is_that_of_the_batch_whatever_two_processes_do(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, settled_ms: int
) -> None:
    """Epochs without a batch, cuts, deleted records, and a checkpoint that is missing, of other
    epochs or damaged.
    """
    monkeypatch.setattr(epoch_file, "SETTLED_MS", settled_ms)
    with replica_logs.replica(tmp_path) as one, replica_logs.replica(tmp_path) as other:
        path = one.path / file_names.EPOCHS
        for _ in range(60):
            each = rng.choice((one, other))
            step = rng.random()
            now, replica = each.replica.published()
            if step < 0.3:
                replica_logs.lead(each, now.epoch + rng.randint(1, 3))
            elif step < 0.6 and replica.role == ROLE_LEADER:
                each.replica.require(now.epoch, all_in_sync=False)
                each.append(
                    run_of(*[rng.randbytes(rng.randint(1, 80)) for _ in range(rng.randint(1, 4))])
                )
            elif step < 0.75:
                end = max(now.high_watermark, rng.choice(replica_logs.boundaries(each)))
                each.replica.follow(3, now.epoch + 1, lambda epoch, end=end: (epoch, end))  # type: ignore[misc]
            elif step < 0.85 and replica.role == ROLE_LEADER:
                each.replica.commit([], now.epoch)
                each.delete_records(rng.choice(replica_logs.boundaries(each)[: rng.randint(1, 20)]))
            elif step < 0.9:
                path.unlink(missing_ok=True)
            elif (
                path.exists() and (checkpoints.read_epochs(path).latest or (0, 0))[1] < now.log_end
            ):
                data = path.read_bytes()  # no batch shows damage of an epoch that has none
                damage(path, data.replace(b"2", b"3") if step < 0.95 else data[:-3])
            with each.replica.exclusive() as held:  # which makes a damaged file again
                held.epochs()
            check([one, other], rng)


def test_no_batch_is_read_for_it_unless_the_file_is_not_compared(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica_logs.replica(tmp_path) as partition:
        replica_logs.fill(partition, rng, epochs=2)
        reads: list[object] = []
        fetch = partition._reader.fetch
        monkeypatch.setattr(
            partition._reader,
            "fetch",
            lambda *each, **rest: (reads.append(each), fetch(*each, **rest))[1],
        )
        replica_logs.lead(partition, 9)
        replica_logs.lead(partition, 12)  # epochs without a batch
        partition.replica.follow(3, 13, lambda epoch: (epoch, partition.published().log_end))
        shown = partition.replica.published()
        assert partition.replica.last_epoch(*shown) == 2
        assert reads == []
        path = partition.path / file_names.EPOCHS
        path.write_bytes(path.read_bytes().replace(b"2 ", b"3 "))
        partition.replica.epochs._last = (-1, -1), -1
        assert partition.replica.last_epoch(*shown) == 2
        assert len(reads) == 1


def test_no_epoch_above_that_of_the_page_is_believed(tmp_path: Path) -> None:
    """An epoch is damaged while no batch has it; then a batch gets the true one."""
    with replica_logs.replica(tmp_path) as partition:
        replica_logs.lead(partition, 2)
        partition.append(run_of(b"a"))
        replica_logs.lead(partition, 4)
        path = partition.path / file_names.EPOCHS
        assert path.read_bytes() == b"0\n2\n2 0\n4 1\n"
        path.write_bytes(b"0\n2\n2 0\n7 1\n")
        partition.replica.epochs.read_checked(partition.published(), replica_logs.FAR)
        partition.append(run_of(b"b"))
        now, replica = partition.replica.published()
        follower = replica._replace(role=ROLE_FOLLOWER)
        with contextlib.suppress(CorruptRecordError):  # by the batch
            assert partition.replica.last_epoch(now, follower) == 4


def test_what_an_election_sees_is_read_again_if_the_log_is_cut_meanwhile(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch before the old log end is gone: the read of it was an error of the caller."""
    with replica_logs.replica(tmp_path) as partition:
        replica_logs.fill(partition, rng, epochs=2)
        partition.replica.follow(3, 13, lambda epoch: (epoch, partition.published().log_end))
        stored = ReplicaEpochs._read_stored_last
        cuts = list[int]()

        def cutting(self: ReplicaEpochs, now: Any) -> int | None:
            if not cuts:
                cuts.append(now.log_end)
                with partition.replica.exclusive() as held:
                    held.truncate(1)
                return None
            return stored(self, now)

        monkeypatch.setattr(ReplicaEpochs, "_read_stored_last", cutting)
        partition.replica.epochs._last = (-1, -1), -1
        now, _, epoch = partition.replica.last_shown()
        assert cuts
        assert now.log_end == partition.published().log_end < cuts[0]
        assert epoch == partition.replica.last_epoch(*partition.replica.published())


def test_a_log_that_is_cut_at_each_look_is_an_error_of_its_directory(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica_logs.replica(tmp_path) as partition:
        replica_logs.fill(partition, rng, epochs=1)

        def gone(self: ReplicaEpochs, now: Any, replica: Any) -> int:
            raise OffsetOutOfRangeError("no such offset")

        monkeypatch.setattr(ReplicaEpochs, "epoch_of_last_batch", gone)
        with pytest.raises(StorageError, match="was cut") as caught:
            partition.replica.last_shown()
        assert caught.value.path == str(partition.path)


# ---- the record of an epoch at an offset -------------------------------------------------------------------------------

EPOCHS = (0, 0, 1, 1, 2, 2)  # of the batch at each offset: each has one record
FIRST = (0, 2, 4)  # offset of each epoch


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Partition]:
    with replica_logs.replica(tmp_path / "source") as found:
        for epoch in range(3):
            replica_logs.lead(found, epoch)
            found.append(run_of(b"first"))
            found.append(run_of(b"second"))
        yield found


def copied(source: Partition, target: Partition, offsets: Iterable[int]) -> None:
    """A copy of a log in which a compaction has left only these batches."""
    with target.replica.exclusive() as held:
        held.publish(held.published._replace(epoch=3), Replica(role=ROLE_FOLLOWER, leader=0))
    for offset in offsets:
        fetched = source.replica.read(offset, 0, offset + 1)
        with target.replica.exclusive() as held:
            at = held.published.log_end
            assert held.take(fetched.data, fetched.batches, Leading(6, 3, gaps_allowed=True), at)
    assert target.published().log_end == 6


def check_answers(found: Partition, kept: Collection[int], log_start: int = 0) -> None:
    """For each place at which a leader of an epoch can have appended a record, which this log has
    or not.
    """
    for epoch, first in enumerate(FIRST):
        for offset in range(first, 8):
            there = offset < 6 and EPOCHS[offset] == epoch
            answer = found.replica.epochs.contains(epoch, offset)
            assert answer in (there, None), (epoch, offset)
            shown = (
                offset in kept
                or any(EPOCHS[each] == epoch and each > offset for each in kept)
                or offset >= 6
            )
            if shown and (offset >= log_start or offset in kept):
                assert answer is there, (epoch, offset)


@pytest.mark.parametrize(
    "kept", [kept for size in range(6) for kept in combinations(range(5), size)], ids=str
)
def test_what_a_compaction_removed_is_neither_there_nor_lost(
    tmp_path: Path, source: Partition, kept: tuple[int, ...]
) -> None:
    """An epoch without a batch counted as never there: such a record was appended again. A later
    one was acknowledged if lost.
    """
    with replica_logs.replica(tmp_path / "copy") as copy:
        copied(source, copy, (*kept, 5))
        check_answers(copy, (*kept, 5))


@pytest.mark.parametrize("log_start", range(7))
def test_what_was_deleted_may_have_been_there(source: Partition, log_start: int) -> None:
    assert source.replica.commit([], 2) == 6
    assert source.delete_records(log_start) == log_start
    check_answers(source, range(log_start, 6), log_start)


def test_a_log_that_began_again_without_a_batch_knows_nothing(source: Partition) -> None:
    with source.replica.exclusive() as held:
        held.restart(6)
    assert [source.replica.epochs.contains(1, offset) for offset in (2, 3, 6)] == [
        None,
        None,
        False,
    ]


def test_a_record_is_looked_for_again_if_the_log_start_moves_meanwhile(
    source: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source.replica.commit([], 2) == 6
    reader = source._reader
    moved = list[int]()
    fetch = reader.fetch

    def moving(offset: int, **options: Any) -> Any:
        if not moved:
            moved.append(source.delete_records(4))
        return fetch(offset, **options)

    monkeypatch.setattr(reader, "fetch", moving)
    assert source.replica.epochs.contains(0, 1) is None
    assert moved == [4]
