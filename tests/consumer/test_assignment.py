"""Subscriptions and the assignments made of them: round trips, user data, and every invalid
assignment.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from embedlog.assignors import ASSIGNORS, assign_range
from embedlog.assignors import Member as Reader
from embedlog.consumer.assignment import (
    Strategy,
    assign,
    encode_protocols,
    is_cooperative,
    members_of,
    strategies_of,
)
from embedlog.errors import AssignorError, ConfigError
from embedlog.format.consumer_protocol import decode_assignment, decode_subscription
from embedlog.group import Group, Member
from embedlog.types import TopicPartition

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)


def member(member_id: str, said: tuple[tuple[str, bytes], ...]) -> Member:
    return Member(member_id, None, "client", "/here", 1000, 1000, said)


def named(name: str, cooperative: bool = False) -> Any:
    def assignor(members: Any, counts: Any) -> Any:
        return {}

    assignor.__name__ = name
    assignor.cooperative = cooperative  # type: ignore[attr-defined]
    return assignor


# ---- strategies ----------------------------------------------------------------------------------


def test_names_and_callables_are_strategies() -> None:
    own = named("mine", cooperative=True)
    found = strategies_of(["range", "cooperative-sticky", own, ASSIGNORS["sticky"]])
    assert [(each.name, each.cooperative) for each in found] == [
        ("range", False),
        ("cooperative-sticky", True),
        ("mine", True),
        ("sticky", False),
    ]


def test_an_object_with_a_name_is_a_strategy() -> None:
    class Mine:
        name = "mine"

        def __call__(self, members: Any, counts: Any) -> Any:
            return {}

    assert strategies_of([Mine()])[0].name == "mine"


@pytest.mark.parametrize(
    "given", [["range", assign_range], ["x"], [named("sticky")], [None], [named("")]]
)
def test_what_is_no_strategy_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy"):
        strategies_of(given)


def test_cooperative_only_if_all_of_them_are() -> None:
    assert is_cooperative(strategies_of(["cooperative-sticky", named("mine", cooperative=True)]))
    assert not is_cooperative(strategies_of(["cooperative-sticky", "range"]))


# ---- subscriptions of members --------------------------------------------------------------------


def test_a_members_word_reaches_the_assignor() -> None:
    said = encode_protocols(strategies_of(["range"]), ["b", "a"], [A1, A0], [], 7, "rack-1")
    group = Group(protocol="range", members={"m": replace(member("m", said), instance_id="one")})
    assert members_of(group) == {"m": Reader(frozenset("ab"), (A0, A1), 7, "one", "rack-1")}


def test_sticky_remembers_what_it_had_before_it_gave_everything_up() -> None:
    """An eager member owns nothing when it joins; its user data is Kafka's: partitions by topic,
    and the generation.
    """
    said = encode_protocols(strategies_of(["sticky", "range"]), ["a"], [], [A0, A1], 7, None)
    assert decode_subscription(said[0][1]).user_data == struct.pack(
        ">ih1siiii", 1, 1, b"a", 2, 0, 1, 7
    )
    known = {
        name: members_of(Group(protocol=name, members={"m": member("m", said)}))["m"]
        for name, _ in said
    }
    assert (known["sticky"].owned, known["sticky"].generation) == ((A0, A1), 7)
    assert known["range"].owned == ()


def test_cooperative_sticky_says_since_when() -> None:
    said = encode_protocols(strategies_of(["cooperative-sticky"]), ["a"], [A0], [A0], 3, None)
    assert decode_subscription(said[0][1]).user_data == struct.pack(">i", 3)


@pytest.mark.parametrize(
    "data", [b"\0", b"\0\0\0\5", b"\xff" * 9, struct.pack(">ih1si", 1, 1, b"a", 9)]
)
def test_user_data_that_cannot_be_read_is_no_claim(data: bytes) -> None:
    from embedlog.format.consumer_protocol import MemberSubscription, encode_subscription

    said = (("sticky", encode_subscription(MemberSubscription(("a",), data))),)
    assert members_of(Group(protocol="sticky", members={"m": member("m", said)}))["m"].owned == ()


def test_a_member_that_speaks_in_riddles_subscribes_to_nothing() -> None:
    group = Group(protocol="range", members={"m": member("m", (("range", b"\xff"),))})
    assert members_of(group) == {"m": Reader(frozenset())}


# ---- assignments of leaders ----------------------------------------------------------------------


def test_an_assignment_is_one_for_every_member() -> None:
    found = assign(
        strategies_of(["range"])[0],
        {"m": Reader(["a"]), "n": Reader(["b"])},
        {"a": range(2)},
        False,
    )
    assert {member_id: decode_assignment(data) for member_id, data in found.items()} == {
        "m": (A0, A1),
        "n": (),
    }


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not a mapping"),
        ([A0], "not a mapping"),
        ({"stranger": [A0]}, "which is not a member"),
        ({"m": A0}, "not a TopicPartition"),
        ({"m": "a"}, "not a list"),
        ({"m": [("a", "0")]}, "not a TopicPartition"),
        ({"m": [TopicPartition("a", 2)]}, "a-2, which does not exist"),
        ({"m": [TopicPartition("a", -1)]}, "does not exist"),
        ({"m": [TopicPartition("c", 0)]}, "does not exist"),
        ({"m": [TopicPartition("b", 0)]}, "does not subscribe"),
        ({"m": [A0], "n": [A0]}, "to both 'm' and 'n'"),
    ],
)
def test_an_assignment_that_must_not_be(answer: Any, words: str) -> None:
    strategy = Strategy("mine", lambda members, counts: answer, False)
    with pytest.raises(AssignorError, match=words) as caught:
        assign(
            strategy,
            {"m": Reader(["a"]), "n": Reader(["a"])},
            {"a": range(2), "b": range(1)},
            False,
        )
    assert "'mine'" in str(caught.value)


def test_an_assignor_that_raises_is_an_error_with_its_cause() -> None:
    def broken(members: Any, counts: Any) -> Any:
        raise ValueError("of the user's")

    with pytest.raises(AssignorError, match="of the user's") as caught:
        assign(Strategy("mine", broken, False), {}, {}, False)
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_assignor_cannot_change_what_it_is_given() -> None:
    def greedy(members: Any, counts: Any) -> Any:
        members.clear()
        counts["a"] = 100
        return {}

    here = {"a": range(1)}
    assert set(assign(Strategy("mine", greedy, False), {"m": Reader(["a"])}, here, False)) == {"m"}
    assert here == {"a": range(1)}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_where_partitions_are_missing_those_that_are_here_are_shared(name: str) -> None:
    """Numbered as if they were all there, because an assignor cannot distinguish them; owners keep
    their partitions.
    """
    here = {"a": [2, 5, 9, 2**31 - 1], "b": range(2)}
    everything = {
        TopicPartition(topic, number) for topic, numbers in here.items() for number in numbers
    }
    members = {"m": Reader(["a", "b"]), "n": Reader(["a", "b"])}
    strategy = Strategy(name, ASSIGNORS[name], False)
    first = {
        each: decode_assignment(raw) for each, raw in assign(strategy, members, here, False).items()
    }
    assert sorted(tp for each in first.values() for tp in each) == sorted(everything)
    again = {
        each: replace(member, owned=list(first[each]), generation=1)
        for each, member in members.items()
    }
    second = assign(strategy, again, here, False)
    assert {each: set(decode_assignment(raw)) for each, raw in second.items()} == {
        each: set(tps) for each, tps in first.items()
    }


def test_a_cooperative_assignor_gives_nobody_what_another_one_holds() -> None:
    members = {"m": Reader(["a"], [A0, A1]), "n": Reader(["a"])}
    strategy = Strategy("mine", lambda members, counts: {"m": [A0], "n": [A1]}, True)
    with pytest.raises(AssignorError, match="a-1 to 'n' while 'm' still owns it"):
        assign(strategy, members, {"a": range(2)}, True)
    assert assign(strategy, members, {"a": range(2)}, False)  # eager: everything was revoked before


def test_two_that_claim_one_partition_are_no_handover() -> None:
    members = {"m": Reader(["a"], [A0]), "n": Reader(["a"], [A0])}
    assert assign(
        Strategy("mine", lambda members, counts: {"m": [A0]}, True), members, {"a": range(1)}, True
    )
