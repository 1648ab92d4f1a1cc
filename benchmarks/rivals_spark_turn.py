"""One round of `rivals_spark`: a Spark session that reads and writes one format and parquet.

It runs in both environments, so it imports only pyspark. It prints one line of JSON: for each
operation the seconds of each repetition, wall clock and processor time, and those of parquet in
between.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOM_BYTES = 768 << 20  # more than a round needs
TICKS = os.sysconf("SC_CLK_TCK")
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.parquet.compression.codec": "uncompressed",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def spent_s(*roots: int) -> float:
    """Processor time of these processes and their children, also of ended ones."""
    children: dict[int, list[int]] = {}
    own: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        try:
            fields = (
                (each / "stat").read_text().rpartition(")")[2].split()
                if each.name.isdigit()
                else None
            )
        except OSError:
            continue
        if fields:
            own[int(each.name)] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(int(each.name))
    waiting = list(roots)
    ticks = 0
    while waiting:
        process = waiting.pop()
        ticks += own.get(process, 0)
        waiting += children.get(process, [])
    return ticks / TICKS


def rest() -> None:
    """Sync the disk and touch free memory. The host of a virtual machine may have taken memory
    back. Then the first write is sixteen times slower (0.88 s instead of 0.06 s for files of 250
    MB).
    """
    os.sync()
    piece = bytes(1 << 20)
    with mmap.mmap(-1, ROOM_BYTES) as room:
        for _ in range(ROOM_BYTES // len(piece)):
            room.write(piece)


def session(asked: dict[str, Any]) -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.local.dir", asked["room"])
    for name, value in (CONF | ({"spark.jars": asked["jars"]} if asked["jars"] else {})).items():
        builder = builder.config(name, value)
    running = builder.getOrCreate()
    running.sparkContext.setLogLevel("FATAL")
    return running


def verbs(
    running: Any, asked: dict[str, Any]
) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """For each operation the format's seconds and parquet's."""
    table = asked["table"]
    target = asked["room"] + "/written"
    kafka = asked["format"] == "kafka"

    def read() -> None:
        reader = (
            running.read.format(asked["format"])
            .option("subscribe", "bench")
            .option("startingOffsets", "earliest")
        )
        found = (
            reader.option("kafka.bootstrap.servers", asked["place"]).load()
            if kafka
            else reader.load(asked["place"])
        )
        found.write.format("noop").mode("overwrite").save()

    def read_parquet() -> None:
        running.read.parquet(table).write.format("noop").mode("overwrite").save()

    def write() -> None:
        writer = (
            running.read.parquet(table)
            .select("key", "value")
            .write.format(asked["format"])
            .option("topic", "out")
        )
        if kafka:
            writer.option("kafka.bootstrap.servers", asked["place"]).option(
                "kafka.batch.size", 1 << 20
            ).option("kafka.linger.ms", 20).option("kafka.acks", "1").mode("append").save()
        else:
            writer.mode("append").save(asked["place"])

    def write_parquet() -> None:
        running.read.parquet(table).select("key", "value").write.mode("overwrite").parquet(target)

    return {"read": (read, read_parquet), "write": (write, write_parquet)}


def main() -> None:
    asked = json.loads(sys.argv[1])
    running = session(asked)
    roots = [os.getpid(), *asked["roots"]]
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for verb, pair in verbs(running, asked).items():
        for each in pair * 2:
            each()  # warm
        found[verb] = {"own": [], "parquet": []}
        for turn in range(asked["repeats"]):
            order = list(zip(("own", "parquet"), pair, strict=True))
            for name, each in order if turn % 2 else order[::-1]:
                rest()
                cpu = spent_s(*roots)
                began = time.perf_counter()
                each()
                found[verb][name].append((time.perf_counter() - began, spent_s(*roots) - cpu))
    running.stop()
    shutil.rmtree(asked["room"], ignore_errors=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
