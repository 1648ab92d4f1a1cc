"""One group, one partition of data, and processes that come, freeze and die, under the library's
own `group` rules.

A process is a generator: the code between two `yield`s happens at once, as under the lock. The
checker knows more than the rules: the member that got each record, and the owner of the partition
in each generation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from embedlog import group as rules
from embedlog.format.consumer_protocol import MemberSubscription, encode_subscription
from embedlog.format.process_slot import ProcessSlot
from embedlog.group import Group, Limits, Member, Refusal, State, Verdict

RECORDS = 6
SAID = encode_subscription(MemberSubscription(("t",)))
PARTITION = b"the only partition"
Steps = Iterator[None]


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Process:
    """The state of a process: it may have been evicted long ago."""

    name: str
    process_slot: ProcessSlot
    instance: str | None = None
    incarnation: int = 0
    generation: int = -1
    owns: bool = False
    position: int = 0
    alive: bool = True
    steps: Steps = field(default_factory=lambda: iter(()))

    @property
    def member_id(self) -> str:
        return f"{self.name}-{self.incarnation}"


class World:
    """The group's newest record, the committed offset, and the processes."""

    def __init__(self, rng: random.Random, *, limits: Limits | None = None) -> None:
        self.rng = rng
        self.limits = limits or Limits()
        self.now = 1
        self.group: Group | None = None
        self.committed = 0
        self.handed: set[int] = set()
        self.processes: list[Process] = []
        self.lives_begun = 0
        self.log: list[str] = []
        self.counts = {"generations": 0, "commits": 0, "refusals": 0, "evictions": 0}

    def note(self, text: str) -> None:
        self.log.append(text)

    def decide(self, who: str, what: str, outcome: Group | Refusal) -> Group | Refusal:
        """Append an outcome, after a check of its changes."""
        self.now += 1
        if isinstance(outcome, Refusal):
            self.counts["refusals"] += 1
            self.note(f"{who} {what}: {outcome.name}")
            return outcome
        if outcome is not self.group:
            check_step(self.group, outcome)
            check_group(outcome)
            ended = self.group is None or outcome.generation != self.group.generation
            self.counts["generations"] += ended
            self.group = outcome
            self.note(
                f"{who} {what}: {outcome.state.label} {outcome.generation} {describe(outcome)}"
            )
            self.check_owners()
        return outcome

    # ---- processes -------------------------------------------------------------------------------

    def start(self, name: str, instance: str | None = None) -> Process:
        self.lives_begun += 1
        process = Process(
            name,
            ProcessSlot(self.lives_begun, self.lives_begun),
            instance,
            incarnation=self.lives_begun,
        )
        process.steps = self.run(process)
        self.processes.append(process)
        return process

    def run(self, me: Process) -> Steps:
        """Join, read, commit, rejoin, until the end."""
        rejoining = False
        while True:
            said = self.saying(me)
            outcome = self.decide(
                me.name,
                "joins",
                rules.join(self.group, said, self.limits, self.now, rejoining=rejoining),
            )
            yield
            if outcome is Refusal.FENCED_INSTANCE_ID:
                return
            if isinstance(outcome, Refusal):
                me.incarnation += 100
                rejoining = False
                continue
            rejoining = True
            settled = yield from self.wait(me)
            if settled is Refusal.FENCED_INSTANCE_ID:
                return
            if settled is Refusal.UNKNOWN_MEMBER_ID:
                me.incarnation += 100
                rejoining = False
                continue
            if settled is None:
                lost = yield from self.read(me)
                me.owns = False
                if lost is Refusal.FENCED_INSTANCE_ID:
                    return
                if lost is Refusal.UNKNOWN_MEMBER_ID:
                    me.incarnation += 100
                    rejoining = False

    def saying(self, me: Process) -> Member:
        protocols = (
            (self.rng.choice(("range", "range", "sticky")), SAID),
            ("cooperative-sticky", SAID),
        )
        return Member(
            me.member_id,
            me.instance,
            me.name,
            "/h",
            1000,
            10_000,
            protocols,
            process_slot=me.process_slot,
        )

    def wait(self, me: Process) -> Iterator[None]:
        """Until the group is stable with this process in it, the leader assigns; else why not."""
        while True:
            group = self.group
            if (
                group is None
                or (refusal := rules.member_refusal(group, me.member_id, me.instance)) is not None
            ):
                return Refusal.UNKNOWN_MEMBER_ID if group is None else refusal  # type: ignore[return-value]
            if group.state is State.COMPLETING_REBALANCE and group.leader == me.member_id:
                generation = group.generation
                taker = self.rng.choice(list(group.members))
                yield
                shares = {taker: PARTITION, "stranger": PARTITION}
                self.decide(
                    me.name,
                    "syncs",
                    rules.sync(self.group, me.member_id, generation, me.instance, shares, self.now),
                )
            elif group.state is State.STABLE:
                me.generation = group.generation
                me.owns = group.members[me.member_id].assignment == PARTITION
                me.position = self.committed
                return None
            elif not group.members[me.member_id].joined:
                return Refusal.REBALANCE_IN_PROGRESS  # type: ignore[return-value]
            yield

    def read(self, me: Process) -> Iterator[None]:
        """Read and commit until the group wants another round, or it is evicted; the reason, if a
        call was refused.
        """
        for _ in range(self.rng.randint(1, 8)):
            yield
            if me.owns and me.position < RECORDS:
                self.handed.add(me.position)
                me.position += 1
            yield
            if me.owns:
                refusal = self.commit(me)
                if refusal is not None:
                    return refusal  # type: ignore[return-value]
            group = self.group
            if (
                group is not None
                and (group.state, group.generation) != (State.STABLE, me.generation)
                and self.rng.random() < 0.7
            ):
                break
        if self.rng.random() < 0.2 and me.instance is None:
            self.decide(me.name, "leaves", rules.leave(self.group, me.member_id, self.now))
            return Refusal.UNKNOWN_MEMBER_ID  # type: ignore[return-value]
        return None  # type: ignore[return-value]

    def commit(self, me: Process) -> Refusal | None:
        self.now += 1
        refusal = rules.commit_refusal(self.group, me.member_id, me.generation, me.instance)
        self.note(
            f"{me.name} commits {me.position} in {me.generation}: "
            f"{'taken' if refusal is None else refusal.name}"
        )
        if refusal is not None:
            self.counts["refusals"] += 1
            return refusal
        if me.position < self.committed:
            raise Violation(
                f"the committed offset falls from {self.committed} to {me.position} by "
                f"{me.member_id}"
            )
        if not set(range(me.position)) <= self.handed:
            raise Violation("a record is skipped")
        self.committed = me.position
        self.counts["commits"] += 1
        return None

    # ---- observers and faults --------------------------------------------------------------------

    def observe(self) -> None:
        """A process detects dead members; any verdict on any member is possible, as a process may
        freeze and resume.
        """
        if self.group is None:
            return
        found = {}
        for member_id, member in self.group.members.items():
            process = next(
                each for each in self.processes if each.process_slot == member.process_slot
            )
            if not process.alive:
                found[member_id] = Verdict.DEAD if self.rng.random() < 0.8 else Verdict.EXPIRED
            elif self.rng.random() < 0.15:
                found[member_id] = self.rng.choice(list(Verdict)[1:])
        before = self.group
        after = self.decide("an observer", f"finds {found}", rules.evict(before, found, self.now))
        assert isinstance(after, Group)
        self.counts["evictions"] += len(before.members) - len(after.members)
        for member_id, verdict in found.items():
            static = before.members[member_id].instance_id is not None
            if static and verdict is Verdict.DEAD and member_id not in after.members:
                raise Violation(
                    f"the static member {member_id} lost its place when its process died"
                )

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.1:
            self.observe()
        elif chance < 0.13 and self.group is not None:
            self.decide("an observer", "ends the delay", rules.end_delay(self.group, self.now))
        elif chance < 0.16:
            victim = self.rng.choice([each for each in self.processes if each.alive])
            victim.alive = False
            self.note(f"{victim.name} is killed")
            self.start(victim.name, victim.instance)
            self.processes = [each for each in self.processes if each.alive or self.is_member(each)]
        else:
            process = self.rng.choice(self.processes)
            if process.alive:
                next(process.steps, None)

    def is_member(self, process: Process) -> bool:
        return self.group is not None and any(
            member.process_slot == process.process_slot for member in self.group.members.values()
        )

    def check_owners(self) -> None:
        """At most one whose commits count."""
        count = sum(
            each.owns
            and rules.commit_refusal(self.group, each.member_id, each.generation, each.instance)
            is None
            for each in self.processes
        )
        if count > 1:
            raise Violation("the commits of two owners would count")

    def settle(self) -> None:
        """Without further faults all living processes come to own their shares, and the partition
        is read to its end.
        """
        for _ in range(2000):
            for process in self.processes:
                if process.alive:
                    next(process.steps, None)
            if self.group is not None:
                gone = {
                    m.member_id: Verdict.EXPIRED
                    for m in self.group.members.values()
                    if not self.lives(m)
                }
                self.decide("an observer", "buries", rules.evict(self.group, gone, self.now))
                self.decide("an observer", "ends the delay", rules.end_delay(self.group, self.now))
            if self.committed == RECORDS:
                return
        raise Violation("the group does not become stable")

    def lives(self, member: Member) -> bool:
        return any(
            each.alive
            and each.process_slot == member.process_slot
            and each.member_id == member.member_id
            for each in self.processes
        )


