"""Kafka's rebalance listener, row by row, and other calls of a member of a group: metadata,
liveness, metrics.

The groups are in memory, under the real rules (tests/support/fake_groups.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from embedlog.coordination.groups.member_watch import Watch
from embedlog.errors import (
    ClosedError,
    ListenerError,
    StateError,
)
from embedlog.group import State
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.support.fake_engine import fill, places
from tests.support.fake_groups import (
    A0,
    A1,
    B0,
    COOPERATIVE,
    GroupEngine,
    ListenerCalls,
    listening,
    run_duties,
    settle,
)
from tests.support.fake_groups import engine as engine
from tests.support.fake_groups import member as member

# ---- seeking and metadata ---------------------------------------------------------------------------------------------


def test_seeking_in_a_listener_comes_before_the_committed_offset(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    engine.groups.commit("g", {B0: 3})
    reader = member()
    reader.subscribe(["b"], on_assigned=lambda tps: [reader.seek(tp, 8) for tp in tps])
    assert places(reader.poll()) == [(0, 8), (0, 9)]


def test_pausing_is_lost_with_the_partition_and_in_an_eager_rebalance(
    engine: GroupEngine, member: Any
) -> None:
    first = member("a", "b")
    settle(first)
    first.pause(A0, A1, B0)
    settle(first, member("b"))
    assert first.paused() == set()


def test_pausing_kept_partitions_of_a_cooperative_rebalance_stay_paused(
    engine: GroupEngine, member: Any
) -> None:
    first = member("a", **COOPERATIVE)
    second = member("a", **COOPERATIVE)
    settle(first)
    first.pause(A0, A1)
    settle(first, second)
    assert first.paused() == first.assignment()
    assert len(first.assignment()) == 1


def test_enforce_rebalance_rejoins_at_the_next_poll_of_leader_and_follower(
    engine: GroupEngine, member: Any
) -> None:
    both = member("a"), member("a")
    settle(*both)
    for reader in both:
        generation = engine.group().generation
        reader.enforce_rebalance()
        assert engine.group().generation == generation
        settle(*both)
        assert engine.group().generation == generation + 1


def test_enforce_rebalance_is_for_topics(member: Any) -> None:
    reader = member()
    reader.assign([A0])
    with pytest.raises(StateError):
        reader.enforce_rebalance()


def test_group_metadata_has_group_generation_member_and_instance(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("a", group_instance_id="one")
    assert reader.group_metadata() == GroupMetadata("g", -1, "", "one")
    settle(reader)
    (member_id,) = engine.group().members
    assert reader.group_metadata() == GroupMetadata("g", 1, member_id, "one")


def test_close_commits_revokes_and_leaves(engine: GroupEngine, member: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member()
    other = member("a", "b")
    calls = listening(reader, "b")
    settle(reader, other)
    calls.take()
    reader.close()
    assert calls.take() == [("revoked", sorted({B0} - other.assignment()))]
    assert len(engine.group().members) == 1
    assert engine.liveness.leases[0].ended
    reader.close()


def test_close_of_a_static_member_keeps_its_place(engine: GroupEngine, member: Any) -> None:
    reader = member("a", group_instance_id="one")
    settle(reader)
    reader.close()
    assert (engine.group().state, len(engine.group().members)) == (State.STABLE, 1)
    again = member("a", group_instance_id="one")
    settle(again)
    assert (engine.group().generation, again.assignment()) == (1, {A0, A1})


# ---- the rebalance listener -------------------------------------------------------------------------------------------


def test_listener_eager_everything_is_revoked_at_the_start_and_assigned_at_the_end(
    engine: GroupEngine, member: Any
) -> None:
    first = member()
    second = member("a")
    calls = listening(first, "a")
    settle(first)
    assert calls.take() == [("assigned", [A0, A1])]  # no revocation at the first join
    settle(first, second)
    assert calls.take() == [("revoked", [A0, A1]), ("assigned", sorted(first.assignment()))]


def test_listener_eager_is_called_even_if_there_is_nothing_to_revoke(
    engine: GroupEngine, member: Any
) -> None:
    engine.grow("c", 1)
    first = member("c", client_id="1")
    second = member(client_id="2")
    calls = listening(second, "c")
    settle(first, second)
    assert calls.take() == [("assigned", [])]
    second.enforce_rebalance()
    settle(first, second)
    assert calls.take() == [("revoked", []), ("assigned", [])]


def test_listener_cooperative_only_what_moves_is_revoked_and_only_what_is_new_assigned(
    engine: GroupEngine, member: Any
) -> None:
    first = member(**COOPERATIVE)
    second = member(**COOPERATIVE)
    calls = listening(first, "a")
    others = listening(second, "a")
    settle(first)
    assert calls.take() == [("assigned", [A0, A1])]
    settle(first, second)
    moved = second.assignment()
    assert len(moved) == 1
    assert calls.take() == [("revoked", sorted(moved)), ("assigned", []), ("assigned", [])]
    # of the round in between it may have heard nothing
    assert others.take()[-1] == ("assigned", sorted(moved))


def test_listener_cooperative_dropped_topics_are_revoked_at_the_start(
    engine: GroupEngine, member: Any
) -> None:
    first = member(**COOPERATIVE)
    calls = listening(first, "a", "b")
    settle(first)
    calls.take()
    first.subscribe(["a"], **calls.listeners())
    settle(first)
    assert calls.take() == [("revoked", [B0]), ("assigned", [])]
    assert first.assignment() == {A0, A1}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_listener_lost_when_kicked_out_and_by_default_it_is_revoked(
    engine: GroupEngine, member: Any, strategy: str
) -> None:
    first, second = (member(partition_assignment_strategy=[strategy]) for _ in range(2))
    calls = listening(first, "a")
    heard = []
    second.subscribe(["b"], on_revoked=heard.append)
    settle(first, second)
    calls.take()
    heard.clear()
    engine.evict_all()
    settle(first, second)
    assert calls.take()[0] == ("lost", [A0, A1])
    assert heard[0] == [B0]
    assert (first.assignment(), second.assignment()) == ({A0, A1}, {B0})


def test_listener_runs_on_the_thread_of_the_poll_and_may_ask_commit_and_seek(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member(enable_auto_commit=False)
    seen = []

    def assigned(tps: list[TopicPartition]) -> None:
        seen.append((reader.assignment(), [reader.position(tp) for tp in tps]))
        reader.commit(dict.fromkeys(tps, 2))
        for tp in tps:
            reader.seek(tp, 5)

    def revoked(tps: list[TopicPartition]) -> None:
        reader.commit()
        seen.append((reader.assignment(), [reader.position(tp) for tp in tps]))

    reader.subscribe(["b"], on_assigned=assigned, on_revoked=revoked)
    assert len(reader.poll()) == 5
    assert (seen, engine.committed()) == ([({B0}, [0])], {B0: 2})
    reader.unsubscribe()
    assert (seen[1:], engine.committed()) == ([({B0}, [10])], {B0: 10})


@pytest.mark.parametrize("which", ["on_assigned", "on_revoked", "on_lost"])
def test_listener_that_raises_is_told_by_poll_and_the_assignment_stands(
    engine: GroupEngine, member: Any, which: str
) -> None:
    def fail(tps: list[TopicPartition]) -> None:
        raise ValueError("of the user's")

    reader = member()
    reader.subscribe(["b"], **{which: fail})
    if which != "on_assigned":
        settle(reader)
        if which == "on_lost":
            engine.evict_all()
        reader.enforce_rebalance()
    with pytest.raises(ListenerError, match="of the user's") as caught:
        reader.poll()
    assert isinstance(caught.value.__cause__, ValueError)
    assert reader.assignment() == {B0}
    assert reader.poll() == []


def test_listener_that_raises_does_not_keep_the_others_from_being_called(
    engine: GroupEngine, member: Any
) -> None:
    reader = member()
    calls = ListenerCalls()

    def fail(tps: list[TopicPartition]) -> None:
        raise ValueError("of the user's")

    reader.subscribe(["b"], on_revoked=fail, on_assigned=calls.listeners()["on_assigned"])
    settle(reader)
    calls.take()
    reader.enforce_rebalance()
    with pytest.raises(ListenerError):
        reader.poll()
    assert calls.take() == [("assigned", [B0])]


def test_listener_may_commit_while_the_consumer_closes(engine: GroupEngine, member: Any) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member(enable_auto_commit=False)
    reader.subscribe(["b"], on_revoked=lambda tps: reader.commit())
    reader.poll(max_records=4)
    reader.close()
    assert engine.committed() == {B0: 4}
    with pytest.raises(ClosedError):
        reader.commit()


def test_listener_that_raises_in_close_is_told_and_the_group_is_left_all_the_same(
    engine: GroupEngine, member: Any
) -> None:
    def fail(tps: list[TopicPartition]) -> None:
        raise ValueError("of the user's")

    reader = member()
    reader.subscribe(["b"], on_revoked=fail)
    settle(reader)
    with pytest.raises(ListenerError):
        reader.close()
    assert engine.group().state is State.EMPTY


def test_listener_interrupted_gives_up_all_the_same_what_others_are_to_have(
    engine: GroupEngine, member: Any
) -> None:
    first = member(**COOPERATIVE)
    second = member("a", **COOPERATIVE)

    def interrupted(tps: list[TopicPartition]) -> None:
        raise KeyboardInterrupt

    first.subscribe(["a"], on_revoked=interrupted)
    settle(first)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(9):
            run_duties(second)
            run_duties(first)
    first.subscribe(["a"])
    settle(first, second)
    assert not first.assignment() & second.assignment()


@pytest.mark.parametrize("given", [{"on_assigned": 3}, {"on_lost": "x"}])
def test_listener_that_cannot_be_called_is_a_type_error(member: Any, given: Any) -> None:
    with pytest.raises(TypeError, match="callable"):
        member().subscribe(["a"], **given)


# ---- liveness, metrics ------------------------------------------------------------------------------------------------


def test_liveness_a_member_whose_polls_stopped_comes_again_and_reports_what_it_lost(
    engine: GroupEngine, member: Any
) -> None:
    reader = member()
    calls = listening(reader, "b")
    settle(reader)
    calls.take()
    before = reader.group_metadata().member_id
    engine.liveness.leases[0].has_left = True
    reader._group.until_ns = 0
    settle(reader)
    assert calls.take() == [("lost", [B0]), ("assigned", [B0])]
    assert list(engine.group().members) == [reader.group_metadata().member_id] != [before]


def test_liveness_a_static_member_whose_polls_stopped_keeps_its_place(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("b", group_instance_id="one")
    settle(reader)
    engine.liveness.leases[0].has_left = True
    reader._group.until_ns = 0
    settle(reader)
    assert (engine.group().generation, reader.assignment()) == (1, {B0})


def test_liveness_a_lease_that_lapsed_is_renewed_before_the_group_is_looked_at(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("b")
    settle(reader)
    engine.liveness.leases[0].is_expired = True
    reader._group.until_ns = 0
    fill(engine.partition("b", 0), 3)
    assert len(reader.poll()) == 3  # it kept the partition meanwhile
    assert engine.liveness.leases[0].renewed_count == 1


def test_liveness_records_in_hand_at_an_eviction_are_not_handed_out(
    engine: GroupEngine, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member()
    calls = listening(reader, "b")
    loop = iter(reader)
    assert [next(loop).offset for _ in range(2)] == [0, 1]
    calls.take()
    engine.evict_all()  # and another one read on
    engine.groups.offsets["g"] = {B0: OffsetAndMetadata(7)}
    reader._group.until_ns = 0  # type: ignore[union-attr]
    # the process was frozen for long
    monkeypatch.setattr("embedlog.consumer.collector.monotonic_ns", lambda: 1 << 62)
    assert [next(loop).offset for _ in range(3)] == [7, 8, 9]
    assert calls.take() == [("lost", [B0]), ("assigned", [B0])]


def test_liveness_a_dead_member_is_evicted_by_another(engine: GroupEngine, member: Any) -> None:
    first = member("a")
    second = member("a")
    settle(first, second)
    engine.liveness.leases[0].ended = True
    second._group._watch = Watch(engine.liveness)
    second._group.until_ns = 0
    settle(second)
    assert second.assignment() == {A0, A1}


def test_metrics_of_the_group_have_kafkas_names(engine: GroupEngine, member: Any) -> None:
    reader = member("b")
    settle(reader)
    reader.commit({B0: 1})
    reader.committed(B0)
    engine.evict_all()
    settle(reader)
    known = reader.metrics()
    assert (known["rebalance-total"], known["failed-rebalance-total"], known["commit-total"]) == (
        2,
        1,
        1,
    )
    assert known["join-time-max"] >= known["join-time-avg"] >= 0
    assert known["sync-time-max"] >= 0
    assert known["rebalance-latency-total"] >= known["rebalance-latency-max"] > 0
    assert known["commit-latency-max"] >= known["commit-latency-avg"] > 0
    assert known["last-rebalance-seconds-ago"] >= 0
    assert known["commit-sync-time-ns-total"] > 0
    assert known["committed-time-ns-total"] > 0
    assert known["assigned-partitions"] == 1
    assert {
        "heartbeat-rate",
        "last-heartbeat-seconds-ago",
        "rebalance-rate-per-hour",
        "commit-rate",
    } <= known.keys()
