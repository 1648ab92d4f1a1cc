"""Kafka's consumer in a group, row by row: configuration, subscribing, poll and positions, as far
as a group changes them.

The names say the table and the row; test_committing and test_listeners have the other tables. The
groups are in memory, under the real rules (tests/support/fake_groups.py); tests with processes are
in consumer/test_groups.
"""

from __future__ import annotations

from typing import Any

import pytest

from embedlog.errors import (
    CommitFailedError,
    ConfigError,
    DeadlineError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidTopicError,
    LockTimeoutError,
    NoOffsetForPartitionError,
    RecordTooLargeError,
    StateError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from embedlog.group import State
from embedlog.types import GroupMetadata, OffsetAndMetadata
from tests.support.fake_engine import fill, places
from tests.support.fake_groups import A0, A1, B0, GroupEngine, listening, run_duties, settle
from tests.support.fake_groups import engine as engine
from tests.support.fake_groups import member as member

# ---- configuration ----------------------------------------------------------------------------------------------------


def test_configuration_the_consumer_protocol_is_refused(member: Any) -> None:
    with pytest.raises(ConfigError, match=r"group\.protocol.*classic"):
        member("a", group_protocol="consumer")


@pytest.mark.parametrize(
    "strategy", [[], ["uniform"], ["range", "range"], [len, len], [lambda members, counts: {}], [3]]
)
def test_configuration_assignors_are_names_or_callables_with_a_name(
    member: Any, strategy: Any
) -> None:
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy"):
        member("a", partition_assignment_strategy=strategy)


@pytest.mark.parametrize("group_id", ["", " ", "x" * 40_000, "\ud800"])
def test_configuration_a_group_id_is_a_name(member: Any, group_id: str) -> None:
    with pytest.raises((ConfigError, InvalidGroupIdError)):
        member("a", group_id=group_id)


def test_configuration_client_id_is_made_of_group_and_number_or_instance(
    engine: GroupEngine, member: Any
) -> None:
    first = member("a")
    second = member("b", group_instance_id="static-1")
    settle(first, second)
    one, other = engine.group().members.values()
    assert one.client_id.startswith("consumer-g-")
    assert one.member_id.startswith(f"{one.client_id}-")
    assert other.client_id == "consumer-g-static-1"
    assert other.member_id.startswith("static-1-")


def test_configuration_session_and_poll_intervals_are_what_the_group_hears(
    engine: GroupEngine, member: Any
) -> None:
    settle(member("a", session_timeout_ms=900, max_poll_interval_ms=1234))
    (one,) = engine.group().members.values()
    assert (one.session_timeout_ms, one.rebalance_timeout_ms) == (900, 1234)


def test_configuration_a_session_timeout_outside_the_logs_range_is_refused(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("a", session_timeout_ms=9, heartbeat_interval_ms=1)
    with pytest.raises(ConfigError, match="session timeout"):
        reader.poll()


# ---- subscribing ------------------------------------------------------------------------------------------------------


def test_subscribing_replaces_and_an_empty_list_is_unsubscribe(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("a")
    settle(reader)
    reader.subscribe(["b"])
    assert reader.subscription() == {"b"}
    settle(reader)
    assert reader.assignment() == {B0}
    reader.subscribe([])
    assert (reader.subscription(), reader.assignment()) == (set(), set())
    assert engine.group().state is State.EMPTY


@pytest.mark.parametrize("topics", [None, "a", [None], [" "], [""]])
def test_subscribing_to_no_name_is_refused(member: Any, topics: Any) -> None:
    with pytest.raises((TypeError, InvalidTopicError)):
        member().subscribe(topics)


def test_subscribing_to_a_topic_that_is_not_there_changes_nothing(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("a")
    settle(reader)
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.subscribe(["a", "c"])
    assert (reader.subscription(), reader.assignment()) == ({"a"}, {A0, A1})


def test_subscribing_by_pattern_new_matches_trigger_a_rebalance(
    engine: GroupEngine, member: Any
) -> None:
    first = member()
    second = member()
    first.subscribe(pattern="a|new-.")
    second.subscribe(pattern="a|new-.")
    settle(first, second)
    generation = engine.group().generation
    engine.grow("new-1", 2)
    engine.grow("new-10", 1)
    settle(first, second)
    assert engine.group().generation > generation
    assert first.assignment() | second.assignment() == {A0, A1, ("new-1", 0), ("new-1", 1)}
    assert not first.assignment() & second.assignment()


def test_subscribing_new_partitions_are_noticed_by_the_leader(
    engine: GroupEngine, member: Any
) -> None:
    first = member("a")
    second = member("a")
    settle(first, second)
    engine.grow("a", 5)
    settle(first, second)
    assert {tp.partition for tp in first.assignment() | second.assignment()} == {0, 1, 2, 3, 4}


def test_assigning_in_a_group_is_no_membership_no_rebalance_and_no_listener(
    engine: GroupEngine, member: Any
) -> None:
    reader = member()
    reader.assign([A0])
    fill(engine.partition("a", 0), 3)
    assert places(reader.poll()) == [(0, 0), (0, 1), (0, 2)]
    assert engine.groups.read_group("g") is None
    assert reader.group_metadata() == GroupMetadata("g")


def test_assigning_anew_begins_an_automatic_commit_and_keeps_positions(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("a", 0), 10)
    reader = member()
    reader.assign([A0, A1])
    reader.poll(max_records=4)
    reader.assign([A0, B0])
    assert engine.committed() == {A0: 4, A1: 0}
    assert reader.position(A0) == 4


def test_mixing_topics_patterns_and_partitions_needs_unsubscribe(member: Any) -> None:
    reader = member("a")
    with pytest.raises(StateError, match=r"unsubscribe\(\) first"):
        reader.assign([A0])
    reader.unsubscribe()
    reader.assign([A0])
    with pytest.raises(StateError, match=r"unsubscribe\(\) first"):
        reader.subscribe(["a"])


def test_unsubscribing_leaves_the_group_revokes_and_drops_positions(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member(enable_auto_commit=False)
    calls = listening(reader, "b")
    settle(reader)
    reader.poll(max_records=4)
    calls.take()
    reader.unsubscribe()
    assert calls.take() == [("revoked", [B0])]
    assert engine.group().state is State.EMPTY
    reader.subscribe(["b"])
    settle(reader)
    assert reader.position(B0) == 0


def test_unsubscribing_a_static_member_keeps_its_place(engine: GroupEngine, member: Any) -> None:
    reader = member("a", group_instance_id="one")
    settle(reader)
    reader.unsubscribe()
    assert len(engine.group().members) == 1


def test_assignment_is_empty_until_the_first_rebalance_finished_inside_poll(member: Any) -> None:
    reader = member("a")
    assert (reader.subscription(), reader.assignment()) == ({"a"}, set())
    for copy in (reader.subscription(), reader.assignment(), reader.paused()):
        copy.add("mine")
    reader.poll()
    assert reader.assignment() == {A0, A1}


def test_changing_the_subscription_while_joined_rejoins_at_the_next_poll(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("a", 0), 10)
    fill(engine.partition("b", 0), 2)
    reader = member("a", "b", max_poll_records=3)
    assert {record.topic for record in reader.poll()} == {"a"}
    generation = reader.group_metadata().generation
    reader.subscribe(["b"])
    assert {record.topic for record in reader.poll()} == {"b"}
    assert reader.group_metadata().generation == generation + 1


# ---- poll -------------------------------------------------------------------------------------------------------------


def test_poll_a_group_is_joined_inside_poll_and_needs_no_whole_timeout(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("a", 0), 3)
    assert len(member("a").poll(timeout=60)) == 3
    assert engine.waits == 0


def test_poll_a_rebalance_needs_everybody_to_poll(engine: GroupEngine, member: Any) -> None:
    first = member("a")
    second = member("a")
    settle(first)
    for _ in range(3):
        run_duties(second)
    assert second.assignment() == set()
    settle(first, second)
    assert {len(first.assignment()), len(second.assignment())} == {1}


def test_poll_another_member_that_joins_wakes_who_waits(engine: GroupEngine, member: Any) -> None:
    first = member("a")
    second = member("a")
    settle(first)
    until = first._group.until_ns
    run_duties(second)
    assert first._engine.groups.topic.word != first._group._notice
    run_duties(first)  # though nothing is due yet
    assert first._group.until_ns >= until
    assert len(first.assignment()) == 1


def test_poll_no_position_and_no_commit_without_a_policy_is_an_error(member: Any) -> None:
    reader = member("b", auto_offset_reset="none")
    with pytest.raises(NoOffsetForPartitionError) as caught:
        reader.poll()
    assert (caught.value.topic, caught.value.partition) == ("b", 0)


def test_poll_partitions_of_a_deleted_topic_are_let_go(engine: GroupEngine, member: Any) -> None:
    reader = member("a", "b")
    settle(reader)
    engine._partitions["b"][0].closed = True
    del engine._partitions["b"]
    engine.word += 2
    settle(reader)
    assert reader.assignment() == {A0, A1}


# ---- positions --------------------------------------------------------------------------------------------------------


def test_positions_a_newly_assigned_partition_starts_at_the_committed_offset(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    engine.groups.commit("g", {B0: OffsetAndMetadata(7, "note", 0)})
    reader = member("b")
    assert places(reader.poll()) == [(0, 7), (0, 8), (0, 9)]


@pytest.mark.parametrize(
    ("policy", "position"), [("earliest", 0), ("latest", 10), ("by_duration:P1D", 10)]
)
def test_positions_without_a_commit_the_policy_says(
    engine: GroupEngine, member: Any, policy: str, position: int
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member("b", auto_offset_reset=policy)
    reader.poll(max_records=1)
    assert reader.position(B0) - position in (0, 1)


def test_positions_latest_is_the_moment_of_the_assignment(engine: GroupEngine, member: Any) -> None:
    reader = member("b", auto_offset_reset="latest")
    run_duties(reader)
    fill(engine.partition("b", 0), 3)
    assert len(reader.poll()) == 3


def test_positions_a_committed_offset_out_of_range_follows_the_policy(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    engine.groups.commit("g", {B0: OffsetAndMetadata(99)})
    assert places(member("b").poll(max_records=1)) == [(0, 0)]


def test_positions_a_committed_epoch_tells_of_a_log_that_was_cut(
    engine: GroupEngine, member: Any
) -> None:
    partition = engine.partition("b", 0)
    fill(partition, 5)
    partition.epochs.append((1, 3))
    engine.groups.commit("g", {B0: OffsetAndMetadata(5, "", 0)})
    assert places(member("b", auto_offset_reset="latest").poll()) == [(0, 3), (0, 4)]


def test_positions_what_a_transaction_holds_back_waits_and_the_others_are_read(
    engine: GroupEngine, member: Any
) -> None:
    for number in range(2):
        fill(engine.partition("a", number), 3)
    engine.groups.unstable = {A1}
    reader = member("a", default_api_timeout_ms=0)
    assert places(reader.poll()) == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(DeadlineError):
        reader.position(A1)
    engine.groups.unstable = set()
    engine.groups.offsets["g"] = {A1: OffsetAndMetadata(2)}
    reader._group.until_ns = 0
    assert places(reader.poll()) == [(1, 2)]


# ---- errors of the group ----------------------------------------------------------------------------------------------


def test_no_common_assignor_is_refused(engine: GroupEngine, member: Any) -> None:
    settle(member("a"))
    with pytest.raises(InconsistentGroupProtocolError):
        member("a", partition_assignment_strategy=["sticky"]).poll()


def test_a_lock_that_others_hold_is_tried_again_and_told_in_the_end(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 30)
    reader = member("b", max_poll_records=1)
    reader.poll()
    engine.groups.locked = True
    reader.enforce_rebalance()
    engine.config.lock_timeout_ms = 0
    run_duties(reader)
    reader._group.until_ns = 0
    with pytest.raises(LockTimeoutError):
        run_duties(reader)
    engine.groups.locked = False
    settle(reader)
    assert reader.assignment() == {B0}


def test_wakeup_ends_a_wait_for_the_group(engine: GroupEngine, member: Any) -> None:
    first = member("a")
    second = member("a")
    settle(first)
    second.wakeup()
    with pytest.raises(WakeupError):
        second.poll(timeout=60)
    assert second.poll(timeout=0.01) == []


def test_a_generation_that_went_by_is_told_apart() -> None:
    assert issubclass(IllegalGenerationError, CommitFailedError)
    assert issubclass(RecordTooLargeError, Exception)
