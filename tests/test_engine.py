"""The engine of an open log: partitions of topics that change between two steps of a call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination.topic_changes import TopicChanges
from embedlog.errors import UnknownTopicOrPartitionError
from embedlog.topic import Topic


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
    assert engine.partition("t", 0).topic_id == engine.topic("t").id_bytes != before.id_bytes
    with log.producer() as producer:
        producer.send("t", b"v", partition=0).result(10)


def test_a_partition_has_the_present_settings_of_a_topic_that_was_read_before(log: embedlog.Log) -> None:
    before = log._engine.topic("t")
    log.alter_topic("t", {"retention.ms": 7})
    assert log._engine.partition_of(before, 0).config.retention_ms == 7


def test_a_deleted_topic_opens_no_partition(log: embedlog.Log) -> None:
    before = log._engine.topic("t")
    log.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        log._engine.partition_of(before, 0)


def test_open_without_a_thread_for_the_housekeeper_leaves_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            embedlog.open(tmp_path / "log")
    with embedlog.open(tmp_path / "log", shared="locks"):  # refused while the directory is open in another way
        pass


def test_open_that_is_interrupted_in_the_deletion_of_a_topic_leaves_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(changes: TopicChanges, topic: Topic, timeout_s: float) -> None:
        raise KeyboardInterrupt

    with embedlog.open(tmp_path / "log", housekeeping=False) as log:
        log.create_topic("t", 1)
        log._engine.registry.put(replace(log._engine.topic("t"), state="deleting"))
    with monkeypatch.context() as patch:
        patch.setattr(TopicChanges, "finish_deletion", interrupted)
        with pytest.raises(KeyboardInterrupt):
            embedlog.open(tmp_path / "log")
    with embedlog.open(tmp_path / "log", shared="locks") as log:
        assert log.topics() == []
