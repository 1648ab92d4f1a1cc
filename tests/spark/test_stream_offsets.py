"""Offsets of a stream without Spark: every record once whatever happens between two batches, limits, losses, restarts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.spark.read_options import parse
from embedlog.spark.stream_offsets import StreamOffsets, places, share
from tests.spark.test_read_plan import offsets, span

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `t`: 2 partitions of 50 records."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("t", partitions=2)
        append(made, 100)
        yield made


def append(log: embedlog.Log, count: int, partitions: int = 2, topic: str = "t") -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"v", partition=number % partitions)


class Query:
    """The calls of Spark to a source: offsets pass through JSON, ends are kept, the very first start is not."""

    def __init__(self, log: embedlog.Log, clock: Any = lambda: 0.0, **options: str) -> None:
        given = {"path": str(log.path), "subscribe": "t", "startingOffsets": "earliest"} | options
        if "subscribePattern" in options:
            del given["subscribe"]
        self.settings, self.clock = parse(given, stream=True), clock
        self.ends: list[str] = []
        self.rows: list[tuple[int, int]] = []
        self.follower = StreamOffsets(self.settings, clock)

    def restart(self) -> None:
        self.follower.close()
        self.follower = StreamOffsets(self.settings, self.clock)

    def start(self) -> dict[str, Any]:
        return json.loads(self.ends[-1]) if self.ends else self.follower.initial()

    def plan(self, rows: int | None = None) -> bool:
        """Keeps the end of a batch; False if there is none."""
        start = self.start()
        end = self.follower.next(start, rows)
        if end == start:
            return False
        self.ends.append(json.dumps(end))
        return True

    def run(self) -> int:
        """The tasks of the batch that was planned last."""
        before = json.loads(self.ends[-2]) if len(self.ends) > 1 else self.follower.initial()
        found = offsets(self.follower.tasks(before, json.loads(self.ends[-1])))
        self.rows += found
        return len(found)

    def batch(self, rows: int | None = None) -> int:
        return self.run() if self.plan(rows) else 0


def test_batches_go_on_where_the_last_one_ended(log: embedlog.Log) -> None:
    query = Query(log)
    assert query.batch() == 100
    assert query.batch() == 0
    append(log, 30)
    assert query.batch() == 30
    assert sorted(query.rows) == span(0, 0, 65) + span(1, 0, 65)
    query.follower.close()


def test_a_limit_is_shared_by_how_far_partitions_are_behind(log: embedlog.Log) -> None:
    append(log, 300, partitions=1)
    query = Query(log)
    assert [query.batch(80) for _ in range(6)] == [80, 80, 80, 80, 80, 0]
    assert sorted(query.rows) == span(0, 0, 350) + span(1, 0, 50)
    assert query.rows[:80] == span(0, 0, 70) + span(1, 0, 10)
    assert [share(span, 10, 1000) for span in (0, 1, 99, 500)] == [0, 1, 1, 5]
    query.follower.close()


def test_a_restart_before_the_first_commit_loses_nothing(log: embedlog.Log) -> None:
    """Spark does not keep the begin of the first batch: requested again, "latest" is later than the end that was kept."""
    query = Query(log, startingOffsets="latest")
    assert query.batch() == 0
    append(log, 20)
    assert query.plan()
    append(log, 60)
    query.restart()
    assert query.run() == 20
    assert query.batch() == 60
    assert sorted(query.rows) == span(0, 50, 90) + span(1, 50, 90)
    query.follower.close()


def test_new_partitions_and_topics_begin_at_their_start_also_when_planned_again(log: embedlog.Log) -> None:
    query = Query(log, subscribePattern="t.*", startingOffsets="latest")
    assert query.batch() == 0
    append(log, 10)
    assert query.batch() == 10
    log.create_partitions("t", 3)
    log.create_topic("two")
    append(log, 30, partitions=3)
    append(log, 5, partitions=1, topic="two")
    assert query.plan()
    query.restart()
    assert query.run() == 35
    assert query.batch() == 0
    query.follower.close()


def test_what_is_there_now_and_no_more(log: embedlog.Log) -> None:
    query = Query(log, minOffsetsPerTrigger="1000")
    query.follower.pin()
    append(log, 10)
    log.create_partitions("t", 3)
    append(log, 9, partitions=3)
    assert [query.batch(60) for _ in range(4)] == [60, 40, 0, 0]
    query.follower.close()


def test_little_waits_for_more_but_not_for_ever(log: embedlog.Log) -> None:
    now = [0.0]
    query = Query(log, lambda: now[0], minOffsetsPerTrigger="50", maxTriggerDelay="10s")
    assert query.batch(10**9) == 100
    append(log, 20)
    assert query.batch(10**9) == 0
    now[0] = 9.9
    assert query.batch(10**9) == 0
    now[0] = 10.1
    assert query.batch(10**9) == 20
    append(log, 60)
    assert query.batch(10**9) == 60
    append(log, 1)
    assert query.batch(None) == 1  # a trigger without limits takes all present records
    query.follower.close()


def test_losses_are_told(log: embedlog.Log) -> None:
    strict, lenient = Query(log), Query(log, failOnDataLoss="false")
    for query in (strict, lenient):
        assert query.batch(50) == 50
    log.delete_records({embedlog.TopicPartition("t", 0): 40})
    assert strict.plan()
    with pytest.raises(
        embedlog.OffsetOutOfRangeError, match="t, partition 0, at or after offset 25: planned records were deleted"
    ):
        strict.run()
    assert lenient.batch() == 35
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    append(log, 10)
    with pytest.raises(embedlog.UnknownTopicOrPartitionError, match="topic t, which this query reads, is another one now"):
        strict.plan()
    assert lenient.batch() == 10
    log.delete_topic("t")
    with pytest.raises(embedlog.UnknownTopicOrPartitionError, match="no such topic: t"):
        strict.plan()
    assert lenient.batch() == 0
    for query in (strict, lenient):
        query.follower.close()


def test_a_foreign_checkpoint_is_refused(log: embedlog.Log) -> None:
    query = Query(log)
    for offset in ({"t": {"0": 5}}, {"v": 2, "o": {}, "id": {}}):
        with pytest.raises(embedlog.UnsupportedFormatError, match="not from this source"):
            query.follower.next(offset, None)
    query.follower.close()


def test_every_record_once_whatever_comes_between(log: embedlog.Log, rng: random.Random) -> None:
    query = Query(log, subscribePattern="t")
    count, partitions = 100, 2
    for _ in range(40):
        step = rng.random()
        if step < 0.4:
            more = rng.randrange(1, 40)
            append(log, more, partitions)
            count += more
        elif step < 0.5:
            query.restart()
        elif step < 0.55:
            partitions += 1
            log.create_partitions("t", partitions)
        elif query.plan(rng.choice([None, 1, 7, 50])):
            if rng.random() < 0.3:
                append(log, partitions, partitions)
                count += partitions
                query.restart()
            query.run()
    while query.batch():
        pass
    assert len(query.rows) == len(set(query.rows)) == count
    query.follower.close()


def test_the_latest_is_where_partitions_end(log: embedlog.Log) -> None:
    query = Query(log)
    assert places(query.follower.latest()["o"]) == {("t", 0): 50, ("t", 1): 50}
    query.follower.close()
