"""A Spark session for tests: small, quiet, on this machine only."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    # short jobs: compiling costs more than it saves
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def missing() -> str:
    """The missing tools for a session on this machine, in one line; empty if it has everything."""
    if importlib.util.find_spec("pyspark") is None:
        return "no pyspark: pip install 'embedlog[spark]'"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "no java on the path: Spark needs Java 17"
    return ""


@contextmanager
def started(master: str, directory: Path, **conf: str) -> Iterator[Any]:
    """A session that is stopped at the end of the block; `conf` with underscores for dots."""
    if missing():
        pytest.skip(missing())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Java's and pyspark's own
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master).appName("embedlog-tests")
        own = {
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        for name, value in (
            CONF | own | {name.replace("_", "."): value for name, value in conf.items()}
        ).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("FATAL")
    try:
        yield session
    finally:
        session.stop()
