"""Contains the verbs that change the directories of a set: each use has a set of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import embedlog
from embedlog import TopicPartition
from embedlog.errors import ReplicaSetError
from tests.interrupts.runner import Use
from tests.interrupts.verbs import verb
from tests.interrupts.world import World
from tests.interrupts.writers import PATIENCE_S, SETTINGS

NAME = "held"
ROUNDS = 100
STRIDE = 40  # a use makes and checks a set: a second


class OwnSet:
    """A set of three directories, in which another opening of this process writes after each
    interrupt.
    """

    def __init__(self, world: World) -> None:
        self.root: Path = world.root / f"set-{world.value().decode()}"
        self.paths = [self.root / f"d{number}" for number in (1, 2, 3)]
        self.values: set[bytes] = set()
        self.log = embedlog.open(self.paths, config=SETTINGS)
        self.log.create_topic(NAME, replication_factor=3, config={"min.insync.replicas": 2})
        self.other = embedlog.open(self.paths, config=SETTINGS)
        self.send()

    def send(self) -> None:
        value = b"%d" % len(self.values)
        with self.other.producer(linger_ms=0) as producer:
            producer.send(NAME, value).result(PATIENCE_S)
        self.values.add(value)

    def judge(self) -> None:
        """All copies are made, and each value is there once; also after an opening with the present
        directories.
        """
        self.send()
        for _ in range(ROUNDS):
            if not any(each.under_replicated for each in self.log.replicas().partitions):
                break
            self.log.housekeep()
        described = self.log.replicas()
        assert not any(each.under_replicated for each in described.partitions), str(described)
        assert all(each.answers for each in described.directories), str(described)
        with closed_after(self.other), closed_after(self.log):
            self.check(self.other)
        paths = [each.path for each in described.directories]
        with embedlog.open(paths, config=SETTINGS) as log:
            self.check(log)

    def check(self, log: embedlog.Log) -> None:
        found = [record.value for record in log.scan(NAME).records()]
        assert len(found) == len(set(found))
        assert set(found) == self.values
        assert log.verify_replicas() == []

    def use(self, call: Callable[[], object], again: Callable[[], object]) -> Use:
        return Use(call, again, judge=self.judge, close=self.close)

    def close(self) -> None:
        self.log.close()
        self.other.close()
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def closed_after(log: embedlog.Log) -> Iterator[None]:
    try:
        yield
    finally:
        log.close()


@verb("Log.replace_directory", "Log.replicas", "Log.verify_replicas", fresh=True, stride=STRIDE)
def replace(world: World) -> Use:
    own = OwnSet(world)
    shutil.rmtree(own.paths[1])
    own.send()

    def call() -> None:
        own.log.replace_directory(2, own.paths[1])

    def again() -> None:
        own.log.housekeep()
        if not own.log.replicas().directories[1].answers:
            call()

    return own.use(call, again)


@verb("Log.add_directory", "Log.retire_directory", fresh=True, stride=STRIDE)
def add_and_retire(world: World) -> Use:
    own = OwnSet(world)
    path = own.root / "d4"
    made: list[int] = []

    def call() -> None:
        made.append(own.log.add_directory(path))
        own.log.retire_directory(made[-1])

    def again() -> None:
        described = own.log.replicas()
        present = [each.node for each in described.directories if each.path == str(path)]
        for node in {*made, *present}:
            with suppress(ReplicaSetError):  # it has left already
                own.log.retire_directory(node)

    return own.use(call, again)


@verb(
    "Log.replicate",
    "Log.reassign",
    "Log.reassignments",
    "Log.elect",
    "Log.proposed_assignment",
    fresh=True,
    stride=STRIDE,
)
def replicate(world: World) -> Use:
    own = OwnSet(world)
    name = "grown"
    own.log.create_topic(name, assignment={0: [2], 1: [3]})

    def call() -> None:
        assert own.log.proposed_assignment([name], [1, 2, 3])
        own.log.reassign({TopicPartition(name, 1): [1]})
        own.log.reassignments()
        own.log.replicate(3)
        own.log.elect(name)

    return own.use(call, call)
