"""The decision log: decisions on real partitions, their files, and what a process sees."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from embedlog._native import system
from embedlog._native.replication import ROLE_FOLLOWER, Replica
from embedlog.errors import (
    ForeignDirectoryError,
    LockTimeoutError,
    NotEnoughDirectoriesError,
    StorageError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from embedlog.partition.recovery import log_epochs
from embedlog.partition.roll import roll
from embedlog.replicas.decisions import promise
from embedlog.replicas.decisions.copies import LockedCopy
from embedlog.replicas.decisions.decision_log import ShownView
from embedlog.replicas.decisions.decision_view import CountedView, DecisionView
from embedlog.replicas.decisions.promise import Promise
from embedlog.replicas.decisions.proposals import Decision, MakeEvent, Proposal, Steps, derive
from embedlog.replicas.rules.events import CreateTopic, DeleteTopic, Refusal, SetConfig
from embedlog.replicas.rules.records import NODE
from embedlog.replicas.rules.state import State
from embedlog.storage import files, locks
from tests.support.decision_logs import (
    CLUSTER,
    NODES,
    SETTING,
    TOPIC,
    Acted,
    Process,
    batches_of,
    begun,
    copy_path,
    killed_with,
    made,
    numbers_of,
)
from tests.support.replica_directories import failing

TOPIC_ID = UUID(int=7)


def terms(root: Path, node: int = 1) -> list[int]:
    return [term for _, term, _ in batches_of(root, node)]


def test_a_decision_is_one_batch_in_each_copy(tmp_path: Path) -> None:
    begun(tmp_path)
    logs = [batches_of(tmp_path, node) for node in NODES]
    assert logs[0] == logs[1] == logs[2]
    assert [base for base, _, _ in logs[0]] == [0, 3]
    assert terms(tmp_path) == [1, 1]
    assert numbers_of(tmp_path, 2) == [1]


def test_the_state_is_that_of_the_records(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path) as process:
        assert process.log.counted_state().settings == {(NODE, "", SETTING): "1"}
        decided = process.log.decide(lambda state: SetConfig("", {SETTING: "2"}, kind=NODE))
        assert (
            decided.state.settings
            == process.log.counted_state().settings
            == {(NODE, "", SETTING): "2"}
        )
        assert decided.state.voters == NODES
        assert decided.state.cluster_id == CLUSTER
        assert len(decided.records) == 1


def test_quorum_3_a_process_that_decides_again_saves_the_promise(tmp_path: Path) -> None:
    """Syncs of a decision: promise, its name, epoch, its name, the record; then the record alone,
    in each directory.
    """
    begun(tmp_path)
    with Process(tmp_path) as process, Process(tmp_path) as other:
        process.decide(2)
        assert [syncs_of(process, number) for number in range(3, 6)] == [(0, 0)] * 3
        assert syncs_of(other, 6) == syncs_of(process, 7) == (4 * len(NODES), 2 * len(NODES)), (
            "in new terms"
        )
    assert terms(tmp_path) == [1, 1, 2, 2, 2, 2, 3, 4]
    assert {promise.read(copy_path(tmp_path, node)) for node in NODES} == {Promise(4)}


def syncs_of(process: Process, number: int) -> tuple[int, int]:
    """Syncs of small files, and renames. The record is one more sync in each directory; `durable`
    is synced at intervals.
    """
    before, _ = system.fault_counters()
    process.decide(number)
    after, _ = system.fault_counters()
    assert len(NODES) <= after["fdatasync"] - before["fdatasync"] <= 2 * len(NODES)
    return after["fsync"] - before["fsync"], after["rename"] - before["rename"]


def test_epochs_are_compared_before_the_locks_of_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under them, the processes with faster disks would get no decision meanwhile."""
    read = log_epochs._read_around
    held = list[list[Any]]()

    def rows_at(*arguments: Any) -> Any:
        held.append(list(locks._locks_of_thread()))
        return read(*arguments)

    monkeypatch.setattr(locks, "checks_order", True)
    begun(tmp_path)
    with Process(tmp_path) as one, Process(tmp_path) as two:
        for number in range(2, 8, 2):
            one.decide(number)
            two.decide(number + 1)
        monkeypatch.setattr(log_epochs, "_read_around", rows_at)
        with Process(tmp_path) as three:
            three.decide(10)
        first = len(held)
        one.decide(11)
    assert first >= len(NODES) * len(set(terms(tmp_path)) - {0, 1})
    assert len(NODES) <= len(held) - first <= 6 * len(NODES), (
        "the new terms, the first batch and the last one"
    )
    assert not any(held)


