"""Who of a group reads which partitions: Kafka's four assignors, as functions of members and partition counts.

ASSIGNOR-1  pure: no group, no log, no clock; the same input gives the same answer in every process
ASSIGNOR-2  every partition of a subscribed topic goes to exactly one member that subscribes to it (in the first of two
    cooperative rounds: to nobody, as long as another one still holds it)
ASSIGNOR-3  static members come first, by instance id, then dynamic ones by member id: a restart of a static member moves nothing
ASSIGNOR-4  the sticky ones balance first and keep owners second; what is kept depends on claims and generations only

The rules are those of KIP-54, KIP-341 and KIP-429 as Kafka 4.x applies them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle

from embedlog.types import TopicPartition

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True)
class Member:
    """What a member says when it joins.

    `owned` are the partitions it reads now and `generation` the one in which it got them (-1: none); `instance_id` makes it
    static; `rack` is where it runs.
    """

    topics: Collection[str]
    owned: Collection[TopicPartition] = ()
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


Assignor = Callable[[Mapping[str, Member], Mapping[str, int]], Assignment]


# ---- range and round robin ------------------------------------------------------------------------


def assign_range(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """Each topic by itself, cut into contiguous ranges; the first members get the longer ones, of every topic."""
    found: Assignment = {member_id: [] for member_id in members}
    order = _canonical(members)
    for topic in sorted(partitions):
        readers = [member_id for member_id in order if topic in members[member_id].topics]
        start = 0
        for rank, member_id in enumerate(readers):
            share, longer = divmod(partitions[topic], len(readers))
            end = start + share + (rank < longer)
            found[member_id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return found


def assign_round_robin(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """All partitions of all topics, dealt in turn; who does not subscribe to a topic is passed over."""
    found: Assignment = {member_id: [] for member_id in members}
    turn = cycle(_canonical(members))
    subscribed = {topic for member in members.values() for topic in member.topics}
    for tp in _partitions_of(subscribed, partitions):
        reader = next(member_id for member_id in turn if tp.topic in members[member_id].topics)
        found[reader].append(tp)
    return found


def _canonical(members: Mapping[str, Member]) -> list[str]:
    def rank(member_id: str) -> tuple[bool, str]:
        instance = members[member_id].instance_id
        return (instance is None, member_id if instance is None else instance)

    return sorted(members, key=rank)


def _partitions_of(topics: Iterable[str], partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(partitions.get(topic, 0))]


# ---- sticky ---------------------------------------------------------------------------------------


def assign_sticky(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """As balanced as subscriptions allow, with as many partitions as possible where they are (KIP-54)."""
    if not members:
        return {}
    claims = _claims(members, partitions)
    topics = [frozenset(topic for topic in member.topics if topic in partitions) for member in members.values()]
    found = (
        _equal_subscriptions(members, partitions, claims)
        if all(each == topics[0] for each in topics)
        else _Balancer(members, partitions, claims).run()
    )
    return {member_id: sorted(tps) for member_id, tps in found.items()}


def assign_cooperative_sticky(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """As sticky, but a partition that another member still holds is given to nobody: it comes in the round behind (KIP-429)."""
    holders: dict[TopicPartition, set[str]] = {}
    for member_id, member in members.items():
        for tp in member.owned:
            holders.setdefault(tp, set()).add(member_id)
    return {
        member_id: [tp for tp in tps if holders.get(tp, {member_id}) == {member_id}]
        for member_id, tps in assign_sticky(members, partitions).items()
    }


def _claims(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """What each member may keep: of two that claim one partition, the one of the later generation; in the same one, neither."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, member in members.items():
        for tp in member.owned:
            if tp.partition >= partitions.get(tp.topic, 0):
                continue
            generation, owner = best.get(tp, (-2, None))
            if member.generation > generation:
                best[tp] = (member.generation, member_id)
            elif member.generation == generation and owner != member_id:
                best[tp] = (generation, None)
    claims: Assignment = {member_id: [] for member_id in members}
    for tp, (_, owner) in sorted(best.items()):
        if owner is not None and tp.topic in members[owner].topics:
            claims[owner].append(tp)
    return claims


