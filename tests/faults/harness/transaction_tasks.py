"""Tasks of a victim with transactions: one step of an owner each, so that each step can be
stopped.
"""

from __future__ import annotations

import os
import random
import select
from pathlib import Path
from typing import Any

from embedlog.coordination.internal_topic import InternalTopic
from embedlog.storage import files
from embedlog.storage.liveness import Liveness
from embedlog.types import GroupMetadata, TopicPartition
from tests.faults.harness.tasks import Stage, open_, task
from tests.support.transactional_producers import (
    QUIET,
    TOPIC,
    Writer,
    committed,
    help_out,
    last_stable,
)

CONFIG: dict[str, Any] = QUIET | {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 1,
}
GROUP = GroupMetadata("g")
PLACE = TopicPartition(TOPIC, 0)
PARTITIONS = 2
WRITES = 2
TURNS = 4

_lives: list[Liveness] = []
_writers: dict[str, Writer] = {}


@task
def live(_: Stage, directory: str, fork: bool = False) -> tuple[int, int]:
    """Take a process slot; with `fork` leave a child that only inherits descriptors and outlives
    its parent.
    """
    found = Liveness(Path(directory))
    _lives.append(found)
    slot, nonce, _ = found.begin()
    if fork and os.fork() == 0:
        select.select([], [], [], 20)
        os._exit(0)
    return slot, nonce


class _Counter:
    """The newest value of every key."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.values[key] = value or b""


@task
def decide(stage: Stage, number: int) -> int:
    """Count one up, by a decision in a partition of an internal topic."""
    topic = InternalTopic(
        stage.opened._engine, "__transaction_state", partitions=1, config={}, view=_Counter
    )
    with topic.lock_for_decision(number, files.deadline_after(20)) as decision:
        count = int(decision.view.values.get(b"n", b"0")) + 1
        decision.append([(b"n", b"%d" % count)])
    return count


# ---- verbs of one owner, by name -----------------------------------------------------------------


@task
def owner(stage: Stage, name: str, timeout_ms: int = 60_000) -> Any:
    """Take a transactional id; the outcome of the last transaction."""
    _writers[name] = Writer(stage.opened, name, timeout_ms)
    return _writers[name].init()


@task
def owner_again(_: Stage, name: str) -> Any:
    return _writers[name].init()


@task
def transact(_: Stage, name: str, values: list[bytes], partition: int = 0) -> int:
    return _writers[name].write(*values, partition=partition).base_offset


@task
def add_offsets(_: Stage, name: str, offsets: dict[Any, Any], group: Any) -> None:
    _writers[name].owner.add_offsets(offsets, group)


@task
def end(_: Stage, name: str, commit: bool) -> None:
    _writers[name].owner.end(commit)


@task
def help_(stage: Stage, partition: int = 0) -> bool:
    return help_out(stage.opened, partition)


@task
def help_everywhere(_: Stage, path: str) -> None:
    """A process that completes the open work of others."""
    stage = Stage(_.line)
    open_(stage, path, config=CONFIG)
    for partition in range(PARTITIONS):
        if TOPIC in stage.opened.topics():
            help_out(stage.opened, partition)


@task
def seen(stage: Stage) -> list[bytes | None]:
    return committed(stage.opened)


@task
def stable(stage: Stage, partition: int = 0) -> tuple[int, int]:
    return last_stable(stage.opened, partition)


class _ByProducer:
    """A producer with a writer's verbs."""

    def __init__(self, stage: Stage) -> None:
        self._producer = stage.opened.producer(transactional_id="id", linger_ms=0)

    def init(self) -> Any:
        return self._producer.init_transactions()

    @property
    def owner(self) -> Any:
        return self._producer._transaction._owner

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, *values: bytes, partition: int) -> None:
        for value in values:
            self._producer.send(TOPIC, value, partition=partition).result(30)

    def add_offset(self, offset: int) -> None:
        self._producer.send_offsets_to_transaction({PLACE: offset}, GROUP)

    def end(self, commit: bool) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)()


class _ByOwner(Writer):
    """A writer with a producer's verbs."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.opened)

    def begin(self) -> None:
        """Nothing: an owner begins by itself."""

    def add_offset(self, offset: int) -> None:
        self.owner.add_offsets({PLACE: offset}, GROUP)

    def end(self, commit: bool) -> None:
        self.owner.end(commit)


# ---- E18: a few transactions, with a note before and after each step --------------------------------


@task
def transaction_script(
    stage: Stage,
    path: str,
    seed: int,
    by_producer: bool = False,
    config: dict[str, str] | None = None,
) -> None:
    """Transactions over two partitions and a group's offset; notes report each begin, decision and
    end.
    """
    rng = random.Random(seed)
    open_(stage, path, config=CONFIG)
    if TOPIC not in stage.opened.topics():
        stage.opened.create_topic(TOPIC, PARTITIONS, config=config)
    writer = _ByProducer(stage) if by_producer else _ByOwner(stage)
    writer.init()
    for turn in range(TURNS):
        stamp = writer.owner.stamp
        stage.note(("began", turn, (stamp.producer_id, stamp.epoch)))
        writer.begin()
        for number in range(WRITES):
            for partition in range(PARTITIONS):
                writer.write(b"%d.%d" % (turn, number), partition=partition)
        writer.add_offset(turn + 1)
        commit = rng.random() < 0.7
        stage.note(("deciding", turn, commit))
        writer.end(commit)
        stage.note(("ended", turn, commit))
    stage.opened.close()
