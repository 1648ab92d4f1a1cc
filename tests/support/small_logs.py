"""Logs without a housekeeper, and records of 100 bytes in batches of one."""

from __future__ import annotations

from pathlib import Path

import embedlog


def opened(path: Path) -> embedlog.Log:
    return embedlog.open(path, config={"housekeeping": False})


def append(log: embedlog.Log, count: int) -> None:
    with log.producer(linger_ms=0) as producer:
        for _ in range(count):
            producer.send("t", value=b"v" * 100).result(timeout=10)