# ---- invariants --------------------------------------------------------------------------------------


def describe(group: Group) -> str:
    return " ".join(
        f"{each}{'' if member.joined else '?'}" for each, member in group.members.items()
    )


def check_group(group: Group) -> None:
    """One record by itself."""
    if bool(group.members) != (group.state is not State.EMPTY):
        raise Violation(f"{group.state.label} with {len(group.members)} members")
    if (group.leader is None) != (not group.members) or (
        group.leader is not None and group.leader not in group.members
    ):
        raise Violation(f"the leader {group.leader} is none of {list(group.members)}")
    if (group.protocol is None) != (not group.members):
        raise Violation(f"the protocol is {group.protocol} with {len(group.members)} members")
    for member_id, member in group.members.items():
        if member.member_id != member_id or group.protocol not in dict(member.protocols):
            raise Violation(f"{member_id} does not support {group.protocol}")
    instances = [
        member.instance_id for member in group.members.values() if member.instance_id is not None
    ]
    if len(set(instances)) < len(instances):
        raise Violation("an instance id twice")
    if (
        group.state is State.PREPARING_REBALANCE
        and not group.missing_members()
        and not group.delayed
    ):
        raise Violation("a join phase continues without a missing member")
    if group.state is State.COMPLETING_REBALANCE:
        if any(member.assignment for member in group.members.values()):
            raise Violation("an assignment before the leader's sync")
        if not group.members[group.leader or ""].joined:
            raise Violation("a leader that is no member")
    if group.delayed and group.state is not State.PREPARING_REBALANCE:
        raise Violation("a delay outside of a join phase")


def check_step(old: Group | None, new: Group) -> None:
    """One record after another."""
    before = Group() if old is None else old
    ended = new.generation - before.generation
    if ended not in (0, 1):
        raise Violation(f"generation {new.generation} after {before.generation}")
    phase_over = new.state in (State.EMPTY, State.COMPLETING_REBALANCE) and new.round > before.round
    if bool(ended) != phase_over:
        raise Violation(
            f"{before.state.label} to {new.state.label} with generation {before.generation} to "
            f"{new.generation}"
        )
    if new.state is not before.state and new.round <= before.round:
        raise Violation("another state in the same round")
    if ended:
        waited = [
            each
            for each, member in new.members.items()
            if not member.joined and member.instance_id is None
        ]
        if waited:
            raise Violation(f"the phase ended without {waited}")
    if new.state is State.STABLE and before.state not in (State.STABLE, State.COMPLETING_REBALANCE):
        raise Violation(f"stable after {before.state.label}")
    if before.state is State.STABLE and new.state is State.STABLE:
        shares = [[member.assignment for member in each.members.values()] for each in (before, new)]
        if shares[0] != shares[1]:
            raise Violation("an assignment changed within a generation")
