"""One group of consumers: its states, and how each event changes them. Pure: no file, no lock, no clock, no chance.

GROUP-1  a function takes what the newest record says and an event, and returns the group to append, the very same one if there is
    nothing to append, or a `Refusal`; the caller holds the lock of the group's partition from reading to appending
GROUP-2  a join phase ends in the very step in which the last member that it waits for joins, leaves or is evicted; then, and only
    then, the generation is one higher
GROUP-3  who is not a member, or one of another generation, commits nothing
GROUP-4  a static member goes by its session timeout or by name, never because its process died or stopped polling; who comes with
    its instance id takes its place, and fences it
GROUP-5  `round` rises with every change of state, and with every newcomer while the first phase is delayed: an observer whose
    timer has run out knows by it whether the timer was that of the present phase
GROUP-6  a life is that of one member: who joins under another id with the life of a member is that one no more, and nobody waits
    for it (its leaving was not heard, or its joining not told)
GROUP-7  what a newer version has written in fields of its own stays, byte for byte
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Final

from embedlog.errors import CorruptRecordError
from embedlog.format.consumer_protocol import TYPE, decode_subscription, same_subscription
from embedlog.format.process_slot import Life

NO_GENERATION: Final = -1
GENERATION_MAX: Final = 2**31 - 1

Tags = tuple[tuple[int, bytes], ...]


class State(IntEnum):
    """Our numbers, Kafka's names. `DEAD` is never on disk: a group that is deleted has no record."""

    EMPTY = 0
    PREPARING_REBALANCE = 1
    COMPLETING_REBALANCE = 2
    STABLE = 3
    DEAD = 4

    @property
    def label(self) -> str:
        """As Kafka spells it."""
        return self.name.title().replace("_", "")


class Refusal(Enum):
    """Why an event is not taken, by Kafka's names and in its words."""

    COORDINATOR_NOT_AVAILABLE = "The coordinator is not available."
    UNKNOWN_MEMBER_ID = "The coordinator is not aware of this member."
    ILLEGAL_GENERATION = "Specified group generation id is not valid."
    REBALANCE_IN_PROGRESS = "The group is rebalancing, so a rejoin is needed."
    FENCED_INSTANCE_ID = "Another member has taken the place of this static member."
    INCONSISTENT_GROUP_PROTOCOL = "The group's members speak another protocol, or share no assignor with this one."
    INVALID_SESSION_TIMEOUT = "The session timeout is not within the range allowed."
    GROUP_MAX_SIZE_REACHED = "The group has reached its maximum size."
    NON_EMPTY_GROUP = "The group is not empty."
    GROUP_ID_NOT_FOUND = "The group id does not exist."
    GROUP_SUBSCRIBED_TO_TOPIC = "The group is actively subscribed to the topic."