def test_a_refusal_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    begun(tmp_path)
    created = CreateTopic("t", TOPIC_ID, frozenset(NODES), factor=3)
    with Process(tmp_path) as process:
        process.log.decide(lambda state: created)
        before = batches_of(tmp_path, 1)
        with pytest.raises(TopicExistsError, match="TOPIC_ALREADY_EXISTS"):
            process.log.decide(lambda state: created)
        with pytest.raises(UnknownTopicOrPartitionError):
            process.log.decide(lambda state: DeleteTopic(UUID(int=8)))
        assert (
            process.log.propose(Steps([lambda state, offset: created]))
            is Refusal.TOPIC_ALREADY_EXISTS
        )
        assert process.log.decide_all([]).records == ()
        assert batches_of(tmp_path, 1) == before


def test_several_events_are_one_batch_or_none(tmp_path: Path) -> None:
    begun(tmp_path)
    seen: list[Any] = []

    def second(state: Any, offset: int) -> SetConfig:
        seen.append((dict(state.settings), offset))
        return SetConfig("", {"min.insync.replicas": "2"}, kind=NODE)

    with Process(tmp_path) as process:
        process.log.decide_all(
            [lambda state, offset: SetConfig("", {SETTING: "2"}, kind=NODE), second]
        )
        assert seen == [({(NODE, "", SETTING): "2"}, 5)]
        assert len(batches_of(tmp_path, 3)) == 3
        refused = process.log.propose(Steps([second, lambda state, offset: DeleteTopic(TOPIC_ID)]))
        assert refused is Refusal.UNKNOWN_TOPIC_OR_PARTITION
        assert len(batches_of(tmp_path, 3)) == 3


def test_other_events_are_decided_together_unless_they_are_refused_or_fail(
    tmp_path: Path, rng: random.Random
) -> None:
    """Compared with the same events in one log where those are not proposed."""

    def setting(value: int) -> MakeEvent:
        return lambda state, offset: SetConfig("", {SETTING: str(value)}, kind=NODE)

    def refused(state: Any, offset: int) -> DeleteTopic:
        return DeleteTopic(UUID(int=8))

    def broken(state: Any, offset: int) -> SetConfig:
        raise StorageError("the directory fails", errno=errno.EIO)

    begun(tmp_path)
    with Process(tmp_path) as process:
        for _ in range(30):
            others = [
                rng.choice((setting(rng.randint(1, 9)), refused, broken))
                for _ in range(rng.randint(0, 6))
            ]
            most = rng.randint(0, 4)
            good = [number for number, each in enumerate(others) if each not in (refused, broken)][
                :most
            ]
            before = batches_of(tmp_path, 1)
            state = process.log.settle()
            plain = derive(Steps([setting(3), *(others[number] for number in good)]), state, 0)
            found = process.log.propose(Steps([setting(3)], others, most))
            assert isinstance(found, Decision)
            assert list(found.others) == good
            assert found.records == plain.records
            assert len(batches_of(tmp_path, 1)) == len(before) + bool(found.records)
        proposals: list[Proposal] = []
        process.log.observer = proposals.append
        before = batches_of(tmp_path, 1)
        assert (
            process.log.propose(Steps([refused], [setting(8)], 1))
            is Refusal.UNKNOWN_TOPIC_OR_PARTITION
        )
        assert batches_of(tmp_path, 1) == before, "without the needed event nothing is decided"
        assert [len(each.events) for each in proposals] == [1]
        with pytest.raises(StorageError, match="the directory fails"):
            process.log.propose(Steps([broken], [setting(8)], 1))


