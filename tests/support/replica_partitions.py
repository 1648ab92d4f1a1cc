"""Partition t-0 of several directories with one register of decisions: a set without its decision
log and its engine.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import embedlog
from embedlog._native import system
from embedlog.errors import StorageError
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.partition import Partition
from embedlog.partition.replication.followers import Followers
from embedlog.replicas.decisions.proposals import Decision, Steps, derive
from embedlog.replicas.members.open_directories import OpenDirectories, OpenDirectory
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.replicas.partition.replicated_partition import ReplicatedPartition
from embedlog.replicas.rules.events import Event, PartitionId, Refusal
from embedlog.replicas.rules.records import DecidedPartition
from embedlog.replicas.rules.state import State, apply_all
from tests.support.replica_logs import SMALL
from tests.support.replica_sets import PARTITION_ID, registration_id, with_topic


class Decisions:
    """The decisions as one atomic register, which several objects for processes share."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []
        self._mutex = threading.Lock()

    def counted_state(self) -> State:
        return self.state

    def is_newest(self, state: State) -> bool:
        return state is self.state

    def settle(self, deadline_ns: int | None = None) -> State:
        return self.state

    def last_decided_state(self) -> State:
        return self.state

    def propose(
        self, steps: Steps, deadline_ns: int | None = None, *, reason: str = ""
    ) -> Decision | Refusal:
        with self._mutex:
            found = derive(steps, self.state, len(self.events))
            if isinstance(found.records, Refusal):
                return found.records
            self.events += found.events
            self.state = apply_all(self.state, found.records)
            return Decision(self.state, found.records, found.others)

    @property
    def partition(self) -> DecidedPartition:
        return self.state.partitions[PARTITION_ID]


class Disk:
    """One directory as a process sees it. `broken`: every use fails as that of a removed disk,
    after `fuse` more uses.
    """

    def __init__(self, path: Path, log: embedlog.Log) -> None:
        self.path = path
        self.log = log
        self.broken = False
        self.fuse = 0

    def check(self) -> None:
        self.fuse -= 1
        if self.broken and self.fuse < 0:
            raise StorageError("the disk is gone", errno=errno.EIO, path=self.path / "t-0")

    def replica(
        self, partition_id: PartitionId, name: str, counted_state: Callable[[], State]
    ) -> Partition:
        self.check()
        return cast("Partition", Breakable(self, self.log._engine.partition("t", partition_id[1])))

    def is_loaded(self, topic: str, number: int) -> bool:
        return True

    def was_made(self, topic_id: UUID, number: int) -> bool:
        return False


class Breakable:
    """A partition, or its replica, that fails with its disk."""

    def __init__(self, disk: Disk, used: Any) -> None:
        self._disk = disk
        self._used = used

    def __getattr__(self, name: str) -> Any:
        self._disk.check()
        if name == "with_followers":
            return self._with_followers
        found = getattr(self._used, name)
        return Breakable(self._disk, found) if name == "replica" else found

    def _with_followers(
        self,
        followers: Sequence[Breakable],
        epoch: int,
        needed: int = 1,
    ) -> Followers:
        locks = [each._used._lock for each in (self, *followers)]
        disks = [each._disk for each in followers]
        return BreakableFollowers(locks[0], locks[1:], epoch, needed, disks)


class BreakableFollowers(Followers):
    """Followers whose files cannot be used while one of their disks is broken."""

    def __init__(
        self,
        leader: AppendLock,
        followers: Sequence[AppendLock],
        epoch: int,
        needed: int,
        disks: Sequence[Disk],
    ) -> None:
        super().__init__(leader, followers, epoch, needed)
        self._disks = disks

    def _enter(self) -> list[threading.RLock]:
        try:
            for disk in self._disks:
                disk.check()
        except StorageError:
            return []
        return super()._enter()


class Process:
    """One process with its own view of all directories."""

    def __init__(
        self,
        root: Path,
        decisions: Decisions,
        nodes: tuple[int, ...],
        stack: contextlib.ExitStack,
        lock_timeout_ms: int,
    ) -> None:
        self.disks: dict[int, Disk] = {}
        state = decisions.state
        found = []
        for node in nodes:
            log = stack.enter_context(
                embedlog.open(root / f"d{node}", config={"housekeeping": False})
            )
            slot = state.nodes[node].slot
            log._engine.home.context.node_slot = slot
            if "t" not in log.topics():
                log.create_topic("t", config=SMALL)
            self.disks[node] = Disk(root / f"d{node}", log)
            found.append(OpenDirectory(node, slot, registration_id(node), self.disks[node]))
        self.directories = OpenDirectories(found)
        self.replicas = PartitionReplicas(self.directories, decisions, PARTITION_ID, "t")
        config = self.disks[nodes[0]].log._engine.topic_config("t")
        self.partition = ReplicatedPartition(
            self.replicas, lambda: config, lock_timeout_ms, lambda: None
        )

    def published(self, node: int) -> system.Published:
        return self.disks[node].log._engine.partition("t", 0).published()

    def data(self, node: int) -> bytes:
        """The bytes of all segments of a replica."""
        directory = self.disks[node].path / "t-0"
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def forgive(self) -> None:
        """Try failed directories again, as after their pause."""
        for member in self.directories:
            member.problem = None


@contextlib.contextmanager
def a_set(
    root: Path,
    nodes: tuple[int, ...] = (1, 2, 3),
    processes: int = 1,
    lock_timeout_ms: int = 10_000,
    **config: str,
) -> Iterator[tuple[Decisions, list[Process]]]:
    decisions = Decisions(with_topic(nodes, **config))
    with contextlib.ExitStack() as stack:
        yield (
            decisions,
            [Process(root, decisions, nodes, stack, lock_timeout_ms) for _ in range(processes)],
        )
