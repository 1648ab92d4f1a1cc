"""A stream that commits its progress for a consumer group: never more than is done, never back,
without delaying the query.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

import embedlog
from embedlog.spark.offset_publisher import AGAIN_S, RETRY_S
from tests.support.spark_queries import Query, append, log

__all__ = ["log"]

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")


def told(log: embedlog.Log, topic: str = "t") -> dict[int, int]:
    return {
        place.partition: each.offset
        for place, each in log.group_offsets("g").items()
        if place.topic == topic
    }


def following(log: embedlog.Log, **options: Any) -> Query:
    return Query(log, **{"group.id": "g"} | options)


def test_what_is_done_is_told_and_what_is_planned_is_not(log: embedlog.Log) -> None:
    query = following(log)
    assert query.plan(60)
    assert told(log) == {0: 0, 1: 0}  # where it begins
    query.run()
    assert told(log) == {0: 0, 1: 0}  # Spark may still lose its output
    assert query.plan(60)
    assert told(log) == {0: 30, 1: 30}
    query.run()
    assert not query.plan()
    assert told(log) == {0: 50, 1: 50}
    append(log, 10)
    assert {each.lag for each in log.describe_group("g").partitions} == {5}
    query.follower.close()


def test_a_commit_of_sparks_tells_it_too(log: embedlog.Log) -> None:
    query = following(log)
    assert query.plan()
    query.run()
    query.follower.done(query.start())
    assert told(log) == {0: 50, 1: 50}
    query.follower.close()


def test_a_batch_that_is_repeated_moves_nothing(log: embedlog.Log) -> None:
    query = following(log)
    assert query.batch(60) == 60
    assert query.plan(20)
    before = told(log)
    query.restart()
    assert query.run() == 20
    assert told(log) == before == {0: 30, 1: 30}
    assert query.batch(10) == 10
    assert told(log) == {0: 40, 1: 40}
    query.follower.close()


def test_a_group_is_not_moved_back_until_it_is_overtaken(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    with log.consumer(group_id="g") as reader:
        reader.commit({embedlog.TopicPartition("t", 0): 40})
    query = following(log)
    with caplog.at_level(logging.WARNING, "embedlog.spark"):
        for _ in range(3):
            assert query.batch(20) == 20
    assert told(log) == {0: 40, 1: 20}
    assert caplog.text.count("t-0: committed up to 40, this query is at 0: left unchanged") == 1
    while query.batch():
        pass
    assert told(log) == {0: 50, 1: 50}
    query.follower.close()


def test_a_group_behind_the_end_stands_nowhere_and_is_moved(log: embedlog.Log) -> None:
    with log.consumer(group_id="g") as reader:
        reader.commit({embedlog.TopicPartition("t", 1): 5000})
    query = following(log)
    query.batch()
    assert told(log) == {0: 0, 1: 0}
    query.follower.close()


def test_new_partitions_and_topics_are_told_once_they_were_read(log: embedlog.Log) -> None:
    query = following(log, subscribePattern="t.*")
    query.batch()
    log.create_partitions("t", 3)
    log.create_topic("two")
    append(log, 30, partitions=3)
    append(log, 5, partitions=1, topic="two")
    assert query.plan()
    assert (told(log), told(log, "two")) == ({0: 50, 1: 50}, {})
    query.run()
    assert query.batch() == 0
    assert (told(log), told(log, "two")) == ({0: 60, 1: 60, 2: 10}, {0: 5})
    query.follower.close()


def test_a_topic_that_was_made_anew_is_told_anew(log: embedlog.Log) -> None:
    query = following(log, failOnDataLoss="false")
    query.batch()
    assert query.batch() == 0
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    append(log, 20)
    query.follower.done(query.start())
    assert told(log) == {}
    assert query.batch() == 20
    assert query.batch() == 0
    assert told(log) == {0: 10, 1: 10}
    query.follower.close()


def test_a_group_with_members_is_refused_until_they_have_left(log: embedlog.Log) -> None:
    with log.consumer("t", group_id="g") as member:
        member.poll(0.1)
        with pytest.raises(
            embedlog.GroupNotEmptyError,
            match=r"group.id: this group has active consumers.*1 members",
        ):
            following(log)
    query = following(log)
    assert query.batch() == 100
    query.follower.close()


def test_members_that_come_later_are_a_warning_and_the_query_goes_on(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    query = following(log)
    query.clock = lambda: now[0]
    query.restart()
    assert query.batch(20) == 20
    with (
        log.consumer("t", group_id="g") as member,
        caplog.at_level(logging.WARNING, "embedlog.spark"),
    ):
        member.poll(0.1)
        assert [query.batch(20) for _ in range(3)] == [20, 20, 20]
    assert caplog.text.count("offsets were not published, the query continues") == 1
    assert query.batch(20) == 20
    assert query.batch() == 0  # committed at the last batch's end, or once more a little later
    now[0] += RETRY_S
    assert query.batch() == 0
    assert told(log) == {0: 50, 1: 50}
    query.follower.close()


def test_an_idle_streams_group_is_told_again_before_it_is_forgotten(log: embedlog.Log) -> None:
    now = [0.0]
    query = following(log)
    query.clock = lambda: now[0]
    query.restart()
    query.batch()
    assert query.batch() == 0
    log.delete_group("g")
    assert query.batch() == 0
    assert told(log) == {}
    now[0] += AGAIN_S
    assert query.batch() == 0
    assert told(log) == {0: 50, 1: 50}
    query.follower.close()


def test_a_directory_that_cannot_be_written_is_told_at_the_start(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = embedlog.open

    def refusing(*place: Any, read_only: bool = False, **options: Any) -> embedlog.Log:
        if read_only:
            return opened(*place, read_only=True, **options)
        raise embedlog.StorageError("Permission denied", path=log.path)

    monkeypatch.setattr(embedlog, "open", refusing)
    with pytest.raises(
        embedlog.StorageError,
        match=r"group.id=g: committing its offsets needs write access to the log",
    ):
        following(log)


def test_a_group_that_cannot_be_is_refused(log: embedlog.Log) -> None:
    with pytest.raises(embedlog.InvalidGroupIdError):
        following(log, **{"group.id": "x" * 40_000})
