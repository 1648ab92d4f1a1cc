"""Partitions of directories that belong to a set, and the comparison of two of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import embedlog
from embedlog._native.replication import Leading, Replica
from embedlog.format.record_batch import Stamp
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import LeaderDecision
from embedlog.storage import checkpoints, file_names
from tests.support.stamped_batches import run_of, stamped

SMALL = {"segment.bytes": 1500, "index.interval.bytes": 300}
FAR = 1 << 62


@contextmanager
def replica(
    path: Path, slot: int = 0, config: Mapping[str, object] | None = None
) -> Iterator[Partition]:
    """Partition t-0 of a directory that has this slot in its set."""
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log._engine.home.context.node_slot = slot
        if "t" not in log.topics():
            log.create_topic("t", config={**SMALL, **(config or {})})
        yield log._engine.partition("t", 0)


def lead(
    partition: Partition, epoch: int, isr: int = 1, min_in_sync: int = 1, partition_epoch: int = 0
) -> None:
    """Let it lead in this epoch, and accept appends of this process."""
    assert partition.replica.lead(
        LeaderDecision(0, epoch, partition_epoch or epoch, isr, min_in_sync)
    )
    partition.replica.require(epoch, all_in_sync=False)


def fill(partition: Partition, rng: random.Random, epochs: int = 3, steps: int = 12) -> None:
    """Plain batches and transactions of three producers, in several epochs; the last transactions
    may stay open.
    """
    # epoch and next sequence of producers with an open transaction
    opened: dict[int, tuple[int, int]] = {}
    known = dict.fromkeys((7, 8, 9), (0, 0))
    first = partition.published().epoch + 1
    for epoch in range(first, first + epochs):
        lead(partition, epoch)
        for _ in range(steps):
            producer = rng.choice((7, 8, 9))
            produced, sequence = known[producer]
            step = rng.random()
            if step < 0.3:
                partition.append(
                    run_of(*[rng.randbytes(rng.randint(1, 80)) for _ in range(rng.randint(1, 4))])
                )
            elif step < 0.8 or producer not in opened:
                values = [rng.randbytes(rng.randint(1, 80)) for _ in range(rng.randint(1, 3))]
                stamp = Stamp(producer, produced, True, True)
                partition.append(stamped(stamp, sequence, *values), stamp=stamp)
                known[producer] = opened[producer] = (produced, sequence + len(values))
            else:
                partition.append_marker(producer, produced + 1, commit=rng.random() < 0.5)
                del opened[producer]
                known[producer] = (produced + 1, 0)


class Content(NamedTuple):
    """What readers and appenders of a replica find."""

    bounds: tuple[int, ...]
    log: bytes
    producers: bytes
    aborted: list[tuple[int, int]]
    epochs: list[tuple[int, int]]


def content(partition: Partition) -> Content:
    """Everything in the log, read as another replica reads it."""
    now = partition.published()
    offset = now.log_start
    parts = []
    aborted = set()
    while offset < now.log_end:
        fetched = partition.replica.read(offset, 700)
        if not len(fetched.batches):
            break
        first = fetched.batches[0]
        last = fetched.batches[-1]
        parts.append(
            bytes(fetched.data[int(first["position"]) : int(last["position"]) + int(last["size"])])
        )
        offset = fetched.next_offset
    reader = partition._reader
    aborted |= (
        set(reader.aborted.between(now.log_start, now.log_end, now))
        if now.log_end > now.log_start
        else set()
    )
    with partition._state.mutex:
        state = partition._lock.current_producers()
    epochs = checkpoints.read_epochs(partition.path / file_names.EPOCHS).entries
    bounds = (
        now.log_start,
        now.log_end,
        now.first_unstable,
        now.transaction_entries,
        now.index_entries,
        now.max_timestamp,
    )
    return Content(bounds, b"".join(parts), state.encode(), sorted(aborted), epochs)


def copy(
    source: Partition, target: Partition, end: int, epoch: int, rng: random.Random | None = None
) -> None:
    """Copy whole batches that end at or below `end`, as a follower does."""
    with target.replica.exclusive() as held:
        held.publish(held.published._replace(epoch=epoch), Replica(role=2, leader=0))
    at = target.published().log_end
    while at < end:
        fetched = source.replica.read(at, rng.randint(1, 3000) if rng else 1 << 20)
        rows = fetched.batches
        rows = rows[rows["base_offset"] + rows["last_offset_delta"] < end]
        if not len(rows):
            break
        mark = min(source.published().high_watermark, end)
        with target.replica.exclusive() as held:
            assert held.take(fetched.data, rows, Leading(mark, epoch, gaps_allowed=True), at)
        at = target.published().log_end


def boundaries(partition: Partition) -> list[int]:
    """The base offset of each batch, and the log end."""
    now = partition.published()
    found = []
    offset = now.log_start
    while offset < now.log_end:
        rows = partition.replica.read(offset).batches
        found += rows["base_offset"].tolist()
        offset = int(rows["base_offset"][-1] + rows["last_offset_delta"][-1]) + 1
    return [*found, now.log_end]
