"""The Spark source and sink on a set of three directories, also after the loss of one."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.spark
from embedlog.spark import staging
from embedlog.spark.read_options import parse
from embedlog.spark.read_plan import plan
from embedlog.spark.stream_offsets import StreamOffsets
from embedlog.spark.write_options import parse_write

WANTED = sorted(b"%d" % number for number in range(100))


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[list[str]]:
    """The directories of an open set: each partition of `t` has two copies, so no directory has all
    records.
    """
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
    return sorted(
        value
        for task in tasks
        for batch in read(task, schema)
        for value in batch.column(0).to_pylist()
    )


def test_tasks_read_all_directories(paths: list[str], tmp_path: Path) -> None:
    assert values(json.dumps(paths)) == WANTED
    Path(paths[0]).rename(tmp_path / "away")
    with embedlog.open(paths) as log:
        log.housekeep()  # elects the next leaders
    assert values(json.dumps(paths)) == WANTED


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[embedlog.Log]:
    """A set with a leader, a follower that knows the high watermark late, and a directory without
    replicas.
    """
    monkeypatch.setattr(
        embedlog,
        "open",
        partial(embedlog.open, config={"housekeeping": False, "lock.timeout.ms": 1000}),
    )
    with embedlog.open(members(tmp_path)[:2]) as log:
        log.add_directory(members(tmp_path)[2], replicas=False)
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": "2"})
        with log.producer() as producer:
            for value in WANTED:
                producer.send("t", value).result(20)
        assert [copy.high_watermark for copy in log.replicas("t").partitions[0].copies] == [100, 99]
        yield log


def members(root: Path) -> list[str]:
    return [str(root / f"d{node}") for node in (1, 2, 3)]


def options_of(root: Path, **more: str) -> dict[str, str]:
    return {"path": json.dumps(members(root)), "subscribe": "t", "columns": "value", **more}


def lose(log: embedlog.Log, root: Path, elects: bool) -> None:
    """The leader is lost. `elects`: another one leads, and commits nothing alone; else no process
    has noticed the loss.
    """
    (root / "d1").rename(root / "away")
    if elects:
        log.housekeep()


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("elects", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["after the begin of the task", "before it"])
def test_a_task_skips_no_record_that_a_follower_shows_late(
    late: embedlog.Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lenient: bool,
    elects: bool,
    before: bool,
) -> None:
    """Nothing is lost, so the task waits."""
    pa = pytest.importorskip("pyarrow")
    from embedlog.spark import read_task

    (task,) = plan(parse(options_of(tmp_path, failOnDataLoss=str(not lenient)), stream=False))
    assert [(piece.start, piece.end) for piece in task.pieces] == [(0, 100)]
    original = read_task._Reading._read_rows

    def of(self: Any, scan: embedlog.Scan) -> Iterator[Any]:
        if not before:
            lose(late, tmp_path, elects)
        return original(self, scan)

    monkeypatch.setattr(read_task._Reading, "_read_rows", of)
    if before:
        lose(late, tmp_path, elects)
    schema = pa.schema([("value", pa.binary())])
    with pytest.raises(
        embedlog.LeaderNotAvailableError, match=r"topic t, partition 0.* all records below 100"
    ):
        list(read_task.read(task, schema))
    monkeypatch.setattr(read_task._Reading, "_read_rows", original)
    late.alter_topic("t", min_insync_replicas=1)
    late.housekeep()
    assert (
        sorted(
            value for batch in read_task.read(task, schema) for value in batch.column(0).to_pylist()
        )
        == WANTED
    )


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("elects", [False, True])
def test_a_position_that_a_follower_shows_late_is_no_loss(
    late: embedlog.Log, tmp_path: Path, lenient: bool, elects: bool
) -> None:
    """The position of a query, and an offset in its options."""
    settings = parse(
        options_of(tmp_path, failOnDataLoss=str(not lenient), startingOffsets='{"t": {"0": 100}}'),
        stream=True,
    )
    with closing(StreamOffsets(settings)) as first:
        position = first.next(first.initial(), None)
    assert position["o"] == {"t": {"0": 100}}
    lose(late, tmp_path, elects)
    with closing(StreamOffsets(settings)) as query:
        for call in (query.initial, lambda: query.next(position, None)):
            with pytest.raises(
                embedlog.LeaderNotAvailableError, match=r"t-0.* all records below 100"
            ):
                call()
        late.alter_topic("t", min_insync_replicas=1)
        late.housekeep()
        assert query.initial() == query.next(position, None) == position


def test_records_that_an_unclean_election_lost_are_reported(
    late: embedlog.Log, tmp_path: Path
) -> None:
    """A leader that has committed the start of its epoch shows the end of the log: nothing
    waits.
    """
    pa = pytest.importorskip("pyarrow")
    from embedlog.spark import read_task

    (tmp_path / "d2").rename(tmp_path / "away")
    late.alter_topic("t", min_insync_replicas=1)
    with late.producer() as producer:
        producer.send("t", b"100").result(20)
    (strict,), (lenient,) = (
        plan(parse(options_of(tmp_path, failOnDataLoss=each), stream=False))
        for each in ("true", "false")
    )
    (tmp_path / "d1").rename(tmp_path / "gone")
    (tmp_path / "away").rename(tmp_path / "d2")
    late.housekeep()
    assert late.elect("t", 0, unclean=True, node=2)
    late.housekeep()
    schema = pa.schema([("value", pa.binary())])
    with pytest.raises(embedlog.OffsetOutOfRangeError, match="planned records were deleted"):
        list(read_task.read(strict, schema))
    assert (
        sorted(
            value
            for batch in read_task.read(lenient, schema)
            for value in batch.column(0).to_pylist()
        )
        == WANTED
    )


@pytest.mark.parametrize("text", ["[", "[]", "[1]", '[{"a": 1}]', '["a", 1]'])
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(embedlog.ConfigError, match="path"):
        parse({"path": text, "subscribe": "t"}, stream=False)


# ---- where rows are staged -------------------------------------------------------------------------------------------


def test_no_directory_of_a_set_may_contain_staged_files(tmp_path: Path) -> None:
    directories = [f"file://{tmp_path}/d1", str(tmp_path / "d2")]
    settings = parse_write({"path": json.dumps(directories)}, stream=False)
    assert settings.directory == (str(tmp_path / "d1"), str(tmp_path / "d2"))
    with pytest.raises(embedlog.ConfigError, match="outside"):
        parse_write(
            {"path": json.dumps(directories), "stagingDirectory": str(tmp_path / "d2" / "staged")},
            stream=False,
        )


def lost(directory: Path) -> None:
    directory.rename(directory.with_name("away"))


def not_mounted(directory: Path) -> None:
    lost(directory)
    directory.mkdir()


def closed_to_new_files(directory: Path) -> None:
    """No directory can be made beside it: as root, who may write everywhere, the test puts a file
    in its way.
    """
    Path(f"{directory}.staging").write_text("")


WORLDS = [pytest.param([], 0, id="all are there")]
WORLDS += [
    pytest.param([world], 1, id=world.__name__)
    for world in (lost, not_mounted, closed_to_new_files)
]
WORLDS += [pytest.param([closed_to_new_files, not_mounted], 2, id="one closed, one not mounted")]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(("worlds", "chosen"), WORLDS)
@pytest.mark.parametrize("given", [False, True], ids=["beside it", "by the option"])
def test_rows_are_staged_where_a_directory_is_available(
    paths: list[str], tmp_path: Path, worlds: list[Callable[[Path], None]], chosen: int, given: bool
) -> None:
    option = {"stagingDirectory": str(tmp_path / "given")} if given else {}
    for world, path in zip(worlds, paths, strict=False):
        world(Path(path))
    settings = parse_write({"path": json.dumps(paths), "topic": "out"} | option, stream=False)
    area = staging.make_area(settings.staging_places(), "job")
    assert area.staging == (str(tmp_path / "given") if given else f"{paths[chosen]}.staging")
    assert Path(area.path).is_dir()
    assert area.clear() == []
    assert not Path(area.staging).exists()
    assert not any(Path(path).with_name(f"{Path(path).name}.staging").is_dir() for path in paths)


def test_rows_are_staged_nowhere_if_no_directory_is_available(paths: list[str]) -> None:
    settings = parse_write({"path": json.dumps(paths)}, stream=False)
    for path in paths:
        closed_to_new_files(Path(path))
    with pytest.raises(
        embedlog.StorageError, match=r"rows cannot be staged: .*d1.staging.*d2.staging.*d3.staging"
    ):
        staging.make_area(settings.staging_places(), "job")


READ_ONLY = """
import json, os, subprocess, sys
import embedlog, pyarrow
from embedlog.spark import sink
from pyspark.sql.types import StringType, StructField, StructType

