"""E17: a set of three directories under faults of processes and of directories, in a seeded random
order.

Two producers, an owner of transactions, a reader and a member of a group work all the time. An
episode has one fault of a directory, one of a process, or both. Then the fault ends, and the set
becomes level: only a minority may fail between two levels. A backup, or the replacement of a
directory by another one, takes the place of a fault of a directory. While a fault lasts, appends
must continue. They need not while a process is frozen, because it may hold the locks of decisions,
or of two replicas.
"""

from __future__ import annotations

import errno
import functools
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedlog.storage.file_names import PARTITION_METADATA
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery
from tests.faults.replicas import directory_damage
from tests.faults.replicas.ledger import STALL, TRANSACTIONS
from tests.faults.replicas.operators import Operator
from tests.faults.replicas.set_processes import LEVEL_S, Processes, Role
from tests.faults.replicas.set_tasks import PARTITIONS, TOPIC

FAILING: dict[int, tuple[tuple[str, ...], ...]] = {
    errno.EIO: (
        ("pwrite",),
        ("pread",),
        ("fsync", "fdatasync"),
        ("open",),
        ("stat",),
        ("pwrite", "pread", "fsync", "open"),
    ),
    errno.ENOSPC: (("pwrite", "mkdir", "fallocate", "open"), ("pwrite",)),
    errno.EROFS: (("pwrite", "open", "mkdir", "unlink", "rename"),),
}
WAYS = {  # how often each way is taken
    "remove": 4,
    "errors": 5,
    "damage": 4,
    "caches": 2,
    "identity": 2,
    "closed": 2,
    "put back": 2,
    "clone": 1,
    "slow": 2,
    "hang": 2,
    "replace": 2,
    "backup": 2,
}
# ms; each call has several `stat`
SLOW = {("pwrite",): 5000, ("pread",): 5000, ("fsync", "fdatasync"): 5000, ("stat",): 50}
HANGING = ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "mkdir", "fallocate")
STOPPING = (("pwrite",), ("lock",), ("point",), ("fsync", "fdatasync"), ("pread",))
DYING = (*STOPPING, ("open", "rename", "link", "unlink"), ("ftruncate", "close"))


