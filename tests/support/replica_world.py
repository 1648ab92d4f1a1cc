"""Directories with one partition that copy, fail and return under the real decisions, in random
order, and what must hold.

The checks know the content of all logs, which no decision knows. Copying, installation and the high
watermark are modelled; the decisions are those of the library. A decision that is derived from an
observation may come later than other decisions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from embedlog.replicas.rules.decide import decide
from embedlog.replicas.rules.events import (
    AlterIsr,
    CancelReassignment,
    Condition,
    Elect,
    Election,
    Event,
    FinishReassignment,
    Observed,
    Reassign,
    Refusal,
    Register,
    Seen,
    SetConfig,
)
from embedlog.replicas.rules.records import NO_LEADER, DecidedPartition
from embedlog.replicas.rules.state import State, apply_all
from tests.support.replica_sets import (
    PARTITION_ID,
    identity,
    partition,
    registration_id,
    with_topic,
)

Log = tuple[tuple[int, int], ...]  # leader epoch and number of each record
LOST = -1  # epoch of a page that was made anew
NODES = (1, 2, 3, 4)


class Violation(Exception):
    """A rule does not hold; the message says which one."""


@dataclass
class Directory:
    """A replica: its log, its page, the number of its crashes. `lost`: how its page was lost."""

    log: Log = ()
    epoch: int = LOST
    leads: bool = False
    maximal: frozenset[int] = frozenset()
    settled: frozenset[int] = frozenset()
    change: int = -1
    start: int = 0
    high: int = 0
    crashes: int = 0
    lost: str = "new"
    away: bool = False


@dataclass
class World:
    """The set and its directories. `committed` is the longest log that any leader has shown."""

    rng: random.Random
    state: State = field(default_factory=lambda: with_topic((1, 2, 3), spare=(4,)))
    directories: dict[int, Directory] = field(default_factory=lambda: begun())
    committed: Log = ()
    record: int = 0
    # events with the number of crashes before them
    pending: list[tuple[int, Event]] = field(default_factory=list)
    crashes: int = 0
    led: dict[int, int] = field(default_factory=lambda: {0: 1})  # node by epoch
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    @property
    def partition(self) -> DecidedPartition:
        return partition(self.state)

    # ---- observations ----------------------------------------------------------------------------

    def present(self) -> list[int]:
        return [node for node, each in self.directories.items() if not each.away]

    def is_registered(self, node: int) -> bool:
        return self.state.nodes[node].registration_id == registration_id(
            node, self.directories[node].crashes
        )

    def is_complete(self, node: int) -> bool:
        return self.directories[node].epoch != LOST and self.is_registered(node)

    def seen(self) -> Observed:
        found = {}
        for node in self.present():
            each = self.directories[node]
            kind = (
                Condition.COMPLETE
                if self.is_complete(node)
                else Condition.STRANGER
                if each.lost == "copy"
                else Condition.CRASHED
            )
            if self.is_registered(node) and each.lost != "new":
                found[node] = Seen(
                    kind,
                    registration_id(node, each.crashes),
                    each.log[-1][0] if each.log else -1,
                    len(each.log),
                )
        return found

    def leader(self) -> Directory | None:
        """The decided leader, if its page leads in the decided epoch."""
        each = self.directories.get(self.partition.leader)
        leads = (
            each is not None
            and not each.away
            and each.leads
            and each.epoch == self.partition.leader_epoch
        )
        return each if leads else None

    # ---- steps -----------------------------------------------------------------------------------

    def step(self) -> None:
        steps: list[tuple[float, Callable[[], None]]] = [
            (12, self.append),
            (25, self.follow),
            (15, self.measure),
            (6, self.shrink),
            (8, self.grow),
            (8, self.elect),
            (8, self.register),
            (15, self.install),
            (2, self.reassign),
            (1, self.configure),
            (15, self.decide_pending),
            (2, self.fail),
            (8, self.come_back),
            (1.0, self.crash),
            (0.4, self.put_back),
            (3, self.delete),
        ]
        weights, calls = zip(*steps, strict=True)
        self.rng.choices(calls, weights)[0]()
        self.check()

    def append(self) -> None:
        """To any page that leads, also to one that another leader has replaced."""
        required = self.state.required_size(self.partition)
        leading = [
            each
            for each in self.directories.values()
            if each.leads and not each.away and len(each.settled) >= required
        ]
        if leading:
            each = self.rng.choice(leading)
            self.record += 1
            each.log += ((each.epoch, self.record),)
            self.counts["records"] += 1

    def follow(self) -> None:
        at, node = self.rng.sample(NODES, 2)
        leader = self.directories[at]
        each = self.directories[node]
        if leader.away or each.away or not leader.leads or node not in self.partition.replicas:
            return
        if each.epoch < leader.epoch:
            member = node in self.partition.isr or node in self.partition.elr
            if each.epoch == LOST and (
                (member and each.lost != "new") or not self.is_registered(node)
            ):
                return
            end = (
                agreed(each.log, leader.log)
                if each.lost != "copy"
                else common(each.log, leader.log)
            )
            high = min(each.high, end)
            changed = {"leads": False, "maximal": frozenset(), "settled": frozenset(), "change": -1}
            self.directories[node] = replace(
                each, log=each.log[:end], epoch=leader.epoch, high=high, start=0, lost="", **changed
            )
        elif each.epoch == leader.epoch and len(each.log) < len(leader.log):
            each.log = leader.log[: self.rng.randint(len(each.log) + 1, len(leader.log))]
            each.high = max(each.high, min(leader.high, len(each.log)))

    def measure(self) -> None:
        each = self.directories[self.rng.choice(NODES)]
        members = [self.directories[node] for node in each.maximal]
        if (
            not each.leads
            or each.away
            or len(each.settled) < self.state.required_size(self.partition)
        ):
            return
        if all(member.epoch == each.epoch and not member.away for member in members):
            each.high = max(each.high, min(len(member.log) for member in members))

    def shrink(self) -> None:
        if self.leader() is not None:
            old = self.partition
            out = [node for node in old.isr if self.directories[node].away and node != old.leader]
            if out:
                isr = tuple(node for node in old.isr if node not in out)
                registration_ids = {
                    node: registration_id(node, self.directories[node].crashes) for node in isr
                }
                self.propose(
                    AlterIsr(
                        PARTITION_ID, old.leader_epoch, old.partition_epoch, isr, registration_ids
                    )
                )

    def grow(self) -> None:
        leader = self.leader()
        old = self.partition
        if leader is None or leader.change != old.partition_epoch:
            return
        for node in self.present():
            each = self.directories[node]
            caught_up = each.epoch == leader.epoch and len(each.log) >= max(
                leader.high, leader.start
            )
            if node in old.replicas and node not in old.isr and caught_up:
                leader.maximal |= {node}
                registration_ids = {node: registration_id(node, each.crashes)}
                self.propose(
                    AlterIsr(
                        PARTITION_ID,
                        old.leader_epoch,
                        old.partition_epoch,
                        (*old.isr, node),
                        registration_ids,
                    )
                )
                return

    def elect(self) -> None:
        old = self.partition
        seen = self.seen()
        kind = Election.PREFERRED if self.rng.random() < 0.2 else Election.OFFLINE
        if self.is_destroyed() and all(
            self.is_registered(node) and not self.directories[node].away for node in NODES
        ):
            self.decide(Elect(PARTITION_ID, Election.UNCLEAN, old.partition_epoch, seen))
            if (
                self.partition is not old
                and self.partition.recovering
                and self.partition.leader != NO_LEADER
            ):
                log = self.directories[self.partition.leader].log
                self.committed = self.committed[: common(self.committed, log)]
        else:
            self.propose(Elect(PARTITION_ID, kind, old.partition_epoch, seen))

    def register(self) -> None:
        for node in self.present():
            each = self.directories[node]
            if not self.is_registered(node):
                found = Condition.STRANGER if each.lost == "copy" else Condition.CRASHED
                event = Register(
                    identity(node, registration_id=registration_id(node, each.crashes)),
                    found,
                    0,
                    seen={PARTITION_ID: self.seen()},
                )
                self.decide(event)
                return

    def install(self) -> None:
        old = self.partition
        each = self.directories.get(old.leader)
        if (
            each is None
            or each.away
            or old.leader_registration_id != registration_id(old.leader, each.crashes)
        ):
            return
        if (each.epoch, each.change) < (old.leader_epoch, old.partition_epoch):
            new = each.epoch != old.leader_epoch or not each.leads
            each.leads = True
            each.epoch = old.leader_epoch
            each.change = old.partition_epoch
            each.lost = ""
            each.start = len(each.log) if new else each.start
            each.maximal = each.settled = frozenset(old.isr)
            if self.led.setdefault(each.epoch, old.leader) != old.leader:
                raise Violation(f"two leaders in epoch {each.epoch}")

    def reassign(self) -> None:
        old = self.partition
        target = tuple(self.rng.sample(NODES, self.rng.choice([1, 2, 3, 3])))
        events = [
            CancelReassignment(PARTITION_ID, old.partition_epoch, self.seen()),
            Reassign(PARTITION_ID, old.partition_epoch, target),
        ]
        events += [FinishReassignment(PARTITION_ID, old.partition_epoch, self.seen())] * 6
        self.propose(self.rng.choice(events))

    def configure(self) -> None:
        least = self.rng.choice(["1", "2", "3", None])
        self.decide(
            SetConfig("t", {"min.insync.replicas": least}, seen={PARTITION_ID: self.seen()})
        )

    def decide_pending(self) -> None:
        if self.pending:
            late = self.rng.random() < 0.25
            crashes, event = self.pending.pop(self.rng.randrange(len(self.pending)) if late else -1)
            self.decide(event)
            if crashes != self.crashes:  # as if it had been decided before the crash
                self.forget_destroyed()

    def propose(self, event: Event) -> None:
        self.pending.append((self.crashes, event))

    def decide(self, event: Event) -> None:
        before = self.state
        found = decide(before, event)
        if isinstance(found, Refusal):
            self.counts[found.name] += 1
            return
        self.counts[type(event).__name__] += bool(found)
        self.state = apply_all(before, found)
        if found:
            each = self.partition
            self.lines.append(
                f"{type(event).__name__}: leader {each.leader} epoch {each.leader_epoch} isr "
                f"{each.isr} elr {each.elr}"
            )

    # ---- faults ----------------------------------------------------------------------------------

    def fail(self) -> None:
        self.directories[self.rng.choice(NODES)].away = True

    def come_back(self) -> None:
        away = [each for each in self.directories.values() if each.away]
        if away:
            self.rng.choice(away).away = False

    def crash(self) -> None:
        """A power loss of some directories: their logs end earlier, their pages are lost."""
        self.crashes += 1
        for node in self.rng.sample(NODES, self.rng.choice([1, 2, 4, 4])):
            each = self.directories[node]
            log = each.log[: self.rng.randint(max(0, len(each.log) - 3), len(each.log))]
            lost = each.lost if each.lost in {"copy", "new"} else "power"
            self.directories[node] = Directory(
                log, crashes=each.crashes + 1, lost=lost, away=each.away
            )
            self.lines.append(f"!{node} crashes, {len(log)} records")
        self.forget_destroyed()

    def put_back(self) -> None:
        """An old copy replaces a directory."""
        node = self.rng.choice(NODES)
        each = self.directories[node]
        if each.lost != "new":
            log = each.log[: self.rng.randint(0, len(each.log))]
            self.directories[node] = Directory(
                log, crashes=each.crashes + 1, lost="copy", away=True
            )
            self.lines.append(f"!{node} is an old copy, {len(log)} records")
            self.forget_destroyed()

    def delete(self) -> None:
        for node in self.present():
            if node not in self.partition.replicas:
                each = self.directories[node]
                self.directories[node] = Directory(crashes=each.crashes)

    def is_destroyed(self) -> bool:
        """Whether no member of ISR and ELR has a page."""
        return not any(
            self.is_complete(node) for node in (*self.partition.isr, *self.partition.elr)
        )

    def forget_destroyed(self) -> None:
        """If no complete member is left, only the best crashed log is expected to survive."""
        members = {*self.partition.isr, *self.partition.elr}
        if self.is_destroyed():
            logs = [
                self.directories[node].log
                for node in members
                if self.directories[node].lost == "power"
            ]
            best = max(logs, key=lambda log: (log[-1][0] if log else -1, len(log)), default=())
            self.committed = self.committed[: common(self.committed, best)]

    # ---- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        for each in self.directories.values():
            if (
                each.leads
                and not each.away
                and each.high >= each.start
                and each.epoch == self.partition.leader_epoch
            ):
                shown = each.log[: each.high]
                if (
                    len(shown) > len(self.committed)
                    and shown[: len(self.committed)] == self.committed
                ):
                    self.committed = shown
        for node in (*self.partition.isr, *self.partition.elr):
            log = self.directories[node].log
            if self.is_complete(node) and log[: len(self.committed)] != self.committed:
                raise Violation(f"complete member {node} lacks a committed record")
        if self.partition.leader != NO_LEADER and self.partition.leader not in self.partition.isr:
            raise Violation("the leader is not in the ISR")


def begun() -> dict[int, Directory]:
    """The partition in three directories, led by the first one; a fourth directory does not have
    it.
    """
    isr = frozenset({1, 2, 3})
    first = Directory(epoch=0, leads=True, maximal=isr, settled=isr, change=0, lost="")
    return {
        1: first,
        2: Directory(epoch=0, lost=""),
        3: Directory(epoch=0, lost=""),
        4: Directory(),
    }


def common(one: Log, other: Log) -> int:
    """The length of the common beginning."""
    return next(
        (n for n, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs),
        min(len(one), len(other)),
    )


def agreed(mine: Log, leader: Log) -> int:
    """The offset at which a follower truncates: it asks for ends of epochs until both logs have the
    same one.
    """
    while mine:
        epoch = mine[-1][0]
        known = max((each for each, _ in leader if each <= epoch), default=None)
        if known is None:
            return 0
        end = sum(each <= epoch for each, _ in leader)
        own = sum(each <= known for each, _ in mine)
        mine = mine[: min(end, own)]
        if known == epoch:
            break
    return len(mine)
