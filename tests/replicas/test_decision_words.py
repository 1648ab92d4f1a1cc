"""Decisions in words, and the recent ones as a copy of the decision log shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from embedlog.errors import CorruptRecordError
from embedlog.replicas.observation import decision_words
from embedlog.replicas.observation.decision_words import WINDOW, changes, recent
from embedlog.replicas.rules.events import (
    AlterIsr,
    CancelReassignment,
    Condition,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Elect,
    Election,
    Event,
    Reassign,
    Register,
    Retire,
    SetConfig,
    SetVoter,
)
from embedlog.replicas.rules.records import NODE, NoOp
from embedlog.replicas.rules.state import State
from tests.support.decision_logs import CLUSTER, Process, made
from tests.support.replica_sets import (
    PARTITION_ID,
    TOPIC_ID,
    after,
    decided,
    having,
    identity,
    partition,
    registration_id,
    seen,
    with_topic,
)


def said(state: State, event: Event) -> tuple[str, ...]:
    return changes(state, decided(state, event))


def test_each_kind_of_decision_has_words() -> None:
    state = with_topic(spare=[4])
    created = CreateTopic(
        "u", UUID(int=2), frozenset({1, 2, 3}), 3, 1, config={"retention.ms": "5"}
    )
    assert said(state, created) == ("topic u created, 3 partitions",)
    assert said(state, DeleteTopic(TOPIC_ID)) == ("topic t deleted",)
    grown = said(state, CreatePartitions(TOPIC_ID, 2, frozenset({1, 2, 3, 4})))
    assert len(grown) == 1
    assert grown[0].startswith("t-1: leader ")
    assert said(state, AlterIsr(PARTITION_ID, 0, 0, (1, 3))) == ("t-0: ISR [1, 2, 3] -> [1, 3]",)
    assert said(state, Elect(PARTITION_ID, Election.OFFLINE, 0, seen("2 3"))) == (
        "t-0: leader 1 -> 2 in epoch 1, ISR [1, 2, 3] -> [2, 3]",
    )
    assert said(state, Elect(PARTITION_ID, Election.OFFLINE, 0, {})) == (
        "t-0: leader 1 -> none in epoch 1",
    )
    moved = Reassign(PARTITION_ID, 0, (4, 2, 3))
    assert said(state, moved) == (
        "t-0: replicas [1, 2, 3] -> [4, 2, 3, 1], adding [] -> [4], removing [] -> [1]",
    )
    back = CancelReassignment(PARTITION_ID, 1, seen("1 2 3"))
    assert said(after(state, moved), back)[0].startswith("t-0: ")
    assert said(state, SetConfig("t", {"retention.ms": "7"})) == ("topic t: retention.ms = 7",)
    setting = SetConfig("", {"min.insync.replicas": "2"}, kind=NODE)
    assert said(state, setting) == ("all nodes: min.insync.replicas = 2",)
    assert said(after(state, setting), SetConfig("", {"min.insync.replicas": None}, kind=NODE))[
        0
    ].endswith("2 -> its default")
    assert said(state, SetVoter(4, False)) == ("node 4: voter True -> False",)
    crashed = Register(
        identity(2, registration_id=registration_id(2, 1)),
        Condition.CRASHED,
        99,
        seen={PARTITION_ID: seen("1 c2 3")},
    )
    found = said(state, crashed)
    assert "node 2: a new registration id" in found
    assert "t-0: ISR [1, 2, 3] -> [1, 3]" in found
    assert any("node 4" in text for text in said(state, Retire(4)))
    assert changes(state, (NoOp(),)) == ()


def test_a_lost_elr_and_an_unclean_leader_are_named() -> None:
    state = with_topic(min_insync_replicas="2")
    assert said(state, AlterIsr(PARTITION_ID, 0, 0, (1,))) == (
        "t-0: ISR [1, 2, 3] -> [1], ELR [] -> [2, 3]",
    )
    alone = having(state, isr=(1,))
    found = said(alone, Elect(PARTITION_ID, Election.UNCLEAN, 0, seen("2")))
    assert found[0].startswith("t-0: leader 1 -> 2 in epoch 1, unclean, ISR [1] -> [2]")


def test_a_value_before_the_first_record_is_not_invented() -> None:
    old = partition(with_topic())
    assert changes(State(CLUSTER), (old,)) == (
        f"{TOPIC_ID}-0: leader 1 in epoch 0, ISR [1, 2, 3], replicas [1, 2, 3]",
    )


def test_the_recent_decisions_have_offset_term_and_time(tmp_path: Path) -> None:
    with Process(made(tmp_path)) as process:
        process.begin()
        for number in range(2, 30):
            process.decide(number)
        found = recent(process.partitions[2].replica, CLUSTER)
        assert len(found) == 20
        assert found[-1].changes == ("all nodes: flush.messages 28 -> 29",)
        assert found[0].changes == ("all nodes: flush.messages 9 -> 10",), (
            "the values before the shown decisions are known"
        )
        assert [each.offset for each in found] == sorted({each.offset for each in found})
        assert {each.term for each in found} == {process.log.view().term}
        assert all(abs(each.timestamp_ms - found[0].timestamp_ms) < 3_600_000 for each in found)
        assert recent(process.partitions[2].replica, CLUSTER, 3) == found[-3:]
        with process.partitions[1].replica.exclusive(), process.partitions[2].replica.exclusive():
            assert recent(process.partitions[2].replica, CLUSTER) == found, "no lock is needed"


def test_only_the_end_of_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_words, "WINDOW", 4)
    assert WINDOW > 100
    with Process(made(tmp_path)) as process:
        process.begin()
        for number in range(2, 12):
            process.decide(number)
        found = recent(process.partitions[1].replica, CLUSTER)
        texts = [each.changes for each in found]
        assert texts == [
            ("all nodes: flush.messages = 8",),
            *((f"all nodes: flush.messages {number - 1} -> {number}",) for number in (9, 10, 11)),
        ]


def test_a_copy_that_ends_early_is_damaged(tmp_path: Path) -> None:
    with Process(made(tmp_path)) as process:
        process.begin()
        copy: Any = process.partitions[1].replica

        class Short:
            def published(self) -> Any:
                now, replica = copy.published()
                return now._replace(high_watermark=now.high_watermark + 5), replica

            def read(self, offset: int, max_bytes: int, upto: int | None = None) -> Any:
                return copy.read(offset, max_bytes)

        with pytest.raises(CorruptRecordError):
            recent(Short(), CLUSTER)
