"""The rules of groups: every cell of Kafka's tables, static members, votes, and time-outs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embedlog import group as rules
from embedlog.consumer_protocol import Subscription, encode_subscription
from embedlog.group import Group, Limits, Member, Refusal, State, Verdict
from embedlog.liveness import Life
from embedlog.values import TopicPartition

NOW = 1_700_000_000_000
LATER = NOW + 1000
LIMITS = Limits()
SAID = encode_subscription(Subscription(("t",)))
OTHER = encode_subscription(Subscription(("t", "u")))
BOTH = (("range", SAID), ("cooperative-sticky", SAID))


def member(name: str, instance: str | None = None, protocols: tuple[tuple[str, bytes], ...] = BOTH, **fields: object) -> Member:
    known = Member(name, instance, "client", "/host", 300_000, 45_000, protocols, life=Life(1, 11))
    return replace(known, **fields)  # type: ignore[arg-type]


def taken(outcome: Group | Refusal | None) -> Group:
    assert isinstance(outcome, Group), outcome
    return outcome


def completing(*members: Member) -> Group:
    """A group whose first generations are over: all these have joined, and the leader's sync is awaited."""
    group: Group | None = None
    for each in members:
        group = taken(rules.join(group, each, LIMITS, NOW))
    while group is not None and group.state is State.PREPARING_REBALANCE:
        group = taken(rules.join(group, group.members[group.missing()[0]], LIMITS, NOW))
    assert group is not None
    assert group.state is State.COMPLETING_REBALANCE
    return group


def stable(*members: Member) -> Group:
    group = completing(*members)
    shares = {member_id: member_id.encode() for member_id in group.members}
    leader = group.members[group.leader or ""]
    return taken(rules.sync(group, leader.member_id, group.generation, leader.instance_id, shares, NOW))


def preparing(*members: Member) -> Group:
    """The first of these has come again, the others are missing."""
    group = stable(*members)
    return taken(rules.join(group, group.members[group.leader or ""], LIMITS, NOW))


def emptied() -> Group:
    return taken(rules.leave(stable(member("a")), "a", NOW))


A, B, C = member("a"), member("b"), member("c")


# ---- joining -------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [None, emptied()])
def test_the_first_to_join_leads_a_new_generation(old: Group | None) -> None:
    group = taken(rules.join(old, B, LIMITS, LATER))
    before = 0 if old is None else old.generation
    assert (group.state, group.generation, group.leader) == (State.COMPLETING_REBALANCE, before + 1, "b")
    assert (group.protocol_type, group.protocol, list(group.members)) == ("consumer", "range", ["b"])


def test_a_newcomer_begins_a_rebalance_in_which_all_have_to_come_again() -> None:
    for old in (completing(A, B), stable(A, B)):
        group = taken(rules.join(old, C, LIMITS, LATER))
        assert (group.state, group.generation, group.leader) == (State.PREPARING_REBALANCE, old.generation, "a")
        assert group.missing() == ["a", "b"]
        assert group.changed_ms == LATER


def test_the_join_phase_ends_with_the_last_one_who_comes() -> None:
    group = taken(rules.join(stable(A, B), C, LIMITS, NOW))
    assert group.members["a"].assignment == b"a", "an assignment stands until the phase is over"
    group = taken(rules.join(group, A, LIMITS, NOW))
    assert group.missing() == ["b"]
    done = taken(rules.join(group, B, LIMITS, LATER))
    assert (done.state, done.generation, done.leader) == (State.COMPLETING_REBALANCE, group.generation + 1, "a")
    assert [each.assignment for each in done.members.values()] == [b"", b"", b""]


def test_who_comes_twice_in_a_phase_changes_nothing() -> None:
    old = preparing(A, B)
    assert rules.join(old, A, LIMITS, LATER) is old


def test_a_member_of_a_running_generation_is_told_of_it() -> None:
    old = completing(A, B)
    assert rules.join(old, A, LIMITS, LATER) is old
    assert rules.join(old, B, LIMITS, LATER) is old
    old = stable(A, B)
    assert rules.join(old, B, LIMITS, LATER) is old


def test_a_leader_that_comes_again_wants_a_rebalance() -> None:
    old = stable(A, B)
    group = taken(rules.join(old, A, LIMITS, LATER))
    assert (group.state, group.missing()) == (State.PREPARING_REBALANCE, ["b"])