class Verdict(Enum):
    """What an observer has found out about a member."""

    DEAD = "its process is gone"
    LEFT = "it has stopped polling"
    EXPIRED = "its heart has not beaten for the session timeout"
    LATE = "the rebalance timeout of this round has passed without its join, or the leader's sync"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the log's options allow."""

    session_min_ms: int = 6_000
    session_max_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """One member. `protocols`: the assignors that it knows, the one it likes best first, each with its subscription.

    `joined`: whether it takes part in the present phase; a static member may stay in a generation without having joined it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joined: bool = True
    life: Life | None = None
    others: Tags = ()

    def metadata(self, protocol: str | None) -> bytes:
        """What it says under one protocol; empty if it does not speak that one."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class Group:
    """The newest record of a group. `members` are in the order in which they came; `protocol` is None if there are none."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state: State = State.EMPTY
    changed_ms: int = -1
    members: Mapping[str, Member] = field(default_factory=dict)
    delayed: bool = False
    round: int = 0
    others: Tags = ()

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a round may take: as long as the slowest member may."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def holder(self, instance_id: str | None) -> str | None:
        """The member that has an instance id now."""
        if instance_id is None:
            return None
        return next((member.member_id for member in self.members.values() if member.instance_id == instance_id), None)

    def missing(self) -> list[str]:
        """Whom the join phase waits for."""
        return [member.member_id for member in self.members.values() if not member.joined]


# ---- joining -------------------------------------------------------------------------------------


def join(
    old: Group | None,
    member: Member,
    limits: Limits,
    now_ms: int,
    *,
    protocol_type: str = TYPE,
    rejoining: bool = False,
) -> Group | Refusal:
    """A member joins, once more or anew; `rejoining`: it has been one under this id, so it must not come in as another.

    Behind the answer: a member of a stable group without more ado, or one who waits for the phase to end.
    """
    group = Group() if old is None else old
    if group.state is State.DEAD:
        return Refusal.COORDINATOR_NOT_AVAILABLE
    if not limits.session_min_ms <= member.session_timeout_ms <= limits.session_max_ms:
        return Refusal.INVALID_SESSION_TIMEOUT
    before = group.members.get(member.member_id)
    holder = group.holder(member.instance_id)
    if (rejoining or before is not None) and holder is not None and holder != member.member_id:
        return Refusal.FENCED_INSTANCE_ID
    if before is not None and before.instance_id != member.instance_id:
        return Refusal.FENCED_INSTANCE_ID
    if rejoining and before is None:
        return Refusal.UNKNOWN_MEMBER_ID
    if not _speaks_with(group, member, protocol_type, member.member_id if holder is None else holder):
        return Refusal.INCONSISTENT_GROUP_PROTOCOL
    if before is not None:
        return _join_again(group, before, member, now_ms)
    if holder is not None:
        return _take_place(group, group.members[holder], member, now_ms)
    if sum(not _same_life(each, member) for each in group.members.values()) >= limits.max_size:
        return Refusal.GROUP_MAX_SIZE_REACHED
    return _join_anew(group, member, protocol_type, limits, now_ms)


def _speaks_with(group: Group, member: Member, protocol_type: str, but: str) -> bool:
    """Whether it shares a protocol with all the others; what it spoke itself so far binds nobody."""
    names = {name for name, _ in member.protocols}
    if not names or not protocol_type or (group.members and group.protocol_type != protocol_type):
        return False
    for other in group.members.values():
        if other.member_id != but:
            names.intersection_update(name for name, _ in other.protocols)
    return bool(names)


def _join_anew(group: Group, member: Member, protocol_type: str, limits: Limits, now_ms: int) -> Group:
    member = replace(member, joined=True, assignment=b"")
    members = {each.member_id: each for each in group.members.values() if not _same_life(each, member)}
    leader = group.leader if group.leader in members else next(iter(members), member.member_id)
    members[member.member_id] = member
    grown = replace(group, protocol_type=protocol_type, members=members, leader=leader)
    if group.state is State.PREPARING_REBALANCE:
        later = group.round + 1 if group.delayed else group.round  # the delay begins once more
        return _advance(replace(grown, protocol=choose(members), round=later), now_ms)
    delayed = group.state is State.EMPTY and limits.initial_delay_ms > 0
    return _prepare(grown, now_ms, {member.member_id}, delayed)


def _same_life(one: Member, other: Member) -> bool:
    return one.life is not None and one.life == other.life and one.instance_id is None


def _join_again(group: Group, before: Member, member: Member, now_ms: int) -> Group:
    member = replace(member, joined=True, assignment=before.assignment, others=member.others or before.others)
    members = {**group.members, member.member_id: member}
    again = group if member == before else replace(group, members=members)
    if group.state is State.PREPARING_REBALANCE:
        return again if again is group else _advance(replace(again, protocol=choose(members)), now_ms)
    leading = group.state is State.STABLE and group.leader == member.member_id
    if member.protocols == before.protocols and not leading:
        return again
    return _prepare(again, now_ms, {member.member_id})


def _take_place(group: Group, before: Member, member: Member, now_ms: int) -> Group:
    """A new process with the instance id of another: it is that member now, under an id of its own."""
    member = replace(member, joined=True, assignment=before.assignment, others=member.others or before.others)
    members = {each.member_id: each for each in (member if each is before else each for each in group.members.values())}
    leader = member.member_id if group.leader == before.member_id else group.leader
    taken = replace(group, members=members, leader=leader)
    if group.state is State.PREPARING_REBALANCE:
        return _advance(replace(taken, protocol=choose(members)), now_ms)
    if group.state is State.STABLE and choose(members) == group.protocol:
        said = before.metadata(group.protocol), member.metadata(group.protocol)
        if said[0] == said[1] or (group.protocol_type == TYPE and same_subscription(group.protocol or "", *said)):
            return taken
    return _prepare(taken, now_ms, {member.member_id})


def end_delay(old: Group, now_ms: int) -> Group:
    """The first phase of a group has waited for newcomers long enough."""
    return _advance(replace(old, delayed=False), now_ms) if old.delayed else old


# ---- phases --------------------------------------------------------------------------------------


def choose(members: Mapping[str, Member]) -> str | None:
    """The protocol with the most votes: each votes for the first in its list that all know; of equals, the first's wins."""
    lists = [[name for name, _ in member.protocols] for member in members.values()]
    if not lists:
        return None
    common = set(lists[0]).intersection(*lists[1:])
    votes = Counter(next(name for name in names if name in common) for names in lists if common)
    return max(lists[0], key=lambda name: votes[name], default=None) if votes else None


