"""The rules of one consumer group: its states, and the change that each event makes. Pure: no file,
no lock, no clock.

- A function takes the newest record and an event, and returns the group to append, or a `Refusal`.
  It returns the same object if there is nothing to append. The caller holds the lock of the group's
  partition from the read to the append.
- A join phase ends in the step in which the last missing member joins, leaves or is evicted; only
  then the generation rises by one.
- A process that is not a member, or has another generation, cannot commit.
- A static member is removed after its session timeout or by name, never because its process ended
  or stopped polling. A process that joins with its instance id replaces it, and fences it.
- `round` rises with every change of state, and with every new member while the first phase is
  delayed. So an observer detects that an expired timer belongs to an earlier phase.
- A process slot belongs to one member. If it joins under another id, the previous member is removed
  without a wait: its leave was not received, or its join not answered.
- Unknown tagged fields of a newer version are kept, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Final

from embedlog.errors import CorruptRecordError
from embedlog.format.consumer_protocol import TYPE, decode_subscription, same_subscription
from embedlog.format.process_slot import ProcessSlot

NO_GENERATION: Final = -1
GENERATION_MAX: Final = 2**31 - 1

Tags = tuple[tuple[int, bytes], ...]


class State(IntEnum):
    """Numbers of embedlog with Kafka's names. `DEAD` is never on disk: a deleted group has no
    record.
    """

    EMPTY = 0
    PREPARING_REBALANCE = 1
    COMPLETING_REBALANCE = 2
    STABLE = 3
    DEAD = 4

    @property
    def label(self) -> str:
        """The name in Kafka's spelling."""
        return self.name.title().replace("_", "")


class Refusal(Enum):
    """Reasons to refuse an event, with Kafka's names and texts."""

    COORDINATOR_NOT_AVAILABLE = "The coordinator is not available."
    UNKNOWN_MEMBER_ID = "The coordinator is not aware of this member."
    ILLEGAL_GENERATION = "Specified group generation id is not valid."
    REBALANCE_IN_PROGRESS = "The group is rebalancing, so a rejoin is needed."
    FENCED_INSTANCE_ID = "Another member has taken the place of this static member."
    INCONSISTENT_GROUP_PROTOCOL = (
        "The group's members speak another protocol, or share no assignor with this one."
    )
    INVALID_SESSION_TIMEOUT = "The session timeout is not within the range allowed."
    GROUP_MAX_SIZE_REACHED = "The group has reached its maximum size."
    NON_EMPTY_GROUP = "The group is not empty."
    GROUP_ID_NOT_FOUND = "The group id does not exist."
    GROUP_SUBSCRIBED_TO_TOPIC = "The group is actively subscribed to the topic."


