"""The versions of pyspark that the package admits: the oldest one and the installed one read and
write, older ones are named.

`make test-slow` fetches the oldest version into `build/pyspark-oldest`. A program there has it in
front of the installed one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import embedlog
import embedlog.spark
from embedlog.spark.versions import OLDEST, OLDEST_FOR_STREAMS, require_pyspark
from tests.conftest import ROOT
from tests.support import spark_session as session

pyspark = pytest.importorskip("pyspark", reason="needs pyspark: pip install 'embedlog[spark]'")
OLDEST_PATH = Path(os.environ.get("EMBEDLOG_PYSPARK_OLDEST", ROOT / "build" / "pyspark-oldest"))

WITHOUT_JAVA = """
import sys
import embedlog, pyarrow
import pyspark
from pyspark.sql.types import StringType, StructField, StructType
from pyspark_embedlog import DefaultSource
path = sys.argv[1]
with embedlog.open(path) as log:
    log.create_topic("t")
    log.create_topic("out")
    with log.producer() as producer:
        for number in range(50):
            producer.send("t", b"%d" % number, headers=[("h", b"x")])
source = DefaultSource({"path": path, "subscribe": "t", "includeHeaders": "true"})
reader = source.reader(source.schema())
rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
assert [row["value"] for row in rows] == [b"%d" % number for number in range(50)]
assert rows[0]["headers"] == [{"key": "h", "value": b"x"}]
struct = StructType([StructField("value", StringType())])
writer = DefaultSource({"path": path, "topic": "out"}).writer(struct, False)
writer.commit([writer.write(iter([pyarrow.record_batch({"value": ["a", "b"]})]))])
DefaultSource({"path": path, "topic": "out"}).streamWriter(struct, False)
with embedlog.open(path, read_only=True) as log:
    assert sum(1 for _ in log.scan("out").records()) == 2
try:
    stream = DefaultSource({"path": path, "subscribe": "t"}).streamReader(source.schema())
    print(pyspark.__version__, stream.initialOffset()["o"])
    stream.stop()
except embedlog.MissingExtraError as problem:
    print(pyspark.__version__, problem)
"""
WITH_JAVA = """
import sys
from pathlib import Path
import embedlog, embedlog.spark
from tests.support.spark_session import started
path = sys.argv[1]
with embedlog.open(path) as log:
    log.create_topic("t")
    log.create_topic("out")
    with log.producer() as producer:
        producer.send_batch("t", [b"%d" % number for number in range(50)])
with started("local[2]", Path(path).parent) as spark:
    events = spark.read.format("embedlog").option("subscribe", "t").option("includeHeaders", "true").load(path)
    assert events.selectExpr("sum(INT(STRING(value)))").first()[0] == 1225
    assert len(events.collect()[0].asDict()) == 8
    assert embedlog.spark.scan(spark, path, "t").count() == 50
    events.select("value").write.format("embedlog").mode("append").option("topic", "out").save(path)
    assert embedlog.spark.scan(spark, path, "out").count() == 50
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    rates = rates.selectExpr("STRING(value) AS value").writeStream.format("embedlog").option("topic", "out")
    rates.option("checkpointLocation", path + "-checkpoint").trigger(once=True).start(path).awaitTermination()
    assert embedlog.spark.scan(spark, path, "out").count() >= 60
    print(spark.version, "read and written")
"""


def output_of(program: str, directory: Path, path: Path | None) -> str:
    """What a program prints with this pyspark in front of the installed one."""
    parts = ([str(path)] if path else []) + [os.environ["PYTHONPATH"]]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(parts), "PYSPARK_PYTHON": sys.executable}
    environ.pop("SPARK_HOME", None)
    command = [sys.executable, "-c", program, str(directory / "log")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def oldest() -> Path:
    if not (OLDEST_PATH / "pyspark").is_dir():
        pytest.skip(
            f"no pyspark {'.'.join(map(str, OLDEST))} in {OLDEST_PATH}: make test-slow fetches it"
        )
    return OLDEST_PATH


def test_the_package_asks_for_the_version_that_the_code_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra in ("spark", "connect"):
        (asked,) = (name for name in extras[extra] if name.startswith("pyspark"))
        assert tuple(map(int, asked.partition(">=")[2].split("."))) == OLDEST
    assert f"pyspark~={'.'.join(map(str, OLDEST))}.0" in (ROOT / "Makefile").read_text()


def test_the_installed_version_reads_and_writes_without_java(tmp_path: Path) -> None:
    assert output_of(WITHOUT_JAVA, tmp_path, None).split() == [
        pyspark.__version__,
        "{'t':",
        "{'0':",
        "50}}",
    ]


def test_the_oldest_version_reads_and_writes_without_java(tmp_path: Path) -> None:
    printed = output_of(WITHOUT_JAVA, tmp_path, oldest())
    assert printed.startswith("{}.{}.".format(*OLDEST))
    assert "streams from a log need pyspark {}.{} or newer".format(*OLDEST_FOR_STREAMS) in printed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_the_oldest_version_reads_and_writes(tmp_path: Path) -> None:
    if session.missing():
        pytest.skip(session.missing())
    printed = output_of(WITH_JAVA, tmp_path, oldest())
    assert re.search(r"{}\.{}\.\d+ read and written".format(*OLDEST), printed)


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.1.0.dev0"])
def test_a_version_that_is_too_old_is_named_with_the_needed_one(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    oldest = OLDEST if version < "4.1" else OLDEST_FOR_STREAMS
    with pytest.raises(
        embedlog.MissingExtraError,
        match=r"pyspark {}\.{} or newer; found {}".format(*oldest, version),
    ):
        require_pyspark("the Spark source needs", oldest)
    if version < "4.1":
        with pytest.raises(embedlog.MissingExtraError, match=r"needs pyspark 4\.1"):
            embedlog.spark.register(None)
        with pytest.raises(embedlog.MissingExtraError, match=r"needs pyspark 4\.1"):
            embedlog.spark.scan(None, "data", "t")
    else:
        require_pyspark("the Spark source needs")
