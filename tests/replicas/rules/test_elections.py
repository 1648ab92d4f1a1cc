"""Decisions about leader and ISR of a partition: each row of the rules, and the refusals."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from embedlog.replicas.rules.events import (
    AlterIsr,
    CreateTopic,
    DeleteTopic,
    Elect,
    Election,
    Observed,
    RaiseEpoch,
    Refusal,
    SetConfig,
)
from embedlog.replicas.rules.records import NO_LEADER, NODE
from embedlog.replicas.rules.state import State
from tests.support.replica_sets import (
    PARTITION_ID,
    TOPIC_ID,
    after,
    decided,
    having,
    partition,
    refused,
    registration_id,
    seen,
    with_topic,
)

OFFLINE = Election.OFFLINE
PREFERRED = Election.PREFERRED
UNCLEAN = Election.UNCLEAN
UNKNOWN = (PARTITION_ID[0], 7)


def alter(state: State, *isr: int, lost: tuple[int, ...] = (), **facts: int) -> AlterIsr:
    """A proposal of the leader, whose new members have their registered ids."""
    found = partition(state)
    new = {node: registration_id(node) for node in isr if node not in found.isr}
    epoch = facts.get("epoch", found.leader_epoch)
    change = facts.get("change", found.partition_epoch)
    return AlterIsr(PARTITION_ID, epoch, change, isr, new, frozenset(lost))


def election(state: State, kind: Election, observed: Observed, node: int | None = None) -> Elect:
    return Elect(PARTITION_ID, kind, partition(state).partition_epoch, observed, node)


def led(state: State) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, ISR and ELR."""
    found = partition(state)
    return found.leader, found.isr, found.elr


def epochs(state: State) -> tuple[int, int]:
    return partition(state).leader_epoch, partition(state).partition_epoch


# ---- the ISR ---------------------------------------------------------------------------------------------------------


def test_a_shrink_and_a_growth_raise_only_the_partition_epoch() -> None:
    state = with_topic()
    assert (led(state), epochs(state)) == ((1, (1, 2, 3), ()), (0, 0))
    state = after(state, alter(state, 1, 3))
    assert (led(state), epochs(state)) == ((1, (1, 3), ()), (0, 1))
    state = after(state, alter(state, 3, 2, 1))
    assert (led(state), epochs(state)) == ((1, (1, 2, 3), ()), (0, 2)), (
        "in the order of the assignment"
    )


def test_the_same_isr_is_no_decision() -> None:
    state = with_topic()
    assert decided(state, alter(state, 3, 1, 2)) == ()


def test_the_same_isr_is_decided_again_on_request() -> None:
    """The leader's page loses a member that was never decided, and the decision about that member
    is refused.
    """
    state = with_topic()
    state = after(state, alter(state, 1, 2))
    undecided = alter(state, 1, 2, 3)
    state = after(state, replace(alter(state, 1, 2), renewed=True))
    assert (led(state), epochs(state)) == ((1, (1, 2), ()), (0, 2))
    assert refused(state, undecided) is Refusal.INVALID_UPDATE_VERSION