@pytest.mark.parametrize("who", ["a", "b"])
@pytest.mark.parametrize("old", [completing(A, B), stable(A, B)])
def test_another_subscription_begins_a_rebalance(old: Group, who: str) -> None:
    group = taken(rules.join(old, member(who, protocols=(("range", OTHER), BOTH[1])), LIMITS, LATER))
    assert group.state is State.PREPARING_REBALANCE
    assert group.missing() == [{"a": "b", "b": "a"}[who]]
    assert group.members[who].metadata("range") == OTHER


# ---- syncing and committing ----------------------------------------------------------------------


def test_the_leaders_sync_makes_the_group_stable() -> None:
    old = completing(A, B)
    group = taken(rules.sync(old, "a", old.generation, None, {"a": b"1", "x": b"2"}, LATER))
    assert (group.state, group.generation, group.changed_ms) == (State.STABLE, old.generation, LATER)
    assert {name: each.assignment for name, each in group.members.items()} == {"a": b"1", "b": b""}
    assert rules.sync(group, "a", old.generation, None, {"a": b"3"}, LATER) is group, "once said, it stands"


def test_any_member_may_change_the_instance_it_claims_for_none() -> None:
    assert rules.sync(stable(A), "a", 1, "i", {}, NOW) is Refusal.UNKNOWN_MEMBER_ID


COMMITS = [
    (None, "", -1, None),
    (None, "a", 1, Refusal.GROUP_ID_NOT_FOUND),
    (emptied(), "", -1, None),
    (emptied(), "a", 1, Refusal.UNKNOWN_MEMBER_ID),
    (preparing(A, B), "b", 2, None),
    (completing(A, B), "b", 2, Refusal.REBALANCE_IN_PROGRESS),
    (stable(A, B), "b", 2, None),
    (stable(A, B), "b", 1, Refusal.ILLEGAL_GENERATION),
    (stable(A, B), "c", 2, Refusal.UNKNOWN_MEMBER_ID),
    (stable(A, B), "", -1, Refusal.UNKNOWN_MEMBER_ID),
]


@pytest.mark.parametrize(("old", "who", "generation", "refusal"), COMMITS)
def test_who_may_commit(old: Group | None, who: str, generation: int, refusal: Refusal | None) -> None:
    assert rules.may_commit(old, who, generation, None) is refusal


# ---- leaving -------------------------------------------------------------------------------------


def test_the_last_one_who_leaves_empties_the_group() -> None:
    old = stable(A)
    group = taken(rules.leave(old, "a", LATER))
    assert (group.state, group.generation, group.protocol, group.leader) == (State.EMPTY, old.generation + 1, None, None)
    assert (group.protocol_type, group.changed_ms, group.members) == ("consumer", LATER, {})


@pytest.mark.parametrize("verdict", [Verdict.DEAD, Verdict.LEFT, Verdict.EXPIRED])
def test_an_evicted_member_is_not_waited_for(verdict: Verdict) -> None:
    group = rules.evict(stable(A, B), {"b": verdict, "x": verdict}, LATER)
    assert (group.state, group.missing(), list(group.members)) == (State.PREPARING_REBALANCE, ["a"], ["a"])
    group = rules.evict(preparing(A, B), {"b": verdict}, LATER)
    assert (group.state, list(group.members)) == (State.COMPLETING_REBALANCE, ["a"])


def test_the_place_of_a_static_member_outlives_its_process() -> None:
    old = stable(A, member("i-1", "i"))
    assert rules.evict(old, {"i-1": Verdict.DEAD}, LATER) is old
    new = taken(rules.join(old, member("i-2", "i"), LIMITS, LATER))
    assert (new.state, new.generation, list(new.members)) == (State.STABLE, old.generation, ["a", "i-2"])
    assert new.members["i-2"].assignment == b"i-1"
    assert rules.may_commit(new, "i-1", old.generation, "i") is Refusal.FENCED_INSTANCE_ID
    assert rules.join(new, member("i-1", "i"), LIMITS, LATER, rejoining=True) is Refusal.FENCED_INSTANCE_ID


def test_owned_partitions_are_no_part_of_what_is_asked_for() -> None:
    owning = encode_subscription(Subscription(("t",), None, (TopicPartition("t", 0),), 4))
    old = stable(A, member("i-1", "i", (("range", owning),)))
    assert taken(rules.join(old, member("i-2", "i"), LIMITS, LATER)).state is State.STABLE
