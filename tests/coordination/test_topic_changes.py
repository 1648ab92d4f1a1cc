"""Changes of topics: an interrupt at any point leaves the append locks of live partitions free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination.topic_changes import TopicChanges, mark_deleted
from embedlog.storage import file_names, files
from embedlog.storage.locks import LockFile
from embedlog.topic import Topic
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt

MODULES = {"topic_changes.py", "locks.py", "contextlib.py", "files.py"}
Change = Callable[[TopicChanges, Topic, Path], object]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", 1)
        with opened.producer() as producer:
            producer.send("t", b"v").result(20)
        yield opened


def await_appends(changes: TopicChanges, topic: Topic, _: Path) -> None:
    changes.await_appends(topic.name, [0])


def renew(changes: TopicChanges, topic: Topic, _: Path) -> None:
    """The partition was loaded, so it stays."""
    assert not changes.renew_partition(topic, 0)


def retire(_: TopicChanges, __: Topic, path: Path) -> None:
    """The page is in a later epoch, so the partition stays."""
    assert not mark_deleted(path, None, files.deadline_after(20), epoch=-1)


@OF_THIS_INTERPRETER
@pytest.mark.may_leak("an interrupt between a system call and the assignment of its result")
@pytest.mark.parametrize("change", [await_appends, renew, retire])
def test_an_interrupt_at_any_point_leaves_the_append_lock_free(
    log: embedlog.Log, change: Change
) -> None:
    engine = log._engine
    topic = engine.topic("t")
    path = engine.home.path / file_names.partition_name("t", 0)
    nth = 0
    while True:
        nth += 1
        interrupt = Interrupt(nth, MODULES)
        interrupt.run(lambda: change(engine.home.topic_changes, topic, path))
        if interrupt.struck is None:
            break
        other = LockFile(path / file_names.LOCK)
        try:
            assert other.try_lock(), f"point {nth}, {interrupt.struck}"
        finally:
            other.close()
    assert nth > 10
