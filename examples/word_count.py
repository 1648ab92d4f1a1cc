"""Counts words over a topic, directly from files that Kafka wrote or could have written.

    python examples/word_count.py                        the sources of Python's standard library,
    written to a topic first python examples/word_count.py /var/kafka docs        topic `docs` in
    the directory of a broker, or in a copy of it

The directory is only read: no byte in it changes, and no broker is needed; the directory of a
*running* broker is refused. Two functions compute the same table. `table` is plain Spark over
`format("embedlog")`: every line passes through the JVM and is split by SQL. `fused` counts inside
the reading tasks, in Arrow: only the words of a batch and their counts leave them.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import lines, spark_session

import embedlog
import embedlog.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORD = "[A-Za-z_]+"


def fill(directory: str, topic: str, root: Path, limit: int | None) -> None:
    """Create a topic with all lines of the Python sources below `root`, keyed by file name."""
    with embedlog.open(directory) as log:
        log.create_topic(topic, partitions=4, config={"compression.type": "zstd"})
        with log.producer() as producer:
            for path in sorted(root.rglob("*.py"))[:limit]:
                if values := list(lines(path)):
                    producer.send_batch(topic, values, keys=[path.name.encode()] * len(values))


def table(spark: SparkSession, directory: str, topic: str) -> DataFrame:
    """Words and their counts, by SQL."""
    import pyspark.sql.functions as fn

    # `columns`: other columns are not decoded
    read = (
        spark.read.format("embedlog")
        .option("subscribe", topic)
        .option("columns", "value")
        .load(directory)
    )
    words = read.select(
        fn.explode(fn.expr(f"regexp_extract_all(string(value), '{WORD}', 0)")).alias("word")
    )
    return words.groupBy("word").count()


def count_words(batches: Iterator[Any]) -> Iterator[Any]:
    """Map each Arrow batch of `value` to a batch of words and counts. Runs in the reading tasks."""
    import collections
    import re

    import pyarrow

    word = re.compile(WORD.encode())
    for batch in batches:
        counts: collections.Counter[bytes] = collections.Counter()
        for value in batch["value"].to_pylist():
            counts.update(word.findall(value or b""))
        texts = pyarrow.array([each.decode() for each in counts], pyarrow.string())
        yield pyarrow.record_batch(
            {"word": texts, "count": pyarrow.array(counts.values(), pyarrow.int64())}
        )


def fused(spark: SparkSession, directory: str, topic: str) -> DataFrame:
    """The same table, counted in the reading tasks."""
    counted = embedlog.spark.scan(spark, directory, topic, columns=["value"]).map_arrow(
        count_words, "word STRING, count BIGINT"
    )
    return counted.groupBy("word").agg({"count": "sum"}).toDF("word", "count")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="word count over a topic, directly from Kafka's files"
    )
    parser.add_argument(
        "directory",
        nargs="?",
        help="a log directory; without it a new one is filled with the standard library",
    )
    parser.add_argument(
        "topic", nargs="?", default="lines", help="a topic in it (default: %(default)s)"
    )
    parser.add_argument("--fused", action="store_true", help="count inside the reading tasks")
    parser.add_argument(
        "--files", type=int, metavar="N", help="only the first N files of the standard library"
    )
    parser.add_argument(
        "--top",
        type=int,
        default=20,
        metavar="N",
        help="how many words to show (default: %(default)s)",
    )
    parser.add_argument("--output", help="write the whole table to this parquet file")
    options = parser.parse_args()
    spark = spark_session("word_count")
    with tempfile.TemporaryDirectory(prefix="embedlog-words-") as scratch:
        directory = options.directory or os.path.join(scratch, "log")
        if not options.directory:
            fill(directory, options.topic, Path(sysconfig.get_path("stdlib")), options.files)
        counts = (fused if options.fused else table)(spark, directory, options.topic)
        if options.output:
            counts.write.mode("overwrite").parquet(options.output)
        counts.orderBy("count", ascending=False).show(options.top)
    spark.stop()


if __name__ == "__main__":
    main()
