"""Assignment of partitions to nodes: worked examples, a slow reference implementation, Kafka's own
class for 1,000 clusters.
"""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from collections.abc import Sequence
from itertools import count

import pytest

from embedlog.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)
from embedlog.replicas.rules.placement import (
    Assignment,
    Racks,
    Shape,
    alternate,
    extend,
    place_replicas,
    place_topics,
)
from tests.conftest import DATA

SIX = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}


def bare(nodes: int) -> dict[int, str | None]:
    return dict.fromkeys(range(nodes))


def rows(text: str) -> Assignment:
    return tuple(tuple(map(int, each.split())) for each in text.split("·"))


# ---- worked examples -------------------------------------------------------------------------------------------------


def test_followers_of_a_leader_differ_in_every_round() -> None:
    wanted = rows("0 1 2 · 1 2 3 · 2 3 4 · 3 4 0 · 4 0 1 · 0 2 3 · 1 3 4 · 2 4 0 · 3 0 1 · 4 1 2")
    assert place_replicas(bare(5), Shape(10, 3), start=0, shift=0) == wanted


def test_added_partitions_continue_the_numbers() -> None:
    wanted = rows("3 1 · 0 2 · 1 0 · 2 1")
    assert place_replicas(bare(4), Shape(4, 2), start=1, shift=1, first=6) == wanted
    existing = place_replicas(bare(4), Shape(6, 2), start=1, shift=1)
    assert existing[0] == (1, 3)
    assert extend(bare(4), existing, 10) == wanted


def test_racks_take_turns() -> None:
    assert alternate(SIX) == (0, 3, 1, 5, 4, 2)
    wanted = rows("0 3 1 · 3 1 5 · 1 5 4 · 5 4 2 · 4 2 0 · 2 0 3 · 0 4 2 · 3 2 0")
    assert place_replicas(SIX, Shape(8, 3), start=0, shift=0) == wanted


def test_racks_are_ordered_as_java_orders_strings() -> None:
    assert alternate({1: "\U0001f600", 2: "\uffee"}) == (1, 2)


def test_growth_starts_at_the_next_node_if_the_preferred_one_is_gone() -> None:
    assert extend({1: None, 4: None, 9: None}, [[3, 1]], 2) == place_replicas(
        {1: None, 4: None, 9: None}, Shape(1, 2), start=1, shift=1, first=1
    )
    assert extend({1: None, 4: None}, [[7]], 2) == ((4,),)


# ---- a slow reference implementation ---------------------------------------------------------------------------------


def slow_order(racks: Racks) -> list[int]:
    order: list[int] = []
    left = {node: rack or "" for node, rack in racks.items()}
    if not any(left.values()):
        return sorted(racks)
    while left:
        for rack in sorted(set(racks.values()), key=str):
            waiting = sorted(node for node in left if left[node] == rack)
            if waiting:
                order.append(waiting[0])
                del left[waiting[0]]
    return order


def slow_place(
    racks: Racks, partitions: int, factor: int, start: int, shift: int, first: int
) -> Assignment:
    """Each partition alone: its shift is counted from the definition, and candidates are tried one
    after the other.
    """
    order = slow_order(racks)
    size = len(order)
    with_racks = any(racks.values())
    rack_count = len(set(racks.values())) if with_racks else 1
    found = []
    for number in range(first, first + partitions):
        rounds = sum(1 for each in range(first, number + 1) if each and each % size == 0)
        distance = (shift + rounds) * rack_count
        chosen = [order[(number + start) % size]]
        for step in count():
            if len(chosen) == factor:
                break
            candidate = order[
                (chosen_position(order, chosen) + 1 + (distance + step) % (size - 1)) % size
            ]
            racks_used = {racks[node] for node in chosen}
            taken = with_racks and racks[candidate] in racks_used and len(racks_used) < rack_count
            if candidate not in chosen and not taken:
                chosen.append(candidate)
        found.append(tuple(chosen))
    return tuple(found)


def chosen_position(order: Sequence[int], chosen: Sequence[int]) -> int:
    return order.index(chosen[0])


