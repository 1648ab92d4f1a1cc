"""E15: a group with members that join, leave, die, freeze and delay; records are processed under
witness locks.

A member processes the records of a poll and then commits them, under the witness of each partition;
it never waits for a witness. The next commit repeats a refused one, unless the partition was taken
away. A member that finds a witness held reports it. Then one of the two belongs to an earlier
generation, and its commit does not count, or counted there (MEMBER-6). All other checks use the
group's log, which contains no commit of an earlier generation.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import embedlog
from embedlog import (
    CommitFailedError,
    FencedError,
    OffsetAndMetadata,
    RebalanceInProgressError,
    TopicPartition,
)
from embedlog.group import State
from tests.faults.groups.group_ledger import Covered, Ledger, lag, read_ledger
from tests.faults.harness.content import Mark, Verdict, mark_of, value_of
from tests.faults.harness.processes import Nursery, Victim, until
from tests.faults.harness.tasks import TOPIC, Stage, task

GROUP = "workers"
PARTITIONS = 12
MOST = 6
SESSION_MS = 500
BEAT_MS = 50
POLL_MS = 900
CONFIG = {"group.min.session.timeout.ms": 50, "log.cleaner.enable": False, "housekeeping": False}
SETTINGS = {
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": BEAT_MS,
    "max_poll_interval_ms": POLL_MS,
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
}
REFUSALS = (CommitFailedError, FencedError, RebalanceInProgressError)
# the holder: pid, window
WITNESS = "witness"
HOLDER = struct.Struct("<qq")


class Witness:
    """One lock per partition, and its holder."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def take(self, number: int, window: int) -> tuple[int, int] | None:
        """None if it was free; else its holder, if the holder was the same before and after the
        attempt.
        """
        before = None
        while True:
            try:
                self._lock(fcntl.F_WRLCK, number)
            except (BlockingIOError, PermissionError):
                pid, held = HOLDER.unpack(
                    os.pread(self.fd, HOLDER.size, 4096 + number * HOLDER.size).ljust(
                        HOLDER.size, b"\0"
                    )
                )
                if before == (pid, held):
                    return before
                before = (pid, held)
            else:
                os.pwrite(self.fd, HOLDER.pack(os.getpid(), window), 4096 + number * HOLDER.size)
                return None

    def give_back(self, number: int) -> None:
        self._lock(fcntl.F_UNLCK, number)

    def _lock(self, kind: int, number: int) -> None:
        fcntl.fcntl(
            self.fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0)
        )


class Member:
    """One member's work."""

    def __init__(
        self, stage: Stage, consumer: embedlog.Consumer, witness: Witness, seed: int
    ) -> None:
        self.stage = stage
        self.consumer = consumer
        self.witness = witness
        self.rng = random.Random(seed)
        self.window = 0
        # processed and not committed: from, to
        self.open: dict[TopicPartition, tuple[int, int]] = {}

    # ---- the log of the group ----

    def revoked(self, tps: list[TopicPartition]) -> None:
        if self.rng.random() < 0.5:
            with contextlib.suppress(*REFUSALS):
                self.commit(self.window)
        self.lost(tps)

    def lost(self, tps: list[TopicPartition]) -> None:
        for tp in tps:
            self.open.pop(tp, None)

    # ---- the work ----

    def turn(self) -> None:
        records = self.consumer.poll(timeout=0.05, max_records=self.rng.choice((1, 5, 50)))
        if not records and not self.open:
            return
        self.window += 1
        groups: dict[TopicPartition, list[Any]] = {}
        for record in records:
            groups.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        held = []
        try:
            for tp, found in groups.items():
                holder = self.witness.take(tp.partition, self.window)
                if holder is None:
                    held.append(tp.partition)
                self._process(tp, found, holder)
            if signal.SIGUSR2 in _signals:
                _signals.discard(signal.SIGUSR2)
                wait(1.5 * POLL_MS / 1000)
            self._finish()
        finally:
            for number in held:
                self.witness.give_back(number)

    def _process(
        self, tp: TopicPartition, records: list[Any], holder: tuple[int, int] | None
    ) -> None:
        start = records[0].offset
        end = records[-1].offset + 1
        before = self.open.get(tp)
        problems = [
            f"{tp}: offset {record.offset} is no value of ours"
            for record in records
            if mark_of(record.value) is None
        ]
        if [record.offset for record in records] != list(range(start, end)):
            problems.append(f"{tp}: offsets {[record.offset for record in records]}")
        if before is not None and before[1] != start:
            problems.append(f"{tp}: {start} follows on {before[1]}")
        self.open[tp] = (before[0] if before else start, end)
        generation = self.consumer.group_metadata().generation
        self.stage.note(("processed", self.window, tp, start, end, generation, holder, problems))

    def _finish(self) -> None:
        try:
            self.commit(self.window)
        except REFUSALS as problem:
            self.stage.note(("refused", self.window, type(problem).__name__))
        else:
            self.stage.note(("committed", self.window))

    def commit(self, window: int) -> None:
        me = self.consumer.group_metadata()
        offers = {
            tp: OffsetAndMetadata(
                end, Covered(os.getpid(), window, me.member_id, me.generation, start).note()
            )
            for tp, (start, end) in self.open.items()
        }
        if offers:
            self.consumer.commit(offers)
            self.open.clear()


