"""A disk of a set hangs: calls on its files return only when it continues. It stops nobody else,
and nothing is lost.
"""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import embedlog
from embedlog._native import replication, system
from embedlog.errors import EmbedlogError, ForkedError
from embedlog.replicas.decisions import decision_session
from tests.support.opened_sets import isr, paths
from tests.support.producer_helpers import wait_until
from tests.support.replica_directories import CHANGES

LOCK_MS = 3000
CONFIG = {
    "lock.timeout.ms": LOCK_MS,
    "replica.lag.time.max.ms": 3000,
    "log.retention.check.interval.ms": 500,
}
EVERY_CALL = (*CHANGES, "open", "stat", "pread")
FIRST_S = (LOCK_MS + 3000) / 1000 + 3.0  # for the first call, on a loaded machine
NEXT_S = 3.0  # for the others
RETURN_S = 60.0
BESIDE = 6  # sends of a process beside its disk that hangs


@contextmanager
def hanging(node: int, kinds: tuple[str, ...] = CHANGES) -> Iterator[None]:
    """Calls of these kinds on files of a directory hang in this process until the end of the
    block.
    """
    system.fault_arm(kinds, 1, "hang", name=f"/d{node}/")
    try:
        yield
    finally:
        system.fault_off()


@pytest.fixture(autouse=True)
def short_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision waits one second for a sync, and not ten."""
    monkeypatch.setattr(decision_session, "SYNC_NS", 1_000_000_000)


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """The process of multiprocessing that removes semaphores; its pipe stays open as long as this
    process runs.
    """
    resource_tracker.ensure_running()


def wait_for_pause(seconds: float = 0.05) -> None:
    """Wait until directories are not written any more without their threads, or longer."""
    end = time.monotonic() + max(seconds, replication.RECENT_NS / 1e9)
    wait_until(lambda: time.monotonic() > end, seconds + 10)


def timed_sends(producer: embedlog.Producer, values: list[bytes]) -> list[float]:
    """The seconds of each send, whose records must be acknowledged."""
    found = []
    for value in values:
        began = time.monotonic()
        producer.send("t", value, partition=0).result(30)
        found.append(time.monotonic() - began)
    return found


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]


def sent_values(log: embedlog.Log) -> list[bytes]:
    return [record.value or b"" for record in log.scan("t").records()]


def wait_for_isr(log: embedlog.Log, size: int) -> None:
    """Wait until all replicas are in sync again."""
    until = time.monotonic() + RETURN_S
    while time.monotonic() < until:
        if len(isr(log)) == size:
            return
        log.housekeep()
    pytest.fail("a directory that answers again does not join the ISR")


@pytest.mark.parametrize("node", [2, 3], ids=["follower and voter", "last follower"])
@pytest.mark.parametrize(
    "kinds", [CHANGES, ("fdatasync", "fsync"), ("pwrite",)], ids=["changes", "syncs", "writes"]
)
def test_a_follower_that_hangs_leaves_the_isr_and_returns(
    tmp_path: Path, node: int, kinds: tuple[str, ...]
) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": 2})
        with log.producer(linger_ms=0) as producer:
            sent = numbers(0, 20)
            timed_sends(producer, sent)
            wait_for_pause()
            with hanging(node, kinds):
                values = numbers(20, 40)
                spent = timed_sends(producer, values)
                sent += values
                assert spent[0] < FIRST_S
                assert max(spent[1:]) < NEXT_S
                log.create_topic("u", replication_factor=2)
            wait_for_isr(log, 3)
            sent += numbers(60, 5)
            timed_sends(producer, sent[-5:])
        assert sent_values(log) == sent


@pytest.mark.parametrize(
    "assignment", [[1, 2, 3], [1, 2]], ids=["leader", "leader with one standby"]
)
@pytest.mark.parametrize("kinds", [CHANGES, ("pwrite",)], ids=["changes", "writes"])
def test_a_leader_that_hangs_hands_over_and_its_records_are_not_doubled(
    tmp_path: Path, assignment: list[int], kinds: tuple[str, ...]
) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: assignment})
        with log.producer(linger_ms=0) as producer:
            sent = numbers(0, 20)
            timed_sends(producer, sent)
            wait_for_pause()
            with hanging(1, kinds):
                values = numbers(20, 20)
                spent = timed_sends(producer, values)
                sent += values
                assert spent[0] < FIRST_S
                assert max(spent[1:]) < NEXT_S
            wait_for_isr(log, len(assignment))
            sent += numbers(40, 5)
            timed_sends(producer, sent[-5:])
        assert sent_values(log) == sent
        assert isr(log) == sorted(assignment)


def test_the_only_standby_that_hangs_leaves_the_isr_and_returns(tmp_path: Path) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2]})
        with log.producer(linger_ms=0) as producer:
            timed_sends(producer, numbers(0, 5))
            wait_for_pause()
            with hanging(2):
                spent = timed_sends(producer, numbers(5, 10))
                assert spent[0] < FIRST_S
                assert max(spent[1:]) < NEXT_S
                assert isr(log) == [1]
        wait_for_isr(log, 2)
        assert sent_values(log) == numbers(0, 15)


def test_a_set_is_opened_beside_a_directory_that_hangs(tmp_path: Path) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": 2})
    for node in (1, 2, 3):
        with hanging(node):
            began = time.monotonic()
            log = embedlog.open(paths(tmp_path), config=CONFIG)
            assert time.monotonic() - began < FIRST_S
            with log.producer(linger_ms=0) as producer:
                timed_sends(producer, numbers(node * 10, 3))
            began = time.monotonic()
            log.close()
            assert time.monotonic() - began < FIRST_S
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        wait_for_isr(log, 3)
        assert sent_values(log) == [*numbers(10, 3), *numbers(20, 3), *numbers(30, 3)]


def _writes_beside(directories: list[Path], node: int, end: Connection) -> None:
    """A process with its own hanging disk, which sends until it is told to stop.

    Nothing of its housekeeper comes within the moment in which a directory is written without its
    thread.
    """
    with (
        embedlog.open(directories, config=CONFIG | {"housekeeping": False}) as log,
        log.producer(linger_ms=0) as producer,
    ):
        producer.send("t", b"ready", partition=0).result(30)
        wait_for_pause()
        system.fault_arm(CHANGES, 1, "hang", name=f"/d{node}/")
        end.send("hangs")
        spent: list[float] = []
        while not end.poll(0.01):
            began = time.monotonic()
            try:
                producer.send("t", b"x", partition=0).result(30)
                spent.append(time.monotonic() - began)
                if len(spent) == BESIDE:
                    end.send("goes on")
            except EmbedlogError as problem:
                end.send(repr(problem))
        system.fault_off()
    end.send(spent)


def test_two_processes_continue_while_a_disk_hangs_for_both(tmp_path: Path) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]}, config={"min.insync.replicas": 2})
    context = multiprocessing.get_context("spawn")
    ends = []
    for _ in range(2):
        own, other = context.Pipe()
        process = context.Process(target=_writes_beside, args=(paths(tmp_path), 2, other))
        process.start()
        other.close()
        ends.append((own, process))
    try:
        assert all(own.recv() == "hangs" for own, _ in ends)
        assert [own.recv() for own, _ in ends] == ["goes on", "goes on"]
        wait_for_pause(1.0)  # both of them send, and each asks again whether its disk hangs
    finally:
        for own, _ in ends:
            own.send("stop")
    for own, process in ends:
        spent = own.recv()
        process.join(60)
        process.close()
        own.close()
        assert isinstance(spent, list), spent
        assert spent[0] < FIRST_S + NEXT_S
        assert len(spent) >= BESIDE
        assert max(spent[1:]) < FIRST_S
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        wait_for_isr(log, 3)


def test_topics_are_made_and_deleted_while_a_disk_hangs(tmp_path: Path) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        log.create_topic("old", replication_factor=3)
        with hanging(2, EVERY_CALL):
            for call in (
                partial(log.create_topic, "u", replication_factor=2),
                partial(log.delete_topic, "old"),
            ):
                began = time.monotonic()
                call()
                assert time.monotonic() - began < FIRST_S
            began = time.monotonic()
            log.create_topic("v", replication_factor=2)
            log.delete_topic("v")
            assert time.monotonic() - began < 2 * NEXT_S
        wait_for_isr(log, 3)
        assert sorted(log.topics()) == ["t", "u"]


def test_a_set_is_read_beside_a_directory_that_hangs(tmp_path: Path) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer(linger_ms=0) as producer:
            timed_sends(producer, numbers(0, 3))
        with hanging(2, EVERY_CALL):
            began = time.monotonic()
            with embedlog.open(paths(tmp_path), read_only=True, config=CONFIG) as reader:
                assert sent_values(reader) == numbers(0, 3)
            assert time.monotonic() - began < 2 * FIRST_S


@pytest.mark.parametrize("closes", [True, False], ids=["after a close", "without a close"])
def test_a_program_ends_while_a_disk_hangs(tmp_path: Path, closes: bool) -> None:
    program = f"""
        import embedlog, sys
        from embedlog._native import system
        log = embedlog.open({[str(path) for path in paths(tmp_path)]!r}, config={CONFIG!r})
        log.create_topic("t", replication_factor=3)
        producer = log.producer(linger_ms=0)
        producer.send("t", b"first").result(30)
        time.sleep(0.05)
        system.fault_arm({EVERY_CALL!r}, 1, "hang", name="/d2/")
        producer.send("t", b"second").result(30)
        if {closes}:
            producer.close()
            log.close()
        print("ends", flush=True)
    """
    source = "import time\n" + textwrap.dedent(program)
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ends\n"
        assert process.wait(FIRST_S) == 0


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.EACCES], ids=["EMFILE", "EACCES"])
def test_a_process_that_opens_no_file_is_not_beside_a_disk_that_hangs(
    tmp_path: Path, problem: int
) -> None:
    """An append opens no file; the question whether the disks hang does."""
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer(linger_ms=0) as producer:
            timed_sends(producer, numbers(0, 20))
            system.fault_arm(["open"], 1, "fail", problem, sticky=True, name=str(tmp_path))
            for number in range(20, 25):
                wait_for_pause()
                timed_sends(producer, numbers(number, 1))
            system.fault_off()
        assert sent_values(log) == numbers(0, 25)
        assert len(isr(log)) == 3


def test_a_closed_set_leaves_no_threads(tmp_path: Path) -> None:
    """Also if nobody collects the objects of the closed log."""
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
    gc.collect()
    before = len(os.listdir("/proc/self/task"))
    gc.disable()
    try:
        for _ in range(3):
            with (
                embedlog.open(paths(tmp_path), config=CONFIG) as log,
                log.producer(linger_ms=0) as producer,
            ):
                timed_sends(producer, numbers(0, 2))
        wait_until(lambda: len(os.listdir("/proc/self/task")) <= before)
    finally:
        gc.enable()


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    with embedlog.open(paths(tmp_path), config=CONFIG) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer(linger_ms=0) as producer:
            timed_sends(producer, numbers(0, 1))
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(ForkedError):
                    log.describe_topic("t")
                with (
                    embedlog.open(paths(tmp_path), config=CONFIG) as own,
                    own.producer(linger_ms=0) as producer,
                ):
                    timed_sends(producer, numbers(1, 1))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sent_values(log) == numbers(0, 2)


@pytest.mark.slow
def test_a_directory_whose_threads_get_no_processor_is_no_failure(tmp_path: Path) -> None:
    """Eight processes are busy, and this one is the least important one, for a minute."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    before = os.getpriority(os.PRIO_PROCESS, 0)
    child = os.fork()
    if child == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, max(before, 19))
            os._exit(_was_evicted(tmp_path))
        finally:
            os._exit(2)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        for each in busy:
            each.kill()
            each.wait()


def _was_evicted(root: Path) -> bool:
    with embedlog.open(paths(root), config=CONFIG) as log, log.producer(linger_ms=0) as producer:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        begin = log.replicas("t").partitions[0]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            producer.send("t", b"x", partition=0).result(60)
            wait_for_pause(0.03)
        end = log.replicas("t").partitions[0]
        return (
            end.isr != begin.isr
            or end.leader_epoch != begin.leader_epoch
            or end.partition_epoch != begin.partition_epoch
        )