def test_a_proposal_of_an_old_leader_or_from_an_old_decision_is_refused() -> None:
    state = with_topic()
    state = after(state, election(state, OFFLINE, seen("2 3")))
    assert refused(state, alter(state, 2, epoch=0)) is Refusal.FENCED_LEADER_EPOCH
    assert refused(state, alter(state, 2, epoch=2)) is Refusal.FENCED_LEADER_EPOCH
    assert refused(state, alter(state, 2, change=0)) is Refusal.INVALID_UPDATE_VERSION
    assert (
        refused(state, replace(alter(state, 2), partition_id=UNKNOWN))
        is Refusal.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_two_shrinks_from_one_decision_do_not_both_count() -> None:
    """Else the second one returns a member that the first one removed."""
    state = with_topic()
    first = alter(state, 1, 2)
    second = alter(state, 1, 3)
    state = after(state, first)
    assert refused(state, second) is Refusal.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("isr", [(), (2,), (1, 1), (1, 4)])
def test_an_impossible_isr_is_refused(isr: tuple[int, ...]) -> None:
    state = with_topic(spare=(4,))
    assert refused(state, alter(state, *isr)) is Refusal.INVALID_REQUEST


def test_an_isr_without_a_leader_is_refused() -> None:
    state = with_topic()
    state = after(state, election(state, OFFLINE, {}))
    assert partition(state).leader == NO_LEADER
    assert refused(state, alter(state, 1)) is Refusal.INVALID_REQUEST


def test_a_newcomer_that_is_away_or_leaves_or_has_another_life_is_refused() -> None:
    state = with_topic()
    state = after(state, alter(state, 1, 2))
    growth = alter(state, 1, 2, 3)
    assert decided(state, growth)
    assert refused(state, replace(growth, registration_ids={})) is Refusal.INELIGIBLE_REPLICA
    assert (
        refused(state, replace(growth, registration_ids={3: registration_id(3, 1)}))
        is Refusal.INELIGIBLE_REPLICA
    )
    leaving = replace(state, nodes={**state.nodes, 3: replace(state.nodes[3], leaving=True)})
    assert refused(leaving, growth) is Refusal.INELIGIBLE_REPLICA
    gone = replace(state, nodes={node: each for node, each in state.nodes.items() if node != 3})
    assert refused(gone, growth) is Refusal.INELIGIBLE_REPLICA


def test_members_that_leave_a_too_small_isr_become_eligible_leaders() -> None:
    state = with_topic(min_insync_replicas="2")
    state = after(state, alter(state, 1, 2))
    assert led(state) == (1, (1, 2), ()), "the ISR is large enough"
    state = after(state, alter(state, 1))
    assert led(state) == (1, (1,), (2,)), "3 left before and may lack committed records"
    state = after(state, alter(state, 1, 3))
    assert led(state) == (1, (1, 3), ()), "from here on records are committed without 2"


def test_a_member_that_leaves_incomplete_is_not_an_eligible_leader() -> None:
    state = with_topic(min_insync_replicas="3")
    state = after(state, alter(state, 1, lost=(2,)))
    assert led(state) == (1, (1,), (3,))
    assert led(after(state, alter(state, 1, lost=(3,)))) == (1, (1,), ())


def test_the_required_size_is_at_most_the_number_of_replicas() -> None:
    state = with_topic((1, 2), min_insync_replicas="5")
    assert state.required_size(partition(state)) == 2
    state = after(state, alter(state, 1))
    assert led(state) == (1, (1,), (2,))
    assert led(after(state, alter(state, 1, 2))) == (1, (1, 2), ())


# ---- offline elections -----------------------------------------------------------------------------------------------


def test_a_leader_that_serves_needs_no_election() -> None:
    state = with_topic()
    assert refused(state, election(state, OFFLINE, seen("1 2 3"))) is Refusal.ELECTION_NOT_NEEDED
    assert refused(state, election(state, UNCLEAN, seen("1"))) is Refusal.ELECTION_NOT_NEEDED


def test_the_isr_is_what_the_elector_sees_of_it() -> None:
    state = with_topic()
    state = after(state, election(state, OFFLINE, seen("2 3")))
    assert (led(state), epochs(state)) == ((2, (2, 3), ()), (1, 1))
    assert partition(state).leader_registration_id == registration_id(2)


def test_n_failures_are_survived_by_n_plus_one_members() -> None:
    state = with_topic((1, 2, 3, 4))
    for left, leader in (("2 3 4", 2), ("3 4", 3), ("4", 4)):
        state = after(state, election(state, OFFLINE, seen(left)))
        assert led(state)[0] == leader
    state = after(state, election(state, OFFLINE, {}))
    assert led(state) == (NO_LEADER, (4,), ()), "the last member is kept"


def test_the_most_advanced_log_leads() -> None:
    state = with_topic((1, 2, 3, 4))
    for ends, leader in (
        ({2: (0, 9), 3: (0, 9), 4: (0, 9)}, 2),
        ({2: (0, 9), 3: (0, 10), 4: (0, 10)}, 3),
        ({2: (0, 90), 3: (0, 10), 4: (1, 1)}, 4),
    ):
        assert led(after(state, election(state, OFFLINE, seen("2 3 4", ends))))[0] == leader


def test_a_replica_outside_of_isr_and_elr_is_never_elected() -> None:
    state = with_topic()
    state = after(state, alter(state, 1, 2))
    state = after(state, election(state, OFFLINE, seen("3", {3: (9, 99)})))
    assert led(state) == (NO_LEADER, (1, 2), ())
    assert (
        refused(state, election(state, OFFLINE, seen("3")))
        is Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE
    )
    assert led(after(state, election(state, OFFLINE, seen("2 3")))) == (2, (2,), ())


def test_an_eligible_leader_leads_alone_if_no_member_is_there() -> None:
    state = with_topic(min_insync_replicas="2")
    state = after(
        state,
        alter(state, 1, 2),
    )
    state = after(state, alter(state, 1))
    assert led(state) == (1, (1,), (2,))
    assert led(after(state, election(state, OFFLINE, seen("2 3")))) == (2, (2,), (1,)), (
        "1 has what was committed"
    )
    both = having(state, isr=(1, 3), leader=1)
    assert led(after(both, election(both, OFFLINE, seen("2 3", {2: (5, 5)}))))[0] == 3, (
        "a member of the ISR comes first"
    )


def test_members_that_are_away_stay_eligible_and_lost_ones_do_not() -> None:
    state = with_topic((1, 2, 3, 4), min_insync_replicas="3")
    state = after(state, election(state, OFFLINE, seen("2 c3 s4")))
    assert led(state) == (2, (2,), (1,))


def test_the_leader_of_another_life_is_replaced() -> None:
    state = having(with_topic(), leader_registration_id=registration_id(1, 9))
    assert led(after(state, election(state, OFFLINE, seen("1 2 3")))) == (1, (1, 2, 3), ())


def test_an_old_election_is_refused() -> None:
    state = with_topic()
    one = election(state, OFFLINE, seen("2 3"))
    other = election(state, OFFLINE, seen("3"))
    state = after(state, one)
    assert refused(state, other) is Refusal.INVALID_UPDATE_VERSION, (
        "of two electors the first one decides"
    )
    assert (
        refused(state, replace(other, partition_id=UNKNOWN)) is Refusal.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_an_observation_of_another_life_does_not_count() -> None:
    state = with_topic()
    old = {
        node: replace(each, registration_id=registration_id(node, 9))
        for node, each in seen("1 2").items()
    } | seen("3")
    assert led(after(state, election(state, OFFLINE, old))) == (3, (3,), ())
    crashed = {
        node: replace(each, registration_id=registration_id(node, 9))
        for node, each in seen("c1").items()
    } | seen("c2 c3")
    assert refused(state, election(state, OFFLINE, crashed)) is Refusal.WAIT_FOR_REPLICAS
    assert (
        refused(state, election(state, UNCLEAN, old, 2)) is Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE
    )


# ---- after a power loss ----------------------------------------------------------------------------------------------


def test_after_a_power_loss_the_best_log_leads_alone() -> None:
    state = with_topic()
    ends = {1: (0, 5), 2: (0, 8), 3: (0, 7)}
    state = after(state, election(state, OFFLINE, seen("c1 c2 c3", ends)))
    assert (led(state), epochs(state)) == ((2, (2,), ()), (1, 1))


def test_after_a_power_loss_all_members_are_awaited() -> None:
    state = with_topic()
    assert refused(state, election(state, OFFLINE, seen("c2 c3"))) is Refusal.WAIT_FOR_REPLICAS
    assert refused(state, election(state, OFFLINE, seen("a1 c2 c3"))) is Refusal.WAIT_FOR_REPLICAS
    assert led(after(state, election(state, OFFLINE, seen("s1 c2 c3"))))[0] == 2, (
        "a stranger is there, and never leads"
    )


def test_members_of_the_elr_are_awaited_too() -> None:
    state = having(with_topic(min_insync_replicas="2"), isr=(1,), elr=(2,))
    assert refused(state, election(state, OFFLINE, seen("c1 c3"))) is Refusal.WAIT_FOR_REPLICAS
    ends = {1: (0, 5), 2: (0, 6), 3: (0, 7)}
    assert led(after(state, election(state, OFFLINE, seen("c1 c2 c3", ends)))) == (2, (2,), ())


def test_a_durable_topic_does_not_wait() -> None:
    state = with_topic(flush_messages="1", min_insync_replicas="2")
    assert led(after(state, election(state, OFFLINE, seen("c2 c3", {3: (0, 11)})))) == (
        3,
        (3,),
        (1,),
    )
    small = having(state, isr=(1,), elr=(2,))
    assert refused(small, election(small, OFFLINE, seen("c2"))) is Refusal.WAIT_FOR_REPLICAS, (
        "only members of the ISR synced"
    )


def test_a_topic_that_was_not_always_durable_waits() -> None:
    """The records before the setting, and those of processes that have not read it, were
    not synced.
    """
    durable = {"flush.messages": "1"}
    plain = {"flush.messages": None}
    altered = after(with_topic(), SetConfig("t", durable))
    returned = after(with_topic(flush_messages="1"), SetConfig("t", plain), SetConfig("t", durable))
    inherited = after(with_topic(), SetConfig("", durable, NODE))
    again = after(
        with_topic(flush_messages="1"),
        DeleteTopic(TOPIC_ID),
        CreateTopic("t", TOPIC_ID, frozenset({1, 2, 3}), 1, 3, removed=TOPIC_ID),
    )
    again = after(again, SetConfig("t", durable))
    for state in (altered, returned, inherited, again):
        assert not state.is_durable(partition(state))
        assert refused(state, election(state, OFFLINE, seen("c2 c3"))) is Refusal.WAIT_FOR_REPLICAS
    same = after(with_topic(flush_messages="1"), SetConfig("t", {**durable, "flush.ms": "9"}))
    assert led(after(same, election(same, OFFLINE, seen("c2 c3"))))[0] == 2, (
        "the value is as before"
    )


def test_a_complete_member_leads_before_any_crashed_one() -> None:
    state = with_topic()
    assert led(after(state, election(state, OFFLINE, seen("c2 3", {2: (0, 99)})))) == (3, (3,), ())


# ---- preferred and unclean elections ---------------------------------------------------------------------------------


def test_the_preferred_leader_returns() -> None:
    state = with_topic()
    assert refused(state, election(state, PREFERRED, seen("1 2 3"))) is Refusal.ELECTION_NOT_NEEDED
    state = after(state, election(state, OFFLINE, seen("2 3")))
    assert (
        refused(state, election(state, PREFERRED, seen("1 2 3")))
        is Refusal.PREFERRED_LEADER_NOT_AVAILABLE
    )
    state = after(state, alter(state, 1, 2, 3))
    assert (
        refused(state, election(state, PREFERRED, seen("c1 2 3")))
        is Refusal.PREFERRED_LEADER_NOT_AVAILABLE
    )
    state = after(state, election(state, PREFERRED, seen("1 2 3")))
    assert (led(state), epochs(state)) == ((1, (1, 2, 3), ()), (2, 3))


def test_a_leaving_directory_is_not_preferred() -> None:
    state = with_topic()
    state = after(state, election(state, OFFLINE, seen("2 3")))
    state = after(state, alter(state, 1, 2, 3))
    leaving = replace(state, nodes={**state.nodes, 1: replace(state.nodes[1], leaving=True)})
    assert (
        refused(leaving, election(leaving, PREFERRED, seen("1 2 3")))
        is Refusal.PREFERRED_LEADER_NOT_AVAILABLE
    )


def test_an_unclean_leader_is_the_whole_isr_and_recovers() -> None:
    state = with_topic(min_insync_replicas="2")
    state = after(state, alter(state, 1, 2))
    state = after(state, election(state, UNCLEAN, seen("3")))
    assert (led(state), epochs(state)) == ((3, (3,), ()), (1, 2))
    assert partition(state).recovering
    state = after(state, alter(state, 3))
    assert not partition(state).recovering, "its leader has decided about the ISR"


def test_an_unclean_election_prefers_a_clean_one() -> None:
    state = with_topic()
    state = after(
        state,
        alter(state, 1, 2),
    )
    state = after(state, election(state, UNCLEAN, seen("2 3", {3: (7, 70)})))
    assert (led(state), partition(state).recovering) == ((2, (2,), ()), False)


def test_an_unclean_election_trusts_a_stranger_last() -> None:
    state = with_topic()
    ends = {2: (9, 99), 3: (0, 1)}
    assert led(after(state, election(state, UNCLEAN, seen("s2 c3", ends))))[0] == 3
    assert led(after(state, election(state, UNCLEAN, seen("s2", ends)))) == (2, (2,), ())
    assert refused(state, election(state, UNCLEAN, {})) is Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_a_named_directory_becomes_the_truth() -> None:
    state = with_topic()
    state = after(state, election(state, UNCLEAN, seen("1 2 s3"), 3))
    assert (led(state), partition(state).recovering) == ((3, (3,), ()), True)
    assert refused(state, election(state, UNCLEAN, seen("3"), 3)) is Refusal.ELECTION_NOT_NEEDED
    for node in (2, 9):
        assert (
            refused(state, election(state, UNCLEAN, seen("3"), node))
            is Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )


# ---- unclean elections that the settings allow, and later epochs -----------------------------------------------------


def test_an_allowed_unclean_election_needs_that_no_eligible_replica_answers() -> None:
    state = with_topic()
    allowed = replace(election(state, OFFLINE, seen("2 3")), allowed=True)
    assert led(after(state, allowed)) == (2, (2, 3), ()), "a member of the ISR answers"
    alone = having(state, isr=(1,))
    for found in ("2 3", "s2 3", "c2 3"):
        event = replace(election(alone, OFFLINE, seen(found, {2: (0, 9), 3: (0, 8)})), allowed=True)
        assert led(after(alone, event)) == (
            3 if found == "s2 3" else 2,
            (3 if found == "s2 3" else 2,),
            (),
        )
        assert led(after(alone, replace(event, allowed=False)))[0] == NO_LEADER
    serving = replace(election(alone, OFFLINE, seen("1 2 3")), allowed=True)
    assert refused(alone, serving) is Refusal.ELECTION_NOT_NEEDED


def test_an_allowed_unclean_election_does_not_wait_after_a_crash() -> None:
    state = with_topic()
    event = election(state, OFFLINE, seen("c2 c3", {2: (0, 5), 3: (0, 8)}))
    assert refused(state, event) is Refusal.WAIT_FOR_REPLICAS
    assert led(after(state, replace(event, allowed=True))) == (3, (3,), ())


def test_a_later_epoch_of_a_replica_raises_the_leader_epoch_above_it() -> None:
    state = with_topic()
    assert decided(state, RaiseEpoch(PARTITION_ID, 0)) == ()
    (record,) = decided(state, RaiseEpoch(PARTITION_ID, 25))
    assert record == replace(partition(state), leader_epoch=26, partition_epoch=1)
    assert refused(state, RaiseEpoch(PARTITION_ID, 2**31 - 1)) is Refusal.INVALID_REQUEST
    assert refused(state, RaiseEpoch((UUID(int=9), 0), 25)) is Refusal.UNKNOWN_TOPIC_OR_PARTITION