def wait(seconds: float) -> None:
    """A deliberate delay, as in a slow application."""
    select.select([], [], [], seconds)


_signals: set[int] = set()


@task
def mind_signals(_: Stage) -> None:
    """From now on SIGUSR1 and SIGUSR2 are words, and no death."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, _frame: _signals.add(received))


@task
def belong(stage: Stage, path: str, seed: int, settings: dict[str, Any]) -> int:
    """Be a member until SIGUSR1; SIGUSR2 makes one turn last too long."""
    stage.log = embedlog.open(path, config=CONFIG)
    witness = Witness(Path(path).with_name(WITNESS))
    with stage.log, stage.log.consumer(group_id=GROUP, **SETTINGS, **settings) as consumer:
        member = Member(stage, consumer, witness, seed)
        consumer.subscribe([TOPIC], on_revoked=member.revoked, on_lost=member.lost)
        while signal.SIGUSR1 not in _signals:
            member.turn()
    return member.window


# ---- from outside --------------------------------------------------------------------------------


class Reports:
    """The reports of all members together."""

    def __init__(self) -> None:
        self.processed: dict[tuple[int, int, TopicPartition], tuple[int, int]] = {}
        self.contested: list[tuple[int, int, TopicPartition, int, tuple[int, int]]] = []
        self.refused: set[tuple[int, int]] = set()
        self.problems: list[str] = []
        self.read = 0

    def take(self, pid: int, note: Any) -> None:
        if note[0] == "processed":
            _, window, tp, start, end, generation, holder, problems = note
            self.processed[pid, window, tp] = (start, end)
            self.problems += problems
            self.read += end - start
            if holder is not None:
                self.contested.append((pid, window, tp, generation, holder))
        elif note[0] == "refused":
            self.refused.add((pid, note[1]))

    def violations(self, ledger: Ledger, ends: dict[TopicPartition, int]) -> list[str]:
        """The differences between the members' reports and the group's log."""
        found = self.problems + ledger.violations
        for pid, _, tp, generation, holder in self.contested:
            counted = ledger.commits.get((*holder, tp))
            if counted == generation:
                found.append(
                    f"{tp}: {pid} met {holder} at work in generation {generation}, and that one's "
                    "commit counted in it"
                )
        covered = {tp: [False] * end for tp, end in ends.items()}
        for (_, _, tp), (start, end) in self.processed.items():
            covered[tp][start:end] = [True] * (end - start)
        for tp, done in covered.items():
            upto = ledger.committed.get(tp, 0)
            if not all(done[:upto]):
                found.append(f"{tp}: {done.index(False)} was never processed, {upto} is committed")
        return found


class Rebalancing:
    """The nemesis of one group."""

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        seed: int,
        settings: dict[str, Any],
        mutants: tuple[str, ...] = (),
    ) -> None:
        self.nursery = nursery
        self.directory = directory
        self.mutants = mutants
        self.rng = random.Random(seed)
        self.settings = settings
        self.reports = Reports()
        self.log = embedlog.open(directory, config=CONFIG)
        self.log.create_topic(TOPIC, PARTITIONS, config={"flush.ms": 3_600_000})
        self.producer = self.log.producer(linger_ms=0)
        self.members: list[Victim] = []
        self.gone: list[Victim] = []
        self.left: set[int] = set()
        self.written = 0
        self.events: dict[str, int] = {}
        self._statics = 0

    # ---- records and notes ----

    def feed(self, count: int) -> None:
        for _ in range(count):
            self.producer.send(
                TOPIC,
                value_of(*Mark(0, self.written), 60),
                partition=self.rng.randrange(PARTITIONS),
            )
            self.written += 1
        self.producer.flush()

    def listen(self) -> None:
        for victim in [*self.members, *self.gone]:
            with contextlib.suppress(AssertionError):  # it has died: that is no news
                while victim.note_waiting():
                    kind, content = victim._next(1)
                    if kind == "error":
                        kinds, text, trace = content
                        self.reports.problems.append(
                            f"a member without a fault failed: {kinds[0]}: {text}\n{trace}"
                        )
                        self.members = [each for each in self.members if each is not victim]
                        break
                    if kind == "note":
                        self.reports.take(victim.pid, content)
                    elif kind == "done":
                        self.left.add(victim.pid)

    def until(self, condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
        def look() -> bool:
            self.listen()
            return bool(self.reports.problems) or condition()

        until(look, what, deadline_s)

    # ---- faults of members ----------

    def join(self) -> None:
        victim = self.nursery.spawn()
        victim.mutate(self.mutants)
        own = dict(self.settings)
        if self.rng.random() < 0.25:
            self._statics += 1
            own["group_instance_id"] = f"static-{self._statics}"
        victim.call("mind_signals")
        victim.start("belong", str(self.directory), self.rng.getrandbits(32), own)
        self.members.append(victim)

    def leave(self) -> None:
        victim = self.members.pop(self.rng.randrange(len(self.members)))
        os.kill(victim.pid, signal.SIGUSR1)
        self.gone.append(victim)  # listened to until it is gone

    def kill(self) -> None:
        victim = self.members.pop(self.rng.randrange(len(self.members)))
        os.kill(victim.pid, signal.SIGKILL)
        self.gone.append(victim)

    def freeze(self) -> None:
        victim = self.rng.choice(self.members)
        victim.stop()
        if self.rng.random() < 0.7:
            self.wait(self.rng.uniform(1.2, 2.0) * SESSION_MS / 1000)
        victim.resume()

    def delay(self) -> None:
        os.kill(self.rng.choice(self.members).pid, signal.SIGUSR2)

    def wait(self, seconds: float) -> None:
        """Receive the reports of the members for this time."""
        for _ in range(max(1, int(seconds / 0.02))):
            self.listen()
            wait(0.02)

    # ---- the experiment ----

    def event(self) -> None:
        choices = [self.join] * (2 if len(self.members) < MOST else 0)
        if len(self.members) > 1:
            choices += [self.kill, self.leave, self.freeze, self.delay]
        chosen = self.rng.choice(choices)
        name = chosen.__name__
        self.events[name] = self.events.get(name, 0) + 1
        chosen()
        self.feed(self.rng.randint(5, 60))
        if self.rng.random() < 0.6:
            self.settle()
        else:
            self.wait(self.rng.uniform(0, 0.2))

    def settle(self) -> None:
        """Until the group is stable, or the time is over: a killed static member counts for its
        session timeout.
        """
        with contextlib.suppress(AssertionError):
            self.until(
                lambda: (
                    (found := self.log._engine.groups.read_group(GROUP)) is not None
                    and found.state is State.STABLE
                ),
                "stable",
                2.0,
            )

    def run(self, rebalances: int, deadline_s: float) -> tuple[Verdict, dict[str, int]]:
        self.join()
        self.join()
        self.feed(200)
        self.until(
            lambda: self.log._engine.groups.read_group(GROUP) is not None, "a group", deadline_s
        )
        while self.generation() < rebalances and not self.reports.problems:
            self.event()
        self.until(
            lambda: lag(self.committed(), self.ends()) == 0, "the lag to be zero", deadline_s
        )
        for victim in self.members:
            os.kill(victim.pid, signal.SIGUSR1)
        self.until(
            lambda: all(victim.pid in self.left for victim in self.members),
            "members to leave",
            deadline_s,
        )
        ends = self.ends()
        ledger = read_ledger(self.log, GROUP)
        violations = self.reports.violations(ledger, ends)
        counts = {
            "rebalances": len(ledger.generations),
            "commits": len(ledger.commits),
            "refused": len(self.reports.refused),
            "met": len(self.reports.contested),
            **dict(sorted(self.events.items())),
        }
        return Verdict(read=self.reports.read, acked=self.written, violations=violations), counts

    def generation(self) -> int:
        found = self.log._engine.groups.read_group(GROUP)
        return 0 if found is None else found.generation

    def committed(self) -> dict[TopicPartition, int]:
        tps = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        found = self.log._engine.groups.read_committed(GROUP, tps)
        return {tp: at.offset for tp, at in found.items() if at is not None}

    def ends(self) -> dict[TopicPartition, int]:
        tps = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        with self.log.consumer() as consumer:
            return dict(consumer.end_offsets(tps))

    def close(self) -> None:
        self.nursery.end()
        self.producer.close()
        self.log.close()


@contextlib.contextmanager
def rebalancing(*arguments: Any, **keywords: Any) -> Iterator[Rebalancing]:
    made = Rebalancing(*arguments, **keywords)
    try:
        yield made
    finally:
        made.close()


def experiment(
    nursery: Nursery,
    directory: Path,
    seed: int,
    rebalances: int,
    *,
    assignor: str,
    mutants: tuple[str, ...] = (),
    deadline_s: float = 60.0,
) -> tuple[Verdict, dict[str, int]]:
    """Members with faults until this number of rebalances; the verdict and the counts."""
    settings = {"partition_assignment_strategy": [assignor]}
    with rebalancing(nursery, directory, seed, settings, mutants) as made:
        return made.run(rebalances, deadline_s)
