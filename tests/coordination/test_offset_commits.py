"""Committed offsets: the checks of a commit and their time, its errors, and its end with its
topic.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.admin import backup
from embedlog.coordination.groups.group_coordinator import Groups
from embedlog.errors import (
    ClosedError,
    EmbedlogError,
    IllegalGenerationError,
    InvalidGroupIdError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    RecordTooLargeError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from embedlog.storage import files
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.support.campaign_report import add_counts
from tests.support.mutants import mutated
from tests.support.transactional_producers import QUIET, begun, soon

ONE = TopicPartition("t", 0)
TWO = TopicPartition("t", 1)


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(path, config=QUIET) as opened:
        opened.create_topic("t", 3)
        yield opened


@pytest.fixture
def other(other: embedlog.Log) -> Groups:
    """Those of a second handle: to the locks another process."""
    return other._engine.groups


# ---- committing and asking -----------------------------------------------------------------------


def test_what_is_committed_is_told_to_everybody(groups: Groups, other: Groups) -> None:
    groups.commit("g", {ONE: OffsetAndMetadata(5, "noté", 3), TWO: 7})
    for each in (groups, other):
        assert each.read_committed("g", [ONE, TopicPartition("t", 2), TWO]) == {
            ONE: OffsetAndMetadata(5, "noté", 3),
            TopicPartition("t", 2): None,
            TWO: OffsetAndMetadata(7),
        }
        assert each.read_committed("g") == {
            ONE: OffsetAndMetadata(5, "noté", 3),
            TWO: OffsetAndMetadata(7),
        }
        assert each.read_committed("other") == {}
        assert each.names() == ["g"]
        assert each.read_group("g") is None, "no member has joined it"
    other.commit("g", {ONE: 4})
    assert groups.read_committed("g", [ONE]) == {ONE: OffsetAndMetadata(4)}, (
        "back is as good as forth"
    )


def test_asking_makes_nothing(log: embedlog.Log, groups: Groups) -> None:
    assert groups.read_committed("g", [ONE]) == {ONE: None}
    assert groups.read_committed("g") == {}
    assert groups.read_group("g") is None
    assert groups.names() == []
    groups.commit("g", {})
    assert log.topics(include_internal=True) == ["t"]


def test_offsets_outlive_their_process(path: Path) -> None:
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("t", 2)
        log._engine.groups.commit("g", {ONE: 5})
    for read_only in (False, True):
        with embedlog.open(path, read_only=read_only) as log:
            assert log._engine.groups.read_committed("g") == {ONE: OffsetAndMetadata(5)}
            assert log._engine.groups.names() == ["g"]


def test_a_read_only_log_refuses_commits(log: embedlog.Log, path: Path, groups: Groups) -> None:
    groups.commit("g", {ONE: 1})
    with embedlog.open(path, read_only=True) as reader:
        own = reader._engine.groups
        verbs = (
            lambda: own.commit("g", {ONE: 5}),
            lambda: own.delete("g"),
            lambda: own.decide("g", lambda old: old),
        )
        for verb in (*verbs, own.expire):
            with pytest.raises(ReadOnlyError):
                verb()
        assert own.read_committed("g") == {ONE: OffsetAndMetadata(1)}


def test_a_closed_log_refuses_everything(path: Path) -> None:
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("t")
        log._engine.groups.commit("g", {ONE: 1})
    for verb in (
        lambda: log._engine.groups.commit("g", {ONE: 5}),
        lambda: log._engine.groups.read_committed("g"),
        log._engine.groups.names,
    ):
        with pytest.raises(ClosedError):
            verb()


def test_threads_commit_at_once(groups: Groups, other: Groups) -> None:
    errors: list[BaseException] = []

    def work(name: str, own: Groups, place: TopicPartition) -> None:
        try:
            for offset in range(60):
                own.commit(name, {place: offset})
        except BaseException as problem:  # noqa: BLE001  a thread's edge
            errors.append(problem)

    jobs = [
        (name, own, place) for name in ("g", "h") for own in (groups, other) for place in (ONE, TWO)
    ]
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert (
        groups.read_committed("g")
        == other.read_committed("h")
        == {ONE: OffsetAndMetadata(59), TWO: OffsetAndMetadata(59)}
    )


# ---- bad input -----------------------------------------------------------------------------------

LONG = "x" * 4097


@pytest.mark.parametrize(
    ("group_id", "offsets", "error"),
    [
        ("", {ONE: 1}, InvalidGroupIdError),
        ("g" * 32768, {ONE: 1}, InvalidGroupIdError),
        ("\ud800", {ONE: 1}, InvalidGroupIdError),
        (b"g", {ONE: 1}, TypeError),
        (None, {ONE: 1}, TypeError),
        ("g", [ONE], TypeError),
        ("g", {"t": 1}, TypeError),
        ("g", {("t", "0"): 1}, TypeError),
        ("g", {("t", True): 1}, TypeError),
        ("g", {ONE: "1"}, TypeError),
        ("g", {ONE: True}, TypeError),
        ("g", {ONE: None}, TypeError),
        ("g", {ONE: OffsetAndMetadata("1")}, TypeError),  # type: ignore[arg-type]
        ("g", {ONE: OffsetAndMetadata(1, None)}, TypeError),  # type: ignore[arg-type]
        ("g", {ONE: -1}, OffsetOutOfRangeError),
        ("g", {ONE: 2**63}, OffsetOutOfRangeError),
        ("g", {ONE: OffsetAndMetadata(1, "", -2)}, OffsetOutOfRangeError),
        ("g", {ONE: OffsetAndMetadata(1, "", 2**31)}, OffsetOutOfRangeError),
        ("g", {ONE: OffsetAndMetadata(1, LONG)}, RecordTooLargeError),
        ("g", {ONE: OffsetAndMetadata(1, "é" * 2049)}, RecordTooLargeError),
        ("g", {ONE: OffsetAndMetadata(1, "\ud800")}, RecordTooLargeError),
        ("g", {ONE: 1, TopicPartition("nope", 0): 1}, UnknownTopicOrPartitionError),
        ("g", {ONE: 1, TopicPartition("\ud800", 0): 1}, UnknownTopicOrPartitionError),
        ("g", {ONE: 1, TopicPartition("t", 3): 1}, UnknownTopicOrPartitionError),
        ("g", {ONE: 1, TopicPartition("t", -1): 1}, UnknownTopicOrPartitionError),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_commit_that_cannot_be_is_an_error_of_its_own(
    groups: Groups, group_id: Any, offsets: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        groups.commit(group_id, offsets)
    assert groups.read_committed("g") == {}
    groups.commit("g", {ONE: 1})


def test_the_longest_note_and_an_offset_beyond_the_end_are_taken(groups: Groups) -> None:
    groups.commit("g", {ONE: OffsetAndMetadata(2**63 - 1, LONG[:-1], 2**31 - 1)})
    assert groups.read_committed("g") == {ONE: OffsetAndMetadata(2**63 - 1, LONG[:-1], 2**31 - 1)}


def test_a_commit_beyond_a_batch_is_refused_as_a_whole(path: Path) -> None:
    with embedlog.open(path, config=QUIET | {"offset.metadata.max.bytes": 32_000}) as log:
        log.create_topic("t", 40)
        many = {
            TopicPartition("t", number): OffsetAndMetadata(1, "x" * 32_000) for number in range(40)
        }
        with pytest.raises(RecordTooLargeError, match="at most 1048588 bytes"):
            log._engine.groups.commit("g", many)
        assert log._engine.groups.read_committed("g") == {}


def test_a_commit_by_a_stranger_is_refused(groups: Groups) -> None:
    for identity in (GroupMetadata("g", 3, "m"), GroupMetadata("g", 0, "m")):
        with pytest.raises(UnknownMemberError):
            groups.commit("g", {ONE: 1}, identity)
    with pytest.raises(InvalidGroupIdError, match="another group"):
        groups.commit("g", {ONE: 1}, GroupMetadata("h"))
    with pytest.raises(TypeError):
        groups.commit("g", {ONE: 1}, ("g", 3, "m", None))  # type: ignore[arg-type]
    assert groups.read_committed("g") == {}
    assert issubclass(UnknownMemberError, embedlog.CommitFailedError)
    assert issubclass(IllegalGenerationError, embedlog.CommitFailedError)


def test_a_lock_that_somebody_holds_is_a_timeout(groups: Groups, other: Groups) -> None:
    groups.commit("g", {ONE: 1})
    with (
        other.topic.partition(other.topic.partition_of("g")).exclusive(soon()),
        pytest.raises(LockTimeoutError),
    ):
        groups.commit("g", {ONE: 2}, None, files.deadline_after(0.05))
    assert other.read_committed("g") == {ONE: OffsetAndMetadata(1)}


# ---- with their topic ----------------------------------------------------------------------------


def offsets_behind_a_deletion(
    log: embedlog.Log, other: Groups
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    log._engine.groups.commit("g", {ONE: 5})
    log.delete_topic("t")
    log.create_topic("t", 3)
    return other.read_committed("g")


def test_a_deleted_topic_takes_its_offsets_along(
    log: embedlog.Log, groups: Groups, other: Groups
) -> None:
    log.create_topic("kept")
    for name in ("g", "h", "k"):
        groups.commit(name, {ONE: 5, TWO: 5, TopicPartition("kept", 0): 6})
    groups.commit("gone", {ONE: 1})
    assert offsets_behind_a_deletion(log, other) == {
        TopicPartition("kept", 0): OffsetAndMetadata(6)
    }
    for each in (groups, other):
        assert each.names() == ["g", "h", "k"]
        for name in each.names():
            assert each.read_committed(name) == {TopicPartition("kept", 0): OffsetAndMetadata(6)}


def test_a_deletion_that_failed_before_the_offsets_is_completed_before_the_name_is_used_again(
    log: embedlog.Log, groups: Groups, other: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DIR-3: the entry of the topic is in the same directory as the offsets."""

    def fail(*arguments: object) -> None:
        raise LockTimeoutError("the lock of __consumer_offsets-0")

    groups.commit("g", {ONE: 5})
    with monkeypatch.context() as patched:
        patched.setattr(Groups, "forget_topics", fail)
        with pytest.raises(LockTimeoutError):
            log.delete_topic("t")
    assert log.topics() == []
    log.create_topic("t", 3)
    assert other.read_committed("g") == {}


