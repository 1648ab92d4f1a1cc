"""The Spark source and sink on a set of three directories, also after the loss of one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.spark
from embedlog.spark.read_options import parse
from embedlog.spark.read_plan import plan
from embedlog.spark.write_options import parse_write

WANTED = sorted(b"%d" % number for number in range(100))


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[list[str]]:
    """The directories of an open set: each partition of `t` has two copies, so no directory has all records."""
    found = [str(tmp_path / f"d{node}") for node in (1, 2, 3)]
    with embedlog.open(found, config={"housekeeping": False}) as log:
        log.create_topic("t", 3, replication_factor=2)
        log.create_topic("out", replication_factor=3)
        with log.producer() as producer:
            for value in WANTED:
                producer.send("t", value)
        yield found


def values(directories: str) -> list[bytes]:
    """The values that the tasks of a batch read, without Spark."""
    pa = pytest.importorskip("pyarrow")
    from embedlog.spark.read_task import read

    settings = parse({"path": directories, "subscribe": "t", "columns": "value"}, stream=False)
    schema = pa.schema([("value", pa.binary())])
    tasks = pickle.loads(pickle.dumps(plan(settings, parallel=2)))
    return sorted(value for task in tasks for batch in read(task, schema) for value in batch.column(0).to_pylist())


def test_tasks_read_all_directories(paths: list[str], tmp_path: Path) -> None:
    assert values(json.dumps(paths)) == WANTED
    Path(paths[0]).rename(tmp_path / "away")
    with embedlog.open(paths) as log:
        log.housekeep()  # elects the next leaders
    assert values(json.dumps(paths)) == WANTED


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["after the begin of the task", "before it"])
def test_a_task_skips_no_record_that_a_follower_shows_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lenient: bool, before: bool
) -> None:
    """SPARKREADTASK-1: the leader is lost, and the next one commits nothing alone."""
    pa = pytest.importorskip("pyarrow")
    from embedlog.spark import read_task

    found, quiet = [str(tmp_path / f"d{node}") for node in (1, 2, 3)], {"housekeeping": False, "lock.timeout.ms": 1000}
    with embedlog.open(found[:2], config=quiet) as log:
        log.add_directory(found[2], replicas=False)
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": "2"})
        with log.producer() as producer:
            for value in WANTED:
                producer.send("t", value).result(20)
        options = {"path": json.dumps(found), "subscribe": "t", "columns": "value", "failOnDataLoss": str(not lenient)}
        (task,) = plan(parse(options, stream=False))
        assert [(piece.start, piece.end) for piece in task.pieces] == [(0, 100)]

        def lose() -> None:
            Path(found[0]).rename(tmp_path / "away")
            log.housekeep()

        original = read_task._Reading._of

        def of(self: Any, scan: embedlog.Scan) -> Iterator[Any]:
            if not before:
                lose()
            return original(self, scan)

        monkeypatch.setattr(read_task._Reading, "_of", of)
        monkeypatch.setattr(read_task, "_opened", lambda directory: embedlog.open(directory, read_only=True, config=quiet))
        if before:
            lose()
        with pytest.raises((embedlog.LeaderNotAvailableError, embedlog.OffsetOutOfRangeError), match="topic t, partition 0"):
            list(read_task.read(task, pa.schema([("value", pa.binary())])))


@pytest.mark.parametrize("text", ["[", "[]", "[1]", '[{"a": 1}]', '["a", 1]'])
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(embedlog.ConfigError, match="path"):
        parse({"path": text, "subscribe": "t"}, stream=False)


def test_files_of_the_sink_are_beside_the_first_directory(tmp_path: Path) -> None:
    directories = [f"file://{tmp_path}/d1", str(tmp_path / "d2")]
    settings = parse_write({"path": json.dumps(directories)}, stream=False)
    assert settings.directory == (str(tmp_path / "d1"), str(tmp_path / "d2"))
    assert settings.staging == str(tmp_path / "d1.staging")
    with pytest.raises(embedlog.ConfigError, match="outside"):
        parse_write({"path": json.dumps(directories), "stagingDirectory": str(tmp_path / "d2" / "staged")}, stream=False)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_reads_and_writes_a_set_that_loses_a_directory(spark: Any, paths: list[str], tmp_path: Path) -> None:
    def counts() -> list[int]:
        frame = spark.read.format("embedlog").option("subscribe", "t").load(paths)
        frame.select("value").write.format("embedlog").option("topic", "out").mode("append").save(json.dumps(paths))
        written = spark.read.format("embedlog").option("subscribe", "out").load(json.dumps(paths)).count()
        return [frame.count(), embedlog.spark.scan(spark, paths, "t").count(), written]

    assert counts() == [100, 100, 100]
    Path(paths[0]).rename(tmp_path / "away")
    assert counts() == [100, 100, 200]
