"""Encodes subscriptions of members, and computes and checks the leader's assignment of partitions.

- An assignment is checked before it is sent to any member. An invalid result of a user's assignor
  is an error on the leader, and the group continues with the next leader.
- Members revoke all partitions first (eager), or only those that move (cooperative): cooperative if
  every assignor of the list is.
- Kafka's user data: `sticky` contains the partitions owned before revocation, `cooperative-sticky`
  the generation of the current ownership.
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
_INT32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One of `partition.assignment.strategy`. A user's callable that has a true `cooperative` is
    cooperative.
    """

    name: str
    assign: Assignor
    cooperative: bool


def strategies_of(assignors: Iterable[Any]) -> tuple[Strategy, ...]:
    """The strategies for the names and callables of `partition.assignment.strategy`. Raises
    ConfigError.
    """
    strategies = tuple(map(_strategy_of, assignors))
    names = [strategy.name for strategy in strategies]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            "partition.assignment.strategy",
            expected="at least one assignor, each once",
            found=", ".join(names),
        )
    return strategies


def _strategy_of(assignor: Any) -> Strategy:
    for name, built_in in ASSIGNORS.items():
        if assignor == name or assignor is built_in:
            return Strategy(name, built_in, name == COOPERATIVE_STICKY)
    own_name: Any = getattr(assignor, "name", None) or getattr(assignor, "__name__", "")
    has_own_name = (
        isinstance(own_name, str) and own_name not in ("", "<lambda>") and own_name not in ASSIGNORS
    )
    if not callable(assignor) or not has_own_name:
        expected = f"one of {', '.join(ASSIGNORS)}, or a callable with a `name` of its own"
        raise ConfigError("partition.assignment.strategy", expected=expected, found=repr(assignor))
    return Strategy(own_name, assignor, bool(getattr(assignor, "cooperative", False)))


def is_cooperative(strategies: Iterable[Strategy]) -> bool:
    """Whether members keep their partitions while they join."""
    return all(strategy.cooperative for strategy in strategies)


# ---- subscriptions of members --------------------------------------------------------------------


def encode_protocols(
    strategies: Iterable[Strategy],
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    last_assignment: Iterable[TopicPartition],
    generation: int,
    rack: str | None,
) -> tuple[tuple[str, bytes], ...]:
    """A member's subscription for each of its assignors. `last_assignment` counts even if it was
    revoked since.
    """
    common = MemberSubscription(tuple(sorted(topics)), None, tuple(sorted(owned)), generation, rack)
    user_data = {
        STICKY: _encode_sticky_data(last_assignment, generation),
        COOPERATIVE_STICKY: _INT32.pack(generation),
    }
    return tuple(
        (
            strategy.name,
            encode_subscription(common._replace(user_data=user_data.get(strategy.name))),
        )
        for strategy in strategies
    )


def _encode_sticky_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(
            struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers)
        )
    return b"".join([*parts, _INT32.pack(generation)])


