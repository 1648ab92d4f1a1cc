"""Aggregates a server's status documents as a stream: traffic per five minutes, and alerts.

    python examples/nginx_alerts.py data                        the documents in examples/data, into
    the log directory `data` python examples/nginx_alerts.py data --input status.jsonl   other
    documents

Topic `status` has one document of Nginx Plus every five seconds. Two queries run one after the
other:

    status           -> requests and errors of each zone in five minutes, updated every minute    ->
    topic `traffic` traffic, status  -> problems, each reported once
    -> topic `alerts`

The counters in a document only grow, so the events of a window are its last value less its first.
(The counters of `ssl` are unsuitable: each worker process has its own.) A window is written exactly
once, when the watermark has passed its end. Time is the documents' time: a replay gives the same
windows and alerts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from common import DATA, lines, spark_session, to_the_end

import embedlog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOPICS = ("status", "traffic", "alerts")
WINDOW = "5 minutes"
SLIDE = "1 minute"
DELAY = "30 seconds"  # allowed lateness of a document; windows are written after it
ZONE = "STRUCT<requests: BIGINT, responses: STRUCT<`4xx`: BIGINT, `5xx`: BIGINT>>"
PEER = "STRUCT<server: STRING, state: STRING>"
DOCUMENT = (
    f"timestamp BIGINT, server_zones MAP<STRING, {ZONE}>, upstreams MAP<STRING, STRUCT<peers: "
    f"ARRAY<{PEER}>>>"
)
TRAFFIC = (
    "zone STRING, start TIMESTAMP, end TIMESTAMP, requests BIGINT, refused BIGINT, failed BIGINT, "
    "failed_ever BIGINT"
)


def load(directory: str, path: Path) -> int:
    """Write the documents to topic `status` with their own timestamps; return their number."""
    documents = list(lines(path))
    times = [json.loads(document)["timestamp"] for document in documents]
    with embedlog.open(directory) as log:
        for topic in TOPICS:
            if topic not in log.topics():
                log.create_topic(topic, config={"compression.type": "zstd"})
        with log.producer() as producer:
            producer.send_batch("status", documents, timestamps_ms=times).result()
    return len(documents)


def read(spark: SparkSession, directory: str, topic: str, schema: str) -> DataFrame:
    """The JSON documents of a topic as a stream, from its beginning, with the fields of the
    schema.
    """
    import pyspark.sql.functions as fn

    reader = (
        spark.readStream.format("embedlog")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    records = (
        reader.option("isolation.level", "read_committed")
        .option("columns", "value")
        .load(directory)
    )
    return records.select(
        fn.from_json(fn.col("value").cast("string"), schema).alias("document")
    ).select("document.*")


def traffic(status: DataFrame) -> DataFrame:
    """For each zone and window: requests, refused ones (4xx), failed ones (5xx)."""
    import pyspark.sql.functions as fn

    def grown(counter: str) -> Column:
        return fn.max(counter) - fn.min(counter)

    timed = status.withColumn("time", fn.timestamp_millis("timestamp")).withWatermark("time", DELAY)
    zones = timed.select("time", fn.explode("server_zones").alias("zone", "seen"))
    windows = zones.groupBy("zone", fn.window("time", WINDOW, SLIDE).alias("window")).agg(
        grown("seen.requests").alias("requests"),
        grown("seen.responses.4xx").alias("refused"),
        grown("seen.responses.5xx").alias("failed"),
        fn.max("seen.responses.5xx").alias("failed_ever"),
    )
    return windows.select(
        "zone", "window.start", "window.end", "requests", "refused", "failed", "failed_ever"
    )


def alerts(traffic: DataFrame, status: DataFrame) -> DataFrame:
    """Zones with failed requests and peers that are not up, each reported once
    (`dropDuplicates`).
    """
    import pyspark.sql.functions as fn

    # five windows contain each failure: they have the same counter, so the same text
    failing = traffic.where("failed > 0").selectExpr(
        "zone AS subject", "concat(failed_ever, ' requests have failed') AS text"
    )
    upstreams = status.select(fn.explode("upstreams").alias("upstream", "its"))
    peers = upstreams.select("upstream", fn.explode("its.peers").alias("peer"))
    down = peers.where("peer.state <> 'up'").selectExpr(
        "concat(upstream, ' ', peer.server) AS subject", "concat('is ', peer.state) AS text"
    )
    return failing.unionByName(down).dropDuplicates(["subject", "text"])


def write(frame: DataFrame, directory: str, topic: str, key: str) -> None:
    """Write rows as JSON to a topic, exactly once, until all present records were read."""
    records = frame.selectExpr(f"{key} AS key", "to_json(struct(*)) AS value")
    writer = records.writeStream.format("embedlog").option("topic", topic)
    # the checkpoint contains the query's progress; it is beside the log directory, never inside
    writer = writer.option("checkpointLocation", f"{directory}-checkpoints/{topic}")
    to_the_end(lambda: writer.trigger(availableNow=True).start(directory))


def run(spark: SparkSession, directory: str) -> None:
    """Run both queries over the records since their last run."""
    status = read(spark, directory, "status", DOCUMENT)
    write(traffic(status), directory, "traffic", "zone")
    write(
        alerts(read(spark, directory, "traffic", TRAFFIC), status), directory, "alerts", "subject"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="windows and alerts over a server's status documents"
    )
    parser.add_argument("directory", help="the log directory, made if it is not there")
    given = DATA / "nginx_status.jsonl.xz"
    parser.add_argument(
        "--input",
        type=Path,
        default=given,
        help="status documents, one a line, also compressed with xz",
    )
    options = parser.parse_args()
    spark = spark_session("nginx_alerts")
    print(f"{load(options.directory, options.input)} documents")
    run(spark, options.directory)
    with embedlog.open(options.directory, read_only=True) as log:
        windows = sum(1 for _ in log.scan("traffic", isolation_level="read_committed").records())
        print(f"{windows} windows, and these alerts:")
        for record in log.scan("alerts", isolation_level="read_committed").records():
            alert = json.loads(record.value)
            print(f"  {alert['subject']}: {alert['text']}")
    spark.stop()


if __name__ == "__main__":
    main()
