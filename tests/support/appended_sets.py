"""A leader with followers in directories of their own, to which one process appends together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from embedlog._native import system
from embedlog.format.record_batch import EncodedRun, Stamp
from embedlog.partition.log_context import AppendProgress
from embedlog.partition.partition import Partition
from embedlog.partition.replication.followers import Followers
from embedlog.partition.replication.replica_log import LeaderDecision
from tests.support.replica_logs import content, replica
from tests.support.stamped_batches import run_of

EPOCH = 3


class Set:
    """A leader with followers that have everything it has."""

    def __init__(self, partitions: Sequence[Partition], *, install: bool = True) -> None:
        self.leader = partitions[0]
        self.others = list(partitions[1:])
        isr = (1 << len(partitions)) - 1
        if install:
            assert self.leader.replica.lead(LeaderDecision(0, EPOCH, 1, isr, 1))
            for each in self.others:
                each.replica.follow(0, EPOCH, self.leader.epoch_end)
        self.followers = self.leader.replica.with_followers(
            [each.replica for each in self.others], EPOCH
        )
        self.followers.note_answer(system.boot_ns())

    def append(
        self, run: EncodedRun, stamp: Stamp | None = None, followers: Followers | None = None
    ) -> AppendProgress:
        progress = AppendProgress(run)
        self.leader.append(
            run, stamp=stamp, progress=progress, followers=followers or self.followers
        )
        return progress

    def level(self) -> None:
        """Copy and commit, as a process does that has only pages and files."""
        for each in self.others:
            while (at := each.published().log_end) < self.leader.published().log_end:
                fetched = self.leader.replica.read(at)
                each.replica.take(fetched, EPOCH, self.leader.published().high_watermark)
        members = [(slot, each.replica) for slot, each in enumerate(self.others, 1)]
        self.leader.replica.commit(members, EPOCH)

    def prepare(self) -> None:
        """Append once, and copy it: then all files are open."""
        self.append(run_of(b"first"))
        self.level()

    def logs(self) -> list[bytes]:
        return [content(each).log for each in (self.leader, *self.others)]

    def ends(self) -> list[int]:
        return [each.published().log_end for each in (self.leader, *self.others)]


@contextlib.contextmanager
def a_set(root: Path, count: int = 3, **config: object) -> Iterator[Set]:
    with contextlib.ExitStack() as stack:
        yield Set(
            [stack.enter_context(replica(root / f"d{slot}", slot, config)) for slot in range(count)]
        )
