"""Query engines over the log against uncompressed parquet: Spark in one local[2] session, polars,
DuckDB.

A row is a key of 8 bytes and a value of 100 or 1000, in two partitions or two files. The figure is
rows per second by wall clock; the ratio in processor time (`cpu`) is shown too and is more reliable
under other load. Without Spark its figures are omitted with a message.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import embedlog
import embedlog.spark
from embedlog.spark import read_plan
from embedlog.spark.read_options import parse
from embedlog.spark.read_task import read
from embedlog.spark.stream_offsets import StreamOffsets

from .context import QUIET, Context, child, filled, keys_of, log_files, pieces, remove, values_of
from .measure import Outcome, against
from .references import heads, median_us
from .rivals_spark_turn import rest, spent_s

CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)


@contextmanager
def both(context: Context, record_bytes: int) -> Iterator[tuple[Path, Path, int]]:
    """A log and a parquet table with the same rows, and their number."""
    directory = context.fresh("engines")
    table = context.fresh("parquet")
    values = values_of(record_bytes, context.size_bytes)
    rows = 0
    try:
        with embedlog.open(directory) as log, log.producer() as producer:
            log.create_topic("bench", 2, config=QUIET)
            for part in pieces(values, context.size_bytes):
                half = len(part) // 2
                for partition, piece in ((0, part[:half]), (1, part[half:])):
                    producer.send_batch(
                        "bench", piece, keys_of(len(piece)), partition=partition
                    ).result()
                rows += len(part)
            table.mkdir()
            for partition in (0, 1):
                with pq.ParquetWriter(
                    table / f"{partition}.parquet",
                    SCHEMA,
                    compression="none",
                    use_dictionary=["topic", "partition", "timestampType"],
                ) as writer:
                    for batch in log.scan("bench", partitions=partition):
                        names = [
                            "key",
                            "value",
                            "topic",
                            "partition",
                            "offset",
                            "timestamp",
                            "timestamp_type",
                        ]
                        columns = [
                            batch[name].cast(field.type)
                            for name, field in zip(names, SCHEMA, strict=True)
                        ]
                        writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        yield directory, table, rows
    finally:
        remove(directory)
        remove(table)


@contextmanager
def session(context: Context) -> Iterator[Any]:
    """A session, or None if Spark is missing."""
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        yield None
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config(
        "spark.local.dir", str(context.fresh("local"))
    )
    for name, value in CONF.items():
        builder = builder.config(name, value)
    running = builder.getOrCreate()
    running.sparkContext.setLogLevel("FATAL")
    try:
        yield running
    finally:
        running.stop()


def per_second(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def cpu_s() -> float:
    """Processor time of Spark, its Python workers and this process."""
    return spent_s(os.getpid())


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def sizes(batches: Iterator[Any]) -> Iterator[Any]:
    """Touch every value of a batch, as a pipeline would."""
    for batch in batches:
        total = pc.sum(pc.binary_length(batch["value"])).as_py() or 0
        yield pa.record_batch({"size": pa.array([total], pa.int64())})


# ---- Spark ---------------------------------------------------------------------------------------


def spark(context: Context) -> Iterator[Outcome]:
    with session(context) as running:
        if running is None:
            print("      spark/…: no pyspark, or no java on the path")
            return
        for record_bytes, bounds in ((100, (0.45, 0.5, 0.85)), (1000, (0.4, 0.4, 0.5))):
            with both(context, record_bytes) as (directory, table, rows):
                yield from spark_reads(
                    context, running, directory, table, rows, record_bytes, bounds
                )
                yield spark_writes(context, running, table, rows, record_bytes)
                if record_bytes == 100:
                    yield task_cost(context, running, directory)
                    yield trigger(context, running, directory)
                    yield latest(directory)
    yield memory(context)


def spark_reads(
    context: Context,
    running: Any,
    directory: Path,
    table: Path,
    rows: int,
    record_bytes: int,
    bounds: tuple[float, float, float],
) -> Iterator[Outcome]:
    """Frames are created for each measurement, as by a query."""

    def log(*columns: str) -> Any:
        reader = running.read.format("embedlog").option("subscribe", "bench")
        return (reader.option("columns", ",".join(columns)) if columns else reader).load(
            str(directory)
        )

    def parquet(*columns: str) -> Any:
        frame = running.read.parquet(str(table))
        return frame.select(*columns) if columns else frame

    def scan(*columns: str) -> Any:
        return embedlog.spark.scan(running, str(directory), "bench", columns=columns or None)

    def compared(
        name: str, subject: Callable[[], Any], ceiling: Callable[[], Any], target: float
    ) -> Outcome:
        for frame in (subject(), ceiling()):
            noop(frame)  # warm
        return against(
            f"spark/{name}/record={record_bytes}B",
            lambda: per_second(rows, lambda: noop(ceiling())),
            lambda: per_second(rows, lambda: noop(subject())),
            target=target,
            rounds=context.rounds,
            unit="rows/s",
            cpu=cpu_s,
            rest=rest,
        )

    yield compared("format/all", log, parquet, bounds[0])
    yield compared(
        "format/value,offset",
        lambda: log("value", "offset"),
        lambda: parquet("value", "offset"),
        bounds[1],
    )
    yield compared("scan/all", scan, parquet, bounds[2])
    answer = "size BIGINT"
    fused = lambda: scan("value").map_arrow(sizes, answer)  # noqa: E731
    apart = lambda: parquet("value").mapInArrow(sizes, answer)  # noqa: E731
    yield compared("map_arrow", fused, apart, 3.0)


def spark_writes(
    context: Context, running: Any, table: Path, rows: int, record_bytes: int
) -> Outcome:
    """Keys and values of a parquet table into a topic, in one transaction, and into another
    uncompressed table.
    """
    directory = context.fresh("sink")
    other = context.fresh("written")
    with embedlog.open(directory) as log:
        log.create_topic("sink", 2, config=QUIET)

    def rows_of() -> Any:
        return running.read.parquet(str(table)).select("key", "value")

    def into_log() -> None:
        rows_of().write.format("embedlog").mode("append").option("topic", "sink").save(
            str(directory)
        )

    def into_parquet() -> None:
        rows_of().write.option("compression", "none").mode("overwrite").parquet(str(other))

    try:
        for warm in (into_log, into_parquet):
            warm()
        return against(
            f"spark/write/record={record_bytes}B",
            lambda: per_second(rows, into_parquet),
            lambda: per_second(rows, into_log),
            target=0.5,
            rounds=context.rounds,
            unit="rows/s",
            rest=rest,
        )
    finally:
        remove(directory)
        remove(other)


def task_cost(context: Context, running: Any, directory: Path) -> Outcome:
    """The fixed cost of a task, without that of any `mapInArrow` task: 64 tasks of a few rows each,
    on two cores.
    """
    frame = (
        running.read.format("embedlog").option("subscribe", "bench").option("endingOffsets", "3200")
    )
    tiny = frame.option("maxRecordsPerPartition", "100").load(str(directory))
    bare = running.range(0, 64, 1, 64).mapInArrow(unchanged, "id BIGINT")
    taken: dict[str, list[float]] = {"task": [], "bare": [], "task cpu": [], "bare cpu": []}
    for turn in range(context.rounds + 1):
        for name, each in (("task", tiny), ("bare", bare)):
            spent = cpu_s()
            slots = per_second(64, lambda each=each: noop(each))
            if turn:  # the first round is a warm-up
                taken[name].append(2 * 1000 / slots)
                taken[f"{name} cpu"].append(1000 * (cpu_s() - spent) / 64)
    found = {name: statistics.median(values) for name, values in taken.items()}
    detail = found | {"tasks": 64, "rounds": context.rounds}
    return Outcome("spark/task", found["task"] - found["bare"], "ms", 30.0, False, detail)


def trigger(context: Context, running: Any, directory: Path) -> Outcome:
    """The additional cost of a micro-batch of 1000 rows against a source inside the JVM."""
    ours = (
        running.readStream.format("embedlog")
        .option("subscribe", "bench")
        .option("startingOffsets", "earliest")
    )
    theirs = running.readStream.format("rate-micro-batch").option("rowsPerBatch", "1000")
    found = {}
    for name, stream in (
        ("jvm", theirs.load()),
        ("ours", ours.option("maxOffsetsPerTrigger", "1000").load(str(directory))),
    ):
        writer = stream.writeStream.format("noop").option(
            "checkpointLocation", str(context.fresh("checkpoint"))
        )
        query = writer.trigger(processingTime="0 seconds").start()
        while not (query.lastProgress and query.lastProgress["batchId"] >= 20):
            query.awaitTermination(0.2)
        taken = [
            each["durationMs"]["triggerExecution"]
            for each in query.recentProgress
            if each["numInputRows"]
        ]
        query.stop()
        found[name] = statistics.median(taken[5:])
    return Outcome("spark/trigger", found["ours"] - found["jvm"], "ms", 300.0, False, found)


def memory(context: Context) -> Outcome:
    """The additional peak memory of a task over a large partition, against one that only fills the
    read-ahead.
    """
    peaks = []
    for size_bytes in (256 << 20, 1 << 30):
        with filled(context, 100, size_bytes) as directory:
            peaks.append(child("task_memory", directory)["peak"])
    detail = {f"{size} MB": peak / 1e6 for size, peak in zip((256, 1024), peaks, strict=True)}
    return Outcome("spark/task_memory/1GB-vs-256MB", peaks[1] / peaks[0], "x", 1.1, False, detail)


def task_memory(directory: str) -> dict[str, Any]:
    """The peak of a process that reads a whole topic in one task."""
    (task,) = read_plan.plan(
        parse(
            {"path": directory, "subscribe": "bench", "maxBytesPerPartition": "64g"}, stream=False
        ),
        1,
    )
    rows = sum(batch.num_rows for batch in read(task, SCHEMA))
    peak = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return {"peak": int(peak.split()[1]) * 1024, "rows": rows}


def latest(directory: Path) -> Outcome:
    """The cost of the offset requests that Spark sends to an idle stream every few milliseconds."""
    follower = StreamOffsets(parse({"path": str(directory), "subscribe": "bench"}, stream=True))
    start = follower.next(follower.initial(), None)
    taken = sorted(1000 / per_second(1, lambda: follower.next(start, None)) for _ in range(500))
    follower.close()
    bare_us = median_us(lambda: heads(log_files(directory)))
    detail = {"p99": taken[495], "bare open and read of its files us": bare_us}
    return Outcome("spark/latest_offset/partitions=2", taken[250], "ms", 1.0, False, detail)


# ---- polars and DuckDB ---------------------------------------------------------------------------


def engines(context: Context) -> Iterator[Outcome]:
    import polars

    import embedlog.duckdb
    import embedlog.polars

    for record_bytes in (100, 1000):
        with (
            both(context, record_bytes) as (directory, table, rows),
            embedlog.open(directory, read_only=True) as log,
        ):
            files = str(table / "*.parquet")
            size = polars.col("value").bin.size().sum()
            connection = embedlog.duckdb.register(log)
            lazy = embedlog.polars.scan(log, "bench")
            table_of = f"read_parquet('{files}')"
            both_of = [size, polars.col("partition").max()]

            def by_polars(frame: Any, wanted: Any = both_of) -> Any:
                return frame.select(wanted).collect()

            def by_duckdb(source: str, running: Any = connection) -> Any:
                return running.sql(
                    f"select sum(octet_length(value)), max(partition) from {source}"
                ).fetchall()

            parquet = polars.scan_parquet(files)
            yield compared(
                context,
                "polars",
                rows,
                record_bytes,
                partial(by_polars, lazy),
                partial(by_polars, parquet),
            )
            yield compared(
                context,
                "duckdb",
                rows,
                record_bytes,
                partial(by_duckdb, "bench"),
                partial(by_duckdb, table_of),
            )
            connection.close()


def compared(
    context: Context,
    name: str,
    rows: int,
    record_bytes: int,
    subject: Callable[[], Any],
    ceiling: Callable[[], Any],
) -> Outcome:
    """Check that both give the same answer; this is the warm-up, too."""
    assert str(subject()) == str(ceiling())
    return against(
        f"{name}/sum/record={record_bytes}B",
        lambda: per_second(rows, ceiling),
        lambda: per_second(rows, subject),
        target=0.5,
        rounds=context.rounds,
        unit="rows/s",
        cpu=time.process_time,
    )
