"""What members say when they join, and what their leader makes of it: who reads which partitions.

ASSIGNMENT-1  an assignment is checked before anybody hears of it: what a user's assignor must not do is an error on the leader,
    and the group goes on with whoever leads next
ASSIGNMENT-2  revoking first (eager) or only what has to move (cooperative): cooperative if every assignor of the list is
ASSIGNMENT-3  Kafka's user data: `sticky` says what it had before it gave everything up, `cooperative-sticky` since when it has
    what it has
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from embedlog.assignors import ASSIGNORS, Assignor, Member
from embedlog.errors import AssignorError, ConfigError, CorruptRecordError
from embedlog.format.consumer_protocol import Subscription, decode_subscription, encode_assignment, encode_subscription
from embedlog.format.wire import Plain
from embedlog.group import Group
from embedlog.types import TopicPartition

STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"
_NUMBER: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One of `partition.assignment.strategy`. A user's callable that has a true `cooperative` is cooperative."""

    name: str
    assign: Assignor
    cooperative: bool


def strategies(given: Iterable[Any]) -> tuple[Strategy, ...]:
    """What the names and callables of `partition.assignment.strategy` mean. Raises ConfigError."""
    found = tuple(map(_strategy, given))
    names = [strategy.name for strategy in found]
    if not names or len(set(names)) < len(names):
        raise ConfigError("partition.assignment.strategy", expected="at least one assignor, each once", found=", ".join(names))
    return found


def _strategy(given: Any) -> Strategy:
    for name, known in ASSIGNORS.items():
        if given == name or given is known:
            return Strategy(name, known, name == COOPERATIVE_STICKY)
    own: Any = getattr(given, "name", None) or getattr(given, "__name__", "")
    if not callable(given) or not isinstance(own, str) or not own or own == "<lambda>" or own in ASSIGNORS:
        expected = f"one of {', '.join(ASSIGNORS)}, or a callable with a `name` of its own"
        raise ConfigError("partition.assignment.strategy", expected=expected, found=repr(given))
    return Strategy(own, given, bool(getattr(given, "cooperative", False)))


def is_cooperative(known: Iterable[Strategy]) -> bool:
    """Whether members keep what they own while they join (ASSIGNMENT-2)."""
    return all(strategy.cooperative for strategy in known)


# ---- what a member says --------------------------------------------------------------------------


def protocols(
    known: Iterable[Strategy],
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    last: Iterable[TopicPartition],
    generation: int,
    rack: str | None,
) -> tuple[tuple[str, bytes], ...]:
    """A member's subscription under each of its assignors; `last`: what it was assigned last, also if it has given it up."""
    said = Subscription(tuple(sorted(topics)), None, tuple(sorted(owned)), generation, rack)
    data = {STICKY: _sticky_data(last, generation), COOPERATIVE_STICKY: _NUMBER.pack(generation)}
    return tuple((strategy.name, encode_subscription(said._replace(user_data=data.get(strategy.name)))) for strategy in known)


