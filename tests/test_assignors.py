"""Assignments: Kafka's worked examples, the results of its own classes for 160 groups, and
invariants of all groups.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlog.assignors import ASSIGNORS, Assignment, Member
from embedlog.types import TopicPartition
from tests.conftest import ROOT

STICKY = ("sticky", "cooperative-sticky")


def named(text: str) -> list[TopicPartition]:
    """`A0 B12` → partitions."""
    return [TopicPartition(each[0], int(each[1:])) for each in text.split()]


def shares(name: str, partitions: Mapping[str, int], **members: Any) -> dict[str, str]:
    """The assignment as text; a member is its topics (`"AB"`), or a Member."""
    group = {
        key: value if isinstance(value, Member) else Member(tuple(value))
        for key, value in members.items()
    }
    found = ASSIGNORS[name](group, partitions)
    return {
        member_id: " ".join(f"{tp.topic}{tp.partition}" for tp in sorted(tps))
        for member_id, tps in found.items()
    }


# ---- worked examples ---------------------------------------------------------------------------------


def test_range_gives_the_surplus_of_every_topic_to_the_first() -> None:
    assert shares("range", {"A": 3, "B": 3}, c1="AB", c2="AB") == {
        "c1": "A0 A1 B0 B1",
        "c2": "A2 B2",
    }
    assert shares("range", {"A": 10}, c1="A", c2="A", c3="A") == {
        "c1": "A0 A1 A2 A3",
        "c2": "A4 A5 A6",
        "c3": "A7 A8 A9",
    }


def test_round_robin_goes_on_from_topic_to_topic() -> None:
    assert shares("roundrobin", {"A": 3, "B": 3}, c1="AB", c2="AB") == {
        "c1": "A0 A2 B1",
        "c2": "A1 B0 B2",
    }
    found = shares("roundrobin", {"A": 1, "B": 2, "C": 3}, c0="A", c1="AB", c2="ABC")
    assert found == {"c0": "A0", "c1": "B0", "c2": "B1 C0 C1 C2"}


@pytest.mark.parametrize("name", STICKY)
def test_a_fresh_group_is_dealt_in_turn(name: str) -> None:
    counts = dict.fromkeys("ABCD", 2)
    assert shares(name, counts, c0="ABCD", c1="ABCD", c2="ABCD") == {
        "c0": "A0 B1 D0",
        "c1": "A1 C0 D1",
        "c2": "B0 C1",
    }


def test_what_a_member_leaves_goes_to_the_others_and_nothing_else_moves() -> None:
    stay = {"c0": Member("ABCD", named("A0 B1 D0"), 1), "c2": Member("ABCD", named("B0 C1"), 1)}
    assert shares("sticky", dict.fromkeys("ABCD", 2), **stay) == {
        "c0": "A0 A1 B1 D0",
        "c2": "B0 C0 C1 D1",
    }


def test_different_subscriptions_are_balanced_as_far_as_they_go() -> None:
    counts = {"A": 1, "B": 2, "C": 3}
    assert shares("sticky", counts, c0="A", c1="AB", c2="ABC") == {
        "c0": "A0",
        "c1": "B0 B1",
        "c2": "C0 C1 C2",
    }
    stay = {"c1": Member("AB", named("B0 B1"), 1), "c2": Member("ABC", named("C0 C1 C2"), 1)}
    assert shares("sticky", counts, **stay) == {"c1": "A0 B0 B1", "c2": "C0 C1 C2"}


def test_cooperative_members_give_back_before_others_get() -> None:
    first = {
        "c1": Member("A", named("A0 A2 A4"), 1),
        "c2": Member("A", named("A1 A3 A5"), 1),
        "c3": Member("A"),
    }
    assert shares("cooperative-sticky", {"A": 6}, **first) == {
        "c1": "A0 A2",
        "c2": "A1 A3",
        "c3": "",
    }
    then = {
        "c1": Member("A", named("A0 A2"), 2),
        "c2": Member("A", named("A1 A3"), 2),
        "c3": Member("A", (), 2),
    }
    assert shares("cooperative-sticky", {"A": 6}, **then) == {
        "c1": "A0 A2",
        "c2": "A1 A3",
        "c3": "A4 A5",
    }


def test_static_members_come_first_by_their_instance() -> None:
    members = {
        "z": Member("A", instance_id="1"),
        "a": Member("A"),
        "y": Member("A", instance_id="0"),
    }
    assert shares("range", {"A": 3}, **members) == {"y": "A0", "z": "A1", "a": "A2"}


@pytest.mark.parametrize("name", STICKY)
def test_of_two_claims_the_later_generation_counts_and_of_equal_ones_none(name: str) -> None:
    later = {"a": Member("A", named("A0 A1"), 1), "b": Member("A", named("A0"), 2)}
    assert "A0" in shares("sticky", {"A": 2}, **later)["b"]
    equal = {"a": Member("A", named("A1 A0"), 2), "b": Member("A", named("A1"), 2)}
    assert "A0" in shares(name, {"A": 2}, **equal)["a"]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_unknown_topics_strange_claims_and_empty_groups_do_no_harm(name: str) -> None:
    assert ASSIGNORS[name]({}, {"A": 3}) == {}
    assert shares(name, {"A": 1, "B": 0}, a=Member("AXB", named("A7 X0 B0"), 4), b=Member("")) == {
        "a": "A0",
        "b": "",
    }
    assert sorted(shares(name, {"A": 1}, a="A", b="A", c="A").values()) == ["", "", "A0"]


# ---- the results of Kafka's own classes --------------------------------------------------------------


def decided() -> Iterator[tuple[str, bool, dict[str, Member], dict[str, int], Assignment]]:
    with lzma.open(ROOT / "tests" / "data" / "assignors.jsonl.xz", "rt") as lines:
        for case in map(json.loads, lines):
            for step in case["steps"]:
                members = {
                    each["member"]: Member(
                        each["topics"],
                        [TopicPartition(*tp) for tp in each["owned"]],
                        each["generation"],
                        each["instance"],
                    )
                    for each in step["members"]
                }
                wanted = {
                    member_id: [TopicPartition(*tp) for tp in tps]
                    for member_id, tps in step["assignment"].items()
                }
                yield (
                    case["assignor"],
                    case["equal_subscriptions"],
                    members,
                    step["partitions"],
                    wanted,
                )


def imbalance(found: Assignment) -> int:
    return sum(abs(len(one) - len(other)) for one, other in combinations(found.values(), 2))


def kept(members: Mapping[str, Member], found: Assignment) -> int:
    return sum(len({*members[member_id].owned} & {*tps}) for member_id, tps in found.items())


def test_groups_are_assigned_as_kafkas_classes_assigned_them() -> None:
    steps = 0
    for name, equal, members, partitions, wanted in decided():
        found = ASSIGNORS[name](members, partitions)
        steps += 1
        if name not in STICKY:
            assert {key: sorted(tps) for key, tps in found.items()} == {
                key: sorted(tps) for key, tps in wanted.items()
            }
            continue
        whole = sum(map(len, found.values())) == sum(map(len, wanted.values()))
        if equal:
            assert sorted(map(len, found.values())) == sorted(map(len, wanted.values()))
        elif whole:  # in the first of two cooperative rounds some partitions have no owner
            assert imbalance(found) <= imbalance(wanted)
        assert kept(members, found) >= kept(members, wanted)
    assert steps > 800


# ---- invariants of all groups ------------------------------------------------------------------------

TOPICS = "ABCD"


@st.composite
def groups(draw: st.DrawFn, equal: bool | None = None) -> tuple[dict[str, Member], dict[str, int]]:
    partitions = {topic: draw(st.integers(0, 7)) for topic in TOPICS}
    every = [
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        for number in range(count + 1)
    ]
    same = draw(st.booleans()) if equal is None else equal
    common = draw(st.sets(st.sampled_from(TOPICS)))
    members = {}
    for number in range(draw(st.integers(1, 6))):
        topics = common if same else draw(st.sets(st.sampled_from(TOPICS)))
        owned = draw(st.lists(st.sampled_from(every), max_size=6, unique=True))
        members[f"m{number}"] = Member(
            topics, owned, draw(st.integers(-1, 3)), draw(st.none() | st.just(f"i{9 - number}"))
        )
    return members, partitions


def wanted_of(members: Mapping[str, Member], partitions: Mapping[str, int]) -> list[TopicPartition]:
    subscribed = {topic for member in members.values() for topic in member.topics}
    return [
        TopicPartition(topic, number)
        for topic in sorted(subscribed)
        for number in range(partitions[topic])
    ]


@pytest.mark.parametrize("name", [name for name in ASSIGNORS if name != "cooperative-sticky"])
@given(group=groups())
def test_every_partition_has_one_reader_that_subscribes_to_it(
    name: str, group: tuple[dict[str, Member], dict[str, int]]
) -> None:
    members, partitions = group
    found = ASSIGNORS[name](members, partitions)
    assert sorted(tp for tps in found.values() for tp in tps) == wanted_of(members, partitions)
    assert all(
        tp.topic in members[member_id].topics for member_id, tps in found.items() for tp in tps
    )
    shuffled = dict(reversed(list(members.items())))
    assert {key: sorted(tps) for key, tps in ASSIGNORS[name](shuffled, partitions).items()} == {
        key: sorted(tps) for key, tps in found.items()
    }


@given(group=groups(equal=True))
def test_equal_subscriptions_differ_by_at_most_one(
    group: tuple[dict[str, Member], dict[str, int]],
) -> None:
    for name in ("roundrobin", "sticky"):
        sizes = sorted(len(tps) for tps in ASSIGNORS[name](*group).values())
        assert sizes[-1] - sizes[0] <= 1


@given(group=groups())
def test_what_sticky_decided_it_decides_again(
    group: tuple[dict[str, Member], dict[str, int]],
) -> None:
    members, partitions = group
    first = ASSIGNORS["sticky"](members, partitions)
    again = {
        key: Member(member.topics, first[key], 9, member.instance_id)
        for key, member in members.items()
    }
    assert ASSIGNORS["sticky"](again, partitions) == first


@given(group=groups())
def test_two_cooperative_rounds_end_where_nobody_holds_what_another_gets(
    group: tuple[dict[str, Member], dict[str, int]],
) -> None:
    members, partitions = group
    for generation in range(10, 13):
        found = ASSIGNORS["cooperative-sticky"](members, partitions)
        for one, other in permutations(members, 2):
            assert not {*found[one]} & {*members[other].owned}
        members = {
            key: Member(member.topics, found[key], generation, member.instance_id)
            for key, member in members.items()
        }
    assert sorted(tp for tps in found.values() for tp in tps) == wanted_of(members, partitions)


@given(counts=st.integers(0, 9), readers=st.integers(1, 5))
def test_range_puts_equal_numbers_of_all_topics_together(counts: int, readers: int) -> None:
    found = ASSIGNORS["range"](
        {f"m{n}": Member(TOPICS) for n in range(readers)}, dict.fromkeys(TOPICS, counts)
    )
    for tps in found.values():
        per_topic = [[tp.partition for tp in tps if tp.topic == topic] for topic in TOPICS]
        assert all(one == other for one, other in pairwise(per_topic))
