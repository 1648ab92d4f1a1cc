"""Sets of directories for tests of decisions: states with nodes and one topic, observations,
decisions that are applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from embedlog.replicas.rules.decide import decide
from embedlog.replicas.rules.events import (
    Add,
    Condition,
    CreateTopic,
    Event,
    Identity,
    Observed,
    PartitionId,
    Refusal,
    Seen,
)
from embedlog.replicas.rules.records import DecidedPartition, Record, Tombstone, decode, encode
from embedlog.replicas.rules.state import State, apply, apply_all

CLUSTER = "cluster"
TOPIC_ID = UUID(int=1)
PARTITION_ID: PartitionId = (TOPIC_ID, 0)


def registration_id(node: int, number: int = 0) -> UUID:
    """The registration id of a node after `number` crashes."""
    return UUID(int=1000 * node + number)


def identity(node: int, **facts: Any) -> Identity:
    known: dict[str, Any] = {
        "directory": UUID(int=10**6 + node),
        "registration_id": registration_id(node),
        "path": f"/disk{node}/log",
    }
    return Identity(node, CLUSTER, **{**known, **facts})


def decided(state: State, event: Event) -> tuple[Record, ...]:
    """The records of an event that must not be refused; each of them survives its encoding."""
    found = decide(state, event)
    assert not isinstance(found, Refusal), (event, found)
    assert [decode(*encode(record)) for record in found] == [*found]
    return found


def after(state: State, *events: Event) -> State:
    """The state after some events, none of which may be refused."""
    for event in events:
        state = apply_all(state, decided(state, event))
    return state


def refused(state: State, event: Event) -> Refusal:
    found = decide(state, event)
    assert isinstance(found, Refusal), (event, found)
    return found


def a_set(nodes: Sequence[int] = (1, 2, 3)) -> State:
    """A set of registered directories without topics; all of them vote."""
    return after(State(CLUSTER), *(Add(identity(node), offset=10 * node) for node in nodes))


def with_topic(nodes: Sequence[int] = (1, 2, 3), spare: Sequence[int] = (), **config: str) -> State:
    """A set whose topic `t` has one partition on `nodes`; `spare` are further directories."""
    options = {name.replace("_", "."): value for name, value in config.items()}
    event = CreateTopic("t", TOPIC_ID, frozenset(nodes), assignment=(tuple(nodes),), config=options)
    return after(a_set(sorted([*nodes, *spare])), event)


def partition(state: State, partition_id: PartitionId = PARTITION_ID) -> DecidedPartition:
    return state.partitions[partition_id]


def having(state: State, **facts: Any) -> State:
    """The state with another record of the partition, made without a decision."""
    return apply(state, replace(partition(state), **facts))


def seen(text: str, ends: Mapping[int, tuple[int, int]] | None = None) -> Observed:
    """Observations: `1 2 c3 s4` are two complete nodes, a crashed one and a stranger; `ends` has
    last epochs and log ends.
    """
    kinds = {"c": Condition.CRASHED, "s": Condition.STRANGER, "a": Condition.AWAY}
    found = {}
    for word in text.split():
        node = int(word.lstrip("csa"))
        found[node] = Seen(
            kinds.get(word[0], Condition.COMPLETE),
            registration_id(node),
            *(ends or {}).get(node, (0, 10)),
        )
    return found


def compacted(log: Sequence[Record]) -> list[Record]:
    """The newest record of every key, in the order of the log, without tombstones."""
    newest = {encode(record)[0]: number for number, record in enumerate(log)}
    kept = [record for number, record in enumerate(log) if newest[encode(record)[0]] == number]
    return [record for record in kept if not isinstance(record, Tombstone)]


def changes_of(records: Sequence[Record]) -> list[DecidedPartition]:
    return [record for record in records if isinstance(record, DecidedPartition)]
