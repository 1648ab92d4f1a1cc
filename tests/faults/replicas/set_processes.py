"""The processes of a history: they begin, report, die, and begin again."""

from __future__ import annotations

import random
import select
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.harness.processes import Died, Nursery, Victim, state_of
from tests.faults.replicas.ledger import STALL, Ledger

NODES = (1, 2, 3)
PROGRESS_S = 90.0
LEVEL_S = 120.0


@dataclass
class Role:
    """What a process does, and the process."""

    name: str
    task: str
    arguments: tuple[Any, ...]
    number: int  # of the next value; it grows with each process
    victim: Victim | None = None
    started: int = 0
    # it was frozen, and continues. It may meet the fault once more before it has disarmed it
    thawed: bool = False


@dataclass
class Processes:
    """All processes that have a set open, and the ledger of their notes."""

    nursery: Nursery
    root: Path
    rng: random.Random
    mutants: tuple[str, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    # of the directories that are in the set
    numbers: list[int] = field(default_factory=lambda: list(NODES))

    @property
    def paths(self) -> list[str]:
        return [str(self.root / f"d{number}") for number in self.numbers]

    def start(self, role: Role, prepare: Callable[[Victim], object] = lambda victim: None) -> None:
        """Begin a process of this role. `prepare` is called before it opens the set."""
        victim = self.nursery.spawn()
        victim.mutate(self.mutants)
        prepare(victim)
        role.victim = victim
        role.started = role.started + 1
        role.thawed = False
        victim.start("open_set", self.paths, LEVEL_S)
        self._run(role)

    def _run(self, role: Role) -> None:
        """Send the task; it begins when the set is open."""
        assert role.victim is not None
        arguments = role.arguments
        if role.number >= 0:
            arguments = (*arguments, role.number, self.rng.getrandbits(32))
            role.number += 1_000_000
        role.victim.start(role.task, *arguments)

    def pump(self, seconds: float = 0.05) -> None:
        """Take the notes that have arrived. A thawed process that stops again continues."""
        for role in self.roles:
            if role.thawed and role.victim is not None and state_of(role.victim.pid) == "T":
                role.victim.resume()
        running = {role.victim: role for role in self.roles if role.victim is not None}
        ready, _, _ = select.select(list(running), [], [], seconds)
        for victim in ready:
            self._collect(running[victim])

    def _collect(self, role: Role) -> bool:
        """Take the notes of one process; False once it has ended."""
        victim = role.victim
        assert victim is not None
        while victim.note_waiting():
            try:
                kind, content = victim._next(1.0)
            except Died:
                return False
            if kind == "note":
                # not `id`: a later process can get the same
                reporter = 1_000_000 * (1 + self.roles.index(role)) + role.started
                self.ledger.take(reporter, content)
            elif kind == "error":
                self.ledger.violations.append(
                    f"{STALL}{role.name} ended: {content[1]}\n{content[2]}"
                )
                return False
        return True

    def bury(self, role: Role) -> None:
        """Take the last notes of a process that was killed."""
        assert role.victim is not None
        role.victim.wait_dead()
        while self._collect(role) and role.victim.note_waiting():
            continue
        self.nursery.end(role.victim)
        role.victim = None

    def kill(self, role: Role) -> None:
        if role.victim is not None:
            role.victim.kill()
            self.bury(role)

    def progress(self, what: str, count: int = 5, deadline_s: float = PROGRESS_S) -> None:
        """Wait until a number of records was acknowledged from now on."""
        began = self.ledger.counts["acknowledged"]
        end = time.monotonic() + deadline_s
        while self.ledger.counts["acknowledged"] < began + count and not self.ledger.violations:
            if time.monotonic() > end:
                self.ledger.violations.append(
                    f"{STALL}no record was acknowledged for {deadline_s:g} s: {what}; "
                    f"{self.states()}"
                )
                return
            self.pump()

    def states(self) -> str:
        found = [
            f"{role.name} {state_of(role.victim.pid)!r}"
            for role in self.roles
            if role.victim is not None
        ]
        return f"{', '.join(found)}; {dict(self.ledger.failures)}"

    def await_end(self, victim: Victim, reporter: int) -> tuple[str, Any]:
        """Take the notes of all processes until this one has ended its task: done, error, died or
        late, with what it returned.
        """
        end = time.monotonic() + LEVEL_S + 60
        while time.monotonic() < end:
            if not victim.note_waiting():
                self.pump(0.02)
                continue
            try:
                kind, content = victim._next(1.0)
            except Died:
                return "died", None
            if kind != "note":
                return kind, content
            self.ledger.take(reporter, content)
        return "late", None

    @staticmethod
    def is_writer(role: Role) -> bool:
        return role.task == "produce_on" and role.victim is not None

    @staticmethod
    def alive(role: Role) -> bool:
        return role.victim is not None and role.victim.alive

    def arm(
        self,
        role: Role,
        kinds: tuple[str, ...],
        action: str,
        nth: int,
        error: int,
        sticky: bool,
        name: str,
    ) -> None:
        """Arm a fault in a process that is in the middle of its task."""
        assert role.victim is not None
        role.victim.start("arm", kinds, nth, action, error, sticky, name)

    def disarm(self, role: Role) -> None:
        if self.alive(role):
            self.arm(role, (), "none", 0, 0, False, "")

    def note(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.lines.append(text)