def test_an_error_of_the_caller_leaves_the_log_usable(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path) as process, Process(tmp_path) as other:
        with pytest.raises(KeyError):
            process.log.decide(lambda state: dict[str, SetConfig]()["absent"])
        other.decide(2)
        process.decide(3)
    Acted(1, 2, 3).check(tmp_path, NODES)


# ---- QUORUM-2 ------------------------------------------------------------------------------------


def test_quorum_2_without_a_majority_no_decision_is_made(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path, (2,)) as process:
        with pytest.raises(NotEnoughDirectoriesError) as caught:
            process.decide(2)
        assert (caught.value.reached, caught.value.voters, caught.value.undecided) == (
            [2],
            [1, 2, 3],
            False,
        )
    assert numbers_of(tmp_path, 2) == [1]
    with Process(tmp_path, ()) as process, pytest.raises(NotEnoughDirectoriesError):
        process.decide(2)


def test_quorum_2_a_lock_is_tried_until_the_deadline(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path) as process, Process(tmp_path) as other:
        with other.partitions[1].replica.exclusive():
            process.decide(2, files.deadline_after(0.5))
            assert isinstance(process.log.failures()[1], LockTimeoutError)
            with (
                other.partitions[3].replica.exclusive(),
                pytest.raises(NotEnoughDirectoriesError) as caught,
            ):
                process.log.decide(
                    lambda state: SetConfig("", {SETTING: "3"}, kind=NODE),
                    files.deadline_after(0.05),
                )
            assert [Path(path).parent.name for path in caught.value.away] == ["d1", "d3"]
        other.decide(3)
        assert other.log.failures() == {}
    Acted(1, 2, 3).check(tmp_path, NODES)


@pytest.mark.parametrize("kind", ["pwrite", "fsync", "fdatasync", "rename"])
def test_quorum_2_a_directory_that_fails_is_left_out_and_returns_level(
    tmp_path: Path, kind: str
) -> None:
    """At each call of a decision the second directory fails once."""
    begun(tmp_path / "begun")
    for nth in range(1, 20):
        root = Path(shutil.copytree(tmp_path / "begun", tmp_path / str(nth)))
        with Process(root, boot=2) as process:
            with failing([kind], nth=nth, name="/d2/", error=errno.EIO) as struck:
                process.decide(2)
            assert not struck.count or 2 in process.log.failures() or kind == "pwrite"
            process.decide(3)
            Acted(1, 2, 3).check(root, (1, 3))
        with Process(root, boot=2) as process:
            process.decide(4)
            Acted(1, 2, 3, 4).check(root, NODES)
        if not struck.count:
            break
    assert nth > 1


def test_quorum_2_two_failing_directories_are_no_majority(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path) as process:
        system.fault_arm(("fdatasync",), 1, "fail", errno.EIO, sticky=True, name=f"{TOPIC}-0/0")
        try:
            with pytest.raises(NotEnoughDirectoriesError) as caught:
                process.decide(2)
        finally:
            system.fault_off()
        assert caught.value.undecided
        process.decide(3)
    assert numbers_of(tmp_path, 1)[-1] == 3


# ---- QUORUM-4, QUORUM-5, QUORUM-6 ----------------------------------------------------------------


def test_quorum_4_a_copy_that_was_away_is_brought_level(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path, (1, 2)) as process:
        process.decide(2)
        process.decide(3)
    with Process(tmp_path) as process:
        process.decide(4)
    Acted(1, 2, 3, 4).check(tmp_path, NODES)


def test_quorum_4_a_new_copy_gets_the_whole_log(tmp_path: Path) -> None:
    begun(tmp_path)
    shutil.rmtree(tmp_path / "d3")
    made(tmp_path, (3,))
    with Process(tmp_path) as process:
        process.decide(2)
    Acted(1, 2).check(tmp_path, NODES)