root = sys.argv[1]
directories = [os.path.join(root, f"disk{number}", "log") for number in range(3)]
disk = os.path.dirname(directories[0])
for path in directories:
    os.makedirs(os.path.dirname(path))
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
try:
    with embedlog.open(directories) as log:
        log.create_topic("t", partitions=3, replication_factor=3, min_insync_replicas=1)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for _ in range(2):
        options = {"path": json.dumps(directories), "topic": "t"}
        writer = sink.writer(options, StructType([StructField("value", StringType())]), False)
        writer.commit([writer.write(iter([pyarrow.record_batch({"value": ["a", "b"]})]))])
        subprocess.run(["umount", "-l", disk], check=False)  # the second turn has an empty directory there
    assert os.listdir(disk) == []
finally:
    subprocess.run(["umount", "-l", disk], check=False, stderr=subprocess.DEVNULL)
left = [name for name in os.listdir(os.path.join(root, "disk1")) if name != "log"]
with embedlog.open(directories, read_only=True) as log:
    print(sum(1 for _ in log.scan("t", isolation_level="read_committed").records()), left)
"""


def test_a_disk_that_is_read_only_and_then_gone_stops_no_job(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    command = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        sys.executable,
        "-c",
        READ_ONLY,
        str(tmp_path),
    ]
    if subprocess.run([*command[:4], "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a file system: needs root and unshare(1)")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == "4 []"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_reads_and_writes_a_set_that_loses_a_directory(
    spark: Any, paths: list[str], tmp_path: Path
) -> None:
    def counts() -> list[int]:
        frame = spark.read.format("embedlog").option("subscribe", "t").load(paths)
        frame.select("value").write.format("embedlog").option("topic", "out").mode("append").save(
            json.dumps(paths)
        )
        written = (
            spark.read.format("embedlog").option("subscribe", "out").load(json.dumps(paths)).count()
        )
        return [frame.count(), embedlog.spark.scan(spark, paths, "t").count(), written]

    assert counts() == [100, 100, 100]
    Path(paths[0]).rename(tmp_path / "away")
    assert counts() == [100, 100, 200]
