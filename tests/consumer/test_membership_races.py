"""Events between two steps of a member: interrupts, locks that others hold, places that others
take.

The groups are in memory, under the real rules (tests/support/fake_groups.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from embedlog.consumer.consumer import Consumer
from embedlog.consumer.coordinator import ConsumerCoordinator
from embedlog.coordination.groups.member_watch import Watch
from embedlog.errors import CommitFailedError, FencedInstanceIdError, RebalanceInProgressError
from embedlog.group import State
from embedlog.types import TopicPartition
from tests.support.fake_engine import fill
from tests.support.fake_groups import A0, A1, B0, COOPERATIVE, GroupEngine, run_duties, settle
from tests.support.fake_groups import engine as engine
from tests.support.fake_groups import member as member


def stop_polling(engine: GroupEngine, number: int, reader: Consumer) -> None:
    engine.liveness.leases[number].has_left = True
    reader._group.until_ns = 0  # type: ignore[union-attr]


# ---- a place that another one has taken ------------------------------------------------------------------------------------


def test_a_static_member_that_slept_does_not_take_its_place_back(
    engine: GroupEngine, member: Any
) -> None:
    """Its polls had stopped, and another process came with its instance id: the one that slept is
    fenced, not the new one.
    """
    old = member("b", group_instance_id="one")
    new = member("b", group_instance_id="one")
    settle(old)
    stop_polling(engine, 0, old)
    settle(new)
    with pytest.raises(FencedInstanceIdError):
        run_duties(old)
    assert list(engine.group().members) == [new.group_metadata().member_id]
    settle(new)
    assert new.assignment() == {B0}


def test_a_static_leader_that_comes_back_sees_what_has_changed_while_nobody_led(
    engine: GroupEngine, member: Any
) -> None:
    """It gets its former partitions without a rebalance; a partition created meanwhile is in no
    assignment.
    """
    settle(member("b", group_instance_id="one"))
    engine._partitions["b"].append(engine._partitions["a"].pop())
    engine.word += 2
    back = member("b", group_instance_id="one")
    settle(back)
    assert back.assignment() == {B0, TopicPartition("b", 1)}


# ---- one process, two ids ---------------------------------------------------------------------------------------------------


def test_a_join_that_was_written_but_not_told_leaves_nobody_behind(
    engine: GroupEngine, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = engine.groups.decide

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(engine.groups, "decide", decide)
        decide(*arguments)
        raise KeyboardInterrupt

    reader = member("a")
    other = member("a")
    settle(other)
    monkeypatch.setattr(engine.groups, "decide", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_duties(reader)
    settle(reader, other)
    assert len(engine.group().members) == 2


def test_a_member_whose_leaving_nobody_could_hear_of_is_not_waited_for(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("a")
    other = member("a")
    settle(reader, other)
    stop_polling(engine, 0, reader)
    engine.groups.locked = True
    run_duties(reader)
    engine.groups.locked = False
    reader._group.until_ns = 0
    settle(reader, other)
    assert len(engine.group().members) == 2
    assert {len(reader.assignment()), len(other.assignment())} == {1}


def test_who_unsubscribes_under_a_lock_that_others_hold_shows_no_life_any_more(
    engine: GroupEngine, member: Any
) -> None:
    """Else it would be a member for ever: it is alive, so no member evicts it."""
    reader = member("a")
    other = member("a")
    settle(reader, other)
    engine.groups.locked = True
    reader.unsubscribe()
    engine.groups.locked = False
    other._group._watch = Watch(engine.liveness)
    other._group.until_ns = 0
    settle(other, rounds=60)
    assert other.assignment() == {A0, A1}
    reader.subscribe(["a"])
    settle(reader, other)
    assert {len(reader.assignment()), len(other.assignment())} == {1}


# ---- a commit between two rounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, COOPERATIVE])
@pytest.mark.parametrize("state", [State.COMPLETING_REBALANCE, State.STABLE])
def test_a_commit_while_a_member_waits_for_its_assignment_is_for_later(
    engine: GroupEngine, member: Any, config: dict[str, Any], state: State
) -> None:
    """It was not evicted: it is in the middle of a rebalance, and can commit the partitions that it
    still owns afterwards.
    """
    first = member("a", **config)
    second = member("a", **config)
    settle(first)
    run_duties(second)
    first._group.membership.step(1 << 62)  # it has joined, and not read the group again
    assert engine.group().state is State.COMPLETING_REBALANCE
    reader = second
    if state is State.STABLE:
        first._group.membership.step(1 << 62)
    else:
        reader = first
    assert engine.group().state is state
    with pytest.raises(RebalanceInProgressError):
        reader.commit({A0: 1})


@pytest.mark.parametrize(
    "state", [State.COMPLETING_REBALANCE, State.STABLE, State.PREPARING_REBALANCE]
)
def test_the_positions_that_a_cooperative_member_keeps_are_committed_in_each_state(
    engine: GroupEngine, member: Any, state: State
) -> None:
    """Nobody else gets its partitions before it has released them; a static member may have missed
    a round.
    """
    for number in range(2):
        fill(engine.partition("a", number), 3)
    first = member("a", **COOPERATIVE)
    second = member("a", **COOPERATIVE)
    third = member("a", **COOPERATIVE)
    settle(first)
    assert len(first.poll()) == 6
    run_duties(second)
    first._group.membership.step(1 << 62)  # it has joined, and not read the group again
    assert engine.group().state is State.COMPLETING_REBALANCE
    if state is not State.COMPLETING_REBALANCE:
        first._group.membership._assign_as_leader(engine.group(), 1 << 62)
        assert engine.group().state is State.STABLE
    if state is State.PREPARING_REBALANCE:
        run_duties(third)
    assert engine.group().state is state
    with pytest.raises(RebalanceInProgressError):
        first.commit({A0: 1})
    first.commit()
    assert engine.committed() == {A0: 3, A1: 3}
    engine.evict_all()
    with pytest.raises(CommitFailedError):
        first.commit()


def test_an_automatic_commit_in_the_middle_of_a_rebalance_waits(
    engine: GroupEngine, member: Any
) -> None:
    for number in range(2):
        fill(engine.partition("a", number), 3)
    first = member("a", auto_commit_interval_ms=0, **COOPERATIVE)
    second = member("a", **COOPERATIVE)
    settle(first)
    assert len(first.poll()) == 6
    run_duties(second)
    first._group.membership.step(1 << 62)
    assert engine.group().state is State.COMPLETING_REBALANCE
    first._group.begin_commit()
    settle(first, second)
    first.poll()
    first.commit()
    assert sum(engine.committed().values()) >= 3


# ---- a listener that has had enough -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, COOPERATIVE])
@pytest.mark.parametrize("moment", ["on_assigned", "on_revoked", "on_lost"])
@pytest.mark.parametrize("verb", ["unsubscribe", "subscribe"])
def test_a_listener_may_end_or_change_the_subscription(
    engine: GroupEngine, member: Any, config: dict[str, Any], moment: str, verb: str
) -> None:
    """The step that called it must not bring the member back into a group that it has left."""
    reader = member(**config)
    other = member(**config)

    def enough(_: object) -> None:
        if verb == "unsubscribe":
            reader.unsubscribe()
        else:
            reader.subscribe(["b"])

    reader.subscribe(["a"], **{moment: enough} if moment != "on_assigned" else {})
    settle(reader)
    if moment == "on_lost":
        engine.evict_all()
    other.subscribe(["a"])
    if moment == "on_assigned":
        reader.subscribe(["a"], on_assigned=enough)
    for _ in range(20):
        for each in (reader, other):
            each._group.until_ns = 0
            if each.subscription():
                run_duties(each)
    assert other.assignment() == {A0, A1}
    assert reader.assignment() == (set() if verb == "unsubscribe" else {B0})
    assert len(engine.group().members) == (1 if verb == "unsubscribe" else 2)
    assert engine.group().state is State.STABLE


def test_topics_that_are_subscribed_again_after_an_interrupted_unsubscribe_are_read(
    engine: GroupEngine, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member is still in the group, and its partitions were released: it must ask for them."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    reader = member("a")
    settle(reader)
    before = reader.assignment()
    assert before
    with monkeypatch.context() as patched:
        patched.setattr(ConsumerCoordinator, "stop_reading", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.unsubscribe()
    assert (reader.assignment(), reader.subscription()) == (set(), set())
    reader.subscribe(["a"])
    settle(reader)
    assert reader.assignment() == before
    generation = reader.group_metadata().generation
    reader.subscribe(["a"])
    settle(reader)
    assert reader.group_metadata().generation == generation  # nothing changed: no rebalance
