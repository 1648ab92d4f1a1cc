"""Offsets of a stream without Spark: every record once whatever happens between two batches,
limits, losses, restarts.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.spark.read_options import parse
from embedlog.spark.stream_offsets import offsets_from_json, share
from tests.faults.harness.processes import until
from tests.support.spark_queries import Query, append
from tests.support.spark_queries import log as log
from tests.support.spark_rows import span

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")


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
    """Spark does not keep the begin of the first batch: requested again, "latest" is later than the
    end that was kept.
    """
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


def test_new_partitions_and_topics_begin_at_their_start_also_when_planned_again(
    log: embedlog.Log,
) -> None:
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
    strict = Query(log)
    lenient = Query(log, failOnDataLoss="false")
    for query in (strict, lenient):
        assert query.batch(50) == 50
    log.delete_records({embedlog.TopicPartition("t", 0): 40})
    assert strict.plan()
    with pytest.raises(
        embedlog.OffsetOutOfRangeError,
        match="t, partition 0, at or after offset 25: planned records were deleted",
    ):
        strict.run()
    assert lenient.batch() == 35
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    append(log, 10)
    with pytest.raises(
        embedlog.UnknownTopicOrPartitionError,
        match="topic t, which this query reads, is another one now",
    ):
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
    count = 100
    partitions = 2
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
    assert offsets_from_json(query.follower.latest()["o"]) == {("t", 0): 50, ("t", 1): 50}
    query.follower.close()


# ---- an idle stream ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_an_idle_stream_describes_nothing_and_sees_the_next_record(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """Spark asks every few milliseconds, and a description costs by the number of partitions."""
    described: list[str] = []
    original = embedlog.Log.describe_topic

    def describe(self: embedlog.Log, name: str, **options: Any) -> Any:
        described.append(name)
        return original(self, name, **options)

    monkeypatch.setattr(embedlog.Log, "describe_topic", describe)
    log.create_partitions("t", 300)
    query = Query(log, **{"isolation.level": isolation})
    assert query.batch() == 100
    for partition in (0, 299, 298):
        until(
            lambda: not query.plan() and query.follower._watch.is_unchanged(),
            "the topics are as they were",
        )
        described.clear()
        for _ in range(50):
            assert not query.plan()
            query.follower.latest()
        assert described == []
        with log.producer() as producer:
            producer.send("t", b"v", partition=partition)
        until(query.plan, "the record is seen", 5)
        assert query.run() == 1
    query.follower.close()


def test_an_idle_stream_publishes_its_offsets_again(log: embedlog.Log) -> None:
    now_s = [0.0]
    query = Query(log, lambda: now_s[0], **{"group.id": "g"})
    assert query.batch() == 100
    assert not query.plan()
    assert {place.partition: each.offset for place, each in log.group_offsets("g").items()} == {
        0: 50,
        1: 50,
    }
    log.delete_group("g")
    assert not query.plan()
    assert not log.group_offsets("g")
    now_s[0] += 3600.0
    assert not query.plan()
    assert {place.partition: each.offset for place, each in log.group_offsets("g").items()} == {
        0: 50,
        1: 50,
    }
    query.follower.close()


# ---- losses: a position that does not exist any more is said once, and replaced -----------------------------------------


def put_back(path: Path, copy: Path) -> embedlog.Log:
    shutil.rmtree(path)
    shutil.move(copy, path)
    return embedlog.open(path, config={"housekeeping": False})


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the source has logged, as it comes."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("embedlog.spark")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def test_a_log_that_is_shorter_than_the_checkpoint_is_read_from_its_end_on(
    tmp_path: Path, warnings: list[str]
) -> None:
    path = tmp_path / "log"
    copy = tmp_path / "copy"
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log.create_topic("t", partitions=2)
        append(log, 100)
        query, strict = (Query(log, failOnDataLoss=text) for text in ("false", "true"))
    shutil.copytree(path, copy)
    with embedlog.open(path, config={"housekeeping": False}) as log:
        append(log, 40)
    assert query.batch() == strict.batch() == 140
    query.follower.close()
    strict.follower.close()
    with put_back(path, copy) as log:
        query.restart()
        strict.restart()
        with pytest.raises(
            embedlog.OffsetOutOfRangeError, match=r"below the position of this query"
        ):
            strict.plan()
        for _ in range(20):
            query.batch()
        assert len(warnings) == 2  # one for each partition
        query.restart()
        append(log, 80)  # past the position in the checkpoint
        assert query.batch() == 80
        assert len(warnings) == 2
        query.follower.close()
        strict.follower.close()


@pytest.mark.parametrize(
    "has_epochs", [True, False], ids=["with epochs", "an offset of an earlier version"]
)
def test_records_of_a_restored_log_are_not_skipped(
    tmp_path: Path, warnings: list[str], has_epochs: bool
) -> None:
    path = tmp_path / "log"
    backup = tmp_path / "backup"
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log.create_topic("t", partitions=2)
        append(log, 100)
        log.backup(backup)
        append(log, 40)
        query, strict = (Query(log, failOnDataLoss=text) for text in ("false", "true"))
        assert query.batch() == strict.batch() == 140
    for each in (query, strict):
        each.follower.close()
        if not has_epochs:
            each.ends = [
                json.dumps({name: part for name, part in json.loads(end).items() if name != "e"})
                for end in each.ends
            ]
    shutil.rmtree(path)
    with embedlog.open(backup, read_only=True) as source:
        source.backup(path)
    with embedlog.open(path, config={"housekeeping": False}) as log:
        append(log, 60)
        query.restart()
        strict.restart()
        if not has_epochs:  # nothing tells the records apart
            assert query.batch() == strict.batch() == 20
        else:
            with pytest.raises(
                embedlog.OffsetOutOfRangeError,
                match=r"leader epoch 0 ends at 50 now.*failOnDataLoss=false",
            ):
                strict.plan()
            assert query.batch() == 60
            assert len(warnings) == 2
            assert query.batch() == 0
            append(log, 10)
            assert query.batch() == 10
        assert len(warnings) in (0, 2)
        query.follower.close()
        strict.follower.close()


@pytest.mark.parametrize("grown", [0, 10, 60, 200], ids="grown by {}".format)
def test_a_planned_batch_of_a_restored_log_has_no_other_records(
    tmp_path: Path, warnings: list[str], grown: int
) -> None:
    """It was planned before a kill; its offsets belong to other records now, and those come in a
    later batch, once.
    """
    path = tmp_path / "log"
    backup = tmp_path / "backup"
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log.create_topic("t", partitions=2)
        append(log, 100)
        query, strict = (Query(log, failOnDataLoss=text) for text in ("false", "true"))
        assert query.batch() == strict.batch() == 100
        append(log, 20)
        log.backup(backup)
        append(log, 40)
        assert query.plan()
        assert strict.plan()
    for each in (query, strict):
        each.follower.close()
    shutil.rmtree(path)
    with embedlog.open(backup, read_only=True) as source:
        source.backup(path)
    with embedlog.open(path, config={"housekeeping": False}) as log:
        append(log, grown)
        query.restart()
        strict.restart()
        with pytest.raises(
            embedlog.OffsetOutOfRangeError,
            match=r"(planned batch|planned records).*failOnDataLoss=false",
        ):
            strict.run()
        assert query.run() == 20  # those of the backup
        assert len(warnings) == 2  # one for each partition
        rows = query.batch()
        assert rows == grown
        append(log, 6)
        assert query.batch() == 6
        assert len(query.rows) == len(set(query.rows)) == 126 + grown
        query.follower.close()
        strict.follower.close()


def test_a_log_in_a_later_epoch_with_the_same_records_is_no_loss(
    log: embedlog.Log, tmp_path: Path
) -> None:
    query = Query(log)
    assert query.batch() == 100
    query.follower.close()
    log.backup(tmp_path / "backup")
    path = log.path
    log.close()
    with put_back(path, tmp_path / "backup") as same:
        query.restart()
        assert query.batch() == 0
        append(same, 20)
        assert query.batch() == 20
        assert json.loads(query.ends[-1])["e"] == {"t": {"0": 1, "1": 1}}
        query.follower.close()


LOST = ["deleted", "made anew", "made anew with fewer partitions"]


def lose_topic(log: embedlog.Log, how: str) -> None:
    log.delete_topic("t")
    if how != "deleted":
        log.create_topic("t", partitions=1 if "fewer" in how else 2)
        append(log, 7, partitions=1)


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize(
    "when", ["between two batches", "after a batch was planned", "before the query"]
)
def test_a_lost_topic_is_passed_over_if_that_is_allowed(
    log: embedlog.Log, warnings: list[str], how: str, when: str
) -> None:
    log.create_topic("u")
    append(log, 10, partitions=1, topic="u")
    query = Query(log, subscribe="t,u", failOnDataLoss="false")
    strict = Query(log, subscribe="t,u")
    rows = 7 if how != "deleted" else 0
    if when == "before the query":
        lose_topic(log, how)
        assert query.batch() == 10 + rows
        assert len(warnings) == (how == "deleted")
        if how == "deleted":
            with pytest.raises(embedlog.UnknownTopicOrPartitionError, match="no such topic: t"):
                strict.start()
    else:
        assert query.plan()
        assert strict.plan()
        if when == "between two batches":
            assert query.run() == strict.run() == 110
        lose_topic(log, how)
        query.restart()
        strict.restart()
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            strict.run() if "planned" in when else strict.plan()
        if "planned" in when:
            assert query.run() == 10
        assert query.batch() == rows
        assert sum("is passed over" in text for text in warnings) == ("planned" in when)
        assert sum("which this query reads" in text for text in warnings) == 1
    append(log, 3, partitions=1, topic="u")
    assert query.batch() == 3
    assert query.batch() == 0
    query.follower.close()
    strict.follower.close()


def test_a_name_that_no_topic_has_is_an_error_also_if_losses_are_allowed(log: embedlog.Log) -> None:
    query = Query(log, subscribe="tt", failOnDataLoss="false")
    with pytest.raises(embedlog.UnknownTopicOrPartitionError, match="no such topic: tt"):
        query.start()
    query.follower.close()


def test_a_smaller_subscription_is_no_deleted_topic(log: embedlog.Log, warnings: list[str]) -> None:
    log.create_topic("u")
    append(log, 10, partitions=1, topic="u")
    query = Query(log, subscribe="t,u")
    assert query.batch() == 110
    for text in ("true", "false"):
        query.settings = parse(
            {"path": str(log.path), "subscribe": "t", "failOnDataLoss": text}, stream=True
        )
        query.restart()
        if text == "true":
            with pytest.raises(
                embedlog.UnknownTopicOrPartitionError,
                match=r"topic u, which .* is no longer subscribed",
            ):
                query.plan()
    assert query.batch() == 0
    append(log, 4)
    assert query.batch() == 4
    assert len(warnings) == 1
    query.follower.close()


def test_an_open_transaction_is_no_loss_for_a_query_that_reads_committed_now(
    log: embedlog.Log, warnings: list[str]
) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"open", partition=0)
        producer.flush()
        append(log, 20)
        query = Query(log)
        assert query.batch() == 121
        base = {"path": str(log.path), "subscribe": "t", "isolation.level": "read_committed"}
        query.settings = parse(base, stream=True)
        query.restart()
        with pytest.raises(
            embedlog.OffsetOutOfRangeError, match=r"last stable offset 50, and isolation\.level is"
        ):
            query.plan()
        query.settings = parse(base | {"failOnDataLoss": "false"}, stream=True)
        query.restart()
        assert query.batch() == 0
        producer.commit_transaction()
        append(log, 10)
        assert query.batch() == 10
        assert warnings == []
        query.follower.close()
