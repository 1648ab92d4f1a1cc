"""A set with one topic, damage in its segments, and the comparison of its copies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import embedlog
from embedlog.storage import file_names

QUIET = {"housekeeping": False}
COUNT = 60
WANTED = [b"%03d" % number * 200 for number in range(COUNT)]


def opened(root: Path, count: int = 3) -> embedlog.Log:
    return embedlog.open([root / f"d{n}" for n in range(1, count + 1)], config=QUIET)


@contextlib.contextmanager
def filled(root: Path, factor: int = 3, **config: str) -> Iterator[embedlog.Log]:
    """An open set with one topic of one partition."""
    options = {name.replace("_", "."): value for name, value in config.items()}
    with opened(root) as log:
        log.create_topic("t", assignment={0: [1, 2, 3][:factor]}, config=options)
        with log.producer(linger_ms=0) as producer:
            for number, value in enumerate(WANTED):
                producer.send("t", value, key=b"%d" % (number % 7)).result(20)
        yield log


def segment_of(root: Path, node: int) -> Path:
    return file_names.segment_path(root / f"d{node}" / "t-0", 0)


def flip(path: Path, share: float = 0.51) -> None:
    """Change one byte of a record in the middle of a log."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0x55
    with path.open("r+b") as file:
        file.write(data)


def values(log: embedlog.Log) -> list[bytes]:
    return [record.value for record in log.scan("t").records()]


def isr(log: embedlog.Log) -> list[int]:
    log._engine.set.topics.refresh()
    return sorted(next(iter(log._engine.set.decisions.counted_state().partitions.values())).isr)


def leader(log: embedlog.Log) -> int:
    return next(iter(log._engine.set.decisions.counted_state().partitions.values())).leader


def batches_in(path: Path) -> bytes:
    """The batches of a segment, without the bytes that were reserved after them. The last batch may
    end with zeros, too.
    """
    data = path.read_bytes()
    at = 0
    while at + 12 <= len(data) and (size := int.from_bytes(data[at + 8 : at + 12], "big")):
        at += 12 + size
    return data[:at]


def assert_equal_copies(root: Path) -> None:
    """All directories have the same bytes. Their segments may have other borders: after a killed
    sync one of them rolls.
    """
    logs = [sorted((root / f"d{node}" / "t-0").glob("*.log")) for node in (1, 2, 3)]
    copies = [b"".join(map(batches_in, paths)) for paths in logs]
    assert copies[0] == copies[1] == copies[2]
