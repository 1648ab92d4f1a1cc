"""Directories of a set that are put back to an earlier copy."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import EmbedlogError

NODES = (1, 2, 3)


def opened(root: Path) -> embedlog.Log:
    return embedlog.open([root / f"d{node}" for node in NODES], auto_leader_rebalance_enable=False)


def send(log: embedlog.Log, *values: bytes) -> None:
    with log.producer(acks="all") as producer:
        for value in values:
            producer.send("t", value, partition=0).result(60)


def values(log: embedlog.Log) -> list[bytes | None]:
    return [record.value for record in log.scan("t").records()]


def copied(root: Path, node: int) -> None:
    shutil.copytree(root / f"d{node}", root / "copy")


def put_back(root: Path, node: int) -> None:
    """Put the directory back to the copy."""
    shutil.rmtree(root / f"d{node}")
    (root / "copy").rename(root / f"d{node}")


def killed(root: Path, *values: bytes, between: Callable[[], object] = lambda: None) -> None:
    """A process that sends these records, and is killed. `between`: what happens before the last
    one.
    """

    def work(log: embedlog.Log) -> None:
        send(log, *values[:-1])
        between()
        send(log, *values[-1:])

    killed_after(root, work)


def killed_after(root: Path, work: Callable[[embedlog.Log], object]) -> None:
    """A process that opens the set, does this, and is killed."""
    child = os.fork()
    if child == 0:
        try:
            work(opened(root))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def level(log: embedlog.Log) -> None:
    deadline = time.monotonic() + 60
    while len(log.replicas("t").partitions[0].isr) < 3:
        assert time.monotonic() < deadline
        log.housekeep()


def logs(root: Path) -> set[bytes]:
    return {(root / f"d{node}" / "t-0" / f"{0:020d}.log").read_bytes() for node in NODES}


def check_it_waits(log: embedlog.Log) -> None:
    with (
        log.producer(delivery_timeout_ms=300, request_timeout_ms=200) as producer,
        pytest.raises(EmbedlogError),
    ):
        producer.send("t", b"refused", partition=0).result(60)
    assert log.replicas("t").partitions[0].state == "OfflinePartition"
