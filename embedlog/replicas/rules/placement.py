"""Computes the nodes of new partitions, with Kafka's formulas.

- The leader of partition p is at position (p + start) modulo the number of nodes in their
  order.
- Without racks the order is ascending; with racks it takes one node of each rack in turn, racks and
  nodes ascending.
- The shift from leader to followers grows by one after every round of partitions over the nodes, so
  that the followers of one leader differ.
- With racks, a rack is used a second time only after all racks are used; a node never has two
  replicas of a partition.
- New partitions of an existing topic continue its numbers; the first replica of its partition 0
  gives start and shift.
- Topics that are placed together continue each other's rotation, so that all nodes lead equally
  many partitions, plus one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from embedlog.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)

Racks: TypeAlias = Mapping[int, str | None]  # rack of each node; None for all of them, or for none
# nodes of each partition, the preferred leader first
Assignment: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a topic."""

    partitions: int
    factor: int = 1


def place_replicas(
    racks: Racks, shape: Shape, *, start: int, shift: int, first: int = 0
) -> Assignment:
    """Nodes of the partitions `first`, `first` + 1, … of a topic. `start` and `shift` are random in
    Kafka.

    Raises InvalidPartitionsError, InvalidReplicationFactorError, InvalidReplicaAssignmentError.
    """
    _check(racks, shape)
    ring = _Ring(racks)
    count = len(ring.order)
    assignment = []
    for number in range(first, first + shape.partitions):
        if number > 0 and number % count == 0:
            shift += 1
        assignment.append(ring.replicas((number + start) % count, shift, shape.factor))
    return tuple(assignment)


def extend(racks: Racks, existing: Sequence[Sequence[int]], total: int) -> Assignment:
    """Nodes of the partitions that a topic with the assignment `existing` needs to have `total`.

    Raises InvalidPartitionsError if it has as many, and the errors of `place_replicas`.
    """
    if total <= len(existing):
        raise InvalidPartitionsError(
            "partitions can only be added", expected=f"above {len(existing)}", found=total
        )
    preferred = existing[0][0]
    start = next((position for position, node in enumerate(sorted(racks)) if node >= preferred), 0)
    shape = Shape(total - len(existing), len(existing[0]))
    return place_replicas(racks, shape, start=start, shift=start, first=len(existing))


def place_topics(
    racks: Racks, shapes: Iterable[Shape], *, start: int, shift: int
) -> tuple[Assignment, ...]:
    """Assignments of several new topics in their order."""
    assignments = []
    for shape in shapes:
        position = start % len(racks) if racks else 0
        assignments.append(place_replicas(racks, shape, start=position, shift=shift))
        start += shape.partitions
    return tuple(assignments)


def alternate(racks: Mapping[int, str]) -> tuple[int, ...]:
    """The nodes in the order in which racks take turns."""
    by_rack: dict[str, list[int]] = {}
    for node in sorted(racks):
        by_rack.setdefault(racks[node], []).append(node)
    columns = [by_rack[rack] for rack in sorted(by_rack, key=_utf16)]
    depth = max(map(len, columns), default=0)
    return tuple(column[row] for row in range(depth) for column in columns if row < len(column))


class _Ring:
    """The nodes in their order, with a rack for each of them; without racks, each node is a rack of
    its own.
    """

    def __init__(self, racks: Racks) -> None:
        named_racks = {node: rack for node, rack in racks.items() if rack is not None}
        self._rack: Mapping[int, str | int]
        if named_racks:
            self.order = alternate(named_racks)
            self._rack = named_racks
            self._rack_count = len(set(named_racks.values()))
            self._stride = self._rack_count
        else:
            self.order = tuple(sorted(racks))
            self._rack = {node: node for node in racks}
            self._rack_count = len(racks)
            self._stride = 1

    def replicas(self, lead: int, shift: int, factor: int) -> tuple[int, ...]:
        """The node at position `lead`, and the followers at the distance that `shift` gives."""
        count = len(self.order)
        leader = self.order[lead]
        nodes = [leader]
        used_racks = {self._rack[leader]}
        step = 0
        while len(nodes) < factor:
            distance = 1 + (shift * self._stride + step) % (count - 1)
            node = self.order[(lead + distance) % count]
            step += 1
            is_free = self._rack[node] not in used_racks or len(used_racks) == self._rack_count
            if is_free and node not in nodes:
                nodes.append(node)
                used_racks.add(self._rack[node])
        return tuple(nodes)


def _check(racks: Racks, shape: Shape) -> None:
    if shape.partitions < 1:
        raise InvalidPartitionsError(
            "number of partitions", expected="at least 1", found=shape.partitions
        )
    if not 1 <= shape.factor <= len(racks):
        allowed = f"1 to {len(racks)}, the number of directories for replicas"
        raise InvalidReplicationFactorError(
            "replication factor", expected=allowed, found=shape.factor
        )
    bare = sorted(node for node, rack in racks.items() if rack is None)
    if 0 < len(bare) < len(racks):
        raise InvalidReplicaAssignmentError(
            "some nodes have a rack and some have none", expected="a rack for all", found=bare
        )


def _utf16(rack: str) -> bytes:
    """The key of Java's order of strings."""
    return rack.encode("utf-16-be", "surrogatepass")
