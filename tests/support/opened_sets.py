"""Sets of three directories: opened, written, read and described."""

from __future__ import annotations

from pathlib import Path

import embedlog

QUIET = {"housekeeping": False, "lock_timeout_ms": 2000}


def paths(root: Path, count: int = 3) -> list[Path]:
    return [root / f"d{number}" for number in range(1, count + 1)]


def opened(root: Path, count: int = 3) -> embedlog.Log:
    return embedlog.open(paths(root, count), config=QUIET)


def send(log: embedlog.Log, *values: bytes, partition: int = 0, **options: object) -> None:
    with log.producer(linger_ms=0, **options) as producer:  # type: ignore[arg-type]
        for value in values:
            producer.send("t", value, partition=partition).result(30)


def values(log: embedlog.Log) -> list[bytes]:
    return sorted(record.value for record in log.scan("t").records())


def made(root: Path, count: int = 3) -> None:
    """A closed set with a topic of one partition, which d1 leads."""
    with opened(root, count) as log:
        log.create_topic("t", assignment={0: list(range(1, count + 1))})
        send(log, b"first")


def content(root: Path) -> dict[str, bytes]:
    """The bytes of all files."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def isr(log: embedlog.Log) -> list[int]:
    state = log._engine.set.decisions.counted_state()
    topics = {topic_id for topic_id, topic in state.topics.items() if topic.name == "t"}
    return sorted(next(each.isr for place, each in state.partitions.items() if place[0] in topics))
