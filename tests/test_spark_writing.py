"""Writing from Spark: what a job leaves in the log, and what it does not leave when it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.partitioners import partition_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


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
    return spark.range(first, first + count, 1, tasks).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")


def staging(log: embedlog.Log) -> list[str]:
    return [name for _, _, names in os.walk(f"{log.path}.staging") for name in names]


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_a_job_writes_what_a_producer_would(spark: Any, log: embedlog.Log) -> None:
    save(numbers(spark, 100), log, topic="t")
    with log.producer() as producer:
        producer.send_batch("u", [b"x"])
    count = log.describe_topic("t").partitions
    assert sum(each.log_end_offset for each in count) == 100 + 2  # and the markers
    wanted = sorted((partition_of(b"%d" % (n % 7), 2), b"%d" % (n % 7), b"%d" % n) for n in range(100))
    assert rows(log) == wanted
    assert not os.path.exists(f"{log.path}.staging")
    assert log.groups() == []


def test_a_stream_is_written_once_whatever_is_repeated(spark: Any, log: embedlog.Log, tmp_path: Path) -> None:
    with log.producer() as producer:
        producer.send_batch("u", [b"%d" % number for number in range(50)])

    def run(**trigger: Any) -> Any:
        frame = spark.readStream.format("embedlog").option("subscribe", "u").option("startingOffsets", "earliest")
        frame = frame.option("maxOffsetsPerTrigger", "20").load(str(log.path)).selectExpr("key", "value")
        writer = frame.writeStream.format("embedlog").option("topic", "t").option("checkpointLocation", str(tmp_path / "c"))
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
