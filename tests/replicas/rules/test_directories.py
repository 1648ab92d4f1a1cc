"""Decisions about the directories of a set: registration ids, strangers, voters, growth,
retirement.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from uuid import UUID

import pytest

from embedlog.replicas.rules.decide import decide
from embedlog.replicas.rules.events import (
    Add,
    AlterIsr,
    Condition,
    CreateTopic,
    DeleteTopic,
    Elect,
    Election,
    FinishReassignment,
    ForceRetire,
    HeldTopic,
    Observed,
    Reassign,
    Refusal,
    Register,
    Retire,
    SetVoter,
)
from embedlog.replicas.rules.records import (
    NO_LEADER,
    SLOTS,
    TOPIC,
    RegisterBroker,
    Tombstone,
    UnregisterBroker,
    key_of,
)
from embedlog.replicas.rules.state import State, apply, throttle_of
from tests.support.replica_sets import (
    CLUSTER,
    PARTITION_ID,
    TOPIC_ID,
    a_set,
    after,
    changes_of,
    decided,
    having,
    identity,
    partition,
    refused,
    registration_id,
    seen,
    with_topic,
)

CLEAN = Register(identity(1), Condition.COMPLETE, offset=99)


def crashed(
    node: int = 1, observed: Observed | None = None, found: Condition = Condition.CRASHED
) -> Register:
    """A directory that was not closed in order, with a new registration id."""
    return Register(
        identity(node, registration_id=registration_id(node, 1)),
        found,
        offset=99,
        seen={PARTITION_ID: observed or {}},
    )


# ---- registration ----------------------------------------------------------------------------------------------------


def test_after_an_orderly_close_nothing_is_decided() -> None:
    assert decided(with_topic(), CLEAN) == ()


def test_the_first_opening_after_an_orderly_close_raises_the_broker_epoch() -> None:
    state = with_topic()
    assert decided(state, replace(CLEAN, fresh=True)) == (replace(state.nodes[1], broker_epoch=99),)


def test_a_stranger_leaves_an_isr_without_a_complete_member() -> None:
    """Its records are not those of the set, so no election may need its log."""
    state = with_topic()
    for observed in ({}, seen("1"), seen("c2 c3")):
        (record,) = changes_of(decided(state, crashed(1, observed, Condition.STRANGER)))
        assert (record.leader, record.isr, record.leader_epoch) == (NO_LEADER, (2, 3), 1)
        assert record.strangers == (1,)
    alone = having(state, isr=(1,))
    (record,) = changes_of(decided(alone, crashed(1, seen("2 3"), Condition.STRANGER)))
    assert (record.leader, record.isr, record.elr, record.strangers) == (NO_LEADER, (), (), (1,)), (
        "also as the last member"
    )
    eligible = having(with_topic(min_insync_replicas="2"), isr=(1,), elr=(2,))
    (record,) = changes_of(decided(eligible, crashed(1, seen("3"), Condition.STRANGER)))
    assert (record.leader, record.isr, record.elr) == (NO_LEADER, (), (2,)), (
        "the ELR has every committed record"
    )


def with_strangers(state: State, *nodes: int) -> State:
    """The state after these directories were found to be strangers, in this order."""
    for node in nodes:
        state = after(state, crashed(node, {}, Condition.STRANGER))
    return state


def present(*nodes: int, kind: str = "") -> Observed:
    """Observations with the registration ids of `crashed`; the log of each node is as long as its
    number.
    """
    found = seen(" ".join(f"{kind}{node}" for node in nodes), {node: (0, node) for node in nodes})
    return {
        node: replace(each, registration_id=registration_id(node, 1))
        for node, each in found.items()
    }


@pytest.mark.parametrize("kind", ["", "s", "c"])
@pytest.mark.parametrize("order", [*permutations((1, 2, 3))])
def test_a_stranger_leads_only_if_all_replicas_are_strangers(
    order: tuple[int, int, int], kind: str
) -> None:
    """In any order of their registrations, and however their replicas are found then."""
    first, second, last = order
    state = with_strangers(with_topic(), first, second)
    observed = {**present(first, second, kind=kind)}
    election = Elect(PARTITION_ID, Election.OFFLINE, partition(state).partition_epoch, observed)
    found = decide(state, election)
    assert isinstance(found, Refusal) or all(
        each.leader in {NO_LEADER, last} for each in changes_of(found)
    )
    assert set(partition(state).strangers) == {first, second}
    state = with_strangers(state, last)
    assert (partition(state).leader, partition(state).isr, partition(state).strangers) == (
        NO_LEADER,
        (),
        (1, 2, 3),
    )
    election = Elect(PARTITION_ID, Election.OFFLINE, partition(state).partition_epoch, observed)
    assert refused(state, election) is Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE, "one of them is away"
    state = after(state, replace(election, seen=observed | present(last, kind=kind)))
    record = partition(state)
    assert (record.leader, record.isr, record.strangers, record.recovering) == (
        3,
        (3,),
        (1, 2),
        True,
    ), "the longest log"


def test_the_only_replica_of_a_partition_leads_although_it_is_a_stranger() -> None:
    state = with_strangers(with_topic((1,), spare=(2, 3)), 1)
    state = after(
        state, Elect(PARTITION_ID, Election.OFFLINE, partition(state).partition_epoch, present(1))
    )
    record = partition(state)
    assert (record.leader, record.isr, record.strangers, record.recovering) == (1, (1,), (), False)


def test_a_stranger_is_noted_until_it_joins() -> None:
    state = with_strangers(with_topic(), 3)
    record = partition(state)
    assert (record.leader, record.isr, record.strangers) == (1, (1, 2), (3,))
    assert (
        changes_of(
            decided(
                state,
                replace(
                    crashed(3, {}, Condition.STRANGER),
                    identity=identity(3, registration_id=registration_id(3, 2)),
                ),
            )
        )
        == []
    )
    joined = AlterIsr(
        PARTITION_ID,
        record.leader_epoch,
        record.partition_epoch,
        (1, 2, 3),
        {3: registration_id(3, 1)},
    )
    assert partition(after(state, joined)).strangers == ()


def test_only_the_first_directory_of_a_set_has_topics() -> None:
    held = (HeldTopic("t", UUID(int=7), (4, 1), {"retention.ms": "5"}),)
    first = Add(identity(1), 0, held=held)
    state = after(State(CLUSTER), first)
    found = [
        (each.replicas, each.isr, each.leader, each.leader_epoch)
        for each in state.partitions_of(UUID(int=7))
    ]
    assert found == [((1,), (1,), 1, 4), ((1,), (1,), 1, 1)]
    assert state.settings == {(TOPIC, "t", "retention.ms"): "5"}
    assert refused(state, Add(identity(2), 9, held=held)) is Refusal.INVALID_REGISTRATION
    assert refused(State(CLUSTER), replace(first, replicas=False)) is Refusal.INVALID_REGISTRATION


def test_a_moved_directory_keeps_its_life_and_registration() -> None:
    state = apply(
        with_topic(), replace(with_topic().nodes[1], voter=False, leaving=True, generation=0)
    )
    (found,) = decided(state, replace(CLEAN, identity=identity(1, path="/new", rack="a")))
    assert found == replace(state.nodes[1], path="/new", rack="a")


def test_a_directory_takes_the_path_of_another_one() -> None:
    """Both were moved, or the other one is absent: a path has one directory, and its own files name
    it.
    """
    moved = [
        replace(CLEAN, identity=identity(node, path=f"/disk{3 - node}/log")) for node in (1, 2)
    ]
    state = a_set()
    for at, count in ((0, 2), (1, 3)):
        state = after(state, moved[at])
        assert len({each.path for each in state.nodes.values()}) == count
    assert [state.nodes[node].path for node in (1, 2, 3)] == [
        "/disk2/log",
        "/disk1/log",
        "/disk3/log",
    ]


def test_a_crash_is_a_new_life_at_a_new_offset() -> None:
    state = a_set()
    assert decided(state, crashed()) == (
        replace(state.nodes[1], registration_id=registration_id(1, 1), broker_epoch=99),
    )


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"cluster_id": "other"}, Refusal.INCONSISTENT_CLUSTER_ID),
        ({"generation": 1}, Refusal.STALE_CLUSTER_GENERATION),
        ({"directory": UUID(int=5)}, Refusal.INVALID_REGISTRATION),
        ({"node": 9}, Refusal.BROKER_ID_NOT_REGISTERED),
        ({"registration_id": registration_id(1, 4)}, Refusal.INVALID_REGISTRATION),
    ],
)
def test_a_directory_that_differs_is_refused(changes: dict[str, object], refusal: Refusal) -> None:
    changed = replace(CLEAN, identity=replace(CLEAN.identity, **changes))  # type: ignore[arg-type]
    assert refused(a_set(), changed) is refusal


def test_a_clone_of_a_live_directory_is_refused() -> None:
    assert refused(a_set(), replace(crashed(), alive=True)) is Refusal.DUPLICATE_BROKER_REGISTRATION
    assert decided(a_set(), replace(CLEAN, alive=True)) == ()
    assert (
        refused(a_set(), replace(CLEAN, condition=Condition.AWAY)) is Refusal.INVALID_REGISTRATION
    )


def test_an_older_generation_of_the_set_is_refused() -> None:
    state = a_set()
    for node in (2, 3):
        state = apply(state, replace(state.nodes[node], generation=2))
    assert state.generation == 2
    assert refused(state, CLEAN) is Refusal.STALE_CLUSTER_GENERATION


# ---- a new registration id leaves ISR and ELR ----------------------------------------------------


@pytest.mark.parametrize("found", [Condition.CRASHED, Condition.STRANGER])
def test_a_follower_that_lost_its_page_leaves_the_isr(found: Condition) -> None:
    state = with_topic(min_insync_replicas="3")
    state = after(state, crashed(3, seen("1 2"), found))
    record = partition(state)
    assert (record.leader, record.isr, record.elr) == (1, (1, 2), ())
    assert (record.leader_epoch, record.partition_epoch) == (0, 1)
    assert state.nodes[3].registration_id == registration_id(3, 1)


def test_a_leader_that_lost_its_page_is_replaced_in_the_same_decision() -> None:
    state = with_topic()
    records = decided(state, crashed(1, seen("2 3", {3: (0, 11)})))
    assert [type(each) for each in records] == [RegisterBroker, *map(type, changes_of(records))]
    (record,) = changes_of(records)
    assert (record.leader, record.isr, record.leader_epoch, record.partition_epoch) == (
        3,
        (2, 3),
        1,
        1,
    )
    assert record.leader_registration_id == registration_id(3)


def test_a_member_stays_while_no_other_one_is_complete() -> None:
    """After a power loss its log may be the longest."""
    state = with_topic()
    for observed in ({}, seen("c2 c3"), seen("a2")):
        records = decided(state, crashed(1, observed))
        assert [type(each) for each in records] == [RegisterBroker]
    again = after(state, crashed(1, seen("c2 c3")))
    records = decided(again, crashed(1, seen("2")))
    assert [each.isr for each in changes_of(records)] == [(2,)], (
        "a later registration with the same id completes it"
    )


def test_the_last_of_an_isr_leaves_only_for_a_complete_eligible_leader() -> None:
    state = having(with_topic(min_insync_replicas="2"), isr=(1,), elr=(2, 3))
    assert changes_of(decided(state, crashed(1, seen("c2")))) == []
    (record,) = changes_of(decided(state, crashed(1, seen("2"))))
    assert (record.leader, record.isr, record.elr, record.leader_epoch) == (2, (2,), (3,), 1)


def test_an_eligible_leader_that_lost_its_page_is_one_no_longer() -> None:
    state = having(with_topic(min_insync_replicas="2"), isr=(1,), elr=(2, 3))
    (record,) = changes_of(decided(state, crashed(3, seen("1"))))
    assert (record.leader, record.isr, record.elr, record.leader_epoch) == (1, (1,), (2,), 0)


def test_a_registration_ends_a_partition_without_leader() -> None:
    state = having(with_topic(), leader=NO_LEADER, leader_registration_id=None)
    (record,) = changes_of(decided(state, crashed(1, seen("2"))))
    assert (record.leader, record.isr) == (2, (2,))


def test_a_directory_outside_of_isr_and_elr_changes_no_partition() -> None:
    state = having(with_topic(), isr=(1, 2))
    assert changes_of(decided(state, crashed(3, seen("1 2")))) == []


# ---- the set ---------------------------------------------------------------------------------------------------------


def test_the_first_directory_votes() -> None:
    empty = State(CLUSTER)
    assert refused(empty, Add(identity(1), 0, voter=False)) is Refusal.LAST_VOTER
    state = after(empty, Add(identity(1), 0))
    assert (state.voters, state.highest_node) == ((1,), 1)


def test_a_directory_is_added_as_it_describes_itself() -> None:
    (found,) = decided(a_set(), Add(identity(7, rack="a"), 55, voter=False, replicas=False))
    wanted = RegisterBroker(
        7,
        registration_id(7),
        55,
        identity(7).directory,
        "/disk7/log",
        "a",
        voter=False,
        replicas=False,
        slot=3,
    )
    assert found == wanted
    assert after(a_set(), Add(identity(7), 55, replicas=False)).usable_racks() == dict.fromkeys(
        (1, 2, 3)
    )


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (Add(identity(3), 0), Refusal.DUPLICATE_BROKER_REGISTRATION),
        (Add(replace(identity(4), node=-1), 0), Refusal.INVALID_REGISTRATION),
        (Add(identity(4, path="/disk1/log"), 0), Refusal.INVALID_REGISTRATION),
        (Add(identity(4, directory=identity(1).directory), 0), Refusal.INVALID_REGISTRATION),
        (Add(replace(identity(4), cluster_id="x"), 0), Refusal.INCONSISTENT_CLUSTER_ID),
        (Add(identity(4, generation=3), 0), Refusal.STALE_CLUSTER_GENERATION),
        (Add(identity(4), 0, settled=False), Refusal.VOTERS_CHANGING),
    ],
)
def test_a_directory_that_cannot_join_is_refused(event: Add, refusal: Refusal) -> None:
    assert refused(a_set(), event) is refusal


def test_a_new_directory_without_vote_does_not_wait_for_voters() -> None:
    assert decided(a_set(), Add(identity(4), 0, voter=False, settled=False))


def test_a_set_has_at_most_as_many_directories_as_a_page_has_bits() -> None:
    state = a_set(range(SLOTS))
    assert refused(state, Add(identity(99), 0)) is Refusal.TOO_MANY_DIRECTORIES
    state = after(state, Retire(0))
    assert after(state, Add(identity(99), 0)).highest_node == 99


def test_a_new_directory_has_the_smallest_free_slot() -> None:
    state = after(after(a_set(range(1, 5)), Retire(2)), Add(identity(9), 0))
    assert [state.nodes[node].slot for node in (1, 3, 4, 9)] == [0, 2, 3, 1]
    assert after(state, Add(identity(10), 0)).nodes[10].slot == 4


def test_a_number_is_never_used_again() -> None:
    state = after(a_set(), Retire(3))
    assert (state.highest_node, 3 in state.nodes) == (3, False)
    assert refused(state, Add(identity(3), 0)) is Refusal.DUPLICATE_BROKER_REGISTRATION


def test_a_directory_retires_after_no_partition_names_it() -> None:
    state = with_topic((1, 2))
    marked = after(state, Retire(2))
    assert marked.nodes[2].leaving
    assert marked.usable_racks() == {1: None}
    assert refused(marked, Retire(2)) is Refusal.REASSIGNMENT_IN_PROGRESS
    assert refused(marked, Reassign(PARTITION_ID, 0, (1, 3))) is Refusal.INVALID_REPLICA_ASSIGNMENT
    records = decided(after(marked, DeleteTopic(TOPIC_ID)), Retire(2))
    assert records == (UnregisterBroker(2, 20), Tombstone(key_of(state.nodes[2])))


def test_voters_change_one_at_a_time() -> None:
    state = a_set()
    assert refused(state, Retire(1, settled=False)) is Refusal.VOTERS_CHANGING
    assert refused(state, SetVoter(1, voter=False, settled=False)) is Refusal.VOTERS_CHANGING
    assert decided(state, SetVoter(1, voter=True, settled=False)) == (), "nothing changes"
    state = after(state, SetVoter(1, voter=False))
    assert state.voters == (2, 3)
    assert decided(state, Retire(1, settled=False)), "not a voter"
    assert after(state, SetVoter(1, voter=True)).voters == (1, 2, 3)


def test_one_voter_is_always_left() -> None:
    state = after(a_set(), SetVoter(2, voter=False), Retire(3))
    for event in (SetVoter(1, voter=False), Retire(1)):
        assert refused(state, event) is Refusal.LAST_VOTER
    for unknown in (SetVoter(9, voter=True), Retire(9)):
        assert refused(state, unknown) is Refusal.BROKER_ID_NOT_REGISTERED


def test_partitions_keep_the_directory_of_a_node_that_is_gone() -> None:
    state = with_topic()
    before = partition(state).directories
    gone = replace(state, nodes={node: each for node, each in state.nodes.items() if node != 3})
    assert partition(after(gone, Reassign(PARTITION_ID, 0, (2, 1)))).directories == (
        before[1],
        before[0],
        before[2],
    )


def test_a_topic_may_be_placed_on_one_directory() -> None:
    state = after(a_set([5]), CreateTopic("t", TOPIC_ID, frozenset({5})))
    assert partition(state).replicas == (5,)


# ---- forced retirement -----------------------------------------------------------------------------------------------


def test_a_reassignment_that_loses_its_whole_target_is_cancelled() -> None:
    """Before, it had no replica to wait for and could not be finished."""
    state = with_topic((2,), spare=(1, 3))
    state = after(
        state, Reassign(PARTITION_ID, 0, (1,), 1000), ForceRetire(1, {PARTITION_ID: seen("2")})
    )
    found = partition(state)
    assert (found.replicas, found.isr, found.leader, found.adding, found.removing) == (
        (2,),
        (2,),
        2,
        (),
        (),
    )
    assert throttle_of(found) is None


def test_a_reassignment_continues_if_a_part_of_its_target_is_left() -> None:
    state = with_topic((3,), spare=(1, 2))
    state = after(
        state, Reassign(PARTITION_ID, 0, (1, 2), 1000), ForceRetire(1, {PARTITION_ID: seen("3")})
    )
    assert (partition(state).adding, partition(state).removing, throttle_of(partition(state))) == (
        (2,),
        (3,),
        1000,
    )
    joined = AlterIsr(
        PARTITION_ID, 0, partition(state).partition_epoch, (2, 3), {2: registration_id(2)}
    )
    state = after(state, joined)
    state = after(
        state, FinishReassignment(PARTITION_ID, partition(state).partition_epoch, seen("2 3"))
    )
    assert (partition(state).replicas, partition(state).leader) == ((2,), 2)


def test_a_partition_without_another_replica_does_not_begin_in_a_witness_or_a_leaving_directory() -> (
    None
):
    state = after(
        State(CLUSTER), Add(identity(1), offset=1), Add(identity(2), offset=2, replicas=False)
    )
    state = after(state, Add(identity(3), offset=3), Add(identity(4), offset=4))
    state = after(state, CreateTopic("t", TOPIC_ID, frozenset({1}), assignment=((1,),)))
    assert partition(after(state, ForceRetire(1))).replicas == (3,)
    leaving = apply(state, replace(state.nodes[3], leaving=True))
    assert partition(after(leaving, ForceRetire(1))).replicas == (4,)


def test_a_partition_that_waits_for_a_stranger_waits_after_the_removal_of_another_one() -> None:
    alone = having(with_topic(), isr=(1,))
    waiting = after(alone, crashed(1, seen("2 3"), Condition.STRANGER))
    record = partition(after(waiting, ForceRetire(3, {PARTITION_ID: seen("2")})))
    assert (record.leader, record.replicas, record.isr, record.strangers) == (
        NO_LEADER,
        (1, 2),
        (),
        (1,),
    )
    record = partition(after(waiting, ForceRetire(1, {PARTITION_ID: seen("2 3")})))
    assert (record.leader, record.replicas, record.isr, record.strangers) == (
        2,
        (2, 3),
        (2, 3),
        (),
    ), "what it alone had is lost"
