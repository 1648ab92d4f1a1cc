"""Decisions about topics and settings: creation, growth, deletion, and what a setting does to
partitions.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from embedlog.errors import ConfigError
from embedlog.replicas.rules.events import (
    AlterIsr,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Reassign,
    Refusal,
    SetConfig,
)
from embedlog.replicas.rules.placement import Shape, extend, place_replicas
from embedlog.replicas.rules.records import (
    NODE,
    ORIGINAL,
    DecidedConfig,
    DecidedTopic,
    RemoveTopic,
    Tombstone,
    key_of,
)
from embedlog.replicas.rules.state import apply
from tests.support.replica_sets import (
    PARTITION_ID,
    TOPIC_ID,
    a_set,
    after,
    changes_of,
    decided,
    having,
    partition,
    refused,
    registration_id,
    seen,
    with_topic,
)

LIVE = frozenset({1, 2, 3})
NEW = CreateTopic("t", TOPIC_ID, LIVE)
LEAST = "min.insync.replicas"


def test_partitions_of_a_new_topic_are_placed() -> None:
    event = replace(NEW, partitions=7, factor=2, start=1, shift=1)
    state = after(a_set(), event)
    found = state.partitions_of(TOPIC_ID)
    assert tuple(each.replicas for each in found) == place_replicas(
        state.usable_racks(), Shape(7, 2), start=1, shift=1
    )
    for number, each in enumerate(found):
        assert (each.number, each.leader, each.isr, each.elr) == (
            number,
            each.replicas[0],
            each.replicas,
            (),
        )
        assert (each.leader_epoch, each.partition_epoch, each.leader_registration_id) == (
            0,
            0,
            registration_id(each.leader),
        )
        assert each.directories == tuple(state.nodes[node].directory for node in each.replicas)


def test_only_live_replicas_are_in_a_new_isr() -> None:
    state = after(a_set(), replace(NEW, live=frozenset({2, 3}), assignment=((1, 3, 2),)))
    assert (partition(state).leader, partition(state).isr) == (3, (3, 2))
    dead = replace(NEW, live=frozenset({2}), assignment=((2, 1), (1, 3)))
    assert refused(a_set(), dead) is Refusal.INVALID_REPLICA_ASSIGNMENT


def test_a_topic_is_one_decision() -> None:
    records = decided(
        a_set(), replace(NEW, partitions=2, config={"flush.messages": "1", LEAST: "2"})
    )
    configs = (
        DecidedConfig(2, "t", "flush.messages", "1", (ORIGINAL,)),
        DecidedConfig(2, "t", LEAST, "2", (ORIGINAL,)),
    )
    assert records[:3] == (DecidedTopic("t", TOPIC_ID), *configs)
    assert len(changes_of(records)) == len(records) - 3 == 2


@pytest.mark.parametrize("name", ["t.x", "t_x"])
def test_a_name_or_id_is_used_once(name: str) -> None:
    state = after(a_set(), replace(NEW, name="t.x"))
    other = UUID(int=2)
    assert refused(state, replace(NEW, name=name, topic_uuid=other)) is Refusal.TOPIC_ALREADY_EXISTS
    assert refused(state, replace(NEW, name="other")) is Refusal.TOPIC_ALREADY_EXISTS
    assert decided(state, replace(NEW, name="other", topic_uuid=other))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"partitions": 0}, Refusal.INVALID_PARTITIONS),
        ({"assignment": ()}, Refusal.INVALID_PARTITIONS),
        ({"factor": 0}, Refusal.INVALID_REPLICATION_FACTOR),
        ({"factor": 4}, Refusal.INVALID_REPLICATION_FACTOR),
        ({"assignment": ((1, 1),)}, Refusal.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": ((1, 9),)}, Refusal.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": ((1, 2), (1,))}, Refusal.INVALID_REPLICA_ASSIGNMENT),
        ({"assignment": ((),)}, Refusal.INVALID_REPLICA_ASSIGNMENT),
        ({"config": {"no.such": "1"}}, Refusal.INVALID_CONFIG),
        ({"config": {LEAST: "0"}}, Refusal.INVALID_CONFIG),
    ],
)
def test_an_impossible_topic_is_refused(changes: dict[str, object], refusal: Refusal) -> None:
    assert refused(a_set(), replace(NEW, **changes)) is refusal  # type: ignore[arg-type]


def test_some_directories_with_racks_are_not_enough() -> None:
    state = a_set()
    state = apply(state, replace(state.nodes[2], rack="a"))
    assert refused(state, NEW) is Refusal.INVALID_REPLICA_ASSIGNMENT


def test_witnesses_and_leaving_directories_take_no_partitions() -> None:
    for facts in ({"replicas": False}, {"leaving": True}):
        state = a_set()
        state = apply(state, replace(state.nodes[2], **facts))
        assert refused(state, replace(NEW, factor=3)) is Refusal.INVALID_REPLICATION_FACTOR
        assert (
            refused(state, replace(NEW, assignment=((1, 2),))) is Refusal.INVALID_REPLICA_ASSIGNMENT
        )
        assert {
            each.replicas for each in changes_of(decided(state, replace(NEW, partitions=4)))
        } == {(1,), (3,)}


def test_directories_that_are_away_take_no_new_partitions() -> None:
    away = replace(NEW, partitions=6, live=frozenset({1, 3}))
    for start in range(4):
        found = changes_of(decided(a_set(), replace(away, factor=2, start=start, shift=start)))
        wanted = place_replicas({1: None, 3: None}, Shape(6, 2), start=start, shift=start)
        assert [(each.replicas, each.isr) for each in found] == [(each, each) for each in wanted]
    complete = changes_of(decided(a_set(), replace(away, factor=3)))
    assert {(tuple(sorted(each.replicas)), len(each.isr)) for each in complete} == {((1, 2, 3), 2)}
    assert refused(a_set(), replace(away, factor=4)) is Refusal.INVALID_REPLICATION_FACTOR


# ---- growth and deletion ---------------------------------------------------------------------------------------------


def test_added_partitions_continue_the_placement() -> None:
    state = after(a_set(), replace(NEW, partitions=2, factor=2, start=1))
    before = [each.replicas for each in state.partitions_of(TOPIC_ID)]
    records = decided(state, CreatePartitions(TOPIC_ID, 5, LIVE))
    assert tuple(each.replicas for each in changes_of(records)) == extend(
        state.usable_racks(), before, 5
    )
    assert [each.number for each in changes_of(records)] == [2, 3, 4]
    given = decided(state, CreatePartitions(TOPIC_ID, 3, LIVE, ((3, 2),)))
    assert [(each.number, each.replicas) for each in changes_of(given)] == [(2, (3, 2))]


def test_directories_that_are_away_take_no_added_partitions() -> None:
    state = after(a_set(), replace(NEW, assignment=((2, 3),)))
    found = changes_of(decided(state, CreatePartitions(TOPIC_ID, 6, frozenset({1, 3}))))
    assert tuple(each.replicas for each in found) == extend({1: None, 3: None}, [(2, 3)], 6)
    assert all(each.isr == each.replicas for each in found)
    wide = after(a_set(), replace(NEW, assignment=((1, 2, 3),)))
    few = changes_of(decided(wide, CreatePartitions(TOPIC_ID, 4, frozenset({1, 3}))))
    assert [(set(each.replicas), set(each.isr)) for each in few] == [({1, 2, 3}, {1, 3})] * 3


def test_added_partitions_have_the_factor_of_the_target() -> None:
    state = after(a_set(), replace(NEW, assignment=((1, 2),)))
    state = after(state, Reassign(PARTITION_ID, 0, (3, 1, 2)))
    assert [
        len(each.replicas)
        for each in changes_of(decided(state, CreatePartitions(TOPIC_ID, 2, LIVE)))
    ] == [3]


def test_impossible_growth_is_refused() -> None:
    state = after(a_set(), replace(NEW, partitions=2, factor=2))
    for total in (0, 1, 2):
        assert refused(state, CreatePartitions(TOPIC_ID, total, LIVE)) is Refusal.INVALID_PARTITIONS
    for given in (((1,),), ((1, 2), (2, 3)), ((1, 1),)):
        assert (
            refused(state, CreatePartitions(TOPIC_ID, 3, LIVE, given))
            is Refusal.INVALID_REPLICA_ASSIGNMENT
        )
    assert (
        refused(state, CreatePartitions(UUID(int=9), 3, LIVE)) is Refusal.UNKNOWN_TOPIC_OR_PARTITION
    )
    fewer = replace(state, nodes={1: state.nodes[1]})
    assert refused(fewer, CreatePartitions(TOPIC_ID, 3, LIVE)) is Refusal.INVALID_REPLICATION_FACTOR


def test_a_deletion_leaves_nothing_and_frees_every_key() -> None:
    state = after(a_set(), replace(NEW, name="other", topic_uuid=UUID(int=2), config={LEAST: "2"}))
    full = after(state, replace(NEW, partitions=3, config={LEAST: "2", "flush.messages": "1"}))
    records = decided(full, DeleteTopic(TOPIC_ID))
    assert after(full, DeleteTopic(TOPIC_ID)) == state
    assert records[0] == RemoveTopic(TOPIC_ID)
    created = decided(state, replace(NEW, partitions=3, config={LEAST: "2", "flush.messages": "1"}))
    assert {each.key for each in records[1:] if isinstance(each, Tombstone)} == {
        key_of(each) for each in created
    }
    assert refused(state, DeleteTopic(TOPIC_ID)) is Refusal.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_of_the_same_name_begins_with_no_settings() -> None:
    state = after(
        a_set(),
        replace(NEW, config={LEAST: "2"}),
        DeleteTopic(TOPIC_ID),
        replace(NEW, topic_uuid=UUID(int=2), removed=TOPIC_ID),
    )
    assert state.config("t").min_insync_replicas == 1


def test_a_topic_is_not_created_if_another_one_was_deleted_meanwhile() -> None:
    """It can have had the name, and left committed offsets."""
    state = after(a_set(), NEW, DeleteTopic(TOPIC_ID))
    again = replace(NEW, topic_uuid=UUID(int=2))
    assert refused(state, again) is Refusal.TOPIC_DELETED
    created = after(state, replace(again, removed=TOPIC_ID))
    assert refused(created, replace(NEW, name="other")) is Refusal.TOPIC_DELETED
    assert decided(created, replace(NEW, name="other", removed=TOPIC_ID))


# ---- settings --------------------------------------------------------------------------------------------------------


def test_a_setting_of_the_topic_covers_that_of_all_topics() -> None:
    state = with_topic()
    assert [state.required_size(partition(state), default) for default in (1, 2, 9)] == [1, 2, 3], (
        "at most the number of replicas"
    )
    state = after(state, SetConfig("", {LEAST: "2"}, NODE))
    assert state.required_size(partition(state)) == state.required_size(partition(state), 3) == 2
    state = after(state, SetConfig("t", {LEAST: "3"}))
    assert state.required_size(partition(state)) == state.required_size(partition(state), 1) == 3
    state = after(state, SetConfig("t", {LEAST: None}))
    assert state.required_size(partition(state)) == 2
    state = after(state, SetConfig("", {LEAST: None, "flush.messages": "1"}, NODE))
    assert (state.required_size(partition(state)), state.is_durable(partition(state))) == (
        1,
        False,
    ), "no partition has that default"
    assert decided(state, SetConfig("", {LEAST: None, "flush.messages": "1"}, NODE)) == (), (
        "nothing changes"
    )


def test_a_lower_required_size_ends_the_elr() -> None:
    """From then on the ISR commits records alone, and a member of the ELR does not have them."""
    state = with_topic(min_insync_replicas="2")
    state = after(state, AlterIsr(PARTITION_ID, 0, 0, (1,)))
    assert partition(state).elr == (2, 3)
    observed = {PARTITION_ID: seen("1")}
    for event in (
        SetConfig("t", {LEAST: "1"}, seen=observed),
        SetConfig("t", {LEAST: None}, seen=observed),
    ):
        found = partition(after(state, event))
        assert (found.elr, found.isr, found.leader_epoch, found.partition_epoch) == ((), (1,), 0, 2)
    untouched = partition(after(state, SetConfig("t", {LEAST: "3"})))
    assert untouched == partition(state)


def test_a_required_size_that_the_isr_does_not_have_is_a_decision_about_the_partition() -> None:
    """The leader uses the setting of its installed decision, and only a newer decision is
    installed.
    """
    state = having(with_topic(), isr=(1,))
    raised = after(state, SetConfig("t", {LEAST: "2"}))
    assert (
        partition(raised).partition_epoch,
        partition(raised).isr,
        partition(raised).leader_epoch,
    ) == (1, (1,), 0)
    higher = after(raised, SetConfig("t", {LEAST: "3"}))
    assert partition(higher) == partition(raised), "it was too small before"
    assert partition(after(higher, SetConfig("t", {LEAST: "1"}))).partition_epoch == 2
    assert partition(after(with_topic(), SetConfig("t", {LEAST: "3"}))).partition_epoch == 0, (
        "the ISR is large enough"
    )


def test_a_default_ends_the_elr_of_the_topics_that_it_reaches() -> None:
    state = having(after(with_topic(), SetConfig("", {LEAST: "2"}, NODE)), isr=(1,), elr=(2,))
    own = after(state, SetConfig("t", {LEAST: "2"}))
    assert (
        partition(after(state, SetConfig("", {LEAST: "1"}, NODE, {PARTITION_ID: seen("1")}))).elr
        == ()
    )
    assert partition(after(own, SetConfig("", {LEAST: "1"}, NODE))).elr == (2,)


@pytest.mark.parametrize("observed", ["", "2 3", "c1 2"])
def test_an_elr_does_not_end_without_a_complete_leader(observed: str) -> None:
    """After a crash of the leader, a member of the ELR may have the only copy of a committed
    record.
    """
    state = having(with_topic(min_insync_replicas="2"), isr=(1,), elr=(2,))
    assert (
        refused(state, SetConfig("t", {LEAST: "1"}, seen={PARTITION_ID: seen(observed)}))
        is Refusal.LEADER_NOT_AVAILABLE
    )
    assert decided(state, SetConfig("t", {LEAST: "3"})), "the ELR remains"


def test_impossible_settings_are_refused() -> None:
    state = with_topic()
    assert refused(state, SetConfig("x", {LEAST: "2"})) is Refusal.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(state, SetConfig("1", {LEAST: "2"}, NODE)) is Refusal.INVALID_REQUEST
    assert refused(state, SetConfig("t", {LEAST: "2"}, 7)) is Refusal.INVALID_REQUEST
    for changes in (
        {LEAST: "0"},
        {LEAST: "many"},
        {"no.such": "1"},
        {LEAST: "2", "flush.messages": "-1"},
    ):
        assert refused(state, SetConfig("t", changes)) is Refusal.INVALID_CONFIG


def test_settings_that_contradict_each_other_are_refused() -> None:
    """Each is valid alone; no process could apply both."""
    least = "min.compaction.lag.ms"
    most = "max.compaction.lag.ms"
    state = apply(with_topic(), DecidedConfig(2, "t", most, "1000"))
    assert refused(state, SetConfig("t", {least: "5000"})) is Refusal.INVALID_CONFIG
    assert refused(state, SetConfig("t", {least: "5", most: "4"})) is Refusal.INVALID_CONFIG
    assert decided(state, SetConfig("t", {least: "5000", most: None}))
    assert decided(state, SetConfig("t", {least: "5000", most: "6000"}))


def test_contradicting_settings_of_before_are_repaired_by_a_change() -> None:
    least = "min.compaction.lag.ms"
    state = with_topic()
    for name, value in (
        ("max.compaction.lag.ms", "1000"),
        (least, "5000"),
        ("setting.of.a.newer.version", "1"),
    ):
        state = apply(state, DecidedConfig(2, "t", name, value))
    assert refused(state, SetConfig("t", {"retention.ms": "1"})) is Refusal.INVALID_CONFIG
    assert decided(state, SetConfig("t", {least: None}))


def test_a_stored_setting_out_of_range_is_a_typed_error() -> None:
    state = apply(with_topic(), DecidedConfig(2, "t", LEAST, "0"))
    with pytest.raises(ConfigError, match=LEAST):
        state.required_size(partition(state))