def _equal_subscriptions(members: Mapping[str, Member], partitions: Mapping[str, int], claims: Assignment) -> Assignment:
    """Everybody may read everything: each keeps what it owns up to its quota, and the rest is dealt in turn."""
    every = _partitions_of(set(next(iter(members.values())).topics), partitions)
    least, surplus = divmod(len(every), len(members))
    found: Assignment = {}
    for member_id in sorted(members):
        owned = sorted(claims[member_id], key=lambda tp: (tp.partition, tp.topic))
        more = surplus > 0 and len(owned) > least
        surplus -= more
        found[member_id] = owned[: least + more]
    kept = {tp for tps in found.values() for tp in tps}
    loose = deque(tp for tp in every if tp not in kept)
    turn = deque(member_id for member_id in found if len(found[member_id]) < least)
    while turn:
        member_id = turn.popleft()
        found[member_id].append(loose.popleft())
        if len(found[member_id]) < least:
            turn.append(member_id)
    for member_id in [member_id for member_id in found if len(found[member_id]) == least][: len(loose)]:
        found[member_id].append(loose.popleft())
    return found


class _Balancer:
    """Sticky assignment where members subscribe to different topics."""

    def __init__(self, members: Mapping[str, Member], partitions: Mapping[str, int], claims: Assignment) -> None:
        self._readers = {
            topic: [member_id for member_id in sorted(members) if topic in members[member_id].topics] for topic in partitions
        }
        self._partitions = _partitions_of((topic for topic, readers in self._readers.items() if readers), partitions)
        self._before = {tp: member_id for member_id, tps in claims.items() for tp in tps}
        self._owner = dict(self._before)
        self._count = Counter(self._owner.values())
        self._members = list(members)

    def run(self) -> Assignment:
        loose = [tp for tp in self._partitions if tp not in self._owner]
        for tp in sorted(loose, key=lambda tp: (len(self._readers[tp.topic]), tp)):
            self._give(tp, self._poorest(tp.topic))
        filled = dict(self._owner)
        score = self._score()
        self._even_out()
        if self._before and self._score() >= score:  # moves that even nothing out are not worth it
            self._owner = filled
        found: Assignment = {member_id: [] for member_id in self._members}
        for tp, member_id in self._owner.items():
            found[member_id].append(tp)
        return found

    def _give(self, tp: TopicPartition, member_id: str) -> None:
        if tp in self._owner:
            self._count[self._owner[tp]] -= 1
        self._owner[tp] = member_id
        self._count[member_id] += 1

    def _poorest(self, topic: str) -> str:
        return min(self._readers[topic], key=lambda member_id: (self._count[member_id], member_id))

    def _even_out(self) -> None:
        """Moves single partitions from richer to poorer members that may read them, until no such move is left.

        Who had it before gets it back if that helps; each move lowers the sum of squares, so there is an end.
        """
        moved = True
        while moved:
            moved = False
            for tp in sorted(self._partitions, key=lambda tp: (len(self._readers[tp.topic]), tp)):
                taker = self._better(tp)
                if taker is not None:
                    self._give(tp, taker)
                    moved = True

    def _better(self, tp: TopicPartition) -> str | None:
        enough = self._count[self._owner[tp]] - 2
        before = self._before.get(tp)
        if before is not None and self._count[before] <= enough:
            return before
        poorest = self._poorest(tp.topic)
        return poorest if self._count[poorest] <= enough else None

    def _score(self) -> int:
        """Sum of the differences between all pairs of members: Kafka's measure of imbalance."""
        counts = sorted(Counter(self._owner.values())[member_id] for member_id in self._members)
        return sum((2 * rank - len(counts) + 1) * count for rank, count in enumerate(counts))


ASSIGNORS: dict[str, Assignor] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}