def _sticky_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [_NUMBER.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join([*parts, _NUMBER.pack(generation)])


def _claims(protocol: str, said: Subscription) -> tuple[tuple[TopicPartition, ...], int]:
    """What a member says that it owns, and since when. What cannot be read is no claim: stickiness is a wish."""
    if protocol != STICKY or not said.user_data:
        return said.owned, said.generation
    try:
        reader = Plain(said.user_data, 0)
        owned = reader.partitions()
        return owned, reader.number() if reader.at < len(said.user_data) else -1
    except (struct.error, ValueError):
        return (), -1


def members_of(group: Group) -> dict[str, Member]:
    """The members as an assignor sees them; one whose subscription cannot be read subscribes to nothing."""
    found = {}
    for member_id, member in group.members.items():
        try:
            said = decode_subscription(member.metadata(group.protocol))
        except CorruptRecordError:
            said = Subscription(())
        owned, generation = _claims(group.protocol or "", said)
        found[member_id] = Member(frozenset(said.topics), owned, generation, member.instance_id, said.rack)
    return found


# ---- what the leader says ------------------------------------------------------------------------


def assign(
    strategy: Strategy, members: Mapping[str, Member], here: Mapping[str, Sequence[int]], cooperative: bool
) -> dict[str, bytes]:
    """The assignment of every member, as a sync carries it. Raises AssignorError, for an assignor that raises too.

    `here` has the partitions of each topic, rising. Where some are missing, which other brokers hold, an assignor sees those that
    are here as if they were numbered from 0.
    """
    sparse = {topic: numbers for topic, numbers in here.items() if numbers and numbers[-1] >= len(numbers)}
    places = {topic: {number: place for place, number in enumerate(numbers)} for topic, numbers in sparse.items()}
    seen = {member_id: _renumbered(member, places) for member_id, member in members.items()} if sparse else members
    found = _assigned(strategy, seen, {topic: len(numbers) for topic, numbers in here.items()}, cooperative)
    given = {each: [(topic, sparse.get(topic), place) for topic, place in found.get(each, ())] for each in members}
    return {
        member_id: encode_assignment(TopicPartition(topic, numbers[at] if numbers else at) for topic, numbers, at in each)
        for member_id, each in given.items()
    }


def _renumbered(member: Member, places: Mapping[str, Mapping[int, int]]) -> Member:
    owned = [(tp, places[tp.topic].get(tp.partition) if tp.topic in places else tp.partition) for tp in member.owned]
    return replace(member, owned=[TopicPartition(tp.topic, place) for tp, place in owned if place is not None])


def _assigned(
    strategy: Strategy, members: Mapping[str, Member], counts: Mapping[str, int], cooperative: bool
) -> Mapping[str, Iterable[TopicPartition]]:
    try:
        found: Any = strategy.assign(dict(members), dict(counts))
    except Exception as problem:  # whatever a user's assignor raises: the group must hear nothing of it
        raise AssignorError(f"the assignor {strategy.name!r} failed: {problem!r}") from problem
    wrong = _fault(found, members, counts)
    if wrong is None and cooperative:
        wrong = _too_early(found, members)
    if wrong is not None:
        raise AssignorError(f"the assignor {strategy.name!r} {wrong}; nothing of it counts")
    return dict(found)


def _fault(found: Any, members: Mapping[str, Member], counts: Mapping[str, int]) -> str | None:
    """What an assignment must not do, in words (ASSIGNMENT-1)."""
    if not isinstance(found, Mapping):
        return f"gave no mapping of member ids to partitions, but {found!r:.60}"
    owner: dict[TopicPartition, str] = {}
    for member_id, tps in found.items():
        if member_id not in members:
            return f"assigns to {member_id!r}, which is no member"
        if not isinstance(tps, (list, tuple, set, frozenset)):
            return f"gave {member_id!r} no list of partitions, but {tps!r:.60}"
        for tp in tps:
            if not (isinstance(tp, tuple) and len(tp) == 2 and isinstance(tp[0], str) and type(tp[1]) is int):
                return f"assigns {tp!r:.60}, which is no TopicPartition"
            place = f"{tp[0]}-{tp[1]}"
            if not 0 <= tp[1] < counts.get(tp[0], 0):
                return f"assigns {place}, which does not exist"
            if tp[0] not in members[member_id].topics:
                return f"assigns {place} to {member_id!r}, which does not subscribe to that topic"
            if owner.setdefault(TopicPartition(*tp), member_id) != member_id:
                return f"assigns {place} to both {owner[TopicPartition(*tp)]!r} and {member_id!r}"
    return None


def _too_early(found: Mapping[str, Iterable[TopicPartition]], members: Mapping[str, Member]) -> str | None:
    """Cooperative: nobody gets what another one still has to give up."""
    given = {member_id: set(found.get(member_id, ())) for member_id in members}
    taken = {tp: member_id for member_id, member in members.items() for tp in set(member.owned) - given[member_id]}
    for member_id, tps in given.items():
        for tp in tps - set(members[member_id].owned):
            if tp in taken:
                return f"gives {tp[0]}-{tp[1]} to {member_id!r} while {taken[tp]!r} still owns it"
    return None


__all__ = ["Strategy", "assign", "is_cooperative", "members_of", "protocols", "strategies"]
