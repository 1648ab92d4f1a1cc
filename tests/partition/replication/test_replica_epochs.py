"""The epoch of the last batch, from a checkpoint that was compared: always that of the batch itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from embedlog.partition import epoch_file
from embedlog.partition.partition import Partition
from embedlog.storage import file_names
from tests.support import replica_logs
from tests.support.stamped_batches import run_of


def of_the_batch(partition: Partition) -> int:
    """The reference: it is read."""
    now = partition.published()
    if now.log_end == now.log_start:
        return -1
    return int(partition.replica.read(now.log_end - 1, 0, now.log_end).batches["leader_epoch"][-1])


def check(partitions: list[Partition], rng: random.Random) -> None:
    for each in rng.sample(partitions, len(partitions)):
        expected = of_the_batch(each)
        each.replica._epochs._last = (-1, -1), -1
        for _ in range(2):
            assert each.replica.last_epoch(*each.replica.published()) == expected


@pytest.mark.parametrize("settled_ms", [-1, 1000], ids=["known", "young"])
def test_it_is_that_of_the_batch_whatever_two_processes_do(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, settled_ms: int
) -> None:
    """Epochs without a batch, cuts, deleted records, and a checkpoint that is missing, of other epochs or damaged."""
    monkeypatch.setattr(epoch_file, "SETTLED_MS", settled_ms)
    with replica_logs.replica(tmp_path) as one, replica_logs.replica(tmp_path) as other:
        path = one.path / file_names.EPOCHS
        for _ in range(60):
            each, step = rng.choice((one, other)), rng.random()
            now = each.published()
            if step < 0.3:
                replica_logs.lead(each, now.epoch + rng.randint(1, 3))
            elif step < 0.6 and now.epoch > 0:
                each.replica.require(now.epoch, all_in_sync=False)
                each.append(run_of(*[rng.randbytes(rng.randint(1, 80)) for _ in range(rng.randint(1, 4))]))
            elif step < 0.75:
                with each.replica.exclusive() as held:
                    held.truncate(rng.choice([at for at in replica_logs.boundaries(each) if at >= now.log_start]))
            elif step < 0.85:
                each.replica.commit([], now.epoch) if now.epoch > 0 else None
                each.delete_records(rng.choice(replica_logs.boundaries(each)[: rng.randint(1, 20)]))
            elif step < 0.9:
                path.unlink(missing_ok=True)
            elif step < 0.95 and path.exists():
                path.write_bytes(path.read_bytes().replace(b"2", b"3"))
            elif path.exists():
                path.write_bytes(path.read_bytes()[:-3])
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
        monkeypatch.setattr(partition._reader, "fetch", lambda *each, **rest: (reads.append(each), fetch(*each, **rest))[1])
        replica_logs.lead(partition, 9)
        replica_logs.lead(partition, 12)  # epochs without a batch
        partition.replica.follow(3, 13, lambda epoch: (epoch, partition.published().log_end))
        shown = partition.replica.published()
        assert partition.replica.last_epoch(*shown) == 2
        assert reads == []
        path = partition.path / file_names.EPOCHS
        path.write_bytes(path.read_bytes().replace(b"2 ", b"3 "))
        partition.replica._epochs._last = (-1, -1), -1
        assert partition.replica.last_epoch(*shown) == 2
        assert len(reads) == 1
