"""Static members (C.3) and cooperative rounds (C.4), as far as the rules of groups have a part in
them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from embedlog import group as rules
from embedlog.format.consumer_protocol import MemberSubscription, encode_subscription
from embedlog.group import Group, Refusal, State, Verdict
from embedlog.types import TopicPartition
from tests.support.group_members import (
    BOTH,
    LATER,
    LIMITS,
    NOW,
    OTHER,
    SAID,
    A,
    B,
    completing,
    member,
    preparing,
    stable,
    taken,
)

OLD = member("i-1", "i")
NEW = member("i-2", "i")


# ---- a process comes back --------------------------------------------------------------------------


def test_a_restart_moves_nothing() -> None:
    old = stable(A, OLD)
    group = taken(rules.join(old, NEW, LIMITS, LATER))
    assert (group.state, group.generation, list(group.members)) == (
        State.STABLE,
        old.generation,
        ["a", "i-2"],
    )
    assert group.members["i-2"].assignment == b"i-1"
    assert group.round == old.round


def test_a_restarted_leader_leads_on_without_assigning() -> None:
    old = stable(OLD, A)
    group = taken(rules.join(old, NEW, LIMITS, LATER))
    assert (group.state, group.leader, list(group.members)) == (State.STABLE, "i-2", ["i-2", "a"])


def test_another_subscription_at_the_restart_begins_a_rebalance() -> None:
    asking = member("i-2", "i", (("range", OTHER), BOTH[1]))
    group = taken(rules.join(stable(A, OLD), asking, LIMITS, LATER))
    assert (group.state, group.missing_members(), list(group.members)) == (
        State.PREPARING_REBALANCE,
        ["a"],
        ["a", "i-2"],
    )


def test_another_subscription_under_a_protocol_that_is_not_chosen_moves_nothing() -> None:
    asking = member("i-2", "i", (BOTH[0], ("cooperative-sticky", OTHER)))
    assert taken(rules.join(stable(A, OLD), asking, LIMITS, LATER)).state is State.STABLE


def test_another_choice_of_protocols_at_the_restart_begins_a_rebalance() -> None:
    asking = member("i-2", "i", (BOTH[1], BOTH[0]))
    assert taken(rules.join(stable(OLD), asking, LIMITS, LATER)).protocol == "cooperative-sticky"
    stranger = member("i-2", "i", (("other", SAID),))
    assert (
        rules.join(stable(A, OLD), stranger, LIMITS, LATER) is Refusal.INCONSISTENT_GROUP_PROTOCOL
    )


def test_what_the_last_process_owned_is_no_part_of_what_is_asked_for() -> None:
    owning = encode_subscription(MemberSubscription(("t",), None, (TopicPartition("t", 0),), 4))
    old = stable(A, member("i-1", "i", (("range", owning),)))
    assert taken(rules.join(old, NEW, LIMITS, LATER)).state is State.STABLE
    opaque = stable(A, member("i-1", "i", (("range", b"?"),)))
    assert taken(rules.join(opaque, NEW, LIMITS, LATER)).state is State.PREPARING_REBALANCE


def test_a_restart_in_a_join_phase_joins_it() -> None:
    group = taken(rules.join(preparing(A, OLD), NEW, LIMITS, LATER))
    assert (group.state, list(group.members), group.generation) == (
        State.COMPLETING_REBALANCE,
        ["a", "i-2"],
        3,
    )


def test_a_restart_before_the_leaders_sync_begins_the_phase_again() -> None:
    group = taken(rules.join(completing(A, OLD), NEW, LIMITS, LATER))
    assert (group.state, group.missing_members(), group.members["i-2"].joined) == (
        State.PREPARING_REBALANCE,
        ["a"],
        True,
    )


def test_a_full_group_takes_a_restarted_member() -> None:
    full = replace(LIMITS, max_size=2)
    assert list(taken(rules.join(stable(A, OLD), NEW, full, LATER)).members) == ["a", "i-2"]


# ---- the process that was there before ---------------------------------------------------------------


def replaced() -> Group:
    return taken(rules.join(stable(A, OLD), NEW, LIMITS, LATER))


def test_the_one_before_is_fenced_in_everything() -> None:
    group = replaced()
    assert rules.commit_refusal(group, "i-1", group.generation, "i") is Refusal.FENCED_INSTANCE_ID
    assert (
        rules.commit_refusal(group, "i-1", group.generation, "i", transactional=True)
        is Refusal.FENCED_INSTANCE_ID
    )
    assert rules.commit_refusal(group, "i-2", group.generation, "i") is None
    assert rules.sync(group, "i-1", group.generation, "i", {}, NOW) is Refusal.FENCED_INSTANCE_ID
    assert rules.join(group, OLD, LIMITS, NOW, rejoining=True) is Refusal.FENCED_INSTANCE_ID


def test_without_its_instance_id_it_is_a_stranger() -> None:
    group = replaced()
    assert rules.commit_refusal(group, "i-1", group.generation, None) is Refusal.UNKNOWN_MEMBER_ID
    assert rules.commit_refusal(group, "i-2", group.generation, None) is Refusal.UNKNOWN_MEMBER_ID


def test_a_member_does_not_become_another() -> None:
    assert rules.join(stable(A, OLD), member("a", "i"), LIMITS, NOW) is Refusal.FENCED_INSTANCE_ID
    assert rules.join(stable(A, B), member("a", "j"), LIMITS, NOW) is Refusal.FENCED_INSTANCE_ID
    assert (
        rules.join(stable(A, OLD), member("i-1", None), LIMITS, NOW) is Refusal.FENCED_INSTANCE_ID
    )


# ---- how its place ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [preparing(A, OLD), completing(A, OLD), stable(A, OLD)])
def test_death_and_slowness_do_not_end_it(old: Group) -> None:
    assert rules.evict(old, {"i-1": Verdict.DEAD}, LATER) is old
    assert rules.evict(old, {"i-1": Verdict.LEFT}, LATER) is old
    assert rules.leave(old, "i-1", LATER) is old


@pytest.mark.parametrize("old", [completing(A, OLD), stable(A, OLD)])
def test_its_session_timeout_ends_it(old: Group) -> None:
    group = rules.evict(old, {"i-1": Verdict.EXPIRED}, LATER)
    assert (group.state, list(group.members)) == (State.PREPARING_REBALANCE, ["a"])


def test_an_administrator_ends_it() -> None:
    group = taken(rules.remove(stable(A, OLD), ["i"], LATER))
    assert (group.state, list(group.members)) == (State.PREPARING_REBALANCE, ["a"])
    assert taken(rules.remove(stable(A, OLD), None, LATER)).state is State.EMPTY
    assert rules.remove(stable(A, OLD), ["i", "j"], LATER) is Refusal.UNKNOWN_MEMBER_ID
    assert rules.remove(stable(A, B), [], LATER) == stable(A, B)
    assert rules.remove(None, ["i"], LATER) is Refusal.GROUP_ID_NOT_FOUND


def test_a_late_round_keeps_static_members_with_what_they_said_last() -> None:
    group = rules.evict(preparing(A, OLD, B), {"i-1": Verdict.LATE}, LATER)
    assert (group.state, list(group.members), group.generation) == (
        State.COMPLETING_REBALANCE,
        ["a", "i-1"],
        3,
    )
    assert not group.members["i-1"].joined
    assert rules.commit_refusal(group, "i-1", 2, "i") is Refusal.ILLEGAL_GENERATION


def test_who_stayed_without_joining_is_told_of_the_generation_when_it_comes() -> None:
    group = rules.evict(preparing(A, OLD), {"i-1": Verdict.LATE}, LATER)
    settled = taken(rules.sync(group, "a", group.generation, None, {"i-1": b"x"}, LATER))
    again = taken(rules.join(settled, OLD, LIMITS, LATER, rejoining=True))
    assert (again.state, again.members["i-1"].joined, again.members["i-1"].assignment) == (
        State.STABLE,
        True,
        b"x",
    )


def test_a_late_round_to_which_only_static_members_belong_waits_on() -> None:
    old = taken(rules.leave(stable(A, OLD), "a", NOW))
    assert rules.evict(old, {"i-1": Verdict.LATE}, LATER) is old, (
        "until their session timeouts end them"
    )
    assert rules.evict(old, {"i-1": Verdict.EXPIRED}, LATER).state is State.EMPTY


def test_a_static_leader_that_did_not_join_leads_no_more() -> None:
    old = taken(rules.join(stable(OLD, A), member("a", protocols=(("range", OTHER),)), LIMITS, NOW))
    group = rules.evict(old, {"i-1": Verdict.LATE}, LATER)
    assert (group.leader, group.state, list(group.members)) == (
        "a",
        State.COMPLETING_REBALANCE,
        ["i-1", "a"],
    )


def test_a_static_leader_that_does_not_sync_is_dropped() -> None:
    group = rules.evict(completing(OLD, A), {"i-1": Verdict.LATE}, LATER)
    assert (list(group.members), group.state) == (["a"], State.PREPARING_REBALANCE)


# ---- cooperative rounds --------------------------------------------------------------------------------


def saying(name: str, owned: int, generation: int) -> rules.Member:
    tps = tuple(TopicPartition("t", number) for number in range(owned))
    return member(
        name,
        protocols=(
            (
                "cooperative-sticky",
                encode_subscription(MemberSubscription(("t",), None, tps, generation)),
            ),
        ),
    )


def test_who_has_given_partitions_up_brings_the_second_round_about() -> None:
    first = stable(saying("a", 2, 1), saying("b", 0, 1))
    again = taken(rules.join(first, saying("b", 1, 2), LIMITS, LATER))
    assert (again.state, again.missing_members()) == (State.PREPARING_REBALANCE, ["a"]), (
        "a follower: its partitions have changed"
    )
    second = taken(rules.join(again, saying("a", 1, 2), LIMITS, LATER))
    assert (second.state, second.generation) == (State.COMPLETING_REBALANCE, first.generation + 1)


def test_a_follower_may_ask_for_a_round_once_in_a_generation() -> None:
    """Its subscription names the generation of its partitions, so a repeated join changes
    something, once.
    """
    group = stable(saying("a", 1, 1), saying("b", 1, 1))
    asked = taken(rules.join(group, saying("b", 1, 2), LIMITS, LATER))
    assert asked.state is State.PREPARING_REBALANCE
    assert rules.join(asked, saying("b", 1, 2), LIMITS, LATER) is asked


def test_a_rolling_change_from_eager_to_cooperative() -> None:
    """First all members learn the new assignor, then, one by one, they drop the old one: at no time
    two protocols.
    """
    eager = (("range", SAID),)
    both = BOTH
    cooperative = (("cooperative-sticky", SAID),)
    group = stable(*(member(name, protocols=eager) for name in "abc"))
    for step, protocols in enumerate((both, cooperative)):
        for name in "abc":
            group = taken(rules.leave(group, name + str(step - 1) if step else name, LATER))
            group = settle(
                taken(
                    rules.join(group, member(name + str(step), protocols=protocols), LIMITS, LATER)
                )
            )
            assert group.protocol == ("cooperative-sticky" if step else "range")


def settle(group: Group) -> Group:
    while group.state is State.PREPARING_REBALANCE:
        group = taken(rules.join(group, group.members[group.missing_members()[0]], LIMITS, LATER))
    return taken(rules.sync(group, group.leader or "", group.generation, None, {}, LATER))
