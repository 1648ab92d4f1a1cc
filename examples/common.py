"""Helpers of the Spark examples: a session with one-line errors for missing requirements, and the
input data.
"""

from __future__ import annotations

import importlib.util
import lzma
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DATA = Path(__file__).parent / "data"
ATTEMPTS = 5
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # two cores; Spark's 200 would make every batch of a stream 200 tasks
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # less output
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={DATA.parent / 'log4j2.properties'}",
}


def missing() -> str:
    """The missing requirement of Spark on this machine, in one line; empty if there is none."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark is not installed: pip install 'embedlog[spark]'"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "there is no java on the path: Spark needs Java 17"
    return ""


def spark_session(name: str, master: str = "local[2]") -> SparkSession:
    """A session on this machine. Exits with one line if Spark or Java is missing."""
    if missing():
        sys.exit(f"{name}: {missing()}")
    # the default `python3` of the path may not have embedlog
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warnings.filterwarnings("ignore", module="pyspark")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in CONF.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def to_the_end(
    start: Callable[[], StreamingQuery], watch: Callable[[StreamingQuery], None] | None = None
) -> StreamingQuery:
    """Start a query and wait until it has read everything; `watch` is called ten times a second.

    Spark gives the Python worker of a stream ten seconds to start. If that is too short on a busy
    machine, the query is started again: it continues at its checkpoint.
    """
    attempts = 0
    while True:
        query = start()
        attempts += 1
        while query.isActive:
            time.sleep(0.1)
            if watch:
                watch(query)
        if watch:
            watch(query)  # the last batch's progress
        problem = query.exception()
        if problem is None:
            return query
        if "failed to connect back" not in str(problem) or attempts == ATTEMPTS:
            raise problem


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file, optionally compressed with xz, without line ends."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\n")