def _claims_of(
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
        has_generation = reader.at < len(subscription.user_data)
        generation = reader.number() if has_generation else -1
        return owned, generation
    except (struct.error, ValueError):
        return (), -1


def members_of(group: Group) -> dict[str, Member]:
    """The members as input of an assignor; a member with an unreadable subscription subscribes to
    nothing.
    """
    members = {}
    for member_id, member in group.members.items():
        try:
            subscription = decode_subscription(member.metadata(group.protocol))
        except CorruptRecordError:
            subscription = MemberSubscription(())
        owned, generation = _claims_of(group.protocol or "", subscription)
        members[member_id] = Member(
            frozenset(subscription.topics), owned, generation, member.instance_id, subscription.rack
        )
    return members


# ---- the leader's assignment ---------------------------------------------------------------------


def assign(
    strategy: Strategy,
    members: Mapping[str, Member],
    local_partitions: Mapping[str, Sequence[int]],
    cooperative: bool,
) -> dict[str, bytes]:
    """The encoded assignment of every member, for a sync. Raises AssignorError, also if the
    assignor raises.

    `local_partitions` has the partitions of each topic, rising. If other brokers hold some of them,
    an assignor sees the local ones renumbered from 0.
    """
    sparse_topics = {
        topic: numbers
        for topic, numbers in local_partitions.items()
        if numbers and numbers[-1] >= len(numbers)
    }
    counts = {topic: len(numbers) for topic, numbers in local_partitions.items()}
    if sparse_topics:
        indexes = {
            topic: {number: index for index, number in enumerate(numbers)}
            for topic, numbers in sparse_topics.items()
        }
        members = {
            member_id: _renumber_owned(member, indexes) for member_id, member in members.items()
        }
    assignment = _call_assignor(strategy, members, counts, cooperative)
    encoded = {}
    for member_id in members:
        tps = []
        for topic, index in assignment.get(member_id, ()):
            numbers = sparse_topics.get(topic)
            number = index if numbers is None else numbers[index]
            tps.append(TopicPartition(topic, number))
        encoded[member_id] = encode_assignment(tps)
    return encoded


def _renumber_owned(member: Member, indexes: Mapping[str, Mapping[int, int]]) -> Member:
    """The member with the owned partitions of sparse topics numbered from 0; those that are not
    local are left out.
    """
    owned = []
    for tp in member.owned:
        index_of_number = indexes.get(tp.topic)
        if index_of_number is None:
            owned.append(tp)
        elif tp.partition in index_of_number:
            owned.append(TopicPartition(tp.topic, index_of_number[tp.partition]))
    return replace(member, owned=owned)


def _call_assignor(
    strategy: Strategy, members: Mapping[str, Member], counts: Mapping[str, int], cooperative: bool
) -> Mapping[str, Iterable[TopicPartition]]:
    try:
        assignment: Any = strategy.assign(dict(members), dict(counts))
    except Exception as problem:  # an assignor may raise anything; the group must not be affected
        raise AssignorError(f"the assignor {strategy.name!r} failed: {problem!r}") from problem
    fault = _find_fault(assignment, members, counts)
    if fault is None and cooperative:
        fault = _find_early_move(assignment, members)
    if fault is not None:
        raise AssignorError(f"the assignor {strategy.name!r} {fault}; the assignment is discarded")
    return dict(assignment)


def _find_fault(
    assignment: Any, members: Mapping[str, Member], counts: Mapping[str, int]
) -> str | None:
    """A violation of the rules for assignments, as text; None if there is none."""
    if not isinstance(assignment, Mapping):
        return f"returned {assignment!r:.60}, not a mapping of member ids to partitions"
    owner: dict[TopicPartition, str] = {}
    for member_id, tps in assignment.items():
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
            partition_name = f"{tp[0]}-{tp[1]}"
            if not 0 <= tp[1] < counts.get(tp[0], 0):
                return f"assigns {partition_name}, which does not exist"
            if tp[0] not in members[member_id].topics:
                return f"assigns {partition_name} to {member_id!r}, which does not subscribe to that topic"
            if owner.setdefault(TopicPartition(*tp), member_id) != member_id:
                return f"assigns {partition_name} to both {owner[TopicPartition(*tp)]!r} and {member_id!r}"
    return None


def _find_early_move(
    assignment: Mapping[str, Iterable[TopicPartition]], members: Mapping[str, Member]
) -> str | None:
    """For cooperative members: a partition must not be assigned before its current owner revoked
    it.
    """
    assigned = {member_id: set(assignment.get(member_id, ())) for member_id in members}
    revoked = {
        tp: member_id
        for member_id, member in members.items()
        for tp in set(member.owned) - assigned[member_id]
    }
    for member_id, tps in assigned.items():
        for tp in tps - set(members[member_id].owned):
            if tp in revoked:
                return f"gives {tp[0]}-{tp[1]} to {member_id!r} while {revoked[tp]!r} still owns it"
    return None


__all__ = [
    "Strategy",
    "assign",
    "encode_protocols",
    "is_cooperative",
    "members_of",
    "strategies_of",
]