def _prepare(group: Group, now_ms: int, joined: Iterable[str] = (), delayed: bool = False) -> Group:
    """A join phase begins: everybody has to come again but for those who are here already."""
    here = set(joined)
    members = {
        member_id: member if member.joined == (member_id in here) else replace(member, joined=member_id in here)
        for member_id, member in group.members.items()
    }
    prepared = replace(
        group,
        state=State.PREPARING_REBALANCE,
        members=members,
        protocol=choose(members),
        changed_ms=now_ms,
        delayed=delayed,
        round=group.round + 1,
    )
    return _advance(prepared, now_ms)


def _advance(group: Group, now_ms: int, overdue: bool = False) -> Group:
    """End the join phase if nobody is missing any more; `overdue`: or if nobody is waited for any more."""
    if group.state is not State.PREPARING_REBALANCE or (group.delayed and group.members):
        return group
    here = [member.member_id for member in group.members.values() if member.joined]
    waiting = len(here) < len(group.members) and not overdue
    if waiting or (group.members and not here):
        return group
    leader = group.leader if group.leader in here else next(iter(here), None)
    return replace(
        group,
        state=State.COMPLETING_REBALANCE if here else State.EMPTY,
        generation=group.generation + 1 if group.generation < GENERATION_MAX else 1,
        protocol=choose(group.members),
        leader=leader,
        members={member_id: replace(member, assignment=b"") for member_id, member in group.members.items()},
        changed_ms=now_ms,
        delayed=False,
        round=group.round + 1,
    )


def sync(
    old: Group | None,
    member_id: str,
    generation: int,
    instance_id: str | None,
    assignments: Mapping[str, bytes],
    now_ms: int,
) -> Group | Refusal:
    """The leader says who reads what; from anybody else the call finds out whether it has been said.

    Members that it forgets get nothing; what it says of strangers is not heard.
    """
    refusal = standing(old, member_id, instance_id)
    if old is None or refusal is not None:
        return refusal or Refusal.UNKNOWN_MEMBER_ID
    if generation != old.generation:
        return Refusal.ILLEGAL_GENERATION
    if old.state is State.PREPARING_REBALANCE:
        return Refusal.REBALANCE_IN_PROGRESS
    if old.state is State.STABLE or member_id != old.leader:
        return old
    members = {each: replace(member, assignment=assignments.get(each, b"")) for each, member in old.members.items()}
    return replace(old, state=State.STABLE, members=members, changed_ms=now_ms, round=old.round + 1)


# ---- leaving -------------------------------------------------------------------------------------


def leave(old: Group | None, member_id: str, now_ms: int) -> Group | Refusal:
    """A member goes of its own will. A static one stays: its place is kept for its next process."""
    if old is None or member_id not in old.members:
        return Refusal.UNKNOWN_MEMBER_ID
    return old if old.members[member_id].instance_id is not None else _without(old, {member_id}, now_ms)


def remove(old: Group | None, instance_ids: Collection[str] | None, now_ms: int) -> Group | Refusal:
    """An administrator takes the places of these static members away; None: those of all members."""
    if old is None:
        return Refusal.GROUP_ID_NOT_FOUND
    gone = set(old.members) if instance_ids is None else {old.holder(each) for each in instance_ids}
    found = {each for each in gone if each is not None}
    return _without(old, found, now_ms) if len(found) == len(gone) else Refusal.UNKNOWN_MEMBER_ID


def evict(old: Group, verdicts: Mapping[str, Verdict], now_ms: int) -> Group:
    """Members go whom an observer found gone; what it may not be for is not heard.

    That a round is late is true of all that it waits for: dynamic members go, static ones stay with what they said last.
    """
    found = {member_id: verdict for member_id, verdict in verdicts.items() if member_id in old.members}
    gone = {member_id for member_id, verdict in found.items() if _must_go(old, old.members[member_id], verdict)}
    preparing = old.state is State.PREPARING_REBALANCE and not old.delayed
    missing = old.missing() if preparing else []
    overdue = any(found.get(member_id) is Verdict.LATE for member_id in missing)
    if overdue:
        gone.update(member_id for member_id in missing if old.members[member_id].instance_id is None)
    return _advance(_without(old, gone, now_ms), now_ms, overdue)


