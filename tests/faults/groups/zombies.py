"""E16 of groups: a member is frozen at any call of its commit, for longer than its lease, and
replaced; then it resumes.

The commit of the resumed member must be refused, with an error that names the reason. Only a member
frozen inside the lock keeps its place, because no other process can take it. Then its commit
counts, and the group continues after it.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import NamedTuple

import embedlog
from embedlog import LockTimeoutError, OffsetAndMetadata, TopicPartition
from embedlog.group import State
from tests.faults.groups.group_ledger import Covered, read_ledger
from tests.faults.groups.rebalancing import CONFIG as GROUP_CONFIG
from tests.faults.groups.rebalancing import REFUSALS
from tests.faults.harness.content import Mark, value_of
from tests.faults.harness.processes import Died, Nursery, RemoteError, Victim, state_of, until
from tests.faults.harness.tasks import TOPIC, Stage, task
from tests.faults.partition.crashes import KINDS

GROUP = "workers"
PARTITIONS = 3
SESSION_MS = 300
CONFIG = GROUP_CONFIG | {"lock.timeout.ms": 400}
SETTINGS = {
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": 40,
    "max_poll_interval_ms": 60_000,
    "group_id": GROUP,
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "partition_assignment_strategy": ["range"],
}
REFUSED = {each.__name__ for each in REFUSALS}


class Outcome(NamedTuple):
    """The outcome of a trial."""

    stopped: bool
    taken_over: bool
    refused: str  # "" if the commit went through
    wrong: str


def covering(
    consumer: embedlog.Consumer, ranges: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, OffsetAndMetadata]:
    me = consumer.group_metadata()
    return {
        tp: OffsetAndMetadata(
            end, Covered(os.getpid(), 0, me.member_id, me.generation, start).note()
        )
        for tp, (start, end) in ranges.items()
    }


class Hand:
    """A consumer that polls records and commits them."""

    def __init__(self, log: embedlog.Log, instance_id: str | None = None) -> None:
        own = {} if instance_id is None else {"group_instance_id": instance_id}
        self.consumer = log.consumer(**SETTINGS, **own)
        self.taken: dict[TopicPartition, tuple[int, int]] = {}
        self.consumer.subscribe([TOPIC], on_revoked=self._drop, on_lost=self._drop)

    def _drop(self, tps: list[TopicPartition]) -> None:
        for tp in tps:
            self.taken.pop(tp, None)

    def take(self) -> int:
        """One poll; how many records are in hand."""
        for record in self.consumer.poll(timeout=0.02, max_records=20):
            tp = TopicPartition(record.topic, record.partition)
            start = self.taken[tp][0] if tp in self.taken else record.offset
            self.taken[tp] = (start, record.offset + 1)
        return sum(end - start for start, end in self.taken.values())

    def hand_in(self) -> None:
        taken = self.taken
        self.taken = {}
        if taken:
            self.consumer.commit(covering(self.consumer, taken))


_hands: dict[str, Hand] = {}


@task
def hire(stage: Stage, path: str, instance_id: str | None = None) -> None:
    stage.log = embedlog.open(path, config=CONFIG)
    _hands["me"] = Hand(stage.log, instance_id)


@task
def take_some(_: Stage, least: int = 1, polls: int = 10_000) -> list[int]:
    """Poll until something is in hand; the partitions that are this one's."""
    hand = _hands["me"]
    for _turn in range(polls):
        if hand.take() >= least:
            break
    return sorted(tp.partition for tp in hand.consumer.assignment())


@task
def hand_in(_: Stage) -> None:
    _hands["me"].hand_in()


