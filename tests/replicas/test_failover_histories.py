"""Random histories of failovers: what was acknowledged is in the log once, in order, and what was
read stays.

The disks fail for one process or for all, and return. The checks read the bytes of the directories,
not the objects under test.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.errors import EmbedlogError, LeaderNotAvailableError
from embedlog.format.decoder import decode
from embedlog.replicas.partition.leader import LeaderChanged
from tests.support.replica_partitions import Decisions, Process, a_set
from tests.support.stamped_batches import run_of

STEPS = 40
HISTORIES = 9
READ_MS = 500  # for a read without a leader: no other thread decides meanwhile


class History:
    """Processes that append, read and repair, while disks fail."""

    def __init__(self, rng: random.Random, decisions: Decisions, processes: list[Process]) -> None:
        self.rng = rng
        self.decisions = decisions
        self.processes = processes
        self.number = 0
        self.acknowledged: dict[bytes, int] = {}
        self.read: list[bytes] = []
        self.counts: Counter[str] = Counter()

    def deadline(self, wait_ms: int = 100) -> int:
        """Without a majority a step waits until then."""
        return system.boot_ns() + wait_ms * 1_000_000

    def step(self) -> None:
        process = self.rng.choice(self.processes)
        steps = [
            (10, self.append),
            (4, self.look),
            (4, self.join),
            (3, self.fail),
            (5, self.come_back),
        ]
        weights, calls = zip(*steps, strict=True)
        self.rng.choices(calls, weights)[0](process)

    def append(self, process: Process) -> None:
        values = [b"%06d " % (self.number + each) for each in range(self.rng.randint(1, 3))]
        self.number += len(values)
        everyone = self.rng.random() < 0.8
        try:
            found = process.partition.append(
                run_of(*values), deadline_ns=self.deadline(), all_in_sync=everyone
            )
        except EmbedlogError as problem:
            self.counts[type(problem).__name__] += 1
            return
        self.counts["acknowledged" if everyone else "by the leader"] += len(values)
        if everyone:
            self.acknowledged |= {
                value: found.base_offset + each for each, value in enumerate(values)
            }

    def look(self, process: Process) -> None:
        try:
            found = content(process)
        except EmbedlogError as problem:
            self.counts[f"look: {type(problem).__name__}"] += 1
            return
        common = min(len(found), len(self.read))
        assert found[:common] == self.read[:common], "a record that was read has changed"
        if len(found) > len(self.read):
            self.read = found

    def join(self, process: Process) -> None:
        outside = [node for node in (1, 2, 3) if node not in self.decisions.partition.isr]
        if not outside:
            return
        try:
            leader = process.replicas.leaders.find_leader(self.deadline())
            self.counts["joined"] += process.replicas.in_sync.add_to_isr(
                leader, self.rng.choice(outside), self.deadline()
            )
        except (LeaderNotAvailableError, LeaderChanged) as problem:
            self.counts[f"join: {type(problem).__name__}"] += 1

    def fail(self, process: Process) -> None:
        node = self.rng.choice((1, 2, 3))
        for each in self.processes if self.rng.random() < 0.7 else [process]:
            each.disks[node].broken = True
            each.disks[node].fuse = self.rng.randint(0, 15)
        self.counts["failures"] += 1

    def come_back(self, process: Process) -> None:
        node = self.rng.choice((1, 2, 3))
        for each in self.processes:
            each.disks[node].broken = False
            each.forgive()

    def finish(self) -> None:
        for each in self.processes:
            for disk in each.disks.values():
                disk.broken = False
            each.forgive()
        process = self.processes[0]
        for node in (1, 2, 3):
            if node not in self.decisions.partition.isr:
                assert process.replicas.in_sync.add_to_isr(
                    process.replicas.leaders.find_leader(self.deadline(5000)),
                    node,
                    self.deadline(5000),
                )
        leader = process.replicas.leaders.find_leader(self.deadline(5000))
        process.replicas.in_sync.commit(
            leader, leader.partition.published().log_end, self.deadline(5000)
        )
        found = content(process)
        assert found[: len(self.read)] == self.read
        twice = [value for value, count in Counter(found).items() if count > 1]
        assert not twice, f"appended twice: {twice[:5]}"
        wrong = [
            value
            for value, offset in self.acknowledged.items()
            if found[offset : offset + 1] != [value]
        ]
        assert not wrong, (
            f"{len(wrong)} of {len(self.acknowledged)} acknowledged records are not at their "
            f"offset: {wrong[:5]}"
        )
        assert {process.data(node) for node in (1, 2, 3)} == {process.data(1)}


def content(process: Process) -> list[bytes]:
    """All values that readers see."""
    found: list[bytes] = []
    while len((fetched := process.partition.fetch(len(found))).batches):
        found += [value or b"" for value in decode(fetched.data, fetched.batches).values]
    return found


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, HISTORIES))]
)
def test_acknowledged_records_survive_failovers(tmp_path: Path, seed: int, number: int) -> None:
    rng = random.Random(f"{seed} {number}")
    with a_set(
        tmp_path,
        processes=2,
        lock_timeout_ms=READ_MS,
        min_insync_replicas=rng.choice("112"),
    ) as (decisions, processes):
        history = History(rng, decisions, processes)
        for at in range(10 * STEPS):
            # few histories fail all their appends at first
            if at >= STEPS and history.counts["acknowledged"]:
                break
            history.step()
        history.finish()
    print(dict(history.counts), decisions.partition)
    assert history.counts["acknowledged"]
