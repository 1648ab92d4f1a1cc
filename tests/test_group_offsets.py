"""The rules of groups on offsets (C.7): deletion, administration, and expiry."""

from __future__ import annotations

import pytest

from embedlog import group as rules
from embedlog.group import Group, Refusal
from tests.support.group_members import (
    LATER,
    LIMITS,
    NOW,
    OTHER,
    A,
    B,
    completing,
    emptied,
    member,
    preparing,
    stable,
    taken,
)

COMMITTED = NOW - 5000


def connect() -> Group:
    return taken(
        rules.join(
            None, member("w", protocols=(("default", b"?"),)), LIMITS, NOW, protocol_type="connect"
        )
    )


@pytest.mark.parametrize("old", [preparing(A, B), completing(A, B), stable(A, B)])
def test_a_group_with_members_is_neither_deleted_nor_reset(old: Group) -> None:
    assert rules.deletion_refusal(old, True) is Refusal.NON_EMPTY_GROUP
    assert rules.reset_refusal(old) is Refusal.NON_EMPTY_GROUP


def test_an_empty_group_is() -> None:
    assert rules.deletion_refusal(emptied(), False) is None
    assert rules.reset_refusal(emptied()) is None
    assert rules.deletion_refusal(None, True) is None, "no member has joined it, but it has offsets"
    assert rules.deletion_refusal(None, False) is Refusal.GROUP_ID_NOT_FOUND
    assert rules.reset_refusal(None) is None, "setting offsets makes the group"


def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    old = stable(member("a", protocols=(("range", OTHER),)), B)
    assert rules.subscribed_topics(old) == {"t", "u"}
    assert rules.offset_deletion_refusal(old, True, "u") is Refusal.GROUP_SUBSCRIBED_TO_TOPIC
    assert rules.offset_deletion_refusal(old, True, "v") is None
    assert rules.offset_deletion_refusal(connect(), True, "v") is Refusal.NON_EMPTY_GROUP
    assert rules.offset_deletion_refusal(emptied(), True, "t") is None
    assert rules.offset_deletion_refusal(None, False, "t") is Refusal.GROUP_ID_NOT_FOUND


def test_a_subscription_that_nobody_can_read_asks_for_nothing() -> None:
    assert (
        rules.subscribed_topics(stable(member("a", protocols=(("range", b"\0"),)))) == frozenset()
    )
    assert rules.subscribed_topics(None) == frozenset()


EXPIRY = [
    ("of a simple group: by its commit", None, "t", COMMITTED),
    ("of an empty group: from when it became empty", emptied(), "t", NOW),
    ("of a topic that a stable group reads: never", stable(A, B), "t", None),
    ("of a topic that it reads no more: by its commit", stable(A, B), "u", COMMITTED),
    ("in a rebalance: never", preparing(A, B), "u", None),
    ("before the leader's sync: never", completing(A, B), "u", None),
    ("of members that are no consumers: never", connect(), "u", None),
]


@pytest.mark.parametrize(("why", "old", "topic", "base_ms"), EXPIRY, ids=[row[0] for row in EXPIRY])
def test_from_when_on_an_offset_expires(
    why: str, old: Group | None, topic: str, base_ms: int | None
) -> None:
    assert rules.expires_from_ms(old, rules.subscribed_topics(old), topic, COMMITTED) == base_ms, (
        why
    )


def test_a_commit_behind_the_last_member_counts_from_itself() -> None:
    assert rules.expires_from_ms(emptied(), frozenset(), "t", LATER) == LATER
    unknown = Group("consumer", 4)
    assert rules.expires_from_ms(unknown, frozenset(), "t", COMMITTED) == COMMITTED
