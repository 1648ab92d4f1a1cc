"""What the Spark examples share: a session that says in one line what it lacks, and the real input beside them."""

from __future__ import annotations

import importlib.util
import lzma
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATA = Path(__file__).parent / "data"
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",  # two cores; Spark's 200 would make every batch of a stream 200 tasks
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={DATA.parent / 'log4j2.properties'}",  # or it talks a lot
}


def missing() -> str:
    """What Spark needs and this machine does not have, in one line; empty if it has everything."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark is not installed: pip install 'embedlog[spark]'"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "there is no java on the path: Spark needs Java 17"
    return ""


def spark_session(name: str, master: str = "local[2]") -> SparkSession:
    """A session on this machine. Ends the program, with one line, where Spark or Java are missing."""
    if missing():
        sys.exit(f"{name}: {missing()}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark takes the `python3` of the path, which has no embedlog
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warnings.filterwarnings("ignore", module="pyspark")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in CONF.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a text file, which may be compressed with xz, without their ends."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\n")