def _must_go(group: Group, member: Member, verdict: Verdict) -> bool:
    if verdict is Verdict.LATE:
        return group.state is State.COMPLETING_REBALANCE and group.leader == member.member_id
    return verdict is Verdict.EXPIRED or member.instance_id is None


def _without(old: Group, gone: set[str], now_ms: int) -> Group:
    if not gone:
        return old
    members = {member_id: member for member_id, member in old.members.items() if member_id not in gone}
    leader = next(iter(members), None) if old.leader in gone else old.leader
    left = replace(old, members=members, leader=leader, protocol=choose(members))
    return _advance(left, now_ms) if old.state is State.PREPARING_REBALANCE else _prepare(left, now_ms)


# ---- offsets -------------------------------------------------------------------------------------


def may_commit(
    old: Group | None, member_id: str, generation: int, instance_id: str | None, *, transactional: bool = False
) -> Refusal | None:
    """Why a commit is not taken; None if it is. No member: an empty id and generation -1."""
    stranger = not member_id and instance_id is None and generation < 0
    if transactional and stranger:
        return None
    if old is None:
        missing = Refusal.ILLEGAL_GENERATION if transactional else Refusal.GROUP_ID_NOT_FOUND
        return None if generation < 0 else missing
    if old.state is State.DEAD:
        return Refusal.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and old.state is State.EMPTY:
        return None
    refusal = standing(old, member_id, instance_id)
    if refusal is None and generation != old.generation:
        refusal = Refusal.ILLEGAL_GENERATION
    if refusal is None and old.state is State.COMPLETING_REBALANCE and not transactional:
        refusal = Refusal.REBALANCE_IN_PROGRESS
    return refusal


def standing(old: Group | None, member_id: str, instance_id: str | None) -> Refusal | None:
    """Why this is not a member (any more); None if it is.

    A static one whose place is taken is told so: it must not come back under a new id, or two processes would fence each other
    for ever.
    """
    if old is None:
        return Refusal.UNKNOWN_MEMBER_ID
    if old.state is State.DEAD:
        return Refusal.COORDINATOR_NOT_AVAILABLE
    if instance_id is not None and (holder := old.holder(instance_id)) is not None and holder != member_id:
        return Refusal.FENCED_INSTANCE_ID
    member = old.members.get(member_id)
    return None if member is not None and member.instance_id == instance_id else Refusal.UNKNOWN_MEMBER_ID


def subscribed(old: Group | None) -> frozenset[str]:
    """The topics that members of a group of consumers ask for; what cannot be read asks for nothing."""
    found: set[str] = set()
    if old is not None and old.protocol_type == TYPE:
        for member in old.members.values():
            try:
                found.update(decode_subscription(member.metadata(old.protocol)).topics)
            except CorruptRecordError:
                continue
    return frozenset(found)


def may_delete(old: Group | None, has_offsets: bool) -> Refusal | None:
    """Why a group cannot be deleted; one that nobody ever joined may have offsets all the same."""
    if old is None:
        return None if has_offsets else Refusal.GROUP_ID_NOT_FOUND
    return Refusal.NON_EMPTY_GROUP if old.members else None


def may_reset(old: Group | None) -> Refusal | None:
    """Why an administrator cannot set offsets. Kafka says `UNKNOWN_MEMBER_ID` here, which helps nobody."""
    return Refusal.NON_EMPTY_GROUP if old is not None and old.members else None


def may_delete_offsets(old: Group | None, has_offsets: bool, topic: str) -> Refusal | None:
    """Why the offsets of a topic cannot be deleted."""
    if old is None or not old.members:
        return may_delete(old, has_offsets)
    if old.protocol_type != TYPE:
        return Refusal.NON_EMPTY_GROUP
    return Refusal.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed(old) else None


def expires_from_ms(old: Group | None, topics: frozenset[str], topic: str, commit_ms: int) -> int | None:
    """From when on the retention of an offset counts; None while it does not. `topics` are those `subscribed` to."""
    if old is None or not old.protocol_type:
        return commit_ms
    if old.state is State.EMPTY:
        return commit_ms if old.changed_ms < 0 else max(old.changed_ms, commit_ms)
    stable_reader = old.state is State.STABLE and old.protocol_type == TYPE
    return commit_ms if stable_reader and topic not in topics else None
