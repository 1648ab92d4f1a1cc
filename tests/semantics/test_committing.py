"""Kafka's table of commits, row by row: automatic, synchronous and asynchronous ones, and refused
ones.

The groups are in memory, under the real rules (tests/support/fake_groups.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from embedlog.consumer.consumer import Consumer
from embedlog.errors import (
    CommitFailedError,
    DeadlineError,
    FencedInstanceIdError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from embedlog.group import State
from embedlog.types import OffsetAndMetadata
from tests.support.fake_engine import fill, places
from tests.support.fake_groups import A0, A1, B0, GroupEngine, run_duties, settle
from tests.support.fake_groups import engine as engine
from tests.support.fake_groups import member as member

# ---- committing -------------------------------------------------------------------------------------------------------


class Clock:
    """The consumer's clock for commits."""

    def __init__(self, reader: Consumer) -> None:
        self.auto: Any = reader._group._auto  # type: ignore[union-attr]
        self._group: Any = reader._group

    def pass_interval(self) -> None:
        self.auto.due_at = 0.0
        self._group.until_ns = 0


def test_committing_automatically_commits_what_earlier_polls_returned(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member("b", max_poll_records=4)
    clock = Clock(reader)
    reader.poll()
    assert engine.committed() == {}
    clock.pass_interval()
    assert places(reader.poll()) == [(0, 4), (0, 5), (0, 6), (0, 7)]
    assert engine.committed() == {B0: 4}


def test_committing_automatically_in_a_loop_commits_what_the_loop_is_through_with(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member("b")
    loop = iter(reader)
    for _ in range(4):
        next(loop)
    Clock(reader).pass_interval()
    reader.poll()
    assert engine.committed() == {B0: 4}


def test_committing_automatically_waits_for_the_interval_and_hurries_behind_a_failure(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("b", auto_commit_interval_ms=100_000, default_api_timeout_ms=0)
    settle(reader)
    clock = Clock(reader)
    clock.pass_interval()
    run_duties(reader)
    assert engine.groups.commit_count == 1
    due_at = clock.auto.due_at
    run_duties(reader)
    assert engine.groups.commit_count == 1
    engine.groups.locked = True
    clock.pass_interval()
    run_duties(reader)
    engine.groups.locked = False
    reader._group.until_ns = 0
    run_duties(reader)
    assert clock.auto.due_at < due_at - 90


def test_committing_automatically_a_failure_is_only_logged(
    engine: GroupEngine, member: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = member("b")
    settle(reader)
    clock = Clock(reader)
    reader._group.membership.generation += 5
    clock.pass_interval()
    reader._group.begin_commit()
    reader._group._committer.call_back()
    assert "automatic commit" in caplog.text


@pytest.mark.parametrize("end", ["close", "unsubscribe", "rebalance"])
def test_committing_automatically_happens_at_every_end(
    engine: GroupEngine, member: Any, end: str
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member("b", max_poll_records=4)
    reader.poll()
    if end == "close":
        reader.close()
    elif end == "unsubscribe":
        reader.unsubscribe()
    else:
        settle(reader, member("a", "b"))
    assert engine.committed()[B0] == 4


def test_committing_automatically_at_a_rebalance_leaves_out_what_is_committed(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member("b")
    reader.poll(max_records=4)
    reader.commit()
    count = engine.groups.commit_count
    for _ in range(2):
        reader.enforce_rebalance()
        settle(reader)
    assert engine.groups.commit_count == count
    reader.poll(max_records=2)
    reader.enforce_rebalance()
    settle(reader)
    assert engine.committed() == {B0: 6}
    reader.seek(B0, 4)  # an offset below the committed one is a change, too
    reader.enforce_rebalance()
    settle(reader)
    assert engine.committed() == {B0: 4}


def test_committing_nothing_automatically_when_that_is_off(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member("b", enable_auto_commit=False)
    reader.poll()
    reader.close()
    assert engine.groups.commit_count == 0


def test_committing_now_commits_positions_with_their_epochs(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("b", 0), 10)
    reader = member("b")
    reader.poll(max_records=4)
    reader.commit()
    assert reader.committed(B0) == {B0: OffsetAndMetadata(4, "", 0)}


def test_committing_now_lets_earlier_ones_go_first_and_an_empty_map_only_that(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("b")
    settle(reader)
    results: list[Any] = []
    engine.groups.locked = True
    reader.commit_async({B0: 1}, lambda offsets, error: results.append(offsets[B0].offset))
    assert engine.committed() == {}
    engine.groups.locked = False
    reader.commit({})
    assert (engine.committed(), results) == ({B0: 1}, [1])
    reader.commit_async({B0: 2})
    reader.commit({B0: OffsetAndMetadata(3)})
    assert engine.committed() == {B0: 3}


def test_committing_now_under_a_lock_that_others_hold_ends_at_the_deadline(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("b", default_api_timeout_ms=1)
    settle(reader)
    engine.groups.locked = True
    with pytest.raises(LockTimeoutError):
        reader.commit({B0: 1})


def test_committing_later_tries_once_and_tells_the_callback(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("b", default_api_timeout_ms=0)
    settle(reader)
    results: list[Any] = []
    engine.groups.locked = True
    reader.commit_async({B0: 1}, lambda offsets, error: results.append((offsets, error)))
    engine.groups.locked = False
    reader.commit_async({B0: 2}, lambda offsets, error: results.append((offsets, error)))
    assert results == []
    reader.poll()
    assert [offsets for offsets, _ in results] == [{B0: (1, "", -1)}, {B0: (2, "", -1)}]
    assert [type(error).__name__ for _, error in results] == [
        "RetriableCommitFailedError",
        "NoneType",
    ]
    assert engine.committed() == {B0: 2}


def test_committing_later_the_real_error_reaches_the_callback_and_else_the_log(
    engine: GroupEngine, member: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = member("b")
    settle(reader)
    results: list[Any] = []
    engine.evict_all()
    reader.commit_async({B0: 1}, lambda offsets, error: results.append(error))
    reader.commit_async({B0: 1})
    with pytest.raises(CommitFailedError):
        reader.commit()
    assert isinstance(results[0], UnknownMemberError)
    assert "asynchronous commit" in caplog.text


def test_committing_later_callbacks_run_in_order_on_this_thread_and_one_that_raises_harms_nobody(
    engine: GroupEngine, member: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reader = member("b")
    settle(reader)
    results: list[int] = []

    def tell(offsets: Any, error: Any) -> None:
        results.append(offsets[B0].offset)
        raise ValueError("of the user's")

    for offset in range(3):
        reader.commit_async({B0: offset}, tell)
    assert results == []
    reader.close()
    assert results == [0, 1, 2]
    assert "of the user's" in caplog.text


@pytest.mark.parametrize("offset", [-1, OffsetAndMetadata(-7)])
def test_committing_a_negative_offset_is_refused_and_one_beyond_the_end_is_not(
    member: Any, offset: Any
) -> None:
    reader = member("b")
    settle(reader)
    for call in (reader.commit, reader.commit_async):
        with pytest.raises(OffsetOutOfRangeError):
            call({B0: offset})
    reader.commit({B0: 10**12})
    assert reader.committed(B0)[B0].offset == 10**12


def test_committing_metadata(member: Any) -> None:
    reader = member("b")
    settle(reader)
    reader.commit({B0: OffsetAndMetadata(1, "so far so good")})
    assert reader.committed(B0, A0) == {B0: OffsetAndMetadata(1, "so far so good"), A0: None}


@pytest.mark.parametrize("offsets", [[B0], {B0: "1"}, {B0: None}, {"b": 1}, {B0: (1,)}])
def test_committing_what_are_no_offsets_is_a_type_error(member: Any, offsets: Any) -> None:
    reader = member("b")
    settle(reader)
    with pytest.raises(TypeError):
        reader.commit(offsets)


def test_committing_a_member_that_fell_out_fails(engine: GroupEngine, member: Any) -> None:
    reader = member("b")
    settle(reader)
    engine.evict_all()
    with pytest.raises(CommitFailedError):
        reader.commit({B0: 1})


def test_committing_before_there_is_an_assignment(engine: GroupEngine, member: Any) -> None:
    first = member("a")
    second = member("a")
    settle(first)
    with pytest.raises(CommitFailedError, match="poll to join"):
        second.commit({A0: 1})
    run_duties(second)
    with pytest.raises(RebalanceInProgressError):
        second.commit({A0: 1})


def test_committing_while_the_group_rebalances(engine: GroupEngine, member: Any) -> None:
    """Accepted while members join, refused between the end of the join phase and the leader's word
    (C.2).
    """
    first = member("a")
    second = member("a")
    settle(first)
    run_duties(second)
    assert engine.group().state is State.PREPARING_REBALANCE
    first.commit({A0: 1})
    assert engine.committed() == {A0: 1}


def test_committing_a_static_id_that_was_taken_over_is_fenced(
    engine: GroupEngine, member: Any
) -> None:
    old = member(group_instance_id="one")
    new = member("a", group_instance_id="one")
    lost = []
    old.subscribe(["a"], on_lost=lost.extend)
    settle(old)
    generation = engine.group().generation
    settle(new)
    assert engine.group().generation == generation
    assert new.assignment() == {A0, A1}
    with pytest.raises(FencedInstanceIdError):
        old.commit({A0: 1})
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            old.poll()
    assert lost == [A0, A1]
    old.close()
    assert len(engine.group().members) == 1


def test_committing_by_hand_without_membership_only_while_the_group_is_empty(
    engine: GroupEngine, member: Any
) -> None:
    lonely = member()
    lonely.assign([B0])
    lonely.commit({B0: 5})
    assert engine.committed() == {B0: 5}
    settle(member("a"))
    with pytest.raises(UnknownMemberError):
        lonely.commit({B0: 6})
    assert isinstance(UnknownMemberError("x"), CommitFailedError)


def test_committed_is_none_where_nothing_is_and_waits_for_transactions(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("b", default_api_timeout_ms=0)
    assert reader.committed(B0, A0) == {B0: None, A0: None}
    engine.groups.unstable = {B0}
    with pytest.raises(DeadlineError):
        reader.committed(B0)


def test_interceptors_hear_of_commits_and_one_that_raises_is_logged(
    engine: GroupEngine, member: Any, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    class Broken:
        def on_commit(self, offsets: Any) -> None:
            raise ValueError("of the user's")

    class Good:
        def on_commit(self, offsets: Any) -> None:
            heard.append(offsets)

    reader = member("b", interceptor_classes=[Broken, Good])
    settle(reader)
    reader.commit({B0: 1})
    reader.commit_async({B0: 2})
    assert heard == [{B0: (1, "", -1)}, {B0: (2, "", -1)}]
    assert "of the user's" in caplog.text
    engine.evict_all()
    with pytest.raises(CommitFailedError):
        reader.commit({B0: 3})
    assert len(heard) == 2
