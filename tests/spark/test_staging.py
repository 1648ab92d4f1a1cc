"""The staging directory: the owner of each file, and the processes that may remove it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.spark import staging
from embedlog.spark.write_options import parse_write


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "staging")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, alive."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def leave(area: staging.StagingArea, batch: int = 0, task: int = 0) -> str:
    with area.file(batch, task) as (file, path):
        file.write(b"rows")
        assert not os.path.exists(path), "it has its name when it is whole"
    return path


def test_the_driver_is_a_jvm_or_nobody(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    read = staging._read
    above = os.getppid()
    monkeypatch.setattr(staging, "_read", lambda path: "java" if path == f"/proc/{above}/comm" else read(path))
    assert staging.driver_name() == staging.name_of(above)
    monkeypatch.setattr(staging, "_read", lambda path: "other" if path.endswith("/comm") else read(path))
    leave(staging.staging_area(place, "a"))
    assert os.listdir(place) == [staging.name_of(staging.UNKNOWN)]
    assert staging.remove_dead(place) == []


def test_what_is_staged_goes_with_its_batch(place: str) -> None:
    area = staging.staging_area(place, "stream")
    early, late, again = leave(area, 3), leave(area, 4), leave(area, 4)
    assert len({early, late, again}) == 3
    area.clear(3)
    assert sorted(os.listdir(area.path)) == sorted(map(os.path.basename, (late, again)))
    area.clear(4)
    assert not os.path.exists(place)
    area.clear()


def test_discarding_leaves_what_others_have(place: str) -> None:
    area, beside = staging.staging_area(place, "a"), staging.staging_area(place, "b")
    mine, kept = leave(area), leave(beside)
    staging.discard([mine, mine])
    assert os.path.exists(kept)
    assert not os.path.exists(area.path)


def test_a_name_of_any_kind_makes_one_directory(place: str) -> None:
    for writer in ("../../etc", ".", "", "a/b", "ä" * 200):
        leave(staging.staging_area(place, writer))
    areas = os.listdir(os.path.join(place, staging.driver_name()))
    assert len(areas) == 5


def test_a_dead_driver_leaves_nothing_and_a_living_one_all(place: str, other: subprocess.Popen[bytes]) -> None:
    mine, theirs = (leave(staging.staging_area(place, "a", staging.name_of(pid))) for pid in (os.getpid(), other.pid))
    assert staging.remove_dead(place) == []
    dead = staging.name_of(other.pid)
    other.kill()
    other.wait()
    assert staging.remove_dead(place) == [dead]
    assert os.path.exists(mine)
    assert not os.path.exists(theirs)


def test_who_cannot_be_known_to_be_dead_is_left_alone(place: str) -> None:
    machine, boot, processes, pid, started = staging.name_of(os.getpid()).split("-")[1:]
    kept = [
        f"driver-{machine[::-1]}-{boot[::-1]}-{processes}-{pid}-{started}",  # another machine
        f"driver-{machine}-{boot}-{int(processes) + 1}-{pid}-{int(started) + 1}",  # another container
        "driver-x", "mine",
    ]  # fmt: skip
    gone = [
        f"driver-{machine}-{boot}-{processes}-{pid}-{int(started) + 1}",  # its number is another process's by now
        f"driver-{machine}-{boot[::-1]}-{processes}-{pid}-{started}",  # before this machine was restarted
    ]
    for name in kept + gone:
        os.makedirs(os.path.join(place, name, "job"))
    staging.remove_dead(place)
    left = set(os.listdir(place))
    assert set(kept) <= left
    assert gone[0] not in left
    assert (gone[1] in left) == (not os.path.exists("/etc/machine-id"))


def test_a_directory_that_cannot_be_written_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(embedlog.StorageError, match=r"rows cannot be staged.*file"):
        leave(staging.staging_area(str(tmp_path / "file"), "a"))


# ---- where it may be -------------------------------------------------------------------------------------------------


def test_it_never_lies_in_a_log_directory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for other in (log, tmp_path / "other"):
        embedlog.open(other).close()
    base = {"path": str(log), "topic": "t"}
    assert parse_write(base, stream=False).staging == f"{log}.staging"
    (tmp_path / "link").symlink_to(log)
    for inside in (log, log / "t-0" / "x", tmp_path / "link" / "x", tmp_path / "other" / "x"):
        with pytest.raises(embedlog.ConfigError, match=r"stagingDirectory.*outside of the log directory"):
            parse_write(base | {"stagingDirectory": str(inside)}, stream=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topik": "t"}, "unknown option of the embedlog sink; did you mean topic"),
        ({"kafka.bootstrap.servers": "h:9092"}, "the sink has no broker"),
        ({"batchId": "3"}, "needs a transactionalId"),
        ({"transactionalId": "a", "batchId": "-3"}, "batchId.*whole number"),
        ({"transactionalId": ""}, "transactionalId.*1 to 32767"),
        ({"compression.type": "lzma"}, "compression.type.*zstd"),
        ({"partitioner": "mine"}, "partitioner.*module:callable"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(embedlog.ConfigError, match=words):
        parse_write({"path": str(tmp_path)} | options, stream=False)


def test_a_stream_counts_its_batches_itself(tmp_path: Path) -> None:
    with pytest.raises(embedlog.ConfigError, match="Spark numbers"):
        parse_write({"path": str(tmp_path), "transactionalId": "a", "batchId": "1"}, stream=True)
    given = {"path": str(tmp_path), "TOPIC": "t", "checkpointLocation": "c", "queryName": "q", "kafka.compression.type": "ZSTD"}
    settings = parse_write(given, stream=True)
    assert (settings.topic, settings.compression, settings.made_partitioner()) == ("t", "zstd", None)
    with pytest.raises(embedlog.ConfigError, match="path: the log directory is missing"):
        parse_write({"topic": "t"}, stream=True)


def test_a_partitioner_is_imported_on_the_driver(tmp_path: Path) -> None:
    base = {"path": str(tmp_path)}
    made = parse_write(base | {"partitioner": "embedlog.partitioners:RoundRobinPartitioner"}, stream=False).made_partitioner()
    assert made is embedlog.partitioners.RoundRobinPartitioner
    with pytest.raises(embedlog.ConfigError, match=r"partitioner.*can import"):
        parse_write(base | {"partitioner": "nowhere:thing"}, stream=False).made_partitioner()