class Trials:
    """A zombie and its heir, trial after trial. The heir is in this process."""

    def __init__(
        self, nursery: Nursery, directory: Path, seed: int, mutants: tuple[str, ...] = ()
    ) -> None:
        self.nursery = nursery
        self.rng = random.Random(seed)
        self.mutants = mutants
        self.directory = directory
        self.log = embedlog.open(directory, config=CONFIG)
        self.log.create_topic(TOPIC, PARTITIONS)
        self.producer = self.log.producer(linger_ms=0)
        self.number = 0
        self.heir = Hand(self.log)
        self.zombie = self._hire()

    def _hire(self) -> Victim:
        victim = self.nursery.spawn()
        victim.mutate(self.mutants)
        victim.call("hire", str(self.directory))
        return victim

    def feed(self) -> None:
        for partition in range(PARTITIONS):
            for _ in range(3):
                self.producer.send(TOPIC, value_of(*Mark(0, self.number), 60), partition=partition)
                self.number += 1
        self.producer.flush()

    def heirs_turn(self) -> None:
        """A process frozen inside the lock is named in the error, and no more: the heir continues
        after it.
        """
        with contextlib.suppress(LockTimeoutError, *REFUSALS):
            self.heir.take()

    def together(self) -> None:
        """Both are members, and the zombie has records in progress. A single heir commits its
        own.
        """
        with contextlib.suppress(LockTimeoutError, *REFUSALS):
            self.heir.hand_in()
        for _ in range(100):
            self.feed()
            self.zombie.start("take_some", 1, 20)
            while not self.zombie.note_waiting():
                self.heirs_turn()
            owned = self.zombie.result()
            found = self.log._engine.groups.read_group(GROUP)
            if (
                owned
                and found is not None
                and found.state is State.STABLE
                and len(found.members) == 2
            ):
                self.heirs_turn()
                return
        raise AssertionError(
            f"the zombie gets nothing: {self.log._engine.groups.read_group(GROUP)}"
        )

    def count_calls(self) -> int:
        """How many calls a commit makes."""
        self.together()
        self.zombie.call("counters", True)
        self.zombie.call("hand_in")
        return sum(self.zombie.call("counters").values())

    def trial(self, nth: int) -> Outcome:
        """Freeze at the nth call of a commit."""
        self.together()
        before = self.log._engine.groups.read_group(GROUP)
        self.zombie.arm(KINDS, "stop_before", nth=nth)
        self.zombie.start("hand_in")
        until(
            lambda: state_of(self.zombie.pid) in ("T", "") or self.zombie.note_waiting(),
            "the zombie to stop or to end",
        )
        stopped = state_of(self.zombie.pid) == "T"
        taken_over = stopped and self._taken_over(before.generation if before else 0)
        if stopped:
            self.zombie.resume()
        refused = ""
        try:
            self.zombie.result()
        except RemoteError as problem:
            refused = problem.kind
            if not REFUSED & set(problem.kinds):
                return Outcome(
                    stopped,
                    taken_over,
                    refused,
                    f"stopped at call {nth}: {problem}\n{problem.trace}",
                )
        except Died as problem:
            return Outcome(stopped, taken_over, refused, str(problem))
        self.zombie.call("disarm")
        wrong = (
            f"stopped at call {nth}, its place was taken, and its commit counts"
            if taken_over and not refused
            else ""
        )
        return Outcome(stopped, taken_over, refused, wrong)

    def _taken_over(self, generation: int) -> bool:
        """Whether the heir gets everything while the zombie is frozen."""
        for _ in range(60):
            self.heirs_turn()
            found = self.log._engine.groups.read_group(GROUP)
            stable = (
                found is not None and found.generation > generation and found.state is State.STABLE
            )
            if (
                stable
                and len(found.members) == 1
                and len(self.heir.consumer.assignment()) == PARTITIONS
            ):
                return True
        return False

    def verdict(self) -> list[str]:
        """The group's log: every commit that counts is one of an owner, and they form a chain."""
        with contextlib.suppress(*REFUSALS):
            self.heir.hand_in()
        return read_ledger(self.log, GROUP).violations

    def close(self) -> None:
        self.nursery.end()
        self.heir.consumer.close()
        self.producer.close()
        self.log.close()
