"""The engine of an open log: partitions of topics that change between two steps of a call."""

from __future__ import annotations

import inspect
import os
import random
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import embedlog
from embedlog.coordination.topic_changes import TopicChanges
from embedlog.errors import LockTimeoutError, StorageError, UnknownTopicOrPartitionError
from embedlog.partition.partition import Partition
from embedlog.storage import file_names
from embedlog.topic import Topic, TopicRegistry
from tests.support.producer_helpers import run_program

PACKAGE = str(Path(embedlog.__file__).parent)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", 2)
        yield opened


def test_a_topic_read_before_its_recreation_opens_no_partition(log: embedlog.Log) -> None:
    engine = log._engine
    before = engine.topic("t")
    log.delete_topic("t")
    log.create_topic("t", 2)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        engine.partition_of(before, 0)
    assert engine.partition("t", 0).topic_id_bytes == engine.topic("t").id_bytes != before.id_bytes
    with log.producer() as producer:
        producer.send("t", b"v", partition=0).result(10)


def test_a_partition_has_the_present_settings_of_a_topic_that_was_read_before(
    log: embedlog.Log,
) -> None:
    before = log._engine.topic("t")
    log.alter_topic("t", {"retention.ms": 7})
    assert log._engine.partition_of(before, 0).config.retention_ms == 7