class Verdict(Enum):
    """The result of an observer's check of a member."""

    DEAD = "its process has ended"
    LEFT = "it has stopped polling"
    EXPIRED = "it has sent no heartbeat for the session timeout"
    LATE = "the rebalance timeout of this round has passed without its join, or the leader's sync"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits set by the log's options."""

    session_min_ms: int = 6_000
    session_max_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """One member. `protocols`: its assignors in order of preference, each with its subscription.

    `joined`: whether it takes part in the current phase; a static member may stay in a generation
    without having joined it.
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
    process_slot: ProcessSlot | None = None
    others: Tags = ()

    def metadata(self, protocol: str | None) -> bytes:
        """Its subscription under one protocol; empty if it does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class Group:
    """The newest record of a group. `members` are in the order of their joins; `protocol` is None
    without members.
    """

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
        """The time limit of a round: the longest limit of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def holder_of(self, instance_id: str | None) -> str | None:
        """The member that has an instance id now."""
        if instance_id is None:
            return None
        for member in self.members.values():
            if member.instance_id == instance_id:
                return member.member_id
        return None

    def missing_members(self) -> list[str]:
        """The members that the join phase waits for."""
        return [member.member_id for member in self.members.values() if not member.joined]


# ---- join ----------------------------------------------------------------------------------------


def join(
    old: Group | None,
    member: Member,
    limits: Limits,
    now_ms: int,
    *,
    protocol_type: str = TYPE,
    rejoining: bool = False,
) -> Group | Refusal:
    """A member joins, again or for the first time; `rejoining`: it had this member id, so it must
    not join as a new one.

    Afterwards it is a member of the stable group at once, or it waits for the end of the phase.
    """
    group = Group() if old is None else old
    if group.state is State.DEAD:
        return Refusal.COORDINATOR_NOT_AVAILABLE
    if not limits.session_min_ms <= member.session_timeout_ms <= limits.session_max_ms:
        return Refusal.INVALID_SESSION_TIMEOUT
    previous = group.members.get(member.member_id)
    holder = group.holder_of(member.instance_id)
    if (rejoining or previous is not None) and holder is not None and holder != member.member_id:
        return Refusal.FENCED_INSTANCE_ID
    if previous is not None and previous.instance_id != member.instance_id:
        return Refusal.FENCED_INSTANCE_ID
    if rejoining and previous is None:
        return Refusal.UNKNOWN_MEMBER_ID
    replaced_id = member.member_id if holder is None else holder
    if not _supports_protocols(group, member, protocol_type, replaced_id):
        return Refusal.INCONSISTENT_GROUP_PROTOCOL
    if previous is not None:
        return _join_again(group, previous, member, now_ms)
    if holder is not None:
        return _replace_static(group, group.members[holder], member, now_ms)
    others = [
        existing for existing in group.members.values() if not _is_replaced_by(existing, member)
    ]
    if len(others) >= limits.max_size:
        return Refusal.GROUP_MAX_SIZE_REACHED
    return _join_anew(group, member, protocol_type, limits, now_ms)


def _supports_protocols(group: Group, member: Member, protocol_type: str, except_id: str) -> bool:
    """Whether it shares a protocol with all other members; its own previous protocols are
    ignored.
    """
    names = {name for name, _ in member.protocols}
    if not names or not protocol_type or (group.members and group.protocol_type != protocol_type):
        return False
    for existing in group.members.values():
        if existing.member_id != except_id:
            names.intersection_update(name for name, _ in existing.protocols)
    return bool(names)


def _join_anew(
    group: Group, member: Member, protocol_type: str, limits: Limits, now_ms: int
) -> Group:
    member = replace(member, joined=True, assignment=b"")
    members = {
        existing.member_id: existing
        for existing in group.members.values()
        if not _is_replaced_by(existing, member)
    }
    leader = group.leader if group.leader in members else next(iter(members), member.member_id)
    members[member.member_id] = member
    joined_group = replace(group, protocol_type=protocol_type, members=members, leader=leader)
    if group.state is State.PREPARING_REBALANCE:
        round_number = group.round + 1 if group.delayed else group.round  # the delay starts again
        return _advance(
            replace(joined_group, protocol=choose_protocol(members), round=round_number), now_ms
        )
    delayed = group.state is State.EMPTY and limits.initial_delay_ms > 0
    return _prepare(joined_group, now_ms, {member.member_id}, delayed)


def _is_replaced_by(existing: Member, member: Member) -> bool:
    """Whether `existing` is a dynamic member of the same process slot: of an earlier join."""
    return (
        existing.process_slot is not None
        and existing.process_slot == member.process_slot
        and existing.instance_id is None
    )


def _join_again(group: Group, previous: Member, member: Member, now_ms: int) -> Group:
    member = replace(
        member, joined=True, assignment=previous.assignment, others=member.others or previous.others
    )
    members = {**group.members, member.member_id: member}
    rejoined = group if member == previous else replace(group, members=members)
    if group.state is State.PREPARING_REBALANCE:
        if rejoined is group:
            return group
        return _advance(replace(rejoined, protocol=choose_protocol(members)), now_ms)
    is_leading = group.state is State.STABLE and group.leader == member.member_id
    if member.protocols == previous.protocols and not is_leading:
        return rejoined
    return _prepare(rejoined, now_ms, {member.member_id})


def _replace_static(group: Group, previous: Member, member: Member, now_ms: int) -> Group:
    """A new process with the instance id of a static member replaces it, under a new member id."""
    member = replace(
        member, joined=True, assignment=previous.assignment, others=member.others or previous.others
    )
    members = {}
    for existing in group.members.values():  # the new member has the place of the previous one
        successor = member if existing is previous else existing
        members[successor.member_id] = successor
    leader = member.member_id if group.leader == previous.member_id else group.leader
    replaced = replace(group, members=members, leader=leader)
    if group.state is State.PREPARING_REBALANCE:
        return _advance(replace(replaced, protocol=choose_protocol(members)), now_ms)
    if (
        group.state is State.STABLE
        and choose_protocol(members) == group.protocol
        and _has_same_subscription(group, previous, member)
    ):
        return replaced
    return _prepare(replaced, now_ms, {member.member_id})


def _has_same_subscription(group: Group, previous: Member, member: Member) -> bool:
    old_metadata = previous.metadata(group.protocol)
    new_metadata = member.metadata(group.protocol)
    if old_metadata == new_metadata:
        return True
    if group.protocol_type != TYPE:
        return False
    return same_subscription(group.protocol or "", old_metadata, new_metadata)


def end_delay(old: Group, now_ms: int) -> Group:
    """End the delay of a group's first phase."""
    if not old.delayed:
        return old
    return _advance(replace(old, delayed=False), now_ms)