@dataclass
class History(Processes):
    """A set with its processes and its faults."""

    # faults of directories, with their weights
    ways: Mapping[str, int] = field(default_factory=lambda: WAYS)
    frozen: list[Role] = field(default_factory=list)  # in this episode
    operators: list[Operator] = field(default_factory=list)  # in this episode
    # the next level repairs: damage that no process has read is found by a comparison
    damaged: bool = False

    def prepare(self) -> None:
        first = self.nursery.spawn()
        least = self.rng.choice((1, 2, 2))
        first.start("make_set", self.paths, least)
        for note in first.notes(LEVEL_S):
            self.ledger.take(0, note)
        self.nursery.end(first)
        self.lines.append(f"min.insync.replicas={least}")
        writers = [Role(f"writer {number}", "produce_on", (number,), 0) for number in (1, 2)]
        owner = Role("owner", "transact_on", (TRANSACTIONS,), 0)
        readers = [
            Role("reader", "read_on", (isolation,), -1)
            for isolation in ("read_uncommitted", "read_committed")
        ]
        self.roles = [
            *writers,
            owner,
            self.rng.choice(readers),
            Role("member", "consume_on", (), -1),
        ]

    # ---- faults ----------------------------------------------------------------------------------

    def episode(self) -> None:
        """One fault, or one of a directory and one of a process, until the set is level again."""
        for role in self.roles:
            if role.victim is None:
                self.start(role)
        self.progress("before a fault", self.rng.randint(1, 8))
        ends: list[Callable[[], object]] = []
        self.frozen = []
        every = ("directory", "directory", "process", "process", "both")
        kinds = self.rng.choice(every if len(self.ways) > 1 else ("directory", "both"))
        steps = (
            [self.fail_directory]
            if kinds == "directory"
            else [self.fail_process]
            if kinds == "process"
            else []
        )
        for step in steps or self.rng.sample([self.fail_directory, self.fail_process], 2):
            step(ends)
        if self.frozen:
            self.wait_frozen()
        else:
            self.progress(self.lines[-1], self.rng.randint(2, 12))
        for end in ends:
            end()
        for operator in self.operators:
            self.complete(operator)
        self.operators = []
        for role in self.roles:
            if role.victim is not None and not self.alive(role):
                self.bury(role)
        self.progress("after " + self.lines[-1], 2) if any(
            self.is_writer(role) for role in self.roles
        ) else None
        self.level()

    def wait_frozen(self) -> None:
        """While a process is frozen: until records were acknowledged, or until waits for its locks
        have ended.
        """
        before = self.ledger.counts["acknowledged"]
        end = time.monotonic() + self.rng.choice((0.5, 4.0, 8.0))
        while time.monotonic() < end and self.ledger.counts["acknowledged"] < before + 60:
            self.pump()

    def fail_directory(self, ends: list[Callable[[], object]]) -> None:
        node = self.rng.choice(self.numbers)
        way = self.rng.choices(list(self.ways), list(self.ways.values()))[0]
        if way != "errors":
            getattr(self, way.replace(" ", "_"))(node, ends)
            return
        error = self.rng.choice(list(FAILING))
        kinds = self.rng.choice(FAILING[error])
        sticky = self.rng.random() < 0.7
        nth = self.rng.randint(1, 60)
        running = [role for role in self.roles if self.alive(role)]
        struck = running if self.rng.random() < 0.6 else [self.rng.choice(running)]
        self.note(
            "errors",
            f"{errno.errorcode[error]} in d{node} at {kinds} {nth}{' and later' * sticky} in "
            f"{len(struck)}",
        )
        for role in struck:
            assert role.victim is not None
            self.arm(role, kinds, "fail", nth, error, sticky, f"/d{node}/")
        ends += [functools.partial(self.disarm, role) for role in struck]

    def remove(self, node: int, ends: list[Callable[[], object]]) -> None:
        self.note("removals", f"d{node} is removed")
        here = self.root / f"d{node}"
        there = self.root / "removed"
        here.rename(there)
        ends.append(lambda: there.rename(here))

    def slow(self, node: int, ends: list[Callable[[], object]]) -> None:
        """From some call on, each one of a kind in this directory takes a while, in one process or
        in all.
        """
        kinds = self.rng.choice(list(SLOW))
        delay_ms = self.rng.choice((1, 10, 100)) * SLOW[kinds] // 100
        running = [role for role in self.roles if self.alive(role)]
        struck = running if self.rng.random() < 0.5 else [self.rng.choice(running)]
        self.note("slow disks", f"{kinds} in d{node} take {delay_ms} ms in {len(struck)}")
        for role in struck:
            self.arm(
                role, kinds, "delay", self.rng.randint(1, 60), delay_ms * 1000, True, f"/d{node}/"
            )
        ends += [functools.partial(self.disarm, role) for role in struck]

    def hang(self, node: int, ends: list[Callable[[], object]]) -> None:
        """The disk of a directory hangs for all processes until the fault ends.

        A call that is inside waits with the disk, so a writer is killed and begins again: that one
        appends in any case.
        """
        name = f"/d{node}/"
        running = [role for role in self.roles if self.alive(role)]
        self.note("hangs", f"d{node} hangs")
        for role in running:
            self.arm(role, HANGING, "hang", self.rng.randint(1, 60), 0, True, name)
        writer = self.rng.choice([role for role in self.roles if self.is_writer(role)])
        self.kill(writer)
        self.start(writer, lambda victim: victim.arm(HANGING, "hang", name=name))
        ends += [functools.partial(self.disarm, role) for role in self.roles]

    def damage(self, node: int, ends: list[Callable[[], object]]) -> None:
        self.note(
            "damages", f"in d{node} {directory_damage.damage(self.root / f'd{node}', self.rng)}"
        )
        self.damaged = True

    def caches(self, node: int, ends: list[Callable[[], object]]) -> None:
        self.note(
            "caches",
            f"in d{node} {directory_damage.damage_cache(self.root / f'd{node}', self.rng)}",
        )
        self.damaged = True

    def identity(self, node: int, ends: list[Callable[[], object]]) -> None:
        """Damage a topic id. Processes that have the partition open do not read it again, so it is
        put back at the end.
        """
        path = (
            self.rng.choice(directory_damage.partitions_of(self.root / f"d{node}"))
            / PARTITION_METADATA
        )
        before = path.read_bytes() if path.exists() else None
        self.note("identities", f"in d{node} {directory_damage.damage_topic_id(path, self.rng)}")
        self.damaged = True

        def end() -> None:
            if before is not None and path.parent.exists():
                aside = self.root / path.name
                aside.write_bytes(before)
                aside.replace(path)

        ends.append(end)

    def closed(self, node: int, ends: list[Callable[[], object]]) -> None:
        """Damage a directory while no process has the set open: all were killed, or the last one
        closed it in order.
        """
        for role in self.roles:
            self.kill(role)
        in_order = self.rng.random() < 0.7
        if in_order:
            self.level()
        damage = self.rng.choice(
            directory_damage.KINDS if in_order else directory_damage.AFTER_KILLS
        )
        told = damage(self.root / f"d{node}", self.rng)
        self.note(
            "damages of a closed set", f"closed{'' if in_order else ' by kills'}: in d{node} {told}"
        )
        self.damaged = True
        for role in self.roles:
            self.start(role)

    def put_back(self, node: int, ends: list[Callable[[], object]]) -> None:
        """Replace a directory by its copy of some appends before. It is away until it is replaced
        at the end.
        """
        here = self.root / f"d{node}"
        earlier = self.root / "earlier"
        directory_damage.copy(here, earlier)
        count = self.rng.randint(1, 20)
        self.wait_frozen() if self.frozen else self.progress(f"a copy of d{node}", count)
        self.note("earlier copies", f"d{node} is put back")
        here.rename(self.root / f"replaced-{len(self.lines)}")
        earlier.rename(here)
        ends.append(lambda: self.replace_stranger(here))

    def replace_stranger(self, path: Path) -> None:
        operator = self.nursery.spawn()
        operator.mutate(self.mutants)
        operator.start("replace_stranger", self.paths, str(path), LEVEL_S)
        kind, found = self.await_end(operator, -3)
        if kind != "done" or found:
            self.ledger.violations.append(
                f"{path.name} is not replaced: {kind} {found}; {self.states()}"
            )
        self.nursery.end(operator)

    def clone(self, node: int, ends: list[Callable[[], object]]) -> None:
        """Replace a directory by a copy of another one, for a while."""
        here = self.root / f"d{node}"
        aside = self.root / "aside"
        other = self.rng.choice([each for each in self.numbers if each != node])
        self.note("clones", f"d{node} is a copy of d{other}")
        here.rename(aside)
        directory_damage.copy(self.root / f"d{other}", here)

        def end() -> None:
            here.rename(self.root / f"clone-{len(self.lines)}")
            aside.rename(here)

        ends.append(end)

    # ---- operators -------------------------------------------------------------------------------

    def replace(self, number: int, ends: list[Callable[[], object]]) -> None:
        """Replace a directory by a new one, while all work."""
        old = self.root / f"d{number}"
        new = self.root / f"d{max(self.numbers) + 1 + len(self.lines)}"
        self.note("replacements", f"{new.name} replaces d{number}")

        def finish() -> None:
            self.numbers[self.numbers.index(number)] = int(new.name.removeprefix("d"))
            old.rename(self.root / f"retired-{number}")

        self.operate("replace_directory", (self.paths, str(old), str(new), LEVEL_S), finish)

    def backup(self, number: int, ends: list[Callable[[], object]]) -> None:
        """Back the set up. The copy has what was acknowledged before."""
        self.note("backups", "a backup is made")
        target = self.root / "backup"
        before = self.ledger.ended_so_far()

        def finish() -> None:
            self.pump(0)  # the request of each transaction that the backup has was sent before
            self.ledger.judge_backup(target, TOPIC, PARTITIONS, before)
            shutil.rmtree(target)

        self.operate("back_up", (self.paths, str(target), LEVEL_S), finish)

    def operate(self, task: str, arguments: tuple[Any, ...], finish: Callable[[], object]) -> None:
        """Start an operator. Half of them are killed at some call."""
        victim = self.nursery.spawn()
        victim.mutate(self.mutants)
        if self.rng.random() < 0.5:
            self.lines[-1] += ", and its operator dies"
            action = self.rng.choice(("kill_before", "kill_after", "torn_kill"))
            victim.arm(self.rng.choice(DYING), action, nth=self.rng.randint(1, 200))
        victim.start(task, *arguments)
        self.operators.append(Operator(task, arguments, finish, victim))

    def complete(self, operator: Operator) -> None:
        """Wait for the end of an operation. Another process takes the place of a killed one."""
        kind, found = self.await_end(operator.victim, -3)
        self.nursery.end(operator.victim)
        if kind == "died":
            self.counts["kills"] += 1
            operator.victim = self.nursery.spawn()
            operator.victim.start(operator.task, *operator.arguments)
            kind, found = self.await_end(operator.victim, -3)
            self.nursery.end(operator.victim)
        if kind == "done":
            operator.finish()
        else:
            self.ledger.violations.append(
                f"{STALL}{operator.task} did not end after {self.lines[-1]}: {kind} {found}; "
                f"{self.states()}"
            )

    # ---- faults of processes ---------------------------------------------------------------------

    def fail_process(self, ends: list[Callable[[], object]]) -> None:
        role = self.rng.choice([role for role in self.roles if self.alive(role)])
        assert role.victim is not None
        way = self.rng.choice(("kill", "kill at", "freeze", "freeze at"))
        if way == "kill":
            self.note("kills", f"{role.name} is killed")
            self.kill(role)
        elif way == "kill at":
            action = self.rng.choice(("kill_before", "kill_after", "torn_kill"))
            kinds = self.rng.choice(DYING)
            self.note("kills", f"{role.name} dies at {kinds}")
            self.arm(role, kinds, action, self.rng.randint(1, 60), 0, False, "")
            ends.append(lambda: self.kill(role))
        elif way == "freeze":
            self.note("freezes", f"{role.name} freezes")
            role.thawed = False
            role.victim.stop()
            self.frozen.append(role)
            ends.append(lambda: self.thaw(role))
        else:
            kinds = self.rng.choice(STOPPING)
            self.note("freezes", f"{role.name} freezes at {kinds}")
            role.thawed = False
            self.arm(
                role,
                kinds,
                self.rng.choice(("stop_before", "stop_after")),
                self.rng.randint(1, 60),
                0,
                False,
                "",
            )
            self.frozen.append(role)
            ends.append(lambda: self.thaw(role))

    def thaw(self, role: Role) -> None:
        """Continue a frozen process, or kill it."""
        if role.victim is None or not role.victim.alive:
            return
        self.disarm(role)
        if self.rng.random() < 0.3:
            self.kill(role)
        else:
            role.victim.resume()
            role.thawed = True

    # ---- level -----------------------------------------------------------------------------------

    def level(self) -> None:
        """Wait until every replica of the set is in sync. The processes continue meanwhile."""
        if self.ledger.violations:
            return
        healer = Role("healer", "level", (), -1, self.nursery.spawn())
        assert healer.victim is not None
        healer.victim.mutate(self.mutants)
        healer.victim.start("level", self.paths, LEVEL_S, self.damaged)
        self.damaged = False
        kind, found = self.await_end(healer.victim, -1)
        if kind != "done" or found:
            after = self.lines[-1]
            self.ledger.violations.append(
                f"{STALL}the set does not become level after {after}: {kind} {found}; "
                f"{self.states()}"
            )
        self.nursery.end(healer.victim)

    def finish(self) -> Verdict:
        """End all processes, drain the group, and judge the files."""
        for role in self.roles:
            if self.alive(role):
                self.disarm(role)
            self.kill(role)
        self.level()
        if not self.ledger.violations:
            last = self.nursery.spawn()
            last.start("open_set", self.paths)
            for note in last.notes(LEVEL_S):
                self.ledger.take(-2, note)
            last.start("consume_on", True)
            for note in last.notes(LEVEL_S):
                self.ledger.take(-2, note)
            last.call("close")
            self.nursery.end(last)
            self.level()
        return self.ledger.judge(
            {number: self.root / f"d{number}" for number in self.numbers}, TOPIC, PARTITIONS
        )


def experiment(
    nursery: Nursery,
    root: Path,
    seed: int,
    episodes: int,
    mutants: tuple[str, ...] = (),
    *,
    way: str | None = None,
) -> tuple[Verdict, Counter[str]]:
    """One history of so many faults; with a way, each fault contains one of a directory in this
    way.
    """
    root.mkdir(parents=True, exist_ok=True)
    history = History(
        nursery, root, random.Random(seed), mutants, ways=WAYS if way is None else {way: 1}
    )
    history.prepare()
    for _ in range(episodes):
        history.episode()
        if history.ledger.violations:
            break
    verdict = history.finish()
    verdict.violations = [
        f"{text} [seed {seed}, {'; '.join(history.lines)}]" for text in verdict.violations
    ]
    print("; ".join(history.lines), dict(history.ledger.failures), dict(history.ledger.counts))
    return verdict, history.counts
