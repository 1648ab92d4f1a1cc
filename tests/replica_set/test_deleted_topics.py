"""Deleted topics in the directories of a set: what a directory that was away has of them, and their committed offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.admin.deleted_topics import DeletedTopics
from embedlog.replication.events import DeleteTopic
from tests.support.replica_moves import opened

T0 = TopicPartition("t", 0)


def made(log: embedlog.Log) -> None:
    log.create_topic("t", assignment={0: [1, 2, 3]})
    with log.producer() as producer:
        producer.send("t", b"value").result(20)


def committed(log: embedlog.Log) -> int | None:
    """The committed offset of the group."""
    with log.consumer(group_id="g") as consumer:
        found = consumer.committed(T0)[T0]
    return None if found is None else found.offset


def commit(log: embedlog.Log) -> None:
    with log.consumer(group_id="g") as consumer:
        consumer.assign([T0])
        consumer.commit({T0: 1})


def live(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("t-?"))


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_directory_that_was_away_loses_a_deleted_topic(tmp_path: Path, closed: bool) -> None:
    log = opened(tmp_path, offsets_topic_num_partitions=1)
    with log:
        made(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        log.delete_topic("t")
        log.housekeep()
        if not closed:
            (tmp_path / "away").rename(tmp_path / "d3")
            log.housekeep()
            assert live(tmp_path / "d3") == []
            return
    (tmp_path / "away").rename(tmp_path / "d3")
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        log.housekeep()
        assert live(tmp_path / "d3") == []
        assert log.topics() == []


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_directory_with_an_older_topic_of_the_name_costs_no_committed_offset(tmp_path: Path, closed: bool) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        log.delete_topic("t")
        made(log)
        commit(log)
        if not closed:
            (tmp_path / "away").rename(tmp_path / "d3")
            log.housekeep()
            assert committed(log) == 1
    if closed:
        (tmp_path / "away").rename(tmp_path / "d3")
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        log.housekeep()
        assert committed(log) == 1
        assert [record.value for record in log.scan("t").records()] == [b"value"]


def test_the_offsets_of_a_deleted_topic_are_deleted_once(tmp_path: Path) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        commit(log)
        log.delete_topic("t")
        made(log)
        assert committed(log) is None


def test_a_deletion_that_was_interrupted_is_completed_before_the_name_is_used_again(tmp_path: Path) -> None:
    """DELETEDTOPIC-2: the process that decided was killed before it deleted the offsets."""
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        commit(log)
        members = log._engine.set  # type: ignore[attr-defined]
        topic_id = members.topics.identified("t")[1]
        members.decide(lambda state: DeleteTopic(topic_id))
        assert live(tmp_path / "d1") == ["t-0"]
        made(log)
        assert committed(log) is None


def test_a_late_completion_keeps_the_offsets_of_a_newer_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DELETEDTOPIC-3: another process completed the deletion and created the topic again meanwhile."""
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        topic_id = log._engine.set.topics.identified("t")[1]  # type: ignore[attr-defined]
        log.delete_topic("t")
        made(log)
        commit(log)
        DeletedTopics(log._engine).delete("t", topic_id)  # type: ignore[arg-type]
        assert committed(log) == 1
        assert [record.value for record in log.scan("t").records()] == [b"value"]


def test_a_directory_that_is_missing_does_not_end_a_round_of_housekeeping(tmp_path: Path) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        log.delete_topic("t")
        log.housekeep()
        assert log.replicas().directories[2].state in ("away", "failed")


def test_topics_of_a_directory_that_was_written_alone_are_those_of_the_set_again(tmp_path: Path) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
    with embedlog.open(tmp_path / "d2", alone=True) as alone:
        alone.create_topic("t2")
        alone.delete_topic("t")
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        log.housekeep()
        assert log.topics() == ["t"]
        assert sorted(log.replicas("t").partitions[0].isr) == [1, 2, 3]
    with embedlog.open(tmp_path / "d2", read_only=True) as alone:
        assert alone.topics() == ["t"]
        assert [record.value for record in alone.scan("t").records()] == [b"value"]
