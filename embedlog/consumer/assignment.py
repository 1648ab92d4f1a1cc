"""Encodes subscriptions of members, and computes and checks the leader's assignment of partitions.

ASSIGNMENT-1  an assignment is checked before it is sent to any member. An invalid result of a
    user's assignor is an error on the leader, and the group continues with the next leader
ASSIGNMENT-2  members revoke all partitions first (eager), or only those that move (cooperative):
    cooperative if every assignor of the list is
ASSIGNMENT-3  Kafka's user data: `sticky` contains the partitions owned before revocation,
    `cooperative-sticky` the generation of the present ownership
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from embedlog.assignors import ASSIGNORS, Assignor, Member
from embedlog.errors import AssignorError, ConfigError, CorruptRecordError
from embedlog.format.consumer_protocol import (
    MemberSubscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from embedlog.format.wire import Plain
from embedlog.group import Group
from embedlog.types import TopicPartition

STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"
_NUMBER: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One of `partition.assignment.strategy`. A user's callable that has a true `cooperative` is
    cooperative.
    """

    name: str
    assign: Assignor
    cooperative: bool


def strategies(given: Iterable[Any]) -> tuple[Strategy, ...]:
    """The strategies for the names and callables of `partition.assignment.strategy`. Raises
    ConfigError.
    """
    found = tuple(map(_strategy, given))
    names = [strategy.name for strategy in found]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            "partition.assignment.strategy",
            expected="at least one assignor, each once",
            found=", ".join(names),
        )
    return found


def _strategy(given: Any) -> Strategy:
    for name, known in ASSIGNORS.items():
        if given == name or given is known:
            return Strategy(name, known, name == COOPERATIVE_STICKY)
    own: Any = getattr(given, "name", None) or getattr(given, "__name__", "")
    if (
        not callable(given)
        or not isinstance(own, str)
        or not own
        or own == "<lambda>"
        or own in ASSIGNORS
    ):
        expected = f"one of {', '.join(ASSIGNORS)}, or a callable with a `name` of its own"
        raise ConfigError("partition.assignment.strategy", expected=expected, found=repr(given))
    return Strategy(own, given, bool(getattr(given, "cooperative", False)))


def is_cooperative(known: Iterable[Strategy]) -> bool:
    """Whether members keep their partitions while they join (ASSIGNMENT-2)."""
    return all(strategy.cooperative for strategy in known)


# ---- subscriptions of members --------------------------------------------------------------------


def protocols(
    known: Iterable[Strategy],
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    last: Iterable[TopicPartition],
    generation: int,
    rack: str | None,
) -> tuple[tuple[str, bytes], ...]:
    """A member's subscription for each of its assignors; `last`: its last assignment, even if it
    was revoked since.
    """
    common = MemberSubscription(tuple(sorted(topics)), None, tuple(sorted(owned)), generation, rack)
    data = {STICKY: _sticky_data(last, generation), COOPERATIVE_STICKY: _NUMBER.pack(generation)}
    return tuple(
        (strategy.name, encode_subscription(common._replace(user_data=data.get(strategy.name))))
        for strategy in known
    )


def _sticky_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [_NUMBER.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(
            struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers)
        )
    return b"".join([*parts, _NUMBER.pack(generation)])


def _claims(
    protocol: str, subscription: MemberSubscription
) -> tuple[tuple[TopicPartition, ...], int]:
    """The partitions that a member claims to own, and their generation. Unreadable data is no
    claim: stickiness is optional.
    """
    if protocol != STICKY or not subscription.user_data:
        return subscription.owned, subscription.generation
    try:
        reader = Plain(subscription.user_data, 0)
        owned = reader.partitions()
        return owned, reader.number() if reader.at < len(subscription.user_data) else -1
    except (struct.error, ValueError):
        return (), -1


def members_of(group: Group) -> dict[str, Member]:
    """The members as input of an assignor; a member with an unreadable subscription subscribes to
    nothing.
    """
    found = {}
    for member_id, member in group.members.items():
        try:
            subscription = decode_subscription(member.metadata(group.protocol))
        except CorruptRecordError:
            subscription = MemberSubscription(())
        owned, generation = _claims(group.protocol or "", subscription)
        found[member_id] = Member(
            frozenset(subscription.topics), owned, generation, member.instance_id, subscription.rack
        )
    return found


# ---- the leader's assignment ---------------------------------------------------------------------


