"""Reassignment of a partition: Kafka's steps, replaced targets, cancellation, refusals."""

from __future__ import annotations

import pytest

from embedlog.replicas.rules.events import (
    CancelReassignment,
    FinishReassignment,
    Observed,
    Reassign,
    Refusal,
)
from embedlog.replicas.rules.state import State
from tests.support.replica_sets import (
    PARTITION_ID,
    after,
    decided,
    having,
    partition,
    refused,
    seen,
    with_topic,
)

ALL = seen("1 2 3 4 5 6")


def to(state: State, *target: int) -> Reassign:
    return Reassign(PARTITION_ID, partition(state).partition_epoch, target)


def end(state: State, observed: Observed = ALL) -> FinishReassignment:
    return FinishReassignment(PARTITION_ID, partition(state).partition_epoch, observed)


def back(state: State, observed: Observed = ALL) -> CancelReassignment:
    return CancelReassignment(PARTITION_ID, partition(state).partition_epoch, observed)


@pytest.fixture
def state() -> State:
    return with_topic((1, 2, 3), spare=(4, 5, 6))


def test_all_replicas_are_replaced_in_kafkas_steps(state: State) -> None:
    state = after(state, to(state, 4, 5, 6))
    found = partition(state)
    assert (found.replicas, found.adding, found.removing) == (
        (4, 5, 6, 1, 2, 3),
        (4, 5, 6),
        (1, 2, 3),
    )
    assert (found.leader, found.isr, found.leader_epoch, found.partition_epoch) == (
        1,
        (1, 2, 3),
        0,
        1,
    )
    assert found.directories == tuple(state.nodes[node].directory for node in found.replicas)
    assert refused(state, end(state)) is Refusal.REASSIGNMENT_IN_PROGRESS
    state = having(state, isr=(4, 5, 6, 1, 2, 3))
    state = after(state, end(state))
    found = partition(state)
    assert (found.replicas, found.adding, found.removing) == ((4, 5, 6), (), ())
    assert (found.leader, found.isr, found.leader_epoch, found.partition_epoch) == (
        4,
        (4, 5, 6),
        1,
        2,
    )
    assert found.leader_registration_id == state.nodes[4].registration_id


def test_a_leader_of_the_target_stays_in_a_new_epoch(state: State) -> None:
    state = after(state, to(state, 4, 1))
    state = having(state, isr=(4, 1, 2, 3))
    found = partition(after(state, end(state)))
    assert (found.leader, found.isr, found.leader_epoch) == (1, (4, 1), 1)
    found = partition(after(state, end(state, seen("4 c1 2 3"))))
    assert found.leader == 4, "the old one is not complete"


def test_the_factor_grows_and_shrinks(state: State) -> None:
    state = after(state, to(state, 1, 2, 3, 4, 5))
    assert partition(state).removing == ()
    state = having(state, isr=(1, 2, 3, 4, 5))
    state = after(state, end(state))
    state = after(state, to(state, 2))
    assert partition(state).replicas == (2, 1, 3, 4, 5)
    state = after(state, end(state))
    assert (partition(state).replicas, partition(state).leader, partition(state).leader_epoch) == (
        (2,),
        2,
        2,
    )


def test_another_order_needs_no_reassignment(state: State) -> None:
    state = after(state, to(state, 3, 1, 2))
    found = partition(state)
    assert (found.replicas, found.adding, found.removing, found.leader, found.isr) == (
        (3, 1, 2),
        (),
        (),
        1,
        (3, 1, 2),
    )
    assert decided(state, to(state, 3, 1, 2)) == ()
    assert refused(state, end(state)) is Refusal.NO_REASSIGNMENT_IN_PROGRESS


def test_a_cancelled_reassignment_returns_to_the_replicas_before(state: State) -> None:
    state = after(state, to(state, 4, 1))
    state = having(state, isr=(4, 1, 2, 3))
    state = after(state, back(state))
    found = partition(state)
    assert (set(found.replicas), found.adding, found.removing, found.isr) == (
        {1, 2, 3},
        (),
        (),
        (1, 2, 3),
    )
    assert (found.leader, found.leader_epoch) == (1, 1)
    assert refused(state, back(state)) is Refusal.NO_REASSIGNMENT_IN_PROGRESS


def test_a_new_target_replaces_the_present_one(state: State) -> None:
    state = after(state, to(state, 4, 5))
    state = after(state, to(state, 5, 6))
    found = partition(state)
    assert found.replicas == (5, 6, 4, 1, 2, 3)
    assert (set(found.adding), set(found.removing)) == ({4, 5, 6}, {1, 2, 3, 4})
    assert decided(state, to(state, 5, 6)) == ()
    assert set(partition(after(state, back(state))).replicas) == {1, 2, 3}, (
        "4 was only added for the first target"
    )
    state = having(state, isr=(5, 6, 4, 1))
    assert partition(after(state, end(state))).replicas == (5, 6)


def test_a_cancellation_moves_the_leader_off_an_added_replica(state: State) -> None:
    state = after(state, to(state, 4))
    state = having(state, isr=(4, 2), leader=4)
    assert partition(after(state, back(state))).leader == 2
    assert refused(state, back(state, seen("4"))) is Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE
    alone = having(state, isr=(4,))
    assert refused(alone, back(alone)) is Refusal.INVALID_REPLICA_ASSIGNMENT, (
        "the ISR would be empty"
    )


def test_an_end_needs_a_complete_leader(state: State) -> None:
    state = after(state, to(state, 4))
    state = having(state, isr=(4, 1))
    assert refused(state, end(state, seen("1 c4"))) is Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE


@pytest.mark.parametrize("target", [(), (1, 1), (1, 9), (1, 7)])
def test_an_impossible_target_is_refused(target: tuple[int, ...]) -> None:
    state = with_topic((1, 2, 3))
    assert refused(state, to(state, *target)) is Refusal.INVALID_REPLICA_ASSIGNMENT


def test_an_old_request_is_refused(state: State) -> None:
    first = to(state, 4)
    other = to(state, 5)
    state = after(state, first)
    assert refused(state, other) is Refusal.INVALID_UPDATE_VERSION
    for event in (end, back):
        old = event(with_topic((1, 2, 3)))
        assert refused(state, old) is Refusal.INVALID_UPDATE_VERSION


def test_no_elr_is_left_when_the_target_is_in_sync() -> None:
    state = with_topic((1, 2, 3), spare=(4,), min_insync_replicas="3")
    state = having(state, isr=(1, 2), elr=(3,))
    state = after(state, to(state, 1, 2))
    state = after(state, end(state))
    assert (partition(state).isr, partition(state).elr) == ((1, 2), ())
