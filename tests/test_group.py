"""The rules of groups: every cell of Kafka's tables but for static members and offsets, which have
files of their own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from embedlog import group as rules
from embedlog.format.process_slot import ProcessSlot
from embedlog.group import Group, Limits, Refusal, State, Verdict
from tests.support.group_members import (
    BOTH,
    LATER,
    LIMITS,
    NOW,
    OTHER,
    SAID,
    A,
    B,
    C,
    completing,
    emptied,
    member,
    preparing,
    stable,
    taken,
)

# ---- C.1: limits, votes, generations --------------------------------------------------------------


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1])
def test_a_session_timeout_out_of_range_is_refused(session_ms: int) -> None:
    assert (
        rules.join(None, member("a", session_timeout_ms=session_ms), LIMITS, NOW)
        is Refusal.INVALID_SESSION_TIMEOUT
    )


def test_a_full_group_takes_nobody_but_its_own() -> None:
    full = Limits(max_size=2)
    old = stable(A, B)
    assert rules.join(old, C, full, NOW) is Refusal.GROUP_MAX_SIZE_REACHED
    assert taken(rules.join(old, A, full, NOW)).missing_members() == ["b"]


def test_the_rebalance_timeout_is_that_of_the_slowest() -> None:
    group = stable(A, member("b", rebalance_timeout_ms=900_000), C)
    assert group.rebalance_timeout_ms == 900_000
    assert emptied().rebalance_timeout_ms == 0


VOTES = [
    ([("range",)], "range"),
    ([("range", "sticky"), ("sticky", "range")], "range"),
    ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
    ([("range", "sticky"), ("sticky",)], "sticky"),
    ([("a", "b", "c"), ("c", "b"), ("b", "c", "a")], "b"),
]


@pytest.mark.parametrize(("lists", "chosen"), VOTES)
def test_the_protocol_with_the_most_votes_among_the_common_ones_wins(
    lists: list[tuple[str, ...]], chosen: str
) -> None:
    members = [
        member(f"m{rank}", protocols=tuple((name, SAID) for name in names))
        for rank, names in enumerate(lists)
    ]
    group = completing(*members)
    assert group.protocol == chosen


def test_a_member_with_nothing_in_common_is_refused() -> None:
    stranger = member("c", protocols=(("roundrobin", SAID),))
    for old in (preparing(A, B), completing(A, B), stable(A, B)):
        assert rules.join(old, stranger, LIMITS, NOW) is Refusal.INCONSISTENT_GROUP_PROTOCOL
        assert (
            rules.join(old, C, LIMITS, NOW, protocol_type="connect")
            is Refusal.INCONSISTENT_GROUP_PROTOCOL
        )
    assert (
        rules.join(None, member("c", protocols=()), LIMITS, NOW)
        is Refusal.INCONSISTENT_GROUP_PROTOCOL
    )
    assert rules.join(None, C, LIMITS, NOW, protocol_type="") is Refusal.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_takes_any_protocol() -> None:
    group = taken(
        rules.join(
            emptied(),
            member("c", protocols=(("default", b"?"),)),
            LIMITS,
            NOW,
            protocol_type="connect",
        )
    )
    assert (group.protocol_type, group.protocol) == ("connect", "default")


def test_what_a_member_spoke_so_far_does_not_bind_it() -> None:
    alone = taken(rules.join(stable(A), member("a", protocols=(("sticky", SAID),)), LIMITS, NOW))
    assert (alone.state, alone.protocol) == (State.COMPLETING_REBALANCE, "sticky")


def test_the_leader_stays_until_it_leaves() -> None:
    group = taken(rules.join(stable(A, B, C), B, LIMITS, NOW))
    assert group.leader == "a"
    assert taken(rules.leave(group, "a", NOW)).leader == "b"
    assert rules.evict(group, {"a": Verdict.DEAD, "b": Verdict.DEAD}, NOW).leader == "c"


def test_the_generation_rises_even_if_nobody_is_left() -> None:
    old = stable(A, B)
    group = rules.evict(old, {"a": Verdict.DEAD, "b": Verdict.DEAD}, LATER)
    assert (group.state, group.generation) == (State.EMPTY, old.generation + 1)


def test_the_highest_generation_is_followed_by_a_low_one() -> None:
    last = replace(stable(A, B), generation=rules.GENERATION_MAX)
    assert (
        taken(rules.join(taken(rules.join(last, A, LIMITS, NOW)), B, LIMITS, NOW)).generation == 1
    )


# ---- C.1: the initial delay -------------------------------------------------------------------------

DELAYING = Limits(initial_delay_ms=3000)


def test_the_first_phase_of_a_group_waits_for_newcomers() -> None:
    group = taken(rules.join(None, A, DELAYING, NOW))
    assert (group.state, group.delayed, group.generation) == (State.PREPARING_REBALANCE, True, 0)
    grown = taken(rules.join(group, B, DELAYING, LATER))
    assert grown.round > group.round, "for every newcomer the delay begins once more"
    assert taken(rules.join(grown, A, DELAYING, LATER)) is grown
    done = rules.end_delay(grown, LATER)
    assert (done.state, done.generation, done.delayed, done.leader) == (
        State.COMPLETING_REBALANCE,
        1,
        False,
        "a",
    )
    assert rules.end_delay(done, LATER) is done


def test_only_an_empty_group_waits() -> None:
    old = stable(A)
    group = taken(rules.join(old, B, DELAYING, NOW))
    assert not group.delayed
    assert taken(rules.join(group, A, DELAYING, NOW)).state is State.COMPLETING_REBALANCE
    assert taken(rules.join(emptied(), A, DELAYING, NOW)).delayed


def test_nobody_is_late_while_the_phase_is_delayed() -> None:
    group = taken(rules.join(taken(rules.join(None, A, DELAYING, NOW)), B, DELAYING, NOW))
    assert rules.evict(group, {"a": Verdict.LATE, "b": Verdict.LATE}, LATER) is group
    less = rules.evict(group, {"a": Verdict.DEAD}, LATER)
    assert (list(less.members), less.leader, less.delayed, less.state) == (
        ["b"],
        "b",
        True,
        State.PREPARING_REBALANCE,
    )
    none = rules.evict(less, {"b": Verdict.DEAD}, LATER)
    assert (none.state, none.delayed, none.generation) == (State.EMPTY, False, 1)


# ---- C.2: join ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [None, emptied()])
def test_the_first_to_join_leads_a_new_generation(old: Group | None) -> None:
    group = taken(rules.join(old, B, LIMITS, LATER))
    before = 0 if old is None else old.generation
    assert (group.state, group.generation, group.leader) == (
        State.COMPLETING_REBALANCE,
        before + 1,
        "b",
    )
    assert (group.protocol_type, group.protocol, list(group.members)) == (
        "consumer",
        "range",
        ["b"],
    )


def test_a_newcomer_in_a_join_phase_waits_with_the_others() -> None:
    old = preparing(A, B)
    group = taken(rules.join(old, C, LIMITS, LATER))
    assert (group.state, group.missing_members(), group.round) == (
        State.PREPARING_REBALANCE,
        ["b"],
        old.round,
    )


@pytest.mark.parametrize("old", [completing(A, B), stable(A, B)])
def test_a_newcomer_begins_a_rebalance_in_which_all_have_to_come_again(old: Group) -> None:
    group = taken(rules.join(old, C, LIMITS, LATER))
    assert (group.state, group.generation, group.leader) == (
        State.PREPARING_REBALANCE,
        old.generation,
        "a",
    )
    assert group.missing_members() == ["a", "b"]
    assert (group.changed_ms, group.round) == (LATER, old.round + 1)


def test_the_join_phase_ends_with_the_last_one_who_comes() -> None:
    group = taken(rules.join(stable(A, B), C, LIMITS, NOW))
    assert group.members["a"].assignment == b"a", "an assignment is valid until the phase is over"
    group = taken(rules.join(group, A, LIMITS, NOW))
    assert group.missing_members() == ["b"]
    done = taken(rules.join(group, B, LIMITS, LATER))
    assert (done.state, done.generation, done.leader) == (
        State.COMPLETING_REBALANCE,
        group.generation + 1,
        "a",
    )
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
    assert (group.state, group.missing_members()) == (State.PREPARING_REBALANCE, ["b"])


@pytest.mark.parametrize("who", ["a", "b"])
@pytest.mark.parametrize("old", [completing(A, B), stable(A, B)])
def test_another_subscription_begins_a_rebalance(old: Group, who: str) -> None:
    group = taken(
        rules.join(old, member(who, protocols=(("range", OTHER), BOTH[1])), LIMITS, LATER)
    )
    assert group.state is State.PREPARING_REBALANCE
    assert group.missing_members() == [{"a": "b", "b": "a"}[who]]
    assert group.members[who].metadata("range") == OTHER


def test_another_subscription_in_a_join_phase_is_taken_in() -> None:
    group = taken(
        rules.join(preparing(A, B), member("a", protocols=(("range", OTHER),)), LIMITS, LATER)
    )
    assert (group.missing_members(), group.protocol, group.members["a"].metadata("range")) == (
        ["b"],
        "range",
        OTHER,
    )


def test_another_life_of_a_member_is_noted_without_a_rebalance() -> None:
    old = stable(A, B)
    group = taken(rules.join(old, replace(B, process_slot=ProcessSlot(7, 7)), LIMITS, LATER))
    assert (group.state, group.round, group.members["b"].process_slot) == (
        State.STABLE,
        old.round,
        ProcessSlot(7, 7),
    )
    assert group.members["b"].assignment == b"b"


def test_who_was_evicted_does_not_come_back_under_its_old_name_unawares() -> None:
    for old in (None, emptied(), preparing(A, B), stable(A, B)):
        assert rules.join(old, C, LIMITS, NOW, rejoining=True) is Refusal.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("old", [preparing(A, B), completing(A, B), stable(A, B), stable(B, A)])
def test_who_comes_under_another_id_is_not_waited_for_under_the_old_one(old: Group) -> None:
    """MEMBER-1: its leaving was lost, or it does not know that it has joined. The old id exists as
    long as the new one does.
    """
    same = replace(C, process_slot=A.process_slot)
    group = taken(rules.join(old, same, Limits(max_size=2), LATER))
    assert list(group.members) == ["b", "c"]
    assert group.leader == "b"
    assert group.missing_members() == ["b"]


def test_who_is_alone_and_comes_under_another_id_leads() -> None:
    group = taken(rules.join(stable(A), replace(C, process_slot=A.process_slot), LIMITS, LATER))
    assert (list(group.members), group.leader, group.state) == (
        ["c"],
        "c",
        State.COMPLETING_REBALANCE,
    )


# ---- C.2: sync ---------------------------------------------------------------------------------------

DEAD = Group(state=State.DEAD)
SYNCS = [
    (None, "a", 1, Refusal.UNKNOWN_MEMBER_ID),
    (emptied(), "a", 2, Refusal.UNKNOWN_MEMBER_ID),
    (preparing(A, B), "a", 2, Refusal.REBALANCE_IN_PROGRESS),
    (preparing(A, B), "b", 2, Refusal.REBALANCE_IN_PROGRESS),
    (preparing(A, B), "b", 1, Refusal.ILLEGAL_GENERATION),
    (preparing(A, B), "c", 2, Refusal.UNKNOWN_MEMBER_ID),
    (completing(A, B), "a", 1, Refusal.ILLEGAL_GENERATION),
    (completing(A, B), "c", 2, Refusal.UNKNOWN_MEMBER_ID),
    (stable(A, B), "b", 3, Refusal.ILLEGAL_GENERATION),
    (stable(A, B), "c", 2, Refusal.UNKNOWN_MEMBER_ID),
    (DEAD, "a", 1, Refusal.COORDINATOR_NOT_AVAILABLE),
]


@pytest.mark.parametrize(("old", "who", "generation", "refusal"), SYNCS)
def test_a_sync_out_of_place_is_refused(
    old: Group | None, who: str, generation: int, refusal: Refusal
) -> None:
    assert rules.sync(old, who, generation, None, {"a": b"x"}, NOW) is refusal


def test_the_leaders_sync_makes_the_group_stable() -> None:
    old = completing(A, B)
    group = taken(rules.sync(old, "a", old.generation, None, {"a": b"1", "x": b"2"}, LATER))
    assert (group.state, group.generation, group.changed_ms) == (
        State.STABLE,
        old.generation,
        LATER,
    )
    assert {name: each.assignment for name, each in group.members.items()} == {"a": b"1", "b": b""}
    assert rules.sync(group, "a", old.generation, None, {"a": b"3"}, LATER) is group, (
        "the first assignment stays"
    )


def test_a_followers_sync_asks_only() -> None:
    old = completing(A, B)
    assert rules.sync(old, "b", old.generation, None, {"b": b"mine"}, LATER) is old
    old = stable(A, B)
    assert rules.sync(old, "b", old.generation, None, {"b": b"mine"}, LATER) is old


def test_a_dynamic_member_claims_no_instance_id() -> None:
    assert rules.sync(stable(A), "a", 1, "i", {}, NOW) is Refusal.UNKNOWN_MEMBER_ID
    assert rules.commit_refusal(stable(A), "a", 1, "i") is Refusal.UNKNOWN_MEMBER_ID


def test_nobody_joins_or_leaves_a_group_that_is_being_deleted() -> None:
    assert rules.join(DEAD, A, LIMITS, NOW) is Refusal.COORDINATOR_NOT_AVAILABLE
    assert rules.commit_refusal(DEAD, "", -1, None) is Refusal.COORDINATOR_NOT_AVAILABLE
    assert rules.commit_refusal(DEAD, "a", 1, None) is Refusal.COORDINATOR_NOT_AVAILABLE


# ---- C.2: offset commit ------------------------------------------------------------------------------

COMMITS = [
    (None, "", -1, None),
    (None, "a", 1, Refusal.GROUP_ID_NOT_FOUND),
    (emptied(), "", -1, None),
    (emptied(), "anybody", -1, None),
    (emptied(), "a", 2, Refusal.UNKNOWN_MEMBER_ID),
    (preparing(A, B), "a", 2, None),
    (preparing(A, B), "b", 2, None),
    (preparing(A, B), "b", 1, Refusal.ILLEGAL_GENERATION),
    (preparing(A, B), "", -1, Refusal.UNKNOWN_MEMBER_ID),
    (completing(A, B), "b", 2, Refusal.REBALANCE_IN_PROGRESS),
    (completing(A, B), "a", 2, Refusal.REBALANCE_IN_PROGRESS),
    (completing(A, B), "b", 1, Refusal.ILLEGAL_GENERATION),
    (completing(A, B), "", -1, Refusal.UNKNOWN_MEMBER_ID),
    (stable(A, B), "b", 2, None),
    (stable(A, B), "b", 1, Refusal.ILLEGAL_GENERATION),
    (stable(A, B), "b", 3, Refusal.ILLEGAL_GENERATION),
    (stable(A, B), "b", -1, Refusal.ILLEGAL_GENERATION),
    (stable(A, B), "c", 2, Refusal.UNKNOWN_MEMBER_ID),
    (stable(A, B), "", -1, Refusal.UNKNOWN_MEMBER_ID),
]


@pytest.mark.parametrize(("old", "who", "generation", "refusal"), COMMITS)
def test_who_may_commit(
    old: Group | None, who: str, generation: int, refusal: Refusal | None
) -> None:
    assert rules.commit_refusal(old, who, generation, None) is refusal


TRANSACTIONAL = [
    (None, "", -1, None),
    (None, "a", 1, Refusal.ILLEGAL_GENERATION),
    (stable(A, B), "", -1, None),
    (completing(A, B), "b", 2, None),
    (completing(A, B), "b", 1, Refusal.ILLEGAL_GENERATION),
    (stable(A, B), "c", 2, Refusal.UNKNOWN_MEMBER_ID),
    (emptied(), "a", 1, Refusal.UNKNOWN_MEMBER_ID),
]


@pytest.mark.parametrize(("old", "who", "generation", "refusal"), TRANSACTIONAL)
def test_who_may_commit_within_a_transaction(
    old: Group | None, who: str, generation: int, refusal: Refusal | None
) -> None:
    assert rules.commit_refusal(old, who, generation, None, transactional=True) is refusal


# ---- C.2: leave --------------------------------------------------------------------------------------


def test_who_leaves_is_not_waited_for() -> None:
    group = taken(rules.leave(preparing(A, B, C), "b", LATER))
    assert (group.state, group.missing_members()) == (State.PREPARING_REBALANCE, ["c"])
    group = taken(rules.leave(group, "c", LATER))
    assert (group.state, list(group.members)) == (State.COMPLETING_REBALANCE, ["a"])


@pytest.mark.parametrize("old", [completing(A, B), stable(A, B)])
def test_who_leaves_a_running_generation_ends_it(old: Group) -> None:
    group = taken(rules.leave(old, "a", LATER))
    assert (group.state, group.missing_members(), group.leader, group.generation) == (
        State.PREPARING_REBALANCE,
        ["b"],
        "b",
        old.generation,
    )


def test_the_last_one_who_leaves_empties_the_group() -> None:
    old = stable(A)
    group = taken(rules.leave(old, "a", LATER))
    assert (group.state, group.generation, group.protocol, group.leader) == (
        State.EMPTY,
        old.generation + 1,
        None,
        None,
    )
    assert (group.protocol_type, group.changed_ms, group.members) == ("consumer", LATER, {})


@pytest.mark.parametrize("old", [None, emptied(), preparing(A, B), completing(A, B), stable(A, B)])
def test_a_stranger_does_not_leave(old: Group | None) -> None:
    assert rules.leave(old, "x", NOW) is Refusal.UNKNOWN_MEMBER_ID


# ---- C.2: time-outs and deaths -----------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [Verdict.DEAD, Verdict.LEFT, Verdict.EXPIRED])
def test_an_evicted_member_is_not_waited_for(verdict: Verdict) -> None:
    for old in (completing(A, B), stable(A, B)):
        group = rules.evict(old, {"b": verdict, "x": verdict}, LATER)
        assert (group.state, group.missing_members(), list(group.members)) == (
            State.PREPARING_REBALANCE,
            ["a"],
            ["a"],
        )
    group = rules.evict(preparing(A, B), {"b": verdict}, LATER)
    assert (group.state, list(group.members)) == (State.COMPLETING_REBALANCE, ["a"])


def test_nothing_found_is_nothing_done() -> None:
    for old in (emptied(), preparing(A, B), completing(A, B), stable(A, B)):
        assert rules.evict(old, {}, LATER) is old
        assert rules.evict(old, {"x": Verdict.DEAD}, LATER) is old


def test_a_late_round_goes_on_with_those_who_came() -> None:
    group = rules.evict(preparing(A, B, C), {"b": Verdict.LATE}, LATER)
    assert (group.state, list(group.members)) == (State.COMPLETING_REBALANCE, ["a"]), (
        "a late member is evicted, and the phase ends"
    )


def test_who_has_joined_is_not_late() -> None:
    old = preparing(A, B)
    assert rules.evict(old, {"a": Verdict.LATE}, LATER) is old
    assert (
        rules.evict(stable(A, B), {"a": Verdict.LATE, "b": Verdict.LATE}, LATER).state
        is State.STABLE
    )


def test_a_late_round_without_its_leader_has_another_one() -> None:
    old = taken(
        rules.join(stable(A, B, C), member("b", protocols=(("range", OTHER),)), LIMITS, NOW)
    )
    group = rules.evict(old, {"a": Verdict.LATE, "c": Verdict.LATE}, LATER)
    assert (group.state, group.leader, list(group.members)) == (
        State.COMPLETING_REBALANCE,
        "b",
        ["b"],
    )


def test_a_round_to_which_nobody_came_ends_with_nobody() -> None:
    old = taken(rules.leave(stable(A, B, C), "a", NOW))
    group = rules.evict(old, {"b": Verdict.LATE}, LATER)
    assert (group.state, group.members, group.generation) == (State.EMPTY, {}, old.generation + 1)


def test_a_leader_that_does_not_sync_is_dropped() -> None:
    old = completing(A, B)
    assert rules.evict(old, {"b": Verdict.LATE}, LATER) is old, "followers have nothing to write"
    group = rules.evict(old, {"a": Verdict.LATE}, LATER)
    assert (group.state, group.missing_members(), group.leader) == (
        State.PREPARING_REBALANCE,
        ["b"],
        "b",
    )