def assign(
    strategy: Strategy,
    members: Mapping[str, Member],
    here: Mapping[str, Sequence[int]],
    cooperative: bool,
) -> dict[str, bytes]:
    """The encoded assignment of every member, for a sync. Raises AssignorError, also if the
    assignor raises.

    `here` has the partitions of each topic, rising. If other brokers hold some of them, an assignor
    sees the local ones renumbered from 0.
    """
    sparse = {
        topic: numbers for topic, numbers in here.items() if numbers and numbers[-1] >= len(numbers)
    }
    places = {
        topic: {number: place for place, number in enumerate(numbers)}
        for topic, numbers in sparse.items()
    }
    seen = (
        {member_id: _renumbered(member, places) for member_id, member in members.items()}
        if sparse
        else members
    )
    found = _assigned(
        strategy, seen, {topic: len(numbers) for topic, numbers in here.items()}, cooperative
    )
    given = {
        each: [(topic, sparse.get(topic), place) for topic, place in found.get(each, ())]
        for each in members
    }
    return {
        member_id: encode_assignment(
            TopicPartition(topic, numbers[at] if numbers else at) for topic, numbers, at in each
        )
        for member_id, each in given.items()
    }


def _renumbered(member: Member, places: Mapping[str, Mapping[int, int]]) -> Member:
    owned = [
        (tp, places[tp.topic].get(tp.partition) if tp.topic in places else tp.partition)
        for tp in member.owned
    ]
    return replace(
        member, owned=[TopicPartition(tp.topic, place) for tp, place in owned if place is not None]
    )


def _assigned(
    strategy: Strategy, members: Mapping[str, Member], counts: Mapping[str, int], cooperative: bool
) -> Mapping[str, Iterable[TopicPartition]]:
    try:
        found: Any = strategy.assign(dict(members), dict(counts))
    except Exception as problem:  # an assignor may raise anything; the group must not be affected
        raise AssignorError(f"the assignor {strategy.name!r} failed: {problem!r}") from problem
    wrong = _fault(found, members, counts)
    if wrong is None and cooperative:
        wrong = _too_early(found, members)
    if wrong is not None:
        raise AssignorError(f"the assignor {strategy.name!r} {wrong}; the assignment is discarded")
    return dict(found)


def _fault(found: Any, members: Mapping[str, Member], counts: Mapping[str, int]) -> str | None:
    """A violation of the rules for assignments, as text (ASSIGNMENT-1)."""
    if not isinstance(found, Mapping):
        return f"returned {found!r:.60}, not a mapping of member ids to partitions"
    owner: dict[TopicPartition, str] = {}
    for member_id, tps in found.items():
        if member_id not in members:
            return f"assigns to {member_id!r}, which is not a member"
        if not isinstance(tps, (list, tuple, set, frozenset)):
            return f"assigns {tps!r:.60} to {member_id!r}, not a list of partitions"
        for tp in tps:
            if not (
                isinstance(tp, tuple)
                and len(tp) == 2
                and isinstance(tp[0], str)
                and type(tp[1]) is int
            ):
                return f"assigns {tp!r:.60}, which is not a TopicPartition"
            place = f"{tp[0]}-{tp[1]}"
            if not 0 <= tp[1] < counts.get(tp[0], 0):
                return f"assigns {place}, which does not exist"
            if tp[0] not in members[member_id].topics:
                return f"assigns {place} to {member_id!r}, which does not subscribe to that topic"
            if owner.setdefault(TopicPartition(*tp), member_id) != member_id:
                return f"assigns {place} to both {owner[TopicPartition(*tp)]!r} and {member_id!r}"
    return None


def _too_early(
    found: Mapping[str, Iterable[TopicPartition]], members: Mapping[str, Member]
) -> str | None:
    """For cooperative members: a partition must not be assigned before its present owner revoked
    it.
    """
    given = {member_id: set(found.get(member_id, ())) for member_id in members}
    taken = {
        tp: member_id
        for member_id, member in members.items()
        for tp in set(member.owned) - given[member_id]
    }
    for member_id, tps in given.items():
        for tp in tps - set(members[member_id].owned):
            if tp in taken:
                return f"gives {tp[0]}-{tp[1]} to {member_id!r} while {taken[tp]!r} still owns it"
    return None


__all__ = ["Strategy", "assign", "is_cooperative", "members_of", "protocols", "strategies"]
