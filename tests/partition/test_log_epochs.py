"""The leader epochs that are made again from a log, compared with its checkpoint and with the
header of each batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError
from embedlog.partition.partition import Partition
from embedlog.partition.recovery import log_epochs
from embedlog.storage import checkpoints, file_names
from embedlog.storage.checkpoints import EpochCache
from tests.support import replica_logs
from tests.support.stamped_batches import run_of


def of_each_batch(partition: Partition) -> list[tuple[int, int]]:
    """The reference: every batch is read."""
    now = partition.published()
    epochs = EpochCache()
    if now.log_start == now.log_end:  # the last epoch of an empty log remains in the checkpoint
        return checkpoints.read_epochs(partition.path / file_names.EPOCHS).entries
    offset = now.log_start
    while offset < now.log_end:
        for row in partition.replica.read(offset, 1).batches:
            epochs.assign(int(row["leader_epoch"]), max(now.log_start, int(row["base_offset"])))
            offset = int(row["base_offset"] + row["last_offset_delta"]) + 1
    return epochs.entries


def test_the_epochs_are_those_of_the_batches(tmp_path: Path, rng: random.Random) -> None:
    with replica_logs.replica(tmp_path) as partition:
        replica_logs.fill(partition, rng, epochs=4)
        for _ in range(4):
            partition.replica.commit([], partition.published().epoch)
            assert log_epochs.read_log(
                partition.path, partition.published()
            ).entries == of_each_batch(partition)
            partition.delete_records(rng.choice(replica_logs.boundaries(partition)))
        now = partition.published()
        assert len(list(partition.path.glob("*.log"))) > 1
        assert (
            checkpoints.read_epochs(partition.path / file_names.EPOCHS).entries[0][1]
            == now.log_start
        )


def test_each_epoch_is_compared_with_the_batches_once(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another term of the decision log costs the same after a thousand as after ten."""
    read = log_epochs._read_around
    offsets = list[int]()

    def rows_at(
        directory: Path, bases: list[int], offset: int, now: Published
    ) -> list[tuple[int, int, int]]:
        offsets.append(offset)
        return read(directory, bases, offset, now)

    with replica_logs.replica(tmp_path) as partition:
        replica_logs.fill(partition, rng, epochs=12)
        now = partition.published()
        file = partition._state.epoch_file
        entries = of_each_batch(partition)
        assert len(entries) > 5
        monkeypatch.setattr(log_epochs, "_read_around", rows_at)
        file.compared = entries[:-1]
        found, made = log_epochs.read_or_make(partition.path, now, file=file)
        assert (found.entries, made) == (entries, False)
        assert offsets == [now.log_start, entries[-1][1], now.log_end - 1]
        for _ in range(200):
            changed = list(entries)
            at = rng.randrange(1, len(entries))
            match rng.choice(("none", "start", "epoch", "removed", "end")):
                case "start":
                    changed[at] = (
                        changed[at][0],
                        rng.randint(changed[at - 1][1] + 1, now.log_end - 1),
                    )
                case "epoch":
                    changed[at] = changed[at][0] + 1, changed[at][1]
                case "removed":
                    del changed[at]
                case "end":
                    del changed[at:]
            epochs = EpochCache.from_rising(changed)
            known = entries[: rng.randint(0, len(entries))]
            assert log_epochs.agrees(partition.path, now, epochs, known) == log_epochs.agrees(
                partition.path, now, epochs
            ), changed
            assert log_epochs.agrees(partition.path, now, epochs, known) == (
                epochs.entries == entries
            ), changed


def test_an_epoch_of_a_leader_without_a_batch_is_stored_again(
    tmp_path: Path, rng: random.Random
) -> None:
    """The next batches of a leader have it."""
    with replica_logs.replica(tmp_path) as partition:
        replica_logs.fill(partition, rng, epochs=2)
        replica_logs.lead(partition, 9)
        path = partition.path / file_names.EPOCHS
        before = path.read_bytes()
        path.unlink()
        with partition.replica.exclusive() as held:
            assert held.epochs().latest == (9, held.published.log_end)
        assert path.read_bytes() == before


def test_without_readable_batches_nothing_is_written(tmp_path: Path, rng: random.Random) -> None:
    """Then the log is damaged, and the checkpoint may be right."""
    with replica_logs.replica(tmp_path) as partition:
        replica_logs.fill(partition, rng, epochs=2)
        path = partition.path / file_names.EPOCHS
        path.unlink()
        segment = max(partition.path.glob("*.log"))
        whole = segment.read_bytes()
        segment.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
        with pytest.raises(CorruptRecordError), partition.replica.exclusive() as held:
            held.epochs()
        assert not path.exists()
        segment.write_bytes(whole)
        with partition.replica.exclusive() as held:
            assert held.epochs().entries == of_each_batch(partition)


def without_a_digit(data: bytes) -> bytes:
    return data[:-2]


def with_another_digit(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 3]) + data[-2:]


DIGITS = [without_a_digit, with_another_digit]


@pytest.mark.parametrize("damage", DIGITS)
def test_a_follower_is_not_cut_at_a_changed_start_of_an_epoch(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """An earlier leader without a batch in its epoch follows: the start of that epoch is no place
    for a cut.
    """
    with (
        replica_logs.replica(tmp_path / "a") as leader,
        replica_logs.replica(tmp_path / "b", 1) as follower,
    ):
        replica_logs.lead(leader, 1)
        for number in range(20):
            leader.append(run_of(b"%02d" % number))
        leader.replica.commit([], 1)
        replica_logs.copy(leader, follower, 20, 1)
        replica_logs.lead(follower, 2, isr=2)
        path = follower.path / file_names.EPOCHS
        assert path.read_bytes().endswith(b"2 20\n")
        path.write_bytes(damage(path.read_bytes()))
        replica_logs.lead(leader, 3)
        leader.append(run_of(b"20"))
        assert follower.replica.follow(0, 3, leader.epoch_end) == 20
        fetched = leader.replica.read(20)
        assert follower.replica.take(fetched, 3, 20) == 21
        assert checkpoints.read_epochs(path).entries == of_each_batch(follower)


@pytest.mark.parametrize("damage", DIGITS)
def test_a_follower_takes_batches_although_its_checkpoint_has_a_later_epoch(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """It would refuse the batches of its leader for ever."""
    with (
        replica_logs.replica(tmp_path / "a") as leader,
        replica_logs.replica(tmp_path / "b", 1) as follower,
    ):
        replica_logs.lead(leader, 1)
        for number in range(21):
            leader.append(run_of(b"%02d" % number))
        replica_logs.copy(leader, follower, 20, 1)
        with follower.replica.exclusive() as held:
            held.partition.write_epochs(EpochCache([(1, 0), (2, 20)]))
        path = follower.path / file_names.EPOCHS
        path.write_bytes(damage(path.read_bytes()))
        assert follower.replica.take(leader.replica.read(20), 1, 20) == 21
        assert checkpoints.read_epochs(path).entries == [(1, 0)]
