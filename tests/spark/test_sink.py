"""Writing from Spark: the records of a job in the log, and of a failed one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.partitioners import partition_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topics `t` (2 partitions) and `u`."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("t", partitions=2)
        made.create_topic("u")
        yield made


def rows(log: embedlog.Log, topic: str = "t") -> list[tuple[int, bytes | None, bytes | None]]:
    """(partition, key, value) of all that is committed."""
    found = log.scan(topic, isolation_level="read_committed").records()
    return sorted((record.partition, record.key or b"", record.value or b"") for record in found)


def values(log: embedlog.Log, topic: str = "t") -> list[bytes]:
    return sorted(value or b"" for _, _, value in rows(log, topic))


def save(frame: Any, log: embedlog.Log, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("embedlog").mode(mode)
    for name, text in options.items():
        writer = writer.option(name.replace("_", "."), text)
    writer.save(str(log.path))


def numbers(spark: Any, count: int, tasks: int = 2, first: int = 0) -> Any:
    return spark.range(first, first + count, 1, tasks).selectExpr(
        "CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )


def staging(log: embedlog.Log) -> list[str]:
    return [name for _, _, names in os.walk(f"{log.path}.staging") for name in names]


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_a_job_writes_what_a_producer_would(spark: Any, log: embedlog.Log) -> None:
    save(numbers(spark, 100), log, topic="t")
    with log.producer() as producer:
        producer.send_batch("u", [b"x"])
    count = log.describe_topic("t").partitions
    assert sum(each.log_end_offset for each in count) == 100 + 2  # and the markers
    wanted = sorted(
        (partition_of(b"%d" % (n % 7), 2), b"%d" % (n % 7), b"%d" % n) for n in range(100)
    )
    assert rows(log) == wanted
    assert not os.path.exists(f"{log.path}.staging")
    assert log.groups() == []


@pytest.mark.slow
def test_a_stream_is_written_once_whatever_is_repeated(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    with log.producer() as producer:
        producer.send_batch("u", [b"%d" % number for number in range(50)])

    def run(**trigger: Any) -> Any:
        frame = (
            spark.readStream.format("embedlog")
            .option("subscribe", "u")
            .option("startingOffsets", "earliest")
        )
        frame = (
            frame.option("maxOffsetsPerTrigger", "20")
            .load(str(log.path))
            .selectExpr("key", "value")
        )
        writer = (
            frame.writeStream.format("embedlog")
            .option("topic", "t")
            .option("checkpointLocation", str(tmp_path / "c"))
        )
        query = writer.trigger(**trigger).start(str(log.path))
        query.awaitTermination(200)
        assert query.exception() is None
        return query

    wanted = sorted(b"%d" % number for number in range(50))
    query = run(availableNow=True)
    assert values(log) == wanted
    (name,) = log.groups()
    assert name == f"embedlog-spark-{query.id}"
    (offset,) = log.group_offsets(name).values()
    assert (offset.offset, offset.metadata) == (3, query.id)
    (tmp_path / "c" / "commits" / "2").unlink()
    (tmp_path / "c" / "commits" / ".2.crc").unlink(missing_ok=True)
    run(availableNow=True)
    assert values(log) == wanted
    assert staging(log) == []


# ---- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_columns_say_where_rows_go(spark: Any, log: embedlog.Log) -> None:
    frame = spark.sql(
        "select cast(id as string) as value, if(id % 3 = 0, 'u', 't') as topic, if(id % 3 = 1, 1, "
        "null) as partition,"
        " array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) as "
        "headers, id as other from range(30)"
    )
    save(frame, log)
    assert values(log, "u") == sorted(b"%d" % number for number in range(0, 30, 3))
    for record in log.scan("t", isolation_level="read_committed").records():
        number = int(record.value or b"")
        assert record.headers == (("n", b"%d" % number),)
        assert record.partition == 1 or number % 3 == 2
    save(
        frame.drop("partition"),
        log,
        includeHeaders="false",
        topic="u",
        partitioner="roundrobin",
        compression_type="lz4",
    )
    assert len(values(log, "u")) == 40
    assert (
        sum(
            record.headers == ()
            for record in log.scan("u", isolation_level="read_committed").records()
        )
        == 30
    )


@pytest.mark.slow
def test_what_is_read_can_be_written(spark: Any, log: embedlog.Log) -> None:
    save(numbers(spark, 20), log, topic="t")
    frame = (
        spark.read.format("embedlog")
        .option("subscribe", "t")
        .option("isolation.level", "read_committed")
    )
    save(
        frame.option("includeHeaders", "true").load(str(log.path)).drop("partition"), log, topic="u"
    )
    assert values(log, "u") == values(log, "t")


# ---- jobs with names, modes ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_with_a_name_is_written_once(spark: Any, log: embedlog.Log) -> None:
    for batch in ("20260131", "20260131", "20260201"):
        save(
            numbers(spark, 10, first=int(batch[-3:])),
            log,
            topic="t",
            transactionalId="nightly",
            batchId=batch,
        )
    assert values(log) == sorted(
        b"%d" % number for first in (131, 201) for number in range(first, first + 10)
    )
    assert [offset.offset for offset in log.group_offsets("nightly").values()] == [20260202]


@pytest.mark.slow
def test_overwriting(spark: Any, log: embedlog.Log) -> None:
    save(numbers(spark, 30), log, topic="t")
    save(numbers(spark, 5, first=100), log, "overwrite", topic="t")
    assert values(log) == [b"%d" % number for number in range(100, 105)]


@pytest.mark.slow
def test_complete_output_is_appended_whole(spark: Any, log: embedlog.Log, tmp_path: Path) -> None:
    for turn in (1, 2):
        with log.producer() as producer:
            producer.send_batch("u", [b"a", b"b", b"a"])
        lines = (
            spark.readStream.format("embedlog")
            .option("subscribe", "u")
            .option("startingOffsets", "earliest")
        )
        counts = (
            lines.load(str(log.path))
            .groupBy("value")
            .count()
            .selectExpr("value AS key", "CAST(count AS STRING) AS value")
        )
        writer = counts.writeStream.outputMode("complete").format("embedlog").option("topic", "t")
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        writer.start(str(log.path)).awaitTermination(200)
        newest = {key: value for _, key, value in sorted(rows(log), key=lambda row: row[2])}
        assert newest == {b"a": b"%d" % (2 * turn), b"b": b"%d" % turn}


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_missing_topic_is_refused_before_the_first_task(
    spark: Any, log: embedlog.Log, tmp_path: Path
) -> None:
    """Topics from an option are checked at once; topics from a column only with the rows."""
    begun = spark.sparkContext.accumulator(0)
    area = tmp_path / "staging"

    def noted(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            begun.add(1)
            yield batch

    frame = (
        spark.range(4).selectExpr("CAST(id AS STRING) AS value").mapInArrow(noted, "value STRING")
    )
    job = frame.write.format("embedlog").mode("append").option("stagingDirectory", str(area))
    with pytest.raises(Exception, match="no such topic: missing"):
        job.option("topic", "missing").save(str(log.path))
    assert begun.value == 0
    assert not area.exists() or not any(area.rglob("*"))
    job.option("topic", "t").save(str(log.path))
    assert begun.value > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("value", {"topic": "missing"}, "no such topic: missing .*expected one of: t, u"),
        ("value", {}, "the topic is missing"),
        (
            "value; 7 as partition",
            {"topic": "t"},
            "row 0 of task 0: topic t has no partition 7: expected 0 to 1",
        ),
        (
            "value; if(value = '13', null, 't') as topic",
            {},
            "row 3 of task 1: the column topic is null",
        ),
        (
            "repeat(value, 1000000) as value",
            {"topic": "t"},
            "row 0 of task 1 for topic t.* is larger than max.message.bytes",
        ),
        ("int(value) as value", {"topic": "t"}, "type of value"),
        ("value", {"topic": "t", "stagingDirectory": "log/t-0"}, "outside of the log directory"),
        ("value", {"topic": "t", "transactionalID": "x", "batchId": "soon"}, "batchId"),
    ],
)
def test_what_is_wrong_is_said_on_the_driver(
    spark: Any, log: embedlog.Log, columns: str, options: dict[str, str], words: str
) -> None:
    if "stagingDirectory" in options:
        options = options | {"stagingDirectory": f"{log.path}/t-0/staging"}
    with pytest.raises(Exception, match=words):
        save(numbers(spark, 20).selectExpr(*columns.split("; ")), log, **options)
    assert rows(log) == rows(log, "u") == []
    assert not os.path.exists(f"{log.path}.staging")


@pytest.mark.slow
def test_a_job_whose_task_fails_leaves_nothing(spark: Any, log: embedlog.Log) -> None:
    """One task: Spark does not wait for others that it ends, and their files may come after those
    of the job are removed.
    """
    with pytest.raises(Exception, match=r"DIVIDE_BY_ZERO"):
        save(
            numbers(spark, 2000, tasks=1).selectExpr(
                "CAST(1 DIV (INT(value) - 1999) AS STRING) AS value"
            ),
            log,
            topic="t",
        )
    assert rows(log) == []
    assert not os.path.exists(f"{log.path}.staging")
