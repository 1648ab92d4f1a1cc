"""Committed offsets expire after their time, and a view replays from the start after a
compaction.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import group as rules
from embedlog.coordination.groups.group_coordinator import KEPT_TYPE, Groups
from embedlog.coordination.groups.group_records import GROUP_KEY, OFFSET_KEY, encode_group_key
from embedlog.errors import InconsistentGroupProtocolError
from embedlog.group import Group, State
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.support.group_logs import ONE, OTHER, TWO, commit_at, keep, since, written
from tests.support.group_logs import log as log
from tests.support.group_logs import other as other
from tests.support.group_members import LIMITS, NOW, A, B, emptied, preparing, stable
from tests.support.mutants import mutated
from tests.support.transactional_producers import QUIET, begun

DAY_MS = 86_400_000
MINUTE_MS = 60_000


# ---- expiry: a row of Kafka's table each ---------------------------------------------------------


# of Kafka's seven; the moments below are those of the import
OLD = 7 * DAY_MS + MINUTE_MS
YOUNG = 6 * DAY_MS


EXPIRY = {
    "simple, old": (None, ONE, OLD, True),
    "simple, young": (None, ONE, YOUNG, False),
    "empty for long": (replace(emptied(), changed_ms=since(OLD)), ONE, OLD + 5, True),
    "empty for a while": (replace(emptied(), changed_ms=since(YOUNG)), ONE, OLD, False),
    "empty for long, committed since": (
        replace(emptied(), changed_ms=since(OLD)),
        ONE,
        YOUNG,
        False,
    ),
    "empty, for an unknown time": (replace(emptied(), changed_ms=-1), ONE, OLD, True),
    "stable, topic that is read": (stable(A), ONE, OLD, False),
    "stable, topic that is not read any more": (stable(A), OTHER, OLD, True),
    "stable, topic not read, young": (stable(A), OTHER, YOUNG, False),
    "preparing": (preparing(A, B), OTHER, OLD, False),
    "completing": (replace(stable(A), state=State.COMPLETING_REBALANCE), OTHER, OLD, False),
    "of another protocol": (replace(stable(A), protocol_type="connect"), OTHER, OLD, False),
    "exempt": (replace(emptied(), protocol_type=KEPT_TYPE, changed_ms=since(OLD)), ONE, OLD, False),
}


@pytest.mark.parametrize(("group", "place", "age_ms", "gone"), EXPIRY.values(), ids=EXPIRY)
def test_offsets_expire_by_the_state_of_their_group(
    groups: Groups,
    other: Groups,
    group: Group | None,
    place: TopicPartition,
    age_ms: int,
    gone: bool,
) -> None:
    if group is not None:
        keep(groups, group)
    commit_at(groups, "g", place, since(age_ms))
    groups.expire()
    assert (place not in other.read_committed("g")) == gone
    assert other.read_group("g") == (
        None if gone and group is not None and group.state is State.EMPTY else group
    )


def test_a_group_can_be_exempt_from_expiry(groups: Groups, other: Groups) -> None:
    groups.commit("g", {ONE: 1})
    for _ in range(2):
        groups.exempt("g")
    commit_at(groups, "g", ONE, since(OLD))
    assert other.expire() == 0
    other.commit("g", {ONE: 7})
    with pytest.raises(InconsistentGroupProtocolError, match="consumers cannot join it"):
        other.decide("g", lambda old: rules.join(old, A, LIMITS, NOW))
    keep(groups, stable(A), "joined")
    with pytest.raises(InconsistentGroupProtocolError):
        groups.exempt("joined")
    other.delete("g")
    assert groups.names() == ["joined"]


def test_a_time_that_stands_with_the_offset_decides(groups: Groups) -> None:
    commit_at(groups, "g", ONE, since(0), expire_ms=since(1))
    commit_at(groups, "g", TWO, since(OLD), expire_ms=since(-MINUTE_MS))
    assert groups.expire() == 1
    assert set(groups.read_committed("g")) == {TWO}


def test_an_empty_group_goes_with_its_last_offset(groups: Groups) -> None:
    keep(groups, replace(emptied(), changed_ms=since(OLD)))
    commit_at(groups, "g", ONE, since(OLD))
    commit_at(groups, "g", TWO, since(YOUNG))
    keep(groups, emptied(), "without")
    groups.expire()
    assert groups.names() == ["g"]
    assert set(groups.read_committed("g")) == {TWO}


def test_a_group_that_never_had_members_goes_with_its_last_offset(
    log: embedlog.Log, groups: Groups
) -> None:
    """A broker lists a group of which it finds no tombstone."""
    commit_at(groups, "g", ONE, since(OLD))
    commit_at(groups, "g", TWO, since(OLD))
    assert groups.expire() == 3
    assert written(log)[2:] == [(OFFSET_KEY, False), (OFFSET_KEY, False), (GROUP_KEY, False)]
    assert groups.expire() == 0


def test_nothing_expires_while_a_transaction_holds_offsets(
    log: embedlog.Log, groups: Groups
) -> None:
    keep(groups, replace(emptied(), changed_ms=since(OLD)))
    commit_at(groups, "g", ONE, since(OLD))
    writer = begun(log)
    writer.owner.add_offsets({TWO: 6}, GroupMetadata("g"))
    assert groups.expire() == 0
    writer.abort()
    assert groups.expire() == 2
    assert groups.names() == []


def test_a_group_that_cannot_be_read_hinders_no_other(log: embedlog.Log, groups: Groups) -> None:
    for name in ("bad", "good"):
        commit_at(groups, name, ONE, since(OLD))
    number = groups.topic.partition_of("bad")
    with groups.topic.lock_for_decision(number, groups.deadline(None)) as decision:
        decision.append([(encode_group_key("bad"), b"\0\4nonsense")])
    log.housekeep()
    assert groups.names() == ["bad"]


def test_housekeeping_forgets_when_it_is_time(path: Path) -> None:
    with embedlog.open(path, config=QUIET | {"offsets.retention.minutes": 1}) as log:
        log.create_topic("t")
        commit_at(log._engine.groups, "old", ONE, since(61_000))
        commit_at(log._engine.groups, "young", ONE, since(50_000))
        log.housekeep()
        assert log._engine.groups.names() == ["young"]


# ---- after a compaction --------------------------------------------------------------------------


SMALL: dict[str, Any] = QUIET | {
    "offsets.topic.segment.bytes": 4000,
    "log.cleaner.delete.retention.ms": 0,
    "log.cleaner.min.cleanable.ratio": 0,
    "offsets.topic.num.partitions": 1,
}


def clean(log: embedlog.Log, turns: int = 3) -> None:
    """Write and compact until tombstones of before are gone."""
    for turn in range(turns):
        for offset in range(60):
            log._engine.groups.commit("busy", {ONE: turn * 100 + offset})
        log.housekeep()


@pytest.mark.parametrize("mutant", [False, True], ids=["", "trust_old_look"])
def test_swap_2_who_looked_before_a_cleaning_begins_again(path: Path, mutant: bool) -> None:
    """A group was deleted and its tombstones were removed: a view that contained it must drop
    it.
    """
    with embedlog.open(path, config=SMALL) as log, embedlog.open(path, config=SMALL) as late:
        log.create_topic("t")
        log._engine.groups.commit("gone", {ONE: 5})
        keep(log._engine.groups, emptied(), "gone")
        log._engine.groups.commit("stays", {ONE: 6})
        assert late._engine.groups.names() == ["gone", "stays"]
        log._engine.groups.delete("gone")
        clean(log)
        assert (OFFSET_KEY, False) not in written(log), "the tombstones are gone"
        with mutated(*["trust_old_look"] * mutant):
            assert (
                late._engine.groups.names() == ["busy", "gone", "stays"]
                if mutant
                else ["busy", "stays"]
            )
            assert late._engine.groups.read_committed("busy") == {ONE: OffsetAndMetadata(259)}
        assert log._engine.groups.names() == ["busy", "stays"]


def test_swap_2_a_transaction_that_ended_below_what_was_cleaned_is_no_longer_waited_for(
    path: Path,
) -> None:
    with embedlog.open(path, config=SMALL) as log, embedlog.open(path, config=SMALL) as late:
        log.create_topic("t")
        writer = begun(log)
        writer.owner.add_offsets({ONE: 5}, GroupMetadata("g"))
        view = late._engine.groups.entries("g")
        assert view is not None
        assert view.pending("g") == {ONE}
        writer.commit()
        clean(log)
        log._engine.groups.commit("g", {ONE: 7})
        clean(log)
        assert late._engine.groups.read_committed(
            "g", None, late._engine.groups.deadline(None)
        ) == {ONE: OffsetAndMetadata(7)}


def test_offsets_of_an_open_transaction_survive_a_cleaning(path: Path) -> None:
    with embedlog.open(path, config=SMALL) as log:
        log.create_topic("t")
        writer = begun(log)
        writer.owner.add_offsets({ONE: 5}, GroupMetadata("g"))
        clean(log)
        writer.commit()
        clean(log)
        with embedlog.open(path, config=SMALL) as late:
            assert late._engine.groups.read_committed("g") == {ONE: OffsetAndMetadata(5)}


def test_a_log_of_many_commits_is_read_in_little(path: Path) -> None:
    with embedlog.open(path, config=SMALL) as log:
        log.create_topic("t")
        clean(log, 10)
        assert len(written(log)) < 150
        with embedlog.open(path, config=SMALL) as late:
            assert late._engine.groups.read_committed("busy") == {ONE: OffsetAndMetadata(959)}
