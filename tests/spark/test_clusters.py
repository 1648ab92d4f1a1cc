"""The same queries where driver and executors are different processes: local-cluster, a standalone
cluster, Spark Connect.

Each in a process of its own, because a JVM has one master for life.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from tests.conftest import BUILD, ROOT
from tests.support import spark_session as session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import sys
import embedlog.spark
from pyspark.sql import SparkSession

kind, master, directory, area = sys.argv[1:]
builder = SparkSession.builder
builder = builder.remote(master) if kind == "connect" else builder.master(master)
if kind != "connect":
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").config("spark.cores.max", "2")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()

events = spark.read.format("embedlog").option("subscribe", "t").option("minPartitions", "4").load(directory)
rows = sorted((row["partition"], row["offset"], bytes(row["value"])) for row in events.collect())
assert rows == [(n, offset, b"%d" % (2 * offset + n)) for n in (0, 1) for offset in range(100)], rows[:5]

scan = embedlog.spark.scan(spark, directory, "t", columns=["offset"], min_partitions=2)
assert scan.groupBy().sum("offset").collect()[0][0] == 9900

def count(batches):
    import pyarrow
    for batch in batches:
        yield pyarrow.record_batch({"n": pyarrow.array([batch.num_rows], pyarrow.int64())})

assert scan.map_arrow(count, "n BIGINT").groupBy().sum("n").collect()[0][0] == 200

stream = spark.readStream.format("embedlog").option("subscribe", "t").option("startingOffsets", "earliest").load(directory)
writer = stream.writeStream.format("parquet").option("checkpointLocation", area + "/checkpoint").trigger(availableNow=True)
query = writer.start(area + "/table")
query.awaitTermination(200)
assert spark.read.parquet(area + "/table").count() == 200

writer = stream.selectExpr("key", "value", "'copy' AS topic", "partition").writeStream.format("embedlog")
writer = writer.option("checkpointLocation", area + "/checkpoint-of-copy").trigger(availableNow=True)
for _ in range(2):
    writer.start(directory).awaitTermination(200)
events.select("key", "value").write.format("embedlog").mode("append").option("topic", "copy").save(directory)
copied = spark.read.format("embedlog").option("subscribe", "copy").option("isolation.level", "read_committed").load(directory)
assert sorted(bytes(row["value"]) for row in copied.collect()) == sorted(2 * [b"%d" % n for n in range(200)])

try:
    spark.read.format("embedlog").option("subscribe", "none").load(directory).count()
except Exception as problem:
    assert "no such topic: none" in str(problem), problem
else:
    raise AssertionError("a topic that is not there")
spark.stop()
print("all is well")
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with topic `t`: 2 partitions of 100 records, still open in this process."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t", partitions=2)
        log.create_topic("copy", partitions=2)
        with log.producer() as producer:
            for number in range(200):
                producer.send("t", b"%d" % number, partition=number % 2)
    return tmp_path / "log"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Spark's own directory in links: a cluster writes beside them, and not into the
    installation.
    """
    if session.missing():
        pytest.skip(session.missing())
    import pyspark

    made = tmp_path / "spark"
    made.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (made / each.name).symlink_to(each)
    return made


def environment(home: Path) -> dict[str, str]:
    paths = {
        "PYTHONPATH": f"{BUILD}{os.pathsep}{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
    }
    return {**os.environ, **paths, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONWARNINGS": "ignore"}


def run(kind: str, master: str, directory: Path, home: Path) -> None:
    area = home.parent / "room"
    area.mkdir()
    command = [sys.executable, "-c", PROGRAM, kind, master, str(directory), str(area)]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env=environment(home), cwd=area
    )
    assert answer.stdout.strip().endswith("all is well"), answer.stderr[-4000:]


def test_executors_in_processes_of_their_own(directory: Path, home: Path) -> None:
    run("cluster", "local-cluster[2,1,1024]", directory, home)


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_status") is None,
    reason="no grpcio-status: pip install 'embedlog[connect]'",
)
def test_spark_connect(directory: Path, home: Path) -> None:
    run("connect", "local[2]", directory, home)


def test_a_standalone_master_with_two_workers(directory: Path, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    words = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with daemon(home, *words), contextlib.ExitStack() as workers:
        until(lambda: answers(port))
        for number in range(2):
            area = home.parent / f"worker-{number}"
            words = [
                "worker.Worker",
                "--host",
                "127.0.0.1",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
            ]
            workers.enter_context(daemon(home, *words, "--work-dir", str(area), master))
        run("standalone", master, directory, home)


@contextlib.contextmanager
def daemon(home: Path, name: str, *arguments: str) -> Iterator[None]:
    """One of Spark's own processes, as long as the block runs."""
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment(home), **quiet) as running:  # type: ignore[call-overload]
        try:
            yield
        finally:
            running.terminate()
            running.wait(30)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def until(condition: Callable[[], bool], timeout_s: float = 100) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.1)