@pytest.fixture
def held_close(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A thread closes the log, and waits within the close until the event is set."""
    begun = threading.Event()
    may_end = threading.Event()
    end_loads = log._engine.loads.end

    def wait_and_end_loads() -> None:
        begun.set()
        assert may_end.wait(30)
        end_loads()

    monkeypatch.setattr(log._engine.loads, "end", wait_and_end_loads)
    closer = threading.Thread(target=log.close)
    closer.start()
    assert begun.wait(30)
    yield may_end
    may_end.set()
    closer.join(30)


def test_a_close_returns_after_that_of_another_thread(
    log: embedlog.Log, held_close: threading.Event
) -> None:
    second = threading.Thread(target=log.close)
    second.start()
    second.join(0.1)
    assert second.is_alive()
    assert any(not directory.is_left for directory in log._engine.directories)
    held_close.set()
    second.join(30)
    assert not second.is_alive()
    assert all(directory.is_left for directory in log._engine.directories)


def test_a_close_that_waits_for_another_thread_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path / "log", config={"lock.timeout.ms": 100}) as log:
        refused = list[BaseException]()

        def close_here() -> None:
            try:
                log.close()
            except LockTimeoutError as problem:
                refused.append(problem)

        def close_in_another_thread() -> None:
            other = threading.Thread(target=close_here)
            other.start()
            other.join(30)

        monkeypatch.setattr(log._engine.loads, "end", close_in_another_thread)
        log.close()
        assert "another thread is closing the log" in str(refused[0])


def test_a_close_inside_of_a_close_returns_at_once(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log._engine.loads, "end", log.close)
    log.close()
    assert all(directory.is_left for directory in log._engine.directories)


def test_a_directory_that_was_renamed_for_a_while_is_closed_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    away = tmp_path / "away"
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"1").result(20)
        path.rename(away)
        log._engine.registry.word = lambda: 1  # the page is not trusted: the file is looked at
        with pytest.raises(
            StorageError, match="the file of the topics is gone while the log is open"
        ):
            log.topics()
        away.rename(path)
        assert log.topics() == ["t"]
    assert not (path / "t-0" / file_names.DIRTY).exists()
    assert (path / file_names.CLEAN_MARK).exists()


def test_a_deleted_topic_opens_no_partition(log: embedlog.Log) -> None:
    before = log._engine.topic("t")
    log.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        log._engine.partition_of(before, 0)


def test_open_without_a_thread_for_the_housekeeper_leaves_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            embedlog.open(tmp_path / "log")
    # refused while the directory is open in another way
    with embedlog.open(tmp_path / "log", shared="locks"):
        pass


def test_open_that_is_interrupted_in_the_deletion_of_a_topic_leaves_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(changes: TopicChanges, topic: Topic, timeout_s: float) -> None:
        raise KeyboardInterrupt

    with embedlog.open(tmp_path / "log", housekeeping=False) as log:
        log.create_topic("t", 1)
        log._engine.registry.put(log._engine.topic("t")._replace(state="deleting"))
    with monkeypatch.context() as patch:
        patch.setattr(TopicChanges, "finish_deletion", interrupted)
        with pytest.raises(KeyboardInterrupt):
            embedlog.open(tmp_path / "log")
    with embedlog.open(tmp_path / "log", shared="locks") as log:
        assert log.topics() == []


# an interrupt of these is not repeated
CLEANUP = {"close", "_unlock", "unlock", "release", "leave", "record_unlock", "__exit__"}


def is_in_finalizer(frame: FrameType) -> bool:
    """Whether the interpreter prints an exception of this frame instead of raising it in the
    opening.
    """
    caller = frame.f_back
    while caller is not None and caller.f_code.co_filename != weakref.__file__:
        caller = caller.f_back
    return caller is not None


def interrupted_at(number: int, opening: Callable[[], embedlog.Log]) -> embedlog.Log | None:
    """The log, or None if an interrupt came at the call of a function of the package with this
    number.
    """
    left = number

    def traced(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        code = frame.f_code
        # the end of a generator is a call, too
        usual = code.co_name not in CLEANUP and not code.co_flags & inspect.CO_GENERATOR
        if event == "call" and usual and PACKAGE in code.co_filename:
            left -= 1
            if left == 0 and is_in_finalizer(frame):
                left = 1
            elif left == 0:
                raise KeyboardInterrupt

    sys.settrace(traced)
    try:
        return opening()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(None)


def held_files(root: Path) -> list[str]:
    """Descriptors and mappings of files of a directory in this process."""
    links = [
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if Path(f"/proc/self/fd/{name}").exists()
    ]
    mapped = [
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(root) in line
    ]
    return [each for each in links + mapped if str(root) in each]


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("state", ["closed", "half deleted", "from a broker"])
def test_an_interrupt_at_any_step_of_an_opening_releases_everything(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, read_only: bool, state: str
) -> None:
    monkeypatch.setattr("embedlog.coordination.directory.UNLINK_DELAY_S", 0)
    root = tmp_path / "log"
    with embedlog.open(root, config={"housekeeping": False}) as log:
        log.create_topic("t")
        log.create_topic("gone")
    if state == "half deleted":
        registry = TopicRegistry(root)
        registry.load()
        registry.change([registry.live("gone")._replace(state="deleting")], ())
    elif state == "from a broker":
        (root / file_names.CLEAN_MARK).write_text('{"version":0}')
    whole = root.rename(tmp_path / "whole")

    steps = 0
    every = 3 if state == "closed" else 8
    for number in range(rng.randrange(1, every + 1), 10_000, every):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        opened = interrupted_at(
            number, lambda: embedlog.open(root, read_only=read_only, config={"housekeeping": False})
        )
        if opened is not None:
            opened.close()
            break
        steps = number
        assert not held_files(root), number
    assert steps > (20 if read_only else 50)


def test_a_topic_that_is_deleted_meanwhile_is_left_out_of_all_partitions(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread takes the deletion of a topic over, while this one is at an earlier topic."""
    log.create_topic("a")
    log.create_topic("z")
    directory = log._engine.home
    partition_of = directory.partition_of

    def delete_another(topic: Topic, number: int) -> Partition:
        if "z" in log.topics():
            log.delete_topic("z")
        return partition_of(topic, number)

    monkeypatch.setattr(directory, "partition_of", delete_another)
    partitions = directory.all_partitions(loaded_only=False)
    assert {partition.topic for partition in partitions} == {"a", "t"}


def test_an_error_of_a_service_at_the_close_stops_the_later_ones(log: embedlog.Log) -> None:
    """Their threads ran on, over closed directories."""
    stopped: list[str] = []

    class Service:
        def __init__(self, name: str, problem: Exception | None) -> None:
            self._name = name
            self._problem = problem

        def stop(self) -> None:
            stopped.append(self._name)
            if self._problem is not None:
                raise self._problem

        def abandon(self) -> None: ...

    engine = log._engine
    engine.attach(Service("first", LockTimeoutError("late")))
    engine.attach(Service("second", None))
    with pytest.raises(LockTimeoutError, match="late"):
        log.close()
    assert stopped == ["first", "second"]


FORK_DURING_AN_OPENING = """
    import os, sys, threading
    import embedlog
    from embedlog.engine.log_directory import LogDirectory

    begun = threading.Event()
    may_end = threading.Event()

    def wait(directory):
        begun.set()
        may_end.wait(60)

    LogDirectory.finish_deletions = wait
    opening = threading.Thread(target=lambda: embedlog.open(sys.argv[1]).close())
    opening.start()
    assert begun.wait(60)
    child = os.fork()
    if not child:
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                 if os.path.exists(f"/proc/self/fd/{name}")]
        print(*[link for link in links if link.endswith("lock")], sep=",", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    may_end.set()
    opening.join()
"""


def test_a_fork_by_another_thread_during_an_opening_leaves_no_lock_to_the_child(
    tmp_path: Path,
) -> None:
    """The directory stayed in use until the child ended."""
    done = run_program(FORK_DURING_AN_OPENING, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
