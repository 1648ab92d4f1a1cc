"""Defines reassignments, the differences of replicas, and the reports of repairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Reassignment(NamedTuple):
    """A reassignment of a partition that is not finished.

    `target` are the nodes that it will have; `adding` copy and join, `removing` are removed at the
    end. The copy that lacks most of the leader's log lacks `records_left` and about `bytes_left`;
    None while no leader answers.
    """

    target: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    records_left: int | None
    bytes_left: int | None


class ReplicaDifference(NamedTuple):
    """The first difference of a replica from its leader, or the first damage in its log.

    `kind` is "damaged" or "different". It is at or after `first_offset`: damage is known to about
    `index.interval.bytes`. A repair copies all records from there on.
    """

    topic: str
    partition: int
    node: int
    kind: str
    path: str
    first_offset: int
    end_offset: int
    message: str


class RepairedReplica(NamedTuple):
    """A replica whose records from `first_offset` up to `end_offset` were copied again, from the
    node `source`.
    """

    topic: str
    partition: int
    node: int
    source: int
    path: str
    first_offset: int
    end_offset: int


class RepairReport(NamedTuple):
    """What a repair did. `left` has the differences that remain, with the reason."""

    repaired: tuple[RepairedReplica, ...]
    left: Mapping[ReplicaDifference, str]
