"""The integration with Apache Spark: topics as tables and as streams.

    spark.read.format("embedlog").option("subscribe", "events").load(directory)
    embedlog.spark.scan(spark, directory, "events", columns=["key", "value"])

Spark finds the format wherever embedlog is installed (`pyspark_embedlog`); `register` adds it to a
session that was started before. Options, guarantees and pitfalls: docs/spark.md. The package uses
public names of embedlog only.

- This import loads neither pyspark nor pyarrow.
- `scan` returns the same rows as the format by a shorter path: rows reach Spark as Arrow data,
  without a data source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import embedlog
from embedlog.spark import read_options, read_plan
from embedlog.spark.read_options import DEFAULT_COLUMNS, SPLIT_BYTES
from embedlog.spark.versions import require_pyspark

__all__ = ["register", "scan"]

ArrowFunction = Callable[[Iterator[Any]], Iterator[Any]]


def register(spark: Any) -> None:
    """Register `format("embedlog")` with this session. Raises MissingExtraError without pyspark, or
    with one that is too old.
    """
    require_pyspark("the Spark source needs")
    from pyspark_embedlog import DefaultSource

    spark.dataSource.register(DefaultSource)


def scan(
    spark: Any,
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    topic: str,
    *,
    partitions: int | Iterable[int] | None = None,
    start_offset: embedlog.OffsetBound = None,
    end_offset: embedlog.OffsetBound = None,
    start_time: int | datetime | None = None,
    end_time: int | datetime | None = None,
    columns: Iterable[str] | None = None,
    isolation_level: embedlog.IsolationLevel = "read_uncommitted",
    fail_on_data_loss: bool = True,
    max_bytes_per_partition: int = SPLIT_BYTES,
    min_partitions: int = 0,
) -> Any:
    """A DataFrame of the current records of `topic` between bounds, as in `log.scan`: times filter
    record by record.

    `directory`: the log directory, or all directories of a set. `partitions` are those of the topic;
    `max_bytes_per_partition` and `min_partitions` are about Spark's partitions, the reading tasks.

    Columns have the names and types of Spark's Kafka source; the default is all except `headers`.
    The DataFrame has one additional method: `.map_arrow(fn, schema)` is `.mapInArrow(fn, schema)`
    inside the reading tasks, so that rows reach the function without passing through the JVM.
    Frames that are derived from it, as by `select`, have it not.

    Raises MissingExtraError, UnknownTopicOrPartitionError, ConfigError, StorageError.
    """
    require_pyspark("the Spark source needs")
    names = DEFAULT_COLUMNS if columns is None else read_options.checked_columns(tuple(columns))
    settings = read_options.ReadSettings(
        directory=read_options.directory_of(directory),
        max_bytes=max_bytes_per_partition,
        min_partitions=min_partitions,
        fail_on_data_loss=fail_on_data_loss,
        isolation=isolation_level,
    )
    with embedlog.open(settings.directory, read_only=True) as log:
        pinned = log.scan(
            topic,
            partitions=partitions,
            start_offset=start_offset,
            end_offset=end_offset,
            start_time=start_time,
            end_time=end_time,
            isolation_level=isolation_level,
        )
        pieces = [
            read_plan.PlannedPiece(topic, pinned.topic_id, number, *bounds)
            for number, bounds in pinned.bounds.items()
        ]
        tasks = read_plan.tasks_of(log, settings, pieces, _parallelism_of(spark))
    start_ms, end_ms = pinned.times
    tasks = [replace(task, start_ms=start_ms, end_ms=end_ms) for task in tasks]
    return _frame(spark, tasks, names)


def _frame(spark: Any, tasks: list[read_plan.ReadTask], names: tuple[str, ...]) -> Any:
    """A frame with one number per task, and the function that replaces the number by the task's
    rows.
    """
    from embedlog.spark.columns import arrow_schema, struct_of

    struct = struct_of(names)
    schema_of_rows = arrow_schema(struct)

    def read(numbers: Iterator[Any]) -> Iterator[Any]:
        from embedlog.spark.read_task import read_all

        return read_all(tasks, numbers, schema_of_rows)

    def map_arrow(function: ArrowFunction, result_schema: Any) -> Any:
        return task_numbers().mapInArrow(lambda numbers: function(read(numbers)), result_schema)

    def task_numbers() -> Any:
        return spark.range(0, len(tasks), 1, max(1, len(tasks)))

    frame = task_numbers().mapInArrow(read, struct)
    frame.map_arrow = map_arrow
    return frame


def _parallelism_of(spark: Any) -> int:
    """How many tasks run at the same time; 0 if the session cannot report it (Spark Connect)."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 (Connect raises errors of its own for attributes that it lacks)
        return 0
