"""E1: writers are killed at random moments, others continue, and acknowledged records must be
present.

Invariant: every acknowledged record is present at its offset with its bytes, once; offsets are
contiguous. A directory whose processes are all dead opens and accepts appends.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.harness.content import Mark, Verdict, check
from tests.faults.harness.processes import DEADLINE_S, Died, Nursery, RemoteError, Victim
from tests.faults.harness.tasks import TOPIC

PARTITIONS = 4
SIZES = (100, 40_000)
CONFIG = {
    "segment.bytes": 65_536,
    "index.interval.bytes": 1024,
    "max.message.bytes": 1_048_576,
    "flush.ms": 100,
}
HOOKS = (
    ("pwrite",),
    ("open", "rename", "link", "unlink"),
    ("fsync", "fdatasync"),
    ("point",),
    ("lock", "stat"),
    ("ftruncate", "close"),
)


@dataclass
class Killing:
    """One directory with faults."""

    nursery: Nursery
    directory: Path
    rng: random.Random
    writers: int = 3
    mutants: tuple[str, ...] = ()
    acks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    kills: int = 0
    _running: dict[int, Victim] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    # running writers with an acknowledged record
    _acknowledged: set[int] = field(default_factory=set)

    def prepare(self) -> None:
        first = self.nursery.spawn()
        first.call("open", str(self.directory))
        first.call("create_topic", TOPIC, PARTITIONS, CONFIG)
        first.call("close")
        self.nursery.end(first)

    def start_writer(self, writer: int) -> None:
        victim = self.nursery.spawn()
        victim.mutate(self.mutants)
        if self.rng.random() < 0.5:  # half of them die at a call, the other half at any moment
            action = self.rng.choice(("kill_before", "kill_after", "torn_kill"))
            victim.arm(self.rng.choice(HOOKS), action, nth=self.rng.randint(1, 120))
        start = self._numbers.setdefault(writer, 0)
        # numbers rise whatever the dead one had not acknowledged
        self._numbers[writer] += 1_000_000
        victim.start(
            "open_and_write",
            str(self.directory),
            writer,
            start,
            PARTITIONS,
            self.rng.getrandbits(32),
            SIZES,
        )
        self._running[writer] = victim

    def collect(self, writer: int) -> bool:
        """Take the acknowledgements that have arrived; False once the process has ended."""
        victim = self._running[writer]
        while victim.note_waiting():
            try:
                kind, content = victim._next(1.0)
            except Died:
                return False
            if kind == "error":
                raise RemoteError(*content)
            partition, offsets, marks = content
            self.acks.update(
                {(partition, offset): mark for offset, mark in zip(offsets, marks, strict=True)}
            )
            self._acknowledged.add(writer)
        return True

    def round(self) -> None:
        """All processes write; one is killed, at a call of its own or from outside.

        Every second one is killed within 60 ms of its first acknowledgement or later, however long
        it takes to open the log.
        """
        for writer in range(self.writers):
            if writer not in self._running:
                self.start_writer(writer)
        chosen = self.rng.choice(tuple(self._running))
        if self.rng.random() < 0.5:
            self.watch(
                lambda: chosen not in self._running or chosen in self._acknowledged, DEADLINE_S
            )
        self.watch(lambda: False, self.rng.uniform(0.0, 0.06))
        if chosen in self._running:
            self._running[chosen].kill()
            self.bury(chosen)

    def watch(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Collect acknowledgements until the condition holds or the time is over."""
        end = time.monotonic() + limit_s
        while not condition() and (left := end - time.monotonic()) > 0:
            select.select(tuple(self._running.values()), [], [], left)
            for writer in tuple(self._running):
                if not self.collect(writer):
                    self.bury(writer)

    def bury(self, writer: int) -> None:
        victim = self._running[writer]
        victim.wait_dead()
        while victim.note_waiting() and self.collect(writer):
            continue
        del self._running[writer]
        self._acknowledged.discard(writer)
        self.kills += 1
        self.nursery.end(victim)

    def kill_all(self) -> None:
        for victim in self._running.values():
            victim.kill()
        for writer in tuple(self._running):
            self.bury(writer)

    def verify(self) -> Verdict:
        """Open in a fresh process, with no other process in the directory, and read everything."""
        reader = self.nursery.spawn()
        # some 100 MB, on a busy machine
        rows = reader.call("read_directory", str(self.directory), deadline_s=600)
        self.nursery.end(reader)
        return check(rows, self.acks)


def experiment(
    nursery: Nursery, directory: Path, seed: int, kills: int, mutants: tuple[str, ...] = ()
) -> tuple[Verdict, int]:
    """Kill until `kills` processes have died; verify with no process alive each fiftieth time and
    at the end.
    """
    killing = Killing(nursery, directory, random.Random(seed), mutants=mutants)
    killing.prepare()
    verdict = Verdict()
    checked = 0
    try:
        while killing.kills < kills:
            killing.round()
            if killing.kills - checked >= 50:
                checked = killing.kills
                killing.kill_all()
                verdict.add(killing.verify())
                if verdict.violations:
                    break
        killing.kill_all()
        verdict.add(killing.verify())
    except RemoteError as problem:
        verdict.violations.append(f"a process without a fault failed: {problem}\n{problem.trace}")
    return verdict, killing.kills
