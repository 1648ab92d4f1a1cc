"""Subscriptions and assignments: Kafka's bytes, of every version, and damaged ones."""

from __future__ import annotations

import pytest

from embedlog.errors import CorruptRecordError
from embedlog.format.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    same_subscription,
)
from embedlog.types import TopicPartition

T0 = TopicPartition("t", 0)
T2 = TopicPartition("t", 2)
OWNING = MemberSubscription(("t",), None, (T0,), 8, "r1")
V3 = bytes.fromhex(
    "0003 00000001 0001 74 ffffffff 00000001 0001 74 00000001 00000000 00000008 0002 7231"
)
GIVEN = bytes.fromhex("0003 00000001 0001 74 00000002 00000000 00000002 ffffffff")


def test_subscriptions_are_kafkas_byte_for_byte() -> None:
    assert encode_subscription(OWNING) == V3
    assert decode_subscription(V3) == OWNING


def test_older_subscriptions_lack_what_came_later() -> None:
    assert decode_subscription(b"\0\2" + V3[2:-4]) == OWNING._replace(rack=None)
    assert decode_subscription(b"\0\1" + V3[2:-8]) == OWNING._replace(rack=None, generation=-1)
    assert decode_subscription(b"\0\0" + V3[2:13]) == MemberSubscription(("t",))


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    assert decode_subscription(b"\0\x09" + V3[2:] + b"what came later") == OWNING
    assert decode_assignment(b"\0\x09" + GIVEN[2:] + b"what came later") == (T0, T2)


def test_assignments_are_kafkas_byte_for_byte() -> None:
    assert encode_assignment([T2, T0]) == GIVEN
    assert decode_assignment(GIVEN) == (T0, T2)
    assert decode_assignment(b"") == decode_assignment(encode_assignment([])) == ()
    assert encode_assignment([], b"data")[-8:] == b"\0\0\0\4data"


def test_nothing_and_everything_comes_back() -> None:
    for said in (
        MemberSubscription(()),
        MemberSubscription(
            ("b", "a"), b"", (TopicPartition("b", 1), TopicPartition("a", 1), T0), 2**31 - 1, ""
        ),
        MemberSubscription(("żółć",), bytes(1000)),
    ):
        back = decode_subscription(encode_subscription(said))
        assert back == said._replace(
            topics=tuple(sorted(said.topics)), owned=tuple(sorted(said.owned))
        )


def test_what_is_owned_is_not_what_is_asked_for() -> None:
    fresh = OWNING._replace(owned=(), generation=-1)
    assert same_subscription("range", encode_subscription(OWNING), encode_subscription(fresh))
    for other in (
        OWNING._replace(topics=("t", "u")),
        OWNING._replace(user_data=b""),
        OWNING._replace(rack=None),
    ):
        assert not same_subscription(
            "range", encode_subscription(OWNING), encode_subscription(other)
        )
    assert same_subscription("range", b"opaque", b"opaque")
    assert not same_subscription("range", b"opaque", b"other")


@pytest.mark.parametrize(
    ("protocol", "same"),
    [("sticky", True), ("cooperative-sticky", True), ("range", False), ("own", False)],
)
def test_the_user_data_of_sticky_assignors_is_memory(protocol: str, same: bool) -> None:
    one, other = (
        encode_subscription(OWNING._replace(user_data=data))
        for data in (b"\0\0\0\x08", b"\xff\xff\xff\xff")
    )
    assert same_subscription(protocol, one, other) is same


@pytest.mark.parametrize("size", range(len(V3)))
def test_a_subscription_that_is_cut_short_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptRecordError, match="subscription"):
        decode_subscription(V3[:size])


@pytest.mark.parametrize("size", range(1, len(GIVEN) - 4))
def test_an_assignment_that_is_cut_short_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptRecordError, match="assignment"):
        decode_assignment(GIVEN[:size])


BROKEN = [
    "0003 7fffffff",
    "0003 00000001 fffe",
    "0003 00000001 0001 ff ffffffff",
    "0003 00000000 fffffffe",
]


@pytest.mark.parametrize("broken", BROKEN)
def test_lengths_that_cannot_be_are_corrupt(broken: str) -> None:
    with pytest.raises(CorruptRecordError):
        decode_subscription(bytes.fromhex(broken))