def test_without_that_a_new_topic_would_be_read_from_the_offsets_of_the_old(
    log: embedlog.Log, other: Groups
) -> None:
    with mutated("keep_offsets"):
        assert offsets_behind_a_deletion(log, other) == {ONE: OffsetAndMetadata(5)}


def commit_that_looks_before_a_deletion(
    log: embedlog.Log, other: Groups, *, created_again: bool = False
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """The topics existed at the check; another process deletes one before the lock is taken, and
    perhaps creates one of the same name.
    """
    other.commit("g", {ONE: 1})
    check = other.check_topics
    turns = iter([False, True])

    def check_and_wait(wanted: Any, topics: Any = None) -> dict[str, str]:
        found = check(wanted, topics)
        if not next(turns):
            log.delete_topic("t")
            if created_again:
                log.create_topic("t", 3)
        return found

    other.check_topics = check_and_wait  # type: ignore[method-assign]
    with contextlib.suppress(UnknownTopicOrPartitionError):
        other.commit("g", {ONE: 2})
    return log._engine.groups.read_committed("g")


def test_a_commit_looks_at_the_topics_once_more_under_the_lock(
    log: embedlog.Log, other: Groups
) -> None:
    assert commit_that_looks_before_a_deletion(log, other) == {}


def test_a_commit_of_a_deleted_topic_is_none_of_a_newer_one_of_that_name(
    log: embedlog.Log, other: Groups
) -> None:
    assert commit_that_looks_before_a_deletion(log, other, created_again=True) == {}


def test_without_the_topic_id_a_new_topic_is_read_from_the_offset_of_a_deleted_one(
    log: embedlog.Log, other: Groups
) -> None:
    with mutated("commit_by_name"):
        assert commit_that_looks_before_a_deletion(log, other, created_again=True) == {
            ONE: OffsetAndMetadata(2)
        }


def test_an_asynchronous_commit_that_waits_is_one_of_the_topics_of_its_call(
    log: embedlog.Log, other: Groups
) -> None:
    """Its lock was held by another process until the topic had been deleted and created again."""
    found: list[Exception | None] = []
    with log.consumer(group_id="g") as consumer:
        consumer.assign([ONE])
        partition = other.topic.partition(other.topic.partition_of("g"))
        with partition.exclusive():
            consumer.commit_async({ONE: 5}, lambda offsets, problem: found.append(problem))
        log.delete_topic("t")
        log.create_topic("t", 3)
        consumer.commit({})  # completes those before it
    assert [type(each) for each in found] == [UnknownTopicOrPartitionError]
    assert log._engine.groups.read_committed("g") == {}


def test_without_that_look_an_offset_outlives_its_topic(log: embedlog.Log, other: Groups) -> None:
    with mutated("commit_to_deleted"):
        assert commit_that_looks_before_a_deletion(log, other) == {ONE: OffsetAndMetadata(2)}


def test_a_backup_has_no_offset_behind_its_records(tmp_path: Path) -> None:
    """A process reads and commits during it: committed offsets are read before the ends of the
    partitions.
    """
    with embedlog.open(tmp_path / "log", config=QUIET) as log, log.producer() as producer:
        for name in ("A", "t"):
            log.create_topic(name)
            producer.send(name, b"first").result()
        log._engine.groups.commit("g", {ONE: 1, TopicPartition("A", 0): 1})
        seen: list[str] = []
        pin = backup.pin_of

        def read_on(partition: Any) -> Any:
            found = pin(partition)
            seen.append(partition.topic)
            for name in ("A", "t") if seen.count(partition.topic) > 1 else ():
                end = producer.send(name, b"more").result().offset + 1
                log._engine.groups.commit("g", {TopicPartition(name, 0): end})
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backup, "pin_of", read_on)
            log.backup(tmp_path / "copy")
    with embedlog.open(tmp_path / "copy") as copy:
        for place, committed in copy._engine.groups.read_committed("g").items():
            assert committed is not None
            assert committed.offset <= copy._engine.partition(*place).bounds().log_end