def test_quorum_4_an_incomplete_copy_counts_for_no_majority(tmp_path: Path) -> None:
    begun(tmp_path)
    promise.write(copy_path(tmp_path, 1), Promise(1, incomplete=True))
    with Process(tmp_path, (1, 2)) as process, pytest.raises(NotEnoughDirectoriesError) as caught:
        process.decide(2)
    assert caught.value.reached == [2]
    with Process(tmp_path) as process:
        process.decide(2)
    assert promise.read(copy_path(tmp_path, 1)) == Promise(2)
    with Process(tmp_path, (1, 3)) as process:
        process.decide(3)
    Acted(1, 2, 3).check(tmp_path, (1, 3))


def test_quorum_4_a_copy_that_cannot_be_cut_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a compaction of records that are to be truncated."""
    root = begun(tmp_path / "set")
    killed_with(root, NODES, lambda process: process.decide(2), 2)
    with Process(root, (2, 3)) as process:
        process.decide(3)
    monkeypatch.setattr(LockedCopy, "_can_be_cut", lambda self, offset: False)
    with Process(root) as process:
        with failing(["fdatasync"], name="/d1/"):
            process.decide(4)
        assert promise.read(copy_path(root, 1)).incomplete
        process.decide(5)
        assert not promise.read(copy_path(root, 1)).incomplete
    Acted(1, 3, 4, 5).check(root, NODES)


def test_quorum_4_a_copy_that_rolls_after_a_promise_is_level_after_a_load(tmp_path: Path) -> None:
    """The page has the promised term, the last record an older one: the manifest must contain that
    of the record.
    """
    begun(tmp_path)
    with Process(tmp_path, (2, 3)) as process:
        process.decide(2)
    with Process(tmp_path) as process:
        with process.partitions[1].replica.exclusive() as locked:
            locked.publish(locked.published._replace(epoch=9), Replica(role=ROLE_FOLLOWER))
            roll(locked.partition, locked.published)
        process.decide(3)
    with Process(tmp_path, boot=2) as process:
        process.decide(4)
        assert process.log.failures() == {}
    Acted(1, 2, 3, 4).check(tmp_path, NODES)


def test_quorum_5_a_found_record_is_settled_by_a_record_of_an_own_term(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path, boot=2) as process:  # a load cannot know what is settled
        state = process.log.settle()
        assert state.settings == {(NODE, "", SETTING): "1"}
        assert terms(tmp_path) == [1, 1, 2]
        process.log.settle()
        with Process(tmp_path, boot=2) as other:
            other.log.settle()
        assert terms(tmp_path) == [1, 1, 2]


def test_quorum_6_voters_change_on_both_majorities(tmp_path: Path) -> None:
    begun(tmp_path, (1, 2))
    made(tmp_path, (3,))
    with Process(tmp_path, (1, 2), voters=(1, 2)) as process:
        process.add(3)
        process.decide(2)
        assert process.log.counted_state().voters == NODES
        process.attach(tmp_path, 3)
        process.detach(1)
        process.decide(3)
    Acted(1, 2, 3).check(tmp_path, (2, 3))
    with Process(tmp_path, (3,)) as process, pytest.raises(NotEnoughDirectoriesError):
        process.decide(4)


def test_quorum_6_a_new_voter_must_be_reached_if_the_new_majority_needs_it(tmp_path: Path) -> None:
    begun(tmp_path, (1,))
    made(tmp_path, (2,))
    with Process(tmp_path, (1,), voters=(1,)) as process:
        with pytest.raises(NotEnoughDirectoriesError) as caught:
            process.add(2)
        assert caught.value.voters == [1, 2]
        assert caught.value.undecided


# ---- QUORUM-7 ------------------------------------------------------------------------------------


def test_quorum_7_a_hint_follows_decisions_of_others_without_a_lock(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path) as process, Process(tmp_path) as other:
        process.decide(2)
        seen = other.log.version()
        assert other.log.counted_state().settings == {(NODE, "", SETTING): "2"}
        process.decide(3)
        assert other.log.version() > seen
        with other.partitions[2].replica.exclusive():
            assert (
                process.log.counted_state().settings
                == other.log.counted_state().settings
                == {(NODE, "", SETTING): "3"}
            )
        other.partitions[1].close()
        assert other.log.counted_state().settings == {(NODE, "", SETTING): "3"}


def test_a_decision_is_announced_after_the_locks_are_free(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path) as process, Process(tmp_path) as other:
        states: list[int] = []

        def observed(proposal: Proposal) -> None:
            assert isinstance(proposal.outcome, Decision)
            other.decide(10 + len(states))
            states.append(len(proposal.outcome.state.settings))

        process.log.observer = observed
        process.decide(2)
        assert states == [1]


# ---- hostile files -------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff" * 100, b"[" * 10_000])
def test_a_damaged_promise_leaves_its_copy_out(tmp_path: Path, data: bytes) -> None:
    begun(tmp_path)
    (copy_path(tmp_path, 2) / "embedlog.promise").write_bytes(data)
    with pytest.raises(ForeignDirectoryError):
        promise.read(copy_path(tmp_path, 2))
    with Process(tmp_path) as process:
        process.decide(2)
        assert isinstance(process.log.failures()[2], ForeignDirectoryError)
    Acted(1, 2).check(tmp_path, (1, 3))


def test_records_that_are_none_leave_their_copy_out(tmp_path: Path) -> None:
    begun(tmp_path)
    with Process(tmp_path, boot=2) as process:
        path = copy_path(tmp_path, 1) / "00000000000000000000.log"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        process.decide(2)
    Acted(1, 2).check(tmp_path, (2, 3))


def test_a_hint_is_the_newest_state_if_a_majority_has_no_later_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path)
    with Process(tmp_path) as process, Process(tmp_path) as other:
        before = other.log.counted_state()
        assert other.log.is_newest(before)
        monkeypatch.setattr(LockedCopy, "settle", lambda *_: None)
        process.decide(2)
        assert not other.log.is_newest(other.log.counted_state()), (
            "a record that is not settled can count"
        )
        monkeypatch.undo()
        process.decide(3)
        assert other.log.is_newest(other.log.counted_state())
        assert not other.log.is_newest(before)
        promise.write(
            copy_path(tmp_path, 1), promise.read(copy_path(tmp_path, 1))._replace(incomplete=True)
        )
        assert other.log.is_newest(other.log.counted_state())
        other.log.detach(2)
        assert not other.log.is_newest(other.log.counted_state())


def test_the_newest_view_does_not_go_back_while_copies_are_away(tmp_path: Path) -> None:
    """Before, a reader that knew a decision showed the state before it, as soon as only a copy
    without it answered.
    """
    begun(tmp_path)
    with Process(tmp_path) as reader, Process(tmp_path, nodes=(1, 2)) as process:
        earlier = reader.log.counted_state()
        process.decide(2)
        newest = reader.log.counted_state()
        version = reader.log.version()
        assert newest is not earlier
        reader.detach(1)
        reader.detach(2)
        assert reader.log.counted_state() is newest
        assert reader.log.last_view().state is newest
        assert reader.log.version() == version


def test_a_thread_that_read_an_older_view_leaves_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path)
    with Process(tmp_path) as reader, Process(tmp_path) as process:
        read = reader.log._read_view

        def read_slowly(*arguments: Any) -> Any:
            view = read(*arguments)
            monkeypatch.undo()
            process.decide(2)
            assert reader.log.counted_state().settings == {(NODE, "", SETTING): "2"}
            return view

        monkeypatch.setattr(reader.log, "_read_view", read_slowly)
        assert reader.log.counted_state().settings == {(NODE, "", SETTING): "2"}


def test_a_settlement_forgets_what_a_copy_of_another_set_has_shown(tmp_path: Path) -> None:
    """Such a copy can have more records. It is detached later, and what it showed does not stay."""
    begun(tmp_path)
    with Process(tmp_path) as process:
        settled = process.log.settle()
        other = CountedView(DecisionView(99, 7, State("other")))
        process.log._shown = ShownView((), other)
        assert process.log.counted_state() is other.state
        assert process.log.settle() == settled
        assert process.log.counted_state() == settled
