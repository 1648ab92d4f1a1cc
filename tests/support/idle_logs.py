"""The common part of the tests of bad input: a closed log directory, its bytes, and a use of it
that detects errors.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog

QUIET = {"housekeeping": False}
COUNT = 40  # records there before anything goes wrong
# mapped, or with a note of the last reader
LIVE = {"embedlog.control", "embedlog.page", "embedlog.door", ".lock"}


def fill(log: embedlog.Log, topic: str = "t", count: int = COUNT) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"value %d" % number, b"k", partition=0)


def values(log: embedlog.Log, topic: str = "t") -> list[bytes]:
    return [record.value for record in log.scan(topic).records()]


def frozen(directory: Path) -> dict[str, bytes | None]:
    """Every name below a directory with its bytes."""
    found = sorted(path for path in directory.rglob("*") if path.name not in LIVE)
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in found
    }


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A log directory at rest."""
    directory = tmp_path / "log"
    with embedlog.open(directory, config=QUIET) as log:
        log.create_topic("t", config={"segment.bytes": 300})
        fill(log)
    return directory


def use(directory: Path, read_only: bool) -> None:
    """Open, append if that is allowed, read: every error must be raised by then."""
    with embedlog.open(directory, read_only=read_only, config=QUIET) as log:
        if not read_only:
            with log.producer() as producer:
                producer.send("t", b"more").result(10)
        assert len(values(log)) >= COUNT
