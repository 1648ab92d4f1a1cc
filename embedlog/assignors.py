"""Contains Kafka's four assignors, as functions of members and partition counts.

- An assignor is a pure function: the same input gives the same assignment in every process.
- Every partition of a subscribed topic is assigned to exactly one subscribed member. In the first
  of two cooperative rounds it is assigned to none while another member still owns it.
- Static members come first, by instance id, then dynamic ones by member id: a restart of a static
  one moves nothing.
- The sticky assignors balance first and keep owners second, by owned partitions and generations
  only.

The rules are those of KIP-54, KIP-341 and KIP-429 as Kafka 4.x applies them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle

from embedlog.types import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id."""


@dataclass(frozen=True)
class Member:
    """The subscription of a member.

    `owned` are its current partitions, and `generation` is the one that assigned them (-1: none). A
    member with `instance_id` is static. `rack` is its location.
    """

    topics: Collection[str]
    owned: Collection[TopicPartition] = ()
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


Assignor = Callable[[Mapping[str, Member], Mapping[str, int]], Assignment]
"""A function of the members by member id, and of the number of partitions of each topic."""


# ---- range and round robin ------------------------------------------------------------------------


def assign_range(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """Each topic is split into contiguous ranges; the first members get the longer ranges of every
    topic.
    """
    assignment: Assignment = {member_id: [] for member_id in members}
    order = _in_canonical_order(members)
    for topic in sorted(partitions):
        readers = [member_id for member_id in order if topic in members[member_id].topics]
        start = 0
        for rank, member_id in enumerate(readers):
            share, longer = divmod(partitions[topic], len(readers))
            end = start + share + (rank < longer)
            assignment[member_id] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return assignment


def assign_round_robin(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """All partitions of all topics in turn; a member that is not subscribed to a topic is
    skipped.
    """
    assignment: Assignment = {member_id: [] for member_id in members}
    turn = cycle(_in_canonical_order(members))
    subscribed = {topic for member in members.values() for topic in member.topics}
    for tp in _partitions_of(subscribed, partitions):
        reader = next(member_id for member_id in turn if tp.topic in members[member_id].topics)
        assignment[reader].append(tp)
    return assignment


def _in_canonical_order(members: Mapping[str, Member]) -> list[str]:
    def rank(member_id: str) -> tuple[bool, str]:
        instance = members[member_id].instance_id
        return (instance is None, member_id if instance is None else instance)

    return sorted(members, key=rank)


def _partitions_of(topics: Iterable[str], partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in sorted(topics)
        for number in range(partitions.get(topic, 0))
    ]


# ---- sticky ---------------------------------------------------------------------------------------


def assign_sticky(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """As balanced as subscriptions allow, with as few moved partitions as possible (KIP-54)."""
    if not members:
        return {}
    claims = _claims_of(members, partitions)
    topics = [
        frozenset(topic for topic in member.topics if topic in partitions)
        for member in members.values()
    ]
    if len(set(topics)) == 1:
        assignment = _assign_equal_subscriptions(members, partitions, claims)
    else:
        assignment = _Balancer(members, partitions, claims).run()
    return {member_id: sorted(tps) for member_id, tps in assignment.items()}


def assign_cooperative_sticky(
    members: Mapping[str, Member], partitions: Mapping[str, int]
) -> Assignment:
    """As sticky, but a partition that another member still owns is assigned in the next round
    (KIP-429).
    """
    holders: dict[TopicPartition, set[str]] = {}
    for member_id, member in members.items():
        for tp in member.owned:
            holders.setdefault(tp, set()).add(member_id)
    return {
        member_id: [tp for tp in tps if holders.get(tp, {member_id}) == {member_id}]
        for member_id, tps in assign_sticky(members, partitions).items()
    }


def _claims_of(members: Mapping[str, Member], partitions: Mapping[str, int]) -> Assignment:
    """What each member may keep. If two members claim a partition, the later generation wins; in
    the same generation neither.
    """
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


def _assign_equal_subscriptions(
    members: Mapping[str, Member], partitions: Mapping[str, int], claims: Assignment
) -> Assignment:
    """All members have equal subscriptions: each keeps owned partitions up to its quota, and the
    rest is assigned in turn.
    """
    all_partitions = _partitions_of(set(next(iter(members.values())).topics), partitions)
    quota, surplus = divmod(len(all_partitions), len(members))
    assignment: Assignment = {}
    for member_id in sorted(members):
        owned = sorted(claims[member_id], key=lambda tp: (tp.partition, tp.topic))
        takes_surplus = surplus > 0 and len(owned) > quota
        surplus -= takes_surplus
        assignment[member_id] = owned[: quota + takes_surplus]
    kept_partitions = {tp for tps in assignment.values() for tp in tps}
    unassigned = deque(tp for tp in all_partitions if tp not in kept_partitions)
    turn = deque(member_id for member_id in assignment if len(assignment[member_id]) < quota)
    while turn:
        member_id = turn.popleft()
        assignment[member_id].append(unassigned.popleft())
        if len(assignment[member_id]) < quota:
            turn.append(member_id)
    at_quota = [member_id for member_id in assignment if len(assignment[member_id]) == quota]
    for member_id, tp in zip(at_quota, unassigned, strict=False):
        assignment[member_id].append(tp)
    return assignment


class _Balancer:
    """Sticky assignment where members subscribe to different topics."""

    def __init__(
        self, members: Mapping[str, Member], partitions: Mapping[str, int], claims: Assignment
    ) -> None:
        self._readers = {
            topic: [
                member_id for member_id in sorted(members) if topic in members[member_id].topics
            ]
            for topic in partitions
        }
        self._partitions = _partitions_of(
            (topic for topic, readers in self._readers.items() if readers), partitions
        )
        self._before = {tp: member_id for member_id, tps in claims.items() for tp in tps}
        self._owner = dict(self._before)
        self._count = Counter(self._owner.values())
        self._members = list(members)

    def run(self) -> Assignment:
        unassigned = [tp for tp in self._partitions if tp not in self._owner]
        for tp in sorted(unassigned, key=lambda tp: (len(self._readers[tp.topic]), tp)):
            self._assign(tp, self._find_least_loaded(tp.topic))
        before_moves = dict(self._owner)
        score = self._score()
        self._balance()
        if self._before and self._score() >= score:  # the moves did not improve the balance
            self._owner = before_moves
        assignment: Assignment = {member_id: [] for member_id in self._members}
        for tp, member_id in self._owner.items():
            assignment[member_id].append(tp)
        return assignment

    def _assign(self, tp: TopicPartition, member_id: str) -> None:
        if tp in self._owner:
            self._count[self._owner[tp]] -= 1
        self._owner[tp] = member_id
        self._count[member_id] += 1

    def _find_least_loaded(self, topic: str) -> str:
        return min(self._readers[topic], key=lambda member_id: (self._count[member_id], member_id))

    def _balance(self) -> None:
        """Moves single partitions from members with more partitions to subscribed members with
        fewer, until no such move remains.

        The previous owner is preferred if that improves the balance. Each move lowers the sum of
        squares, so the loop ends.
        """
        moved = True
        while moved:
            moved = False
            for tp in sorted(self._partitions, key=lambda tp: (len(self._readers[tp.topic]), tp)):
                receiver = self._find_receiver(tp)
                if receiver is not None:
                    self._assign(tp, receiver)
                    moved = True

    def _find_receiver(self, tp: TopicPartition) -> str | None:
        count_max = self._count[self._owner[tp]] - 2
        previous_owner = self._before.get(tp)
        if previous_owner is not None and self._count[previous_owner] <= count_max:
            return previous_owner
        least_loaded = self._find_least_loaded(tp.topic)
        if self._count[least_loaded] > count_max:
            return None
        return least_loaded

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
"""Kafka's assignors by the names that the option `partition.assignment.strategy` takes."""
