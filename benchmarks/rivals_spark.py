"""Compares Spark over Kafka with Spark over the log: the connector's source and sink at a local
broker, and `format("embedlog")`.

    python -m benchmarks.rivals_spark [--rows N] [--rounds N] [--repeats N] [--python PYTHON]
    [--jars DIR] [--json FILE]

X1  broker, log and plain parquet have the same rows: keys of 8 bytes, values of 100 or 1000, two
partitions X2  the connector supports no Spark with Arrow writers, so each has its own session,
local[2], in alternation. The figure is the
    ratio to parquet in the same session, read or written in between
X3  the broker's processor time is added to the connector's; guarantees differ: at least once there,
all or nothing here X4  the connector's producer has large batches, a linger and acks=1, its fastest
settings

Needs Java, Maven, Kafka's jars (tests/kafka/oracle.py), confluent-kafka, and pyspark here. The
connector's environment, pyspark 4.0.0 and jars, is created once beside the jars of the oracle,
unless it is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import embedlog
from tests.kafka.oracle import CACHE, Broker

from .context import QUIET, keys_of, pieces, values_of
from .measure import Outcome, report, workspace
from .spark import SCHEMA

VERSION = "4.0.0"
TARGETS = {"read": 1.5, "write": 1.0}
MIRROR = "<mirror><id>central</id><mirrorOf>*</mirrorOf><url>https://repo.maven.apache.org/maven2</url></mirror>"
CONNECTOR = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>embedlog</groupId><artifactId>connector</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""


# ---- the connector's environment -----------------------------------------------------------------


def environment(python: Path | None, jars: Path | None) -> tuple[Path, str]:
    """An interpreter with the connector's Spark, and the connector's jars; both are created if
    missing.
    """
    room = CACHE.parent / f"spark-{VERSION}"
    if python is None:
        python = room / "venv" / "bin" / "python"
        if not (room / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", str(room / "venv")], check=True)
            subprocess.run(
                [str(python), "-m", "pip", "install", "-q", f"pyspark=={VERSION}"], check=True
            )
            (room / "ready").touch()
    if jars is None:
        jars = room / "jars"
        if not any(jars.glob("spark-sql-kafka*.jar")):
            jars.mkdir(parents=True, exist_ok=True)
            (room / "pom.xml").write_text(CONNECTOR)
            (room / "settings.xml").write_text(f"<settings><mirrors>{MIRROR}</mirrors></settings>")
            words = [
                "mvn",
                "-q",
                "-B",
                "-s",
                room / "settings.xml",
                "-f",
                room / "pom.xml",
                "dependency:copy-dependencies",
            ]
            left_out = "-DexcludeGroupIds=org.scala-lang,org.apache.hadoop"
            subprocess.run([*map(str, words), f"-DoutputDirectory={jars}", left_out], check=True)
    return python, ",".join(str(path) for path in sorted(jars.glob("*.jar")))


# ---- the same rows three times -------------------------------------------------------------------


def fill(directory: Path, broker: Broker, record_bytes: int, rows: int) -> None:
    from confluent_kafka import Producer

    for name in ("bench", "out"):
        broker.create_topic(name, 2, {"segment.bytes": 1 << 30})
    theirs = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "batch.size": 1 << 20,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "batch.num.messages": 100_000,
        }
    )
    with embedlog.open(directory / "log") as log, log.producer() as ours:
        for name in ("bench", "out"):
            log.create_topic(name, 2, config=QUIET)
        for part in pieces(values_of(record_bytes, rows * record_bytes), rows * record_bytes):
            keys = keys_of(len(part))
            half = len(part) // 2
            for number, first, last in ((0, 0, half), (1, half, len(part))):
                ours.send_batch(
                    "bench", part[first:last], keys[first:last], partition=number
                ).result()
                for value, key in zip(
                    part[first:last].to_pylist(), keys[first:last].to_pylist(), strict=True
                ):
                    while True:
                        try:
                            theirs.produce("bench", value, key, number)
                            break
                        except BufferError:
                            theirs.poll(0.1)
        assert theirs.flush(60) == 0
        (directory / "table").mkdir()
        for number in (0, 1):
            with pq.ParquetWriter(
                directory / "table" / f"{number}.parquet",
                SCHEMA,
                compression="none",
                use_dictionary=["topic", "partition", "timestampType"],
            ) as writer:
                for batch in log.scan("bench", partitions=number):
                    names = [
                        {"timestampType": "timestamp_type"}.get(field.name, field.name)
                        for field in SCHEMA
                    ]
                    columns = [
                        batch[name].cast(field.type)
                        for name, field in zip(names, SCHEMA, strict=True)
                    ]
                    writer.write_batch(batch.from_arrays(columns, schema=SCHEMA))


# ---- rounds --------------------------------------------------------------------------------------


def turn(python: Path, asked: dict[str, Any]) -> Any:
    command = [
        str(python),
        str(Path(__file__).with_name("rivals_spark_turn.py")),
        json.dumps(asked),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a turn of {asked['format']} failed: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def figures(directory: Path, chosen: argparse.Namespace, record_bytes: int) -> Iterator[Outcome]:
    python, jars = environment(chosen.python, chosen.jars)
    rows = chosen.rows if record_bytes == 100 else chosen.rows // 4
    taken: dict[str, list[Any]] = {"kafka": [], "embedlog": []}
    with Broker(directory / "broker") as broker:
        fill(directory, broker, record_bytes, rows)
        assert broker.process is not None
        shared = {
            "table": str(directory / "table"),
            "room": str(directory / "room"),
            "repeats": chosen.repeats,
        }
        sides = {
            "kafka": (
                python,
                {"place": broker.bootstrap, "jars": jars, "roots": [broker.process.pid]},
            ),
            "embedlog": (
                Path(sys.executable),
                {"place": str(directory / "log"), "jars": "", "roots": []},
            ),
        }
        for number in range(chosen.rounds):
            for side in sorted(sides, reverse=bool(number % 2)):
                where, own = sides[side]
                taken[side].append(turn(where, shared | own | {"format": side}))
    for verb, target in TARGETS.items():
        yield judged(verb, target, taken, rows, record_bytes)


def judged(
    verb: str, target: float, taken: dict[str, list[Any]], rows: int, record_bytes: int
) -> Outcome:
    """The figure by wall clock; processor time is shown too."""

    def median(side: str, which: str, at: int) -> float:
        return statistics.median(each[at] for one in taken[side] for each in one[verb][which])

    def share(side: str, at: int) -> float:
        return median(side, "parquet", at) / median(side, "own", at)

    detail = {
        "cpu": share("embedlog", 1) / share("kafka", 1),
        "ours of parquet": share("embedlog", 0),
        "theirs of parquet": share("kafka", 0),
        "ours": rows / median("embedlog", "own", 0),
        "theirs": rows / median("kafka", "own", 0),
        "per": "rows/s",
        "ours us/row": 1e6 * median("embedlog", "own", 1) / rows,
        "theirs us/row": 1e6 * median("kafka", "own", 1) / rows,
        "rows": rows,
        "turns": len(taken["kafka"]),
    }
    ratio = share("embedlog", 0) / share("kafka", 0)
    return Outcome(
        f"rival/spark-kafka/{verb}/record={record_bytes}B", ratio, "x", target, True, detail
    )


def every(chosen: argparse.Namespace) -> Iterator[Outcome]:
    for record_bytes in (100, 1000):
        with workspace(None) as directory:
            yield from figures(directory, chosen, record_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals_spark", description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="rows of 100 bytes; a quarter of them of 1000"
    )
    parser.add_argument("--rounds", type=int, default=3, help="sessions of each")
    parser.add_argument("--repeats", type=int, default=5, help="in each session")
    parser.add_argument("--python", type=Path, help=f"an interpreter with pyspark {VERSION}")
    parser.add_argument(
        "--jars", type=Path, help="a directory with the connector and what it needs"
    )
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    return report(every(chosen), chosen.json)


if __name__ == "__main__":
    sys.exit(main())
