"""Groups in the log: decided under the lock and seen by all, evicted, deleted, left alone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import group as rules
from embedlog.coordination.groups.group_coordinator import Groups
from embedlog.coordination.groups.group_records import OFFSET_KEY, encode_group
from embedlog.coordination.groups.offset_commits import OFFSETS_TOPIC
from embedlog.errors import (
    ConfigError,
    EmbedlogError,
    FencedInstanceIdError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupSizeError,
    GroupSubscribedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    RebalanceInProgressError,
    RecordTooLargeError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from embedlog.group import Group, Limits, Refusal, State, Verdict
from embedlog.topic import TOPICS
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.support.group_logs import ONE, OTHER, TWO, keep, written
from tests.support.group_logs import log as log
from tests.support.group_logs import other as other
from tests.support.group_members import (
    BOTH,
    LATER,
    LIMITS,
    NOW,
    A,
    B,
    C,
    emptied,
    member,
    preparing,
    stable,
    taken,
)
from tests.support.transactional_producers import QUIET, begun

# ---- deciding ------------------------------------------------------------------------------------


def test_what_is_decided_is_seen_by_everybody(groups: Groups, other: Groups) -> None:
    groups.decide("g", lambda old: rules.join(old, A, LIMITS, NOW))
    seen = other.read_group("g")
    assert seen is not None
    assert (seen.state, seen.generation, list(seen.members)) == (
        State.COMPLETING_REBALANCE,
        1,
        ["a"],
    )
    other.decide("g", lambda old: rules.sync(old, "a", 1, None, {"a": b"all"}, NOW))
    assert groups.read_group("g") == other.read_group("g")
    assert taken(groups.read_group("g")).members["a"].assignment == b"all"
    assert groups.names() == ["g"]


def test_what_changes_nothing_writes_nothing(log: embedlog.Log, groups: Groups) -> None:
    keep(groups, stable(A))
    before = written(log)
    assert groups.decide("g", lambda old: old) == stable(A)
    assert groups.decide("g", lambda old: None) == stable(A)
    assert groups.decide("h", lambda old: None) is None
    with pytest.raises(UnknownMemberError):
        groups.decide("g", lambda old: rules.leave(old, "stranger", NOW))
    assert written(log) == before


@pytest.mark.parametrize("refusal", list(Refusal), ids=lambda refusal: refusal.name)
def test_a_refusal_is_an_error_that_says_why(groups: Groups, refusal: Refusal) -> None:
    keep(groups, stable(A))
    with pytest.raises(
        EmbedlogError, match=f"group 'g': .*{refusal.name}.*found Stable, generation 1, 1 members"
    ) as found:
        groups.decide("g", lambda old: refusal)
    assert type(found.value) is not EmbedlogError


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (lambda old: rules.join(old, member("x", session_timeout_ms=1), LIMITS, NOW), ConfigError),
        (lambda old: rules.join(old, C, Limits(max_size=2), NOW), GroupSizeError),
        (
            lambda old: rules.join(old, member("c", protocols=(("mine", b""),)), LIMITS, NOW),
            InconsistentGroupProtocolError,
        ),
        (lambda old: rules.sync(old, "a", 1, None, {}, NOW), IllegalGenerationError),
        (lambda old: rules.sync(old, "a", 2, "i", {}, NOW), UnknownMemberError),
        (lambda old: rules.sync(preparing(A, B), "a", 2, None, {}, NOW), RebalanceInProgressError),
        (
            lambda old: rules.sync(stable(member("s", "i")), "a", 1, "i", {}, NOW),
            FencedInstanceIdError,
        ),
    ],
)
def test_kafkas_errors_by_what_one_can_do(
    groups: Groups, event: Callable[[Group | None], Any], error: type[Exception]
) -> None:
    keep(groups, stable(A, B))
    with pytest.raises(error):
        groups.decide("g", event)


@pytest.mark.parametrize("name", ["", "\udcff", "g" * 32_768])
def test_a_group_id_that_cannot_be_is_refused(log: embedlog.Log, groups: Groups, name: str) -> None:
    verbs: list[Callable[[], object]] = [
        lambda: groups.decide(name, lambda old: old),
        lambda: groups.delete(name),
        lambda: groups.delete_offsets(name, [ONE]),
    ]
    for verb in verbs:
        with pytest.raises(InvalidGroupIdError):
            verb()
    with pytest.raises(TypeError):
        groups.decide(b"g", lambda old: old)  # type: ignore[arg-type]
    assert log.topics(include_internal=True) == ["t", "u"]


def test_members_of_many_threads_and_processes_join_one_group(
    groups: Groups, other: Groups
) -> None:
    errors: list[BaseException] = []

    def work(own: Groups, number: int) -> None:
        try:
            own.decide("g", lambda old: rules.join(old, member(f"m{number}"), LIMITS, NOW))
            for _ in range(5):
                own.decide("g", lambda old: rules.join(old, member(f"m{number}"), LIMITS, NOW))
        except BaseException as problem:  # noqa: BLE001  a thread's edge
            errors.append(problem)

    threads = [
        threading.Thread(target=work, args=((groups, other)[number % 2], number))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert set(taken(groups.read_group("g")).members) == {f"m{number}" for number in range(8)}


def test_a_group_beyond_a_batch_is_refused_and_stays_as_it_was(groups: Groups) -> None:
    keep(groups, stable(A))
    with pytest.raises(RecordTooLargeError):
        groups.decide(
            "g",
            lambda old: old and replace(old, members={"a": replace(A, assignment=bytes(1 << 21))}),
        )
    assert groups.read_group("g") == stable(A)


def test_who_follows_a_group_is_told_of_it_and_not_of_commits(
    groups: Groups, other: Groups
) -> None:
    number = groups.topic.partition_of("g")
    before = other.topic.notice_word(number)
    groups.commit("g", {ONE: 1})
    assert other.topic.notice_word(number) == before
    keep(groups, stable(A))
    assert other.topic.notice_word(number) != before


# ---- committing as a member ----------------------------------------------------------------------


def test_only_members_of_the_generation_commit(groups: Groups, other: Groups) -> None:
    keep(groups, stable(A, B))
    mine = GroupMetadata("g", 2, "a")
    other.commit("g", {ONE: 5}, mine)
    for identity, error in [
        (None, UnknownMemberError),
        (GroupMetadata("g", 2, "c"), UnknownMemberError),
        (GroupMetadata("g", 1, "a"), IllegalGenerationError),
        (GroupMetadata("g", 3, "a"), IllegalGenerationError),
        (GroupMetadata("g", 2, "a", "static"), UnknownMemberError),
    ]:
        with pytest.raises(error):
            other.commit("g", {ONE: 6}, identity)
    keep(groups, taken(rules.join(stable(A, B), member("a"), LIMITS, LATER)))
    other.commit("g", {ONE: 7}, mine)  # while the others come again
    keep(groups, taken(rules.join(preparing(A, B), B, LIMITS, LATER)))
    with pytest.raises(RebalanceInProgressError):
        other.commit("g", {ONE: 8}, GroupMetadata("g", 3, "a"))
    assert groups.read_committed("g") == {ONE: OffsetAndMetadata(7)}


def test_a_member_evicted_between_its_look_and_its_lock_commits_nothing(
    groups: Groups, other: Groups
) -> None:
    keep(groups, stable(A, B))
    check = other.check_topics

    def evict_meanwhile(wanted: Any, topics: Any = None) -> dict[str, str]:
        found = check(wanted, topics)
        keep(groups, rules.evict(stable(A, B), {"a": Verdict.DEAD}, LATER))
        return found

    other.check_topics = evict_meanwhile  # type: ignore[method-assign]
    with pytest.raises(UnknownMemberError):
        other.commit("g", {ONE: 5}, GroupMetadata("g", 2, "a"))
    assert groups.read_committed("g") == {}


def test_a_static_member_whose_place_is_taken_is_fenced(groups: Groups) -> None:
    old = stable(member("s1", "i"), B)
    keep(groups, taken(rules.join(old, member("s2", "i"), LIMITS, LATER)))
    with pytest.raises(FencedInstanceIdError):
        groups.commit("g", {ONE: 5}, GroupMetadata("g", old.generation, "s1", "i"))
    groups.commit("g", {ONE: 5}, GroupMetadata("g", old.generation, "s2", "i"))


def test_an_administrator_resets_while_the_group_is_empty(groups: Groups) -> None:
    groups.reset("g", {ONE: 1})
    keep(groups, stable(A))
    with pytest.raises(GroupNotEmptyError):
        groups.reset("g", {ONE: 2})
    keep(groups, emptied())
    groups.reset("g", {ONE: 3})
    assert groups.read_committed("g") == {ONE: OffsetAndMetadata(3)}


# ---- evicting ------------------------------------------------------------------------------------


class Seen:
    """An observer with a verdict; under the lock it checks once more."""

    def __init__(
        self, verdicts: dict[str, Verdict], confirmed: dict[str, Verdict] | None = None
    ) -> None:
        self.found = verdicts
        self.confirmed = verdicts if confirmed is None else confirmed
        self.asked: list[Any] = []

    def find_verdicts(
        self, group: Group, me: str | None, whole: bool = False
    ) -> Mapping[str, Verdict]:
        self.asked.append((me, whole))
        return self.found

    def confirm(self, group: Group, verdicts: Mapping[str, Verdict]) -> Mapping[str, Verdict]:
        return self.confirmed


def test_who_is_seen_to_be_gone_is_evicted(groups: Groups, other: Groups) -> None:
    keep(groups, stable(A, B))
    watch = Seen({"b": Verdict.DEAD})
    after = other.evict("g", watch, "a", whole=True)
    assert watch.asked == [("a", True)]
    assert after == groups.read_group("g")
    assert list(taken(after).members) == ["a"]
    assert other.evict("nobody", watch) is None


def test_who_is_back_under_the_lock_stays(log: embedlog.Log, groups: Groups) -> None:
    before = keep(groups, stable(A, B))
    records = written(log)
    assert groups.evict("g", Seen({"b": Verdict.EXPIRED}, {})) == before
    assert groups.evict("g", Seen({})) == before
    assert written(log) == records


def test_the_housekeeper_sees_to_groups_whose_members_are_all_gone(
    log: embedlog.Log, groups: Groups
) -> None:
    liveness = log._engine.transactions.liveness
    dead = liveness.begin()
    alive = liveness.begin()
    groups.commit("g", {ONE: 1})
    keep(groups, stable(replace(A, process_slot=dead), replace(B, process_slot=alive)))
    keep(groups, stable(member("s", "instance", process_slot=dead)), "static")
    liveness.end(dead)
    with embedlog.open(log.path, config=QUIET) as second:
        second.housekeep()
        assert list(taken(groups.read_group("g")).members) == ["b"]
        assert list(taken(groups.read_group("static")).members) == ["s"], (
            "it may come back within its session timeout"
        )
        liveness.end(alive)
        second.housekeep()
        assert taken(groups.read_group("g")).state is State.EMPTY


def test_a_round_that_meets_the_close_of_its_log_reports_nothing(
    groups: Groups, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(groups, stable(A, B))
    monkeypatch.setattr(
        groups,
        "evict",
        lambda *_, **__: (_ for _ in ()).throw(embedlog.ClosedError("the log was closed")),
    )
    groups.housekeep()
    assert not caplog.records


# ---- deleting ------------------------------------------------------------------------------------


def test_a_deleted_group_leaves_nothing(log: embedlog.Log, groups: Groups, other: Groups) -> None:
    keep(groups, emptied())
    groups.commit("g", {ONE: 5, TWO: 6})
    groups.commit("simple", {ONE: 1})
    other.delete("g")
    other.delete("simple")
    assert groups.names() == []
    assert groups.read_committed("g") == {}
    assert groups.read_group("g") is None
    for name in ("g", "simple"):
        with pytest.raises(GroupNotFoundError):
            groups.delete(name)
    assert [has_value for _, has_value in written(log)].count(False) == 5


def test_a_group_with_members_is_not_deleted(groups: Groups) -> None:
    keep(groups, stable(A))
    with pytest.raises(GroupNotEmptyError):
        groups.delete("g")
    assert groups.read_group("g") == stable(A)


def test_offsets_of_a_topic_that_members_read_stay(groups: Groups) -> None:
    keep(groups, emptied())
    groups.commit("g", {ONE: 5, TWO: 6, OTHER: 7})
    groups.delete_offsets("g", [TWO])
    keep(groups, stable(A))  # which reads t
    with pytest.raises(GroupSubscribedError):
        groups.delete_offsets("g", [ONE, OTHER])
    groups.delete_offsets("g", [OTHER, OTHER._replace(partition=1)])
    assert groups.read_committed("g") == {ONE: OffsetAndMetadata(5)}
    with pytest.raises(GroupNotFoundError):
        groups.delete_offsets("nobody", [ONE])


def test_deleting_ends_what_a_transaction_holds(log: embedlog.Log, groups: Groups) -> None:
    writer = begun(log)
    groups.commit("g", {ONE: 1})
    writer.owner.add_offsets({ONE: 5, TWO: 6}, GroupMetadata("g"))
    groups.delete("g")
    writer.commit()
    assert groups.read_committed("g") == {}
    assert groups.names() == []


def test_many_tombstones_are_several_batches(path: Path) -> None:
    small = QUIET | {"message.max.bytes": 2000}
    with embedlog.open(path, config=small) as log:
        log.create_topic("t", 100)
        for start in range(0, 100, 20):
            log._engine.groups.commit(
                "g", {TopicPartition("t", start + number): 1 for number in range(20)}
            )
        log._engine.groups.delete("g")
        assert log._engine.groups.names() == []
        assert written(log).count((OFFSET_KEY, False)) == 100


# ---- Kafka's newer protocol ----------------------------------------------------------------------


def test_a_group_of_the_newer_protocol_is_left_alone(groups: Groups, other: Groups) -> None:
    number = groups.topic.partition_of("new")
    with groups.topic.lock_for_decision(number, groups.deadline(None)) as decision:
        decision.append([(b"\0\3\0\3new", bytes.fromhex("0000 00000007 00"))])
    for verb in (
        lambda: keep(other, stable(A), "new"),
        lambda: other.delete("new"),
        lambda: other.delete_offsets("new", [ONE]),
    ):
        with pytest.raises(InconsistentGroupProtocolError, match="newer protocol"):
            verb()
    other.commit("new", {ONE: 5})  # it has no members
    assert other.names() == ["new"]
    assert other.expire() == 0


def test_a_directory_with_some_of_the_partitions_shows_what_it_has(path: Path) -> None:
    """As one broker of a cluster leaves it."""
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("t", 2)
        for name in ("g", "h"):
            log._engine.groups.commit(name, {ONE: 5})
        assert {log._engine.groups.topic.partition_of(name) for name in ("g", "h")} == {0, 1}
        gone = log._engine.groups.topic.partition_of("h")
    shutil.rmtree(path / f"{OFFSETS_TOPIC}-{gone}")
    (path / TOPICS).unlink()
    for read_only in (True, False):
        with embedlog.open(path, read_only=read_only, config=QUIET) as log:
            assert log._engine.groups.names() == ["g"]
            with pytest.raises(UnknownTopicOrPartitionError):
                log._engine.groups.read_committed("h")
    with embedlog.open(path, config=QUIET) as log:
        log.delete_topic("t")
        assert log._engine.groups.names() == []


def test_a_broker_reads_members_of_ours_as_its_own(groups: Groups) -> None:
    """Kafka's fields are where a broker reads them; the rest is in fields that it skips."""
    value = encode_group(stable(member("m", protocols=BOTH)))
    assert value.startswith(
        bytes.fromhex("0004 09") + b"consumer" + bytes.fromhex("00000001 06") + b"range"
    )
