"""A directory fails while a set is open, in any way: callers notice nothing. It returns and joins
again.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import embedlog
from embedlog._native import replication, system
from embedlog.admin.replica_housekeeper import ReplicaHousekeeper
from embedlog.errors import (
    ElectionNotNeededError,
    LockTimeoutError,
    NotEnoughDirectoriesError,
    StorageError,
)
from embedlog.partition.state import PartitionState
from embedlog.replicas.members import open_directories, registration
from embedlog.replicas.members.set_members import SetMembers
from embedlog.storage import file_names, files
from embedlog.storage.control_page import PageFile
from tests.faults.harness.processes import until
from tests.support.opened_sets import QUIET, isr, made, paths, send, values
from tests.support.replica_directories import failing
from tests.support.returning_directories import data, moved_away, moved_back, opened, replica
from tests.support.stamped_batches import run_of

NODES = (1, 2, 3)


@contextlib.contextmanager
def a_log(root: Path, **settings: object) -> Iterator[embedlog.Log]:
    made(root)
    with opened(root, **settings) as log:
        yield log


def registration_id(log: embedlog.Log, node: int) -> object:
    return log._engine.set.decisions.counted_state().nodes[node].registration_id


# ---- failures --------------------------------------------------------------------------------------------


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize(
    "error", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.ENODEV]
)
def test_an_error_of_a_disk_reaches_no_caller(tmp_path: Path, node: int, error: int) -> None:
    with a_log(tmp_path) as log:
        send(log, b"second")
        with failing(("pwrite",), name=f"d{node}/t-0/", error=error) as struck:
            send(log, b"third")
        assert struck.count
        assert isr(log) == [each for each in NODES if each != node]
        assert values(log) == [b"first", b"second", b"third"]
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert data(tmp_path, 1) == data(tmp_path, 2) == data(tmp_path, 3)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_an_error_of_the_process_is_raised_and_deposes_no_directory(
    tmp_path: Path, error: int
) -> None:
    with a_log(tmp_path) as log:
        partition = log._engine.partition("t", 0)
        with (
            failing(("pwrite",), name="d2/t-0/", error=error),
            pytest.raises(StorageError) as raised,
        ):
            partition.append(run_of(b"second"))
        assert raised.value.errno == error
        assert isr(log) == [1, 2, 3]
        partition.append(run_of(b"third"))
        assert partition.bounds().high_watermark == partition.bounds().log_end


@pytest.mark.parametrize("node", [1, 2])
def test_a_lock_that_is_not_given_back_is_a_failed_directory(tmp_path: Path, node: int) -> None:
    with a_log(tmp_path) as log, opened(tmp_path) as other:
        entered = threading.Event()
        release = threading.Event()

        def hold() -> None:
            with replica(other, node).exclusive(files.deadline_after(60)):
                entered.set()
                assert release.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert entered.wait(60)
            send(log, b"second")
            assert isr(log) == [each for each in NODES if each != node]
        finally:
            release.set()
            thread.join()
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert values(log) == [b"first", b"second"]


@pytest.mark.parametrize("node", [1, 2])
def test_a_long_load_is_waited_for_until_a_deadline_and_fails_no_directory(
    tmp_path: Path, node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = PartitionState._load_locked
    entered = threading.Event()
    release = threading.Event()

    def loading(state: PartitionState, mapped: PageFile) -> None:
        if state.path.parent.name == f"d{node}" and threading.current_thread() is thread:
            entered.set()
            assert release.wait(60)
        load(state, mapped)

    with a_log(tmp_path, lock_timeout_ms=100) as log, log.producer(linger_ms=0) as producer:
        monkeypatch.setattr(PartitionState, "_load_locked", loading)
        thread = threading.Thread(target=lambda: replica(log, node).open())
        thread.start()
        try:
            assert entered.wait(60)
            sent = producer.send("t", b"second", partition=0)
            until(lambda: producer.metrics()["record-retry-total"] > 1, "attempts")
            with pytest.raises(LockTimeoutError, match="another thread"):
                replica(log, node).bounds()
            assert not sent.done()
        finally:
            release.set()
            thread.join()
        sent.result(30)
        assert isr(log) == [1, 2, 3]
        assert values(log) == [b"first", b"second"]


def test_a_process_for_which_alone_a_directory_fails_leaves_the_copying_to_the_others(
    tmp_path: Path,
) -> None:
    with a_log(tmp_path) as log, opened(tmp_path) as other:
        members = log._engine.set.members
        members.directories.fail(
            2, StorageError("gone here", errno=errno.EIO, path=tmp_path / "d2")
        )
        members.directories.member(2).retry_ns = 1 << 62
        send(log, b"second")
        assert isr(log) == [1, 3], "it evicts the directory once"
        other.housekeep()
        assert isr(other) == [1, 2, 3]
        done = threading.Thread(target=lambda: send(log, b"third"))
        done.start()
        while done.is_alive():
            other.housekeep()
            done.join(0.01)
        assert values(other) == [b"first", b"second", b"third"]
        assert isr(other) == [1, 2, 3], "the other process copied, and the directory stayed"


def test_a_process_loads_nothing_of_the_directory_in_the_place_of_its_own(tmp_path: Path) -> None:
    """The page would have the high watermark of the checkpoint again: readers saw their end of a
    partition fall.
    """
    made(tmp_path)
    with opened(tmp_path) as before:
        shutil.copytree(tmp_path / "d2", tmp_path / "copy")
        moved_away(tmp_path / "d2")
        (tmp_path / "copy").rename(tmp_path / "d2")
        with opened(tmp_path) as log:
            send(log, b"second")
            log.replace_directory(2, tmp_path / "d2")
            log.housekeep()
            assert isr(log) == [1, 2, 3]
            page = replica(log, 2)._state.page
            shown = replication.read(page)
            with pytest.raises(StorageError, match="the lock file of this directory was replaced"):
                replica(before, 2).open()
            assert replication.read(page) == shown
            assert page.is_alive()
            send(log, b"third")
            assert isr(log) == [1, 2, 3]
            assert values(log) == [b"first", b"second", b"third"]


# ---- directories that return -----------------------------------------------------------------------------


@pytest.mark.parametrize("node", NODES)
def test_a_directory_that_was_moved_away_and_back_continues(tmp_path: Path, node: int) -> None:
    with a_log(tmp_path) as log:
        before = registration_id(log, node)
        moved_away(tmp_path / f"d{node}")
        send(log, b"second")
        log.housekeep()
        assert node not in isr(log)
        moved_back(tmp_path / f"d{node}")
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert registration_id(log, node) == before, (
            "the same files and the same locks: no new registration"
        )
        send(log, b"third")
        assert data(tmp_path, 1) == data(tmp_path, 2) == data(tmp_path, 3)
    with opened(tmp_path) as log:
        assert values(log) == [b"first", b"second", b"third"]
        assert isr(log) == [1, 2, 3]


@pytest.mark.parametrize("node", [1, 2], ids=["the leader", "a follower"])
def test_a_directory_that_fails_again_after_it_worked_is_replaced_at_once(
    tmp_path: Path, node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses between elections, or evictions, are for a directory that fails for this process only.

    Seed 234 of the power losses: each record waited twice as long as the one before, up to 30 s.
    """
    monkeypatch.setattr(open_directories, "PAUSES_NS", (60_000_000_000,))
    count = 4
    with (
        a_log(tmp_path) as log,
        log.producer(
            linger_ms=0, request_timeout_ms=10_000, delivery_timeout_ms=15_000
        ) as producer,
    ):
        for number in range(count):
            moved_away(tmp_path / f"d{node}")
            producer.send("t", b"away %d" % number).result(30)
            until(
                lambda: producer.send("t", b"more").result(30) and node not in isr(log),
                f"node {node} leaves",
                30,
            )
            moved_back(tmp_path / f"d{node}")
            log._engine.set.members.directories.member(node).retry_ns = 0  # type: ignore[union-attr]
            log.housekeep()
            assert isr(log) == [1, 2, 3]
            with contextlib.suppress(ElectionNotNeededError):
                log.elect("t")
            producer.send("t", b"back %d" % number).result(30)
        found = values(log)
        assert all(
            b"%s %d" % (word, number) in found
            for word in (b"away", b"back")
            for number in range(count)
        )