# ---- calls that fail -----------------------------------------------------------------------------

FAILING = (
    "open",
    "pread",
    "pwrite",
    "fsync",
    "fdatasync",
    "stat",
    "lock",
    "mmap",
    "list",
    "mkdir",
    "rename",
    "fallocate",
)


def commits(log: embedlog.Log, offset: int) -> None:
    log._engine.groups.commit("g", {ONE: offset})


def transacts(log: embedlog.Log, offset: int) -> None:
    writer = begun(log)
    try:
        writer.owner.add_offsets({ONE: offset}, GroupMetadata("g"))
        writer.commit()
    finally:
        writer.owner.close()


VERBS = {"commit": (commits, 1), "in-transaction": (transacts, 1), "first-use": (commits, 4)}


@pytest.mark.parametrize(("verb", "step"), VERBS.values(), ids=VERBS)
def test_a_call_that_fails_is_an_error_of_ours_and_harms_nothing(
    path: Path, verb: Callable[[embedlog.Log, int], None], step: int
) -> None:
    """For every failing call of the operating system: a typed error, an old or a new offset, and
    later commits work.
    """
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("t", 2)
        verb(log, 0)
    nth = 1
    before = 0
    struck = 1
    failed = 0
    log = embedlog.open(path, config=QUIET)
    try:
        while struck:
            if step > 1:  # the first commit in a process makes more calls
                log.close()
                log = embedlog.open(path, config=QUIET)
            system.fault_counters(reset=True)
            system.fault_arm(FAILING, nth, "fail", (errno.EIO, errno.ENOSPC, errno.EMFILE)[nth % 3])
            try:
                verb(log, before + 1)
            except EmbedlogError:
                failed += 1
            finally:
                struck = system.fault_counters()[1]
                system.fault_off()
            found = log._engine.groups.read_committed("g", None, soon())[ONE]
            assert found is not None
            assert found.offset in (before, before + 1)
            verb(log, before + 2)
            assert log._engine.groups.read_committed("g", None, soon()) == {
                ONE: OffsetAndMetadata(before + 2)
            }
            before = before + 2
            nth = nth + step
    finally:
        log.close()
    add_counts("calls that fail", points=nth // step, errors=failed, violations=0)
    assert failed >= 2