# ---- phases --------------------------------------------------------------------------------------


def choose_protocol(members: Mapping[str, Member]) -> str | None:
    """The protocol with the most votes: each member votes for the first in its list that all
    support; a tie goes to the first member's.
    """
    lists = [[name for name, _ in member.protocols] for member in members.values()]
    if not lists:
        return None
    common = set(lists[0]).intersection(*lists[1:])
    if not common:
        return None
    votes = Counter(next(name for name in names if name in common) for names in lists)
    return max(lists[0], key=lambda name: votes[name])


def _prepare(group: Group, now_ms: int, joined: Iterable[str] = (), delayed: bool = False) -> Group:
    """Start a join phase: all members except those in `joined` must join again."""
    joined_ids = set(joined)
    members = {}
    for member_id, member in group.members.items():
        has_joined = member_id in joined_ids
        members[member_id] = member
        if member.joined != has_joined:
            members[member_id] = replace(member, joined=has_joined)
    prepared = replace(
        group,
        state=State.PREPARING_REBALANCE,
        members=members,
        protocol=choose_protocol(members),
        changed_ms=now_ms,
        delayed=delayed,
        round=group.round + 1,
    )
    return _advance(prepared, now_ms)


def _advance(group: Group, now_ms: int, is_overdue: bool = False) -> Group:
    """End the join phase if no member is missing; `is_overdue`: or if the time limit has passed."""
    if group.state is not State.PREPARING_REBALANCE or (group.delayed and group.members):
        return group
    joined_ids = [member.member_id for member in group.members.values() if member.joined]
    is_waiting = len(joined_ids) < len(group.members) and not is_overdue
    if is_waiting or (group.members and not joined_ids):
        return group
    leader = group.leader if group.leader in joined_ids else next(iter(joined_ids), None)
    return replace(
        group,
        state=State.COMPLETING_REBALANCE if joined_ids else State.EMPTY,
        generation=group.generation + 1 if group.generation < GENERATION_MAX else 1,
        protocol=choose_protocol(group.members),
        leader=leader,
        members={
            member_id: replace(member, assignment=b"")
            for member_id, member in group.members.items()
        },
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
    """The leader sends the assignments; for other members the call checks whether they have been
    sent.

    Members without an assignment get an empty one; assignments of unknown members are ignored.
    """
    refusal = member_refusal(old, member_id, instance_id)
    if old is None or refusal is not None:
        return refusal or Refusal.UNKNOWN_MEMBER_ID
    if generation != old.generation:
        return Refusal.ILLEGAL_GENERATION
    if old.state is State.PREPARING_REBALANCE:
        return Refusal.REBALANCE_IN_PROGRESS
    if old.state is State.STABLE or member_id != old.leader:
        return old
    members = {
        other_id: replace(member, assignment=assignments.get(other_id, b""))
        for other_id, member in old.members.items()
    }
    return replace(old, state=State.STABLE, members=members, changed_ms=now_ms, round=old.round + 1)


# ---- leave ---------------------------------------------------------------------------------------


def leave(old: Group | None, member_id: str, now_ms: int) -> Group | Refusal:
    """A member leaves. A static one stays: its membership is kept for its next process."""
    if old is None or member_id not in old.members:
        return Refusal.UNKNOWN_MEMBER_ID
    if old.members[member_id].instance_id is not None:
        return old
    return _without(old, {member_id}, now_ms)


def remove(old: Group | None, instance_ids: Collection[str] | None, now_ms: int) -> Group | Refusal:
    """An administrator removes these static members; None: all members."""
    if old is None:
        return Refusal.GROUP_ID_NOT_FOUND
    if instance_ids is None:
        return _without(old, set(old.members), now_ms)
    removed_ids = set()
    for instance_id in instance_ids:
        member_id = old.holder_of(instance_id)
        if member_id is None:
            return Refusal.UNKNOWN_MEMBER_ID
        removed_ids.add(member_id)
    return _without(old, removed_ids, now_ms)


def evict(old: Group, verdicts: Mapping[str, Verdict], now_ms: int) -> Group:
    """Remove members that an observer found ended; verdicts that do not apply are ignored.

    A late round concerns all members that it waits for: dynamic members are removed, static ones
    keep their last subscription.
    """
    valid_verdicts = {
        member_id: verdict for member_id, verdict in verdicts.items() if member_id in old.members
    }
    removed_ids = {
        member_id
        for member_id, verdict in valid_verdicts.items()
        if _must_remove(old, old.members[member_id], verdict)
    }
    is_preparing = old.state is State.PREPARING_REBALANCE and not old.delayed
    missing = old.missing_members() if is_preparing else []
    is_overdue = any(valid_verdicts.get(member_id) is Verdict.LATE for member_id in missing)
    if is_overdue:
        removed_ids.update(
            member_id for member_id in missing if old.members[member_id].instance_id is None
        )
    return _advance(_without(old, removed_ids, now_ms), now_ms, is_overdue)


def _must_remove(group: Group, member: Member, verdict: Verdict) -> bool:
    if verdict is Verdict.LATE:
        return group.state is State.COMPLETING_REBALANCE and group.leader == member.member_id
    return verdict is Verdict.EXPIRED or member.instance_id is None


def _without(old: Group, removed_ids: set[str], now_ms: int) -> Group:
    if not removed_ids:
        return old
    members = {
        member_id: member
        for member_id, member in old.members.items()
        if member_id not in removed_ids
    }
    leader = next(iter(members), None) if old.leader in removed_ids else old.leader
    remaining = replace(old, members=members, leader=leader, protocol=choose_protocol(members))
    if old.state is State.PREPARING_REBALANCE:
        return _advance(remaining, now_ms)
    return _prepare(remaining, now_ms)


# ---- offsets -------------------------------------------------------------------------------------


def commit_refusal(
    old: Group | None,
    member_id: str,
    generation: int,
    instance_id: str | None,
    *,
    transactional: bool = False,
) -> Refusal | None:
    """The reason to refuse a commit; None if it is allowed. A non-member has an empty id and
    generation -1.
    """
    is_non_member = not member_id and instance_id is None and generation < 0
    if transactional and is_non_member:
        return None
    if old is None:
        unknown_group = Refusal.ILLEGAL_GENERATION if transactional else Refusal.GROUP_ID_NOT_FOUND
        return None if generation < 0 else unknown_group
    if old.state is State.DEAD:
        return Refusal.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and old.state is State.EMPTY:
        return None
    refusal = member_refusal(old, member_id, instance_id)
    if refusal is None and generation != old.generation:
        refusal = Refusal.ILLEGAL_GENERATION
    if refusal is None and old.state is State.COMPLETING_REBALANCE and not transactional:
        refusal = Refusal.REBALANCE_IN_PROGRESS
    return refusal


def kept_commit_refusal(old: Group | None, member_id: str) -> Refusal | None:
    """The reason to refuse a commit of what a dynamic member has while it waits for its assignment;
    None if it is allowed.

    REQUIRES that its assignors are cooperative: no other member gets a partition that it has named
    at its join, and not released. In each generation it takes part, or it is no member any more, so
    the generation decides nothing here.
    """
    return member_refusal(old, member_id, None)


def member_refusal(old: Group | None, member_id: str, instance_id: str | None) -> Refusal | None:
    """The reason why this is not a member; None if it is one.

    A replaced static member gets its own error: if it joined again under a new id, two processes
    would fence each other forever.
    """
    if old is None:
        return Refusal.UNKNOWN_MEMBER_ID
    if old.state is State.DEAD:
        return Refusal.COORDINATOR_NOT_AVAILABLE
    holder = old.holder_of(instance_id)
    if holder is not None and holder != member_id:
        return Refusal.FENCED_INSTANCE_ID
    member = old.members.get(member_id)
    if member is None or member.instance_id != instance_id:
        return Refusal.UNKNOWN_MEMBER_ID
    return None


def subscribed_topics(old: Group | None) -> frozenset[str]:
    """The topics to which members of a consumer group subscribe; an unreadable subscription counts
    as empty.
    """
    topics: set[str] = set()
    if old is not None and old.protocol_type == TYPE:
        for member in old.members.values():
            try:
                topics.update(decode_subscription(member.metadata(old.protocol)).topics)
            except CorruptRecordError:
                continue
    return frozenset(topics)


def deletion_refusal(old: Group | None, has_offsets: bool) -> Refusal | None:
    """The reason to refuse the deletion of a group; a group that no member ever joined may have
    offsets.
    """
    if old is None:
        return None if has_offsets else Refusal.GROUP_ID_NOT_FOUND
    return Refusal.NON_EMPTY_GROUP if old.members else None


def reset_refusal(old: Group | None) -> Refusal | None:
    """The reason to refuse a reset by an administrator. Kafka's `UNKNOWN_MEMBER_ID` would be
    unclear here.
    """
    return Refusal.NON_EMPTY_GROUP if old is not None and old.members else None


def offset_deletion_refusal(old: Group | None, has_offsets: bool, topic: str) -> Refusal | None:
    """The reason to refuse the deletion of a topic's offsets."""
    if old is None or not old.members:
        return deletion_refusal(old, has_offsets)
    if old.protocol_type != TYPE:
        return Refusal.NON_EMPTY_GROUP
    return Refusal.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed_topics(old) else None


def expires_from_ms(
    old: Group | None, topics: frozenset[str], topic: str, commit_ms: int
) -> int | None:
    """The start of an offset's retention time; None while it cannot expire. `topics` are the
    `subscribed_topics` ones.
    """
    if old is None or not old.protocol_type:
        return commit_ms
    if old.state is State.EMPTY:
        return commit_ms if old.changed_ms < 0 else max(old.changed_ms, commit_ms)
    is_consumed = old.state is State.STABLE and old.protocol_type == TYPE
    return commit_ms if is_consumed and topic not in topics else None
