"""Streams in a real Spark: triggers, limits, restarts, progress reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.support.spark_rows import append

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `t`: 2 partitions of 100 records."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("t", partitions=2)
        append(made, 200)
        yield made


def run(
    spark: Any,
    log: embedlog.Log,
    target: Path,
    trigger: dict[str, Any] | None = None,
    **options: str,
) -> Any:
    """A query that appends to a parquet table in `target` until it has read everything."""
    reader = (
        spark.readStream.format("embedlog")
        .option("subscribe", "t")
        .option("startingOffsets", "earliest")
    )
    for name, text in options.items():
        reader = reader.option(name, text)
    writer = (
        reader.load(str(log.path))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(target / "checkpoint"))
    )
    query = writer.trigger(**(trigger or {"availableNow": True})).start(str(target / "table"))
    query.awaitTermination(200)
    assert query.exception() is None
    assert not query.isActive
    return query


def batches(query: Any) -> list[int]:
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def places(spark: Any, target: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(target / "table")).select("partition", "offset").collect()
    return sorted((row["partition"], row["offset"]) for row in rows)


def test_what_is_there_is_read_in_batches_and_a_restart_goes_on(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    assert batches(run(spark, log, tmp_path, maxOffsetsPerTrigger="60")) == [60, 60, 60, 20]
    log.create_partitions("t", 3)
    append(log, 30)
    with log.producer() as producer:
        producer.send("t", b"new", partition=2).result(10)
    query = run(spark, log, tmp_path)
    assert batches(query) == [31]
    assert places(spark, tmp_path) == sorted(
        [(n, offset) for n in (0, 1) for offset in range(115)] + [(2, 0)]
    )
    (source,) = query.recentProgress[0]["sources"]
    assert json.loads(source["endOffset"])["o"] == {"t": {"0": 115, "1": 115, "2": 1}}
    assert batches(run(spark, log, tmp_path)) == []


def test_a_batch_that_failed_is_read_again_as_it_was(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    """The first batch with rows fails, and meanwhile more comes: the same rows again, and each row
    once.
    """
    reader = (
        spark.readStream.format("embedlog")
        .option("subscribe", "t")
        .option("startingOffsets", "latest")
    )
    frame = reader.option("includeHeaders", "true").load(str(log.path))
    seen: list[tuple[int, list[int]]] = []

    def each(rows: Any, number: int) -> None:
        found = sorted(row["offset"] for row in rows.select("offset").collect())
        if found:
            seen.append((number, found))
        if len(seen) == 1:
            raise RuntimeError("for once")

    writer = frame.writeStream.foreachBatch(each).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    query = writer.trigger(processingTime="50 milliseconds").start()
    try:
        query.processAllAvailable()
        append(log, 20)
        with pytest.raises(Exception, match="for once"):
            query.awaitTermination(100)
    finally:
        query.stop()
    append(log, 6)
    again = writer.trigger(availableNow=True).start()
    again.awaitTermination(100)
    assert seen[0] == seen[1]
    assert sorted(offset for _, rows in seen[1:] for offset in rows) == sorted(
        [*range(100, 113)] * 2
    )


def test_one_trigger_without_limits_takes_everything(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    assert batches(run(spark, log, tmp_path, {"once": True}, maxOffsetsPerTrigger="60")) == [200]


def test_losses_and_wrong_options_reach_the_driver(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="endingOffsets: a stream has no end"):
        run(spark, log, tmp_path / "a", endingOffsets="5")
    run(spark, log, tmp_path / "b", maxOffsetsPerTrigger="1000")
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    append(log, 20)
    with pytest.raises(Exception, match="topic t, which this query reads, is another one now"):
        run(spark, log, tmp_path / "b")
    assert batches(run(spark, log, tmp_path / "b", failOnDataLoss="false")) == [20]


def test_a_group_shows_how_far_a_query_has_come(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    """All completed offsets are committed when the query ends; a group with members is left to
    them.
    """
    options = {"maxOffsetsPerTrigger": "60", "group.id": "spark"}
    run(spark, log, tmp_path, **options)
    append(log, 10)
    assert {
        each.partition: (each.committed.offset, each.lag)
        for each in log.describe_group("spark").partitions
    } == {
        0: (100, 5),
        1: (100, 5),
    }
    run(spark, log, tmp_path, **options)
    assert {each.lag for each in log.describe_group("spark").partitions} == {0}
    with log.consumer("t", group_id="taken") as member:
        member.poll(0.1)
        with pytest.raises(Exception, match=r"group 'taken'.*1 members"):
            run(spark, log, tmp_path / "other", **{"group.id": "taken"})


def test_what_retention_takes_in_the_middle_of_a_stream_is_told(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    run(spark, log, tmp_path, maxOffsetsPerTrigger="1000")
    append(log, 40)
    log.delete_records({embedlog.TopicPartition("t", 1): 110})
    place = (
        r"topic t, partition 1, at or after offset 100: planned records were deleted.*expected "
        r"110 to 120, found 100"
    )
    with pytest.raises(Exception, match=rf"{log.path}/t-1: {place}"):
        run(spark, log, tmp_path)
    assert batches(run(spark, log, tmp_path, failOnDataLoss="false")) == [30]
    read = [*range(100), *range(110, 120)]
    assert places(spark, tmp_path) == [(0, offset) for offset in range(120)] + [
        (1, offset) for offset in read
    ]


def test_damage_under_a_stream_is_told_with_its_place(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    run(spark, log, tmp_path)
    end = sum(path.stat().st_size for path in (log.path / "t-0").glob("*.log"))
    append(log, 20)
    (path,) = (log.path / "t-0").glob("*.log")
    raw = bytearray(path.read_bytes())
    raw[end + 70] ^= 1
    path.write_bytes(raw)
    with pytest.raises(
        Exception,
        match=rf"{path.name} at byte {end}: topic t, partition 0, at or after offset 100: ",
    ):
        run(spark, log, tmp_path)


def test_what_a_stream_cannot_read_is_said_on_the_driver(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="no such topic: missing: expected one of: t"):
        run(spark, log, tmp_path / "a", subscribe="missing")
    reader = spark.readStream.format("embedlog").option("subscribe", "t").schema("value STRING")
    with pytest.raises(Exception, match=r"value.*CAST\(value AS STRING\)"):
        reader.load(str(log.path)).writeStream.format("noop").trigger(
            once=True
        ).start().awaitTermination(100)