def test_random_clusters_agree_with_the_reference(rng: random.Random) -> None:
    for _ in range(400):
        nodes = rng.sample(range(30), rng.randrange(1, 10))
        labels = [f"r{number}" for number in range(rng.randrange(1, 5))]
        racks: Racks = {node: rng.choice(labels) if len(labels) > 1 else None for node in nodes}
        shape = Shape(rng.randrange(1, 25), rng.randrange(1, len(nodes) + 1))
        start = rng.randrange(12)
        shift = rng.randrange(12)
        first = rng.choice([0, 0, rng.randrange(20)])
        found = place_replicas(racks, shape, start=start, shift=shift, first=first)
        assert found == slow_place(racks, shape.partitions, shape.factor, start, shift, first)


# ---- Kafka's own class -----------------------------------------------------------------------------------------------


def test_a_thousand_clusters_are_placed_as_kafka_places_them() -> None:
    clusters = with_racks = grown = 0
    with lzma.open(DATA / "placements.jsonl.xz", "rt") as lines:
        for each in map(json.loads, lines):
            racks: Racks = dict(map(tuple, each["nodes"]))
            wanted = tuple(map(tuple, each["assignment"]))
            shape = Shape(len(wanted), each["factor"])
            assert (
                place_replicas(
                    racks, shape, start=each["start"], shift=each["shift"], first=each["first"]
                )
                == wanted
            ), each
            added = tuple(map(tuple, each["added"]))
            if added:
                assert extend(racks, wanted, len(wanted) + len(added)) == added, each
            clusters += 1
            with_racks += any(racks.values())
            grown += bool(added)
    assert clusters == 1000
    assert min(with_racks, grown) > 400


# ---- what holds for every placement ----------------------------------------------------------------------------------


def test_topics_that_are_placed_together_spread_their_leaders(rng: random.Random) -> None:
    for _ in range(100):
        nodes = rng.randrange(1, 8)
        shapes = [
            Shape(rng.randrange(1, 9), rng.randrange(1, nodes + 1))
            for _ in range(rng.randrange(1, 9))
        ]
        racks: Racks = (
            {node: f"r{node % 3}" for node in range(nodes)} if rng.random() < 0.5 else bare(nodes)
        )
        found = place_topics(racks, shapes, start=rng.randrange(100), shift=rng.randrange(9))
        leaders = Counter(dict.fromkeys(range(nodes), 0))
        leaders.update(replicas[0] for assignment in found for replicas in assignment)
        assert max(leaders.values()) - min(leaders.values()) <= 1
        assert [len(assignment) for assignment in found] == [shape.partitions for shape in shapes]


def test_a_rack_has_a_second_replica_only_after_all_racks_have_one(rng: random.Random) -> None:
    for _ in range(100):
        racks = {node: f"r{rng.randrange(4)}" for node in range(rng.randrange(2, 10))}
        factor = rng.randrange(1, len(racks) + 1)
        for replicas in place_replicas(
            racks, Shape(20, factor), start=rng.randrange(9), shift=rng.randrange(9)
        ):
            assert len(set(replicas)) == factor
            assert len({racks[node] for node in replicas}) == min(factor, len(set(racks.values())))


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(InvalidPartitionsError, match="at least 1, found 0"):
        place_replicas(bare(3), Shape(0), start=0, shift=0)
    for factor in (-1, 0, 4):
        with pytest.raises(InvalidReplicationFactorError, match=f"1 to 3.*found {factor}"):
            place_replicas(bare(3), Shape(1, factor), start=0, shift=0)
    with pytest.raises(InvalidReplicationFactorError):
        place_topics({}, [Shape(1)], start=3, shift=0)
    with pytest.raises(InvalidPartitionsError, match="above 2, found 2"):
        extend(bare(3), [[0], [1]], 2)


def test_racks_are_for_all_nodes_or_for_none() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=r"found \[2\]"):
        place_replicas({1: "a", 2: None}, Shape(1), start=0, shift=0)