def test_an_empty_directory_in_the_place_of_a_member_stays_unused(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        moved_away(tmp_path / "d2")
        (tmp_path / "d2").mkdir()
        send(log, b"second")
        log.housekeep()
        assert isr(log) == [1, 3]
        assert not list((tmp_path / "d2").iterdir())
        moved_back(tmp_path / "d2")
        log.housekeep()
        assert isr(log) == [1, 2, 3]


def test_a_directory_of_another_set_in_the_place_of_a_member_stays_unused(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        moved_away(tmp_path / "d2")
        with embedlog.open([tmp_path / "d2"], config=QUIET) as stranger:
            stranger.create_topic("t")
        send(log, b"second")
        log.housekeep()
        assert isr(log) == [1, 3]
        moved_back(tmp_path / "d2")
        log.housekeep()
        assert isr(log) == [1, 2, 3]


def test_a_directory_that_was_away_at_the_opening_returns_while_the_set_is_open(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    moved_away(tmp_path / "d1")
    with opened(tmp_path) as log:
        send(log, b"second")
        moved_back(tmp_path / "d1")
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert log._engine.home.path == tmp_path / "d1"
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"third")
            producer.commit_transaction()
        assert values(log) == [b"first", b"second", b"third"]
    assert data(tmp_path, 1) == data(tmp_path, 2)


def test_the_housekeeper_brings_a_directory_back(tmp_path: Path) -> None:
    made(tmp_path)
    with embedlog.open(paths(tmp_path), config={"log_flush_scheduler_interval_ms": 50}) as log:
        moved_away(tmp_path / "d3")
        send(log, b"second")
        assert isr(log) == [1, 2]
        moved_back(tmp_path / "d3")
        until(lambda: isr(log) == [1, 2, 3], "the directory to join")


def test_a_round_by_hand_passes_over_what_another_thread_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread closes the jobs that the round has listed: their lock failed with EBADF, in
    the caller's hands.
    """
    with a_log(tmp_path, housekeeping=False) as log:
        keeper = cast("ReplicaHousekeeper", log._housekeeper)
        listed = keeper._usable_jobs()
        monkeypatch.setattr(keeper, "_usable_jobs", lambda: listed)
        for each in listed[1:]:
            each.close()
        # as long as they count as the present ones
        with pytest.raises(StorageError, match="EBADF"):
            log.housekeep()
        for directory in [
            directory for directory, jobs in keeper._by_directory.items() if jobs in listed[1:]
        ]:
            del keeper._by_directory[directory]
        log.housekeep()
        assert isr(log) == [1, 2, 3]


@pytest.mark.parametrize("step", ["unlink", "rename", "fsync", "pwrite", "mkdir"])
def test_a_return_that_fails_is_repeated(tmp_path: Path, step: str) -> None:
    made(tmp_path)
    moved_away(tmp_path / "d2")
    with opened(tmp_path) as log:
        send(log, b"second")
        moved_back(tmp_path / "d2")
        for nth in range(1, 4):
            with failing((step,), nth=nth, name="d2/", error=errno.EIO):
                log.housekeep()
        log.housekeep()
        log.housekeep()
        assert isr(log) == [1, 2, 3]
        assert data(tmp_path, 1) == data(tmp_path, 2) == data(tmp_path, 3)


# ---- waiting readers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["assigned", "group"])
def test_a_waiting_reader_follows_the_next_leader(tmp_path: Path, kind: str) -> None:
    """The old leader's page shows nothing of the failover: its directory failed for the other
    process only.
    """
    with a_log(tmp_path) as log, opened(tmp_path) as other:
        group = {"group_id": "g"} if kind == "group" else {}
        with other.consumer("t", auto_offset_reset="earliest", **group) as consumer:  # type: ignore[arg-type]
            assert [record.value for record in consumer.poll(30)] == [b"first"]
            found: list[bytes] = []
            thread = threading.Thread(
                target=lambda: found.extend(record.value for record in consumer.poll(60))
            )
            thread.start()
            began = system.boot_ns()
            members = log._engine.set.members
            members.directories.fail(
                1, StorageError("gone here", errno=errno.EIO, path=tmp_path / "d1")
            )
            members.directories.member(1).retry_ns = 1 << 62
            send(log, b"second")
            thread.join()
            assert found == [b"second"]
            assert system.boot_ns() - began < 30_000_000_000


def test_a_control_page_is_compared_with_its_file(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        place = tmp_path / "d2" / file_names.CONTROL
        opened_again = log._engine.directories[1]
        shutil.copy(place, tmp_path / "page")
        (tmp_path / "page").replace(place)
        log._engine.set.members.directories.fail(
            2, StorageError("a new mount", errno=errno.EIO, path=place)
        )
        log.housekeep()
        log.housekeep()
        assert log._engine.directories[1] is not opened_again
        assert isr(log) == [1, 2, 3]
        send(log, b"second")
        assert values(log) == [b"first", b"second"]


# ---- groups ----------------------------------------------------------------------------------------------


def test_members_keep_their_group_when_the_directory_with_their_slots_fails(tmp_path: Path) -> None:
    """The first directory has the process slots. A later process cannot open it, and must not
    remove the earlier members.
    """
    with a_log(tmp_path) as log:
        log.create_topic("u", 4, replication_factor=3)
        with log.consumer("u", group_id="g") as first:
            first.poll(0.1)
            moved_away(tmp_path / "d1")
            send(log, b"second")
            with opened(tmp_path) as later, later.consumer("u", group_id="g") as second:
                deadline = files.deadline_after(60)
                while not (len(first.assignment()) == len(second.assignment()) == 2):
                    assert system.boot_ns() < deadline
                    first.poll(0.05)
                    second.poll(0.05)
                generation = log.describe_group("g")
                for _ in range(20):
                    first.poll(0.05)
                    second.poll(0.05)
                assert {member.member_id for member in log.describe_group("g").members} == {
                    member.member_id for member in generation.members
                }
                assert (len(first.assignment()), len(second.assignment())) == (2, 2)


def test_a_failure_of_a_directory_inside_another_one_is_its_own(tmp_path: Path) -> None:
    """Before, the outer directory was blamed for it, and left the ISR."""
    places = [tmp_path / "d1", tmp_path / "d1" / "inner", tmp_path / "d3"]
    with embedlog.open(places, config=QUIET) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        send(log, b"first")
        shutil.rmtree(places[1])
        send(log, b"second")
        assert isr(log) == [1, 3]
        assert [each.state for each in log.replicas().directories] == ["live", "failed", "live"]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("count", [2, 3])
def test_directories_whose_lock_files_were_replaced_together_return_by_themselves(
    tmp_path: Path, count: int
) -> None:
    """As by brokers that were stopped: none of the failures shows in a partition while no decision
    is possible.
    """
    with a_log(tmp_path) as log:
        for node in NODES[:count]:
            lock = tmp_path / f"d{node}" / file_names.BROKER_LOCK
            lock.unlink()
            lock.touch()

        def has_returned() -> bool:
            log.housekeep(due_only=True)
            with log.producer(
                delivery_timeout_ms=300, request_timeout_ms=200, linger_ms=0
            ) as producer:
                failure = producer.send("t", b"next").exception(10)
            return failure is None and isr(log) == [1, 2, 3]

        until(has_returned, "all directories return", 30)
        assert all(each.answers for each in log.replicas().directories)


def leave_open(root: Path) -> None:
    """End without a close: the next opening of each directory has another registration."""
    opened(root)
    os._exit(0)


def test_a_directory_that_opens_during_a_registration_is_registered_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observing the replicas can lead to `tend`, which opens a directory that returns. Before, it
    counted as registered by the decision that was made without it.
    """
    made(tmp_path)
    process = multiprocessing.get_context("fork").Process(target=leave_open, args=(tmp_path,))
    process.start()
    process.join()
    process.close()
    moved_away(tmp_path / "d3")
    members = list[SetMembers]()
    register_judged = SetMembers._register_judged
    register = registration.register
    is_nested = threading.Event()
    has_returned = threading.Event()

    def note_members(self: SetMembers, deadline_ns: int) -> None:
        members.append(self)
        register_judged(self, deadline_ns)

    def register_beside_a_return(*arguments: Any, **options: Any) -> Any:
        if is_nested.is_set():
            raise NotEnoughDirectoriesError("no majority for the nested registration")
        if not has_returned.is_set():
            has_returned.set()
            moved_back(tmp_path / "d3")
            is_nested.set()
            members[0].tend(by_hand=True)
            is_nested.clear()
        return register(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(SetMembers, "_register_judged", note_members)
        patched.setattr(registration, "register", register_beside_a_return)
        log = opened(tmp_path)
    with log:
        log.housekeep()
        state = log._engine.set.decisions.counted_state()  # type: ignore[attr-defined]
        own = members[0]._states.require(3).entered.membership
        assert state.nodes[3].registration_id == own.registration_id
