"""A topic `t` with many small segments, closed or killed, opened in place or as a copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition

QUIET = {"housekeeping": False}
COUNT = 60
HERE = TopicPartition("t", 0)
PARTITION = "t-0"
Opening = Callable[[Path], Path]


def write(path: Path, count: int = COUNT, config: dict[str, object] | None = None) -> embedlog.Log:
    log = embedlog.open(path, config=QUIET)
    log.create_topic("t", config={"segment.bytes": 1000} | (config or {}))
    with log.producer(linger_ms=0) as producer:
        for number in range(count):
            producer.send("t", b"%d" % number * 20).result(timeout=10)
    return log


def read(path: Path, *, read_only: bool = False, committed: bool = False) -> list[int]:
    isolation = "read_committed" if committed else "read_uncommitted"
    with embedlog.open(path, read_only=read_only, config={} if read_only else QUIET) as log:
        return [record.offset for record in log.scan("t", isolation_level=isolation).records()]


def logs(path: Path) -> list[Path]:
    return sorted((path / PARTITION).glob("*.log"))


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in logs(path)}


def in_place(path: Path) -> Path:
    return path


def copied(path: Path) -> Path:
    return Path(shutil.copytree(path, path.with_name("copy")))


def backed_up(path: Path) -> Path:
    return path.with_name("backup")


def killed(nursery_path: Path, *, flushed: bool) -> Path:
    """A log whose writer was killed: its files as they are, in a process that ends without
    closing.
    """
    pid = os.fork()
    if pid == 0:
        try:
            log = write(nursery_path)
            if flushed:
                log.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return nursery_path


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        before = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([before[0] ^ 1 << bit]), position)


def middle_missing(path: Path) -> None:
    logs(path)[2].unlink()


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    with write(tmp_path / "log") as log:
        log.backup(tmp_path / "backup")
    return tmp_path / "log"
