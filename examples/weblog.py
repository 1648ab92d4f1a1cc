"""Turns a web server's log into sessions, each written once.

    python examples/weblog.py data                          the log in examples/data, through the
    log directory `data` python examples/weblog.py data --input access.log       another log

    topic `access`    the unchanged lines, keyed by client: the lines of a client stay in order
    topic `clients`   names of some clients, compacted topic `sessions`  the result: the client's
    name, and its requests without a pause of half an hour topic `refused`   lines that cannot be
    parsed `data-tables/sessions`   the same sessions as a parquet table, created from the topic

The program may be killed at any time and started again: each session is in the topic once, and in
the table once. `python examples/weblog_demo.py` demonstrates and checks this, with tables and a
chart.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from common import DATA, lines, spark_session, to_the_end

import embedlog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPICS: dict[str, dict[str, str]] = {
    "access": {"compression.type": "zstd"},
    "clients": {"cleanup.policy": "compact"},
    "sessions": {},
    "refused": {},
}
PAUSE = "30 minutes"  # a longer one ends a session
# Allowed lateness of a line against the newest one. Two minutes suffice for a live log, whose lines
# of one minute are unordered. A read of several days needs more, because partitions progress
# unequally.
LATE = "12 hours"
LINE = r'^(\S+) \S+ \S+ \[([^\]]+)\] "[^"]*" (\d{3}) (\d+|-) "[^"]*" ".*"$'
CLOCK = "%d/%b/%Y:%H:%M:%S %z"
NAMES = {  # from their user agents
    "66.249.73.135": "Googlebot",
    "66.249.73.185": "Googlebot",
    "209.85.238.199": "Google Feedfetcher",
    "68.180.224.225": "Yahoo! Slurp",
    "100.43.83.137": "YandexBot",
    "65.55.213.73": "msnbot",
    "208.115.111.72": "Ezooms",
    "208.115.113.88": "Ezooms",
    "46.105.14.53": "UniversalFeedParser",
    "50.16.19.13": "Tiny Tiny RSS",
    "198.46.149.143": "Tiny Tiny RSS",
    "208.91.156.11": "Chef Client",
}
SESSION = (
    "client STRING, name STRING, start TIMESTAMP, end TIMESTAMP, requests BIGINT, bytes BIGINT, "
    "errors BIGINT"
)


# ---- into the log --------------------------------------------------------------------------------


def load(directory: str, found: Sequence[bytes], *, closed: bool) -> None:
    """Create the topics, append the names and the lines that are missing, and after the last one a
    `tick`.
    """
    with embedlog.open(directory) as log:
        for topic, config in TOPICS.items():
            if topic not in log.topics():
                log.create_topic(topic, partitions=4, config=config)
        with log.producer(transactional_id="load") as producer:
            producer.init_transactions()  # a killed loader has written all its lines or none
            there = [
                record.key
                for record in log.scan("access", isolation_level="read_committed").records()
            ]
            new = found[len(there) - there.count(b"tick") :]
            with producer.transaction():
                if new:
                    producer.send_batch(
                        "access", list(new), keys=[line.split(None, 1)[0] for line in new]
                    )
                if closed and b"tick" not in there:
                    producer.send("access", tick(found), key=b"tick")
                # the second value replaces the first
                for name in ("a robot", None) if not there else ():
                    for client, own in NAMES.items():
                        producer.send("clients", (name or own).encode(), key=client.encode())


def tick(found: Sequence[bytes]) -> bytes:
    """A line without a client, one day after the last one.

    Time is the lines' time: without new lines it stops, and open sessions are not written. For a
    live log that is quiet at night, send a tick now and then.
    """
    stamps = (match[1].decode() for line in found if (match := re.search(rb"\[([^\]]+)\]", line)))
    last = max(datetime.strptime(stamp, CLOCK) for stamp in stamps) + timedelta(days=1)
    return f'tick - - [{last.strftime(CLOCK)}] "TICK /" 200 0 "-" "-"'.encode()


# ---- in Spark ------------------------------------------------------------------------------------


def stream(spark: SparkSession, directory: str, topic: str, **options: int) -> DataFrame:
    """Committed records of a topic from its beginning, keys and values as text."""
    reader = (
        spark.readStream.format("embedlog")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    reader = reader.option("isolation.level", "read_committed").options(**options)
    return reader.load(directory).selectExpr("string(key) AS key", "string(value) AS value")


def names(spark: SparkSession, directory: str) -> DataFrame:
    """Client and name: the last value of each key, which is the result of compaction, before or
    after it has run.
    """
    import pyspark.sql.functions as fn

    reader = (
        spark.read.format("embedlog")
        .option("subscribe", "clients")
        .option("isolation.level", "read_committed")
    )
    records = reader.load(directory).selectExpr(
        "string(key) AS client", "string(value) AS name", "offset"
    )
    return records.groupBy("client").agg(fn.max_by("name", "offset").alias("name"))


def parsed(access: DataFrame) -> DataFrame:
    """Client, time, status and size of each line that can be parsed."""
    import pyspark.sql.functions as fn

    def field(number: int) -> Column:
        return fn.regexp_extract("value", LINE, number)

    return access.where(fn.col("value").rlike(LINE)).select(
        field(1).alias("client"),
        fn.to_timestamp(field(2), "dd/MMM/yyyy:HH:mm:ss Z").alias("time"),
        field(3).cast("int").alias("status"),
        fn.nullif(field(4), fn.lit("-")).cast("bigint").alias("bytes"),  # a dash: no body
    )


def sessions(access: DataFrame, names: DataFrame) -> DataFrame:
    """Lines of one client without a long pause, written when no later line can belong to them."""
    import pyspark.sql.functions as fn

    grouped = (
        parsed(access)
        .withWatermark("time", LATE)
        .groupBy("client", fn.session_window("time", PAUSE).alias("session"))
    )
    summed = grouped.agg(
        fn.min("time").alias("start"),
        fn.max("time").alias("end"),
        fn.count("*").alias("requests"),
        fn.coalesce(fn.sum("bytes"), fn.lit(0)).alias("bytes"),
        fn.count_if(fn.col("status") >= 400).alias("errors"),
    )
    return summed.join(fn.broadcast(names), "client", "left").select(
        "client", "name", *summed.columns[2:]
    )


def to_topic(records: DataFrame, directory: str, topic: str) -> StreamingQuery:
    """Write keys and values to a topic, exactly once, until all present records were read."""
    writer = records.writeStream.format("embedlog").option("topic", topic)
    # the checkpoint contains the query's progress; like the tables it is beside the log directory,
    # never inside
    writer = writer.option("checkpointLocation", f"{directory}-checkpoints/{topic}")
    return writer.trigger(availableNow=True).start(directory)


def write_sessions(spark: SparkSession, directory: str, lines_at_once: int) -> StreamingQuery:
    """access, clients -> sessions"""
    access = stream(spark, directory, "access", maxOffsetsPerTrigger=lines_at_once)
    made = sessions(access, names(spark, directory))
    return to_topic(
        made.selectExpr("client AS key", "to_json(struct(*)) AS value"), directory, "sessions"
    )


def write_refused(spark: SparkSession, directory: str) -> StreamingQuery:
    """access -> refused"""
    import pyspark.sql.functions as fn

    return to_topic(
        stream(spark, directory, "access").where(~fn.col("value").rlike(LINE)), directory, "refused"
    )


def write_table(spark: SparkSession, directory: str) -> StreamingQuery:
    """sessions -> the parquet table. The topic is the source: a table of another shape is another
    query.
    """
    import pyspark.sql.functions as fn

    rows = (
        stream(spark, directory, "sessions")
        .select(fn.from_json("value", SESSION).alias("session"))
        .select("session.*")
    )
    writer = rows.writeStream.format("parquet").option(
        "checkpointLocation", f"{directory}-checkpoints/table"
    )
    return writer.trigger(availableNow=True).start(table_of(directory))


def table_of(directory: str) -> str:
    return f"{directory}-tables/sessions"


def main() -> None:
    parser = argparse.ArgumentParser(description="sessions from a web server's log")
    parser.add_argument(
        "directory",
        help="the log directory, created if it does not exist; tables and checkpoints are beside "
        "it",
    )
    parser.add_argument(
        "--input",
        type=Path,
        default=DATA / "apache_access.log.xz",
        help="an access log, also as .xz",
    )
    parser.add_argument(
        "--open", action="store_true", help="more lines will come: the last sessions are left open"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=2500,
        metavar="N",
        help="lines in one batch (default: %(default)s)",
    )
    options = parser.parse_args()
    spark = spark_session("weblog")
    load(options.directory, list(lines(options.input)), closed=not options.open)
    to_the_end(lambda: write_sessions(spark, options.directory, options.at_once))
    to_the_end(lambda: write_refused(spark, options.directory))
    to_the_end(lambda: write_table(spark, options.directory))
    spark.read.parquet(table_of(options.directory)).orderBy("requests", ascending=False).show(
        10, truncate=False
    )
    spark.stop()


if __name__ == "__main__":
    main()
