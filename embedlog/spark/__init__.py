"""Topics as tables and streams of Apache Spark.

    spark.read.format("embedlog").option("subscribe", "events").load(directory)
    embedlog.spark.scan(spark, directory, "events", columns=["key", "value"])

The format is found by itself where embedlog is installed (`pyspark_embedlog`); `register` makes it known to a session that was
started before. Options, guarantees and traps: docs/spark.md.

SPARK-1  importing this imports neither pyspark nor pyarrow
SPARK-2  `scan` does what the format does on a shorter way: rows go to Spark as Arrow data, without a data source between
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import embedlog
from embedlog.spark import planning, settings
from embedlog.spark.settings import DEFAULT_COLUMNS, SPLIT_BYTES

__all__ = ["register", "scan"]

ArrowFunction = Callable[[Iterator[Any]], Iterator[Any]]


def register(spark: Any) -> None:
    """Makes `format("embedlog")` known to this session. Raises MissingExtraError without pyspark."""
    try:
        from pyspark_embedlog import DefaultSource
    except ImportError as missing:
        raise embedlog.MissingExtraError("the Spark source needs pyspark 4.1 or newer", extra="spark") from missing
    spark.dataSource.register(DefaultSource)


def scan(
    spark: Any,
    directory: str,
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
    """A DataFrame of what `topic` holds now between the bounds, which are those of `log.scan`: times filter record by record.

    Columns have the names and types of Spark's Kafka source; all but `headers` unless `columns` says so. The DataFrame has one
    method more: `.map_arrow(fn, schema)` is `.mapInArrow(fn, schema)`, run inside the reading tasks, so that no row passes
    through the JVM before the function has seen it.

    Raises MissingExtraError, UnknownTopicOrPartitionError, ConfigError, StorageError.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError as missing:
        raise embedlog.MissingExtraError("the Spark source needs pyspark 4.1 or newer", extra="spark") from missing
    names = DEFAULT_COLUMNS if columns is None else settings.checked_columns(tuple(columns))
    asked = settings.Settings(
        directory=settings.directory_of(directory),
        max_bytes=max_bytes_per_partition,
        min_partitions=min_partitions,
        fail_on_data_loss=fail_on_data_loss,
        isolation=isolation_level,
    )
    with embedlog.open(asked.directory, read_only=True) as log:
        pinned = log.scan(
            topic,
            partitions=partitions,
            start_offset=start_offset,
            end_offset=end_offset,
            start_time=start_time,
            end_time=end_time,
            isolation_level=isolation_level,
        )
        pieces = [planning.Piece(topic, pinned.topic_id, number, *bounds) for number, bounds in pinned.bounds.items()]
        tasks = planning.tasks_of(log, asked, pieces, _parallel(spark))
    start_ms, end_ms = pinned.times
    tasks = [replace(task, start_ms=start_ms, end_ms=end_ms) for task in tasks]
    return _frame(spark, tasks, names)


def _frame(spark: Any, tasks: list[planning.Task], names: tuple[str, ...]) -> Any:
    """One row of numbers for each task, and the function that turns numbers into the task's rows."""
    from embedlog.spark.columns import arrow_schema, struct_of

    struct = struct_of(names)
    schema = arrow_schema(struct)

    def read(numbers: Iterator[Any]) -> Iterator[Any]:
        from embedlog.spark.reading import read_all

        return read_all(tasks, numbers, schema)

    def map_arrow(function: ArrowFunction, result: Any) -> Any:
        return of().mapInArrow(lambda numbers: function(read(numbers)), result)

    def of() -> Any:
        return spark.range(0, len(tasks), 1, max(1, len(tasks)))

    frame = of().mapInArrow(read, struct)
    frame.map_arrow = map_arrow
    return frame


def _parallel(spark: Any) -> int:
    """How many tasks run at the same time; 0 where that cannot be asked (Spark Connect)."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 (Connect has errors of its own for what it does not have)
        return 0
