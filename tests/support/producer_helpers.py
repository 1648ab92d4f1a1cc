"""The common part of the tests of the producer: a log, a producer, and a way to stop its thread
inside `append`.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog.format import record_batch

LONG_MS = 60_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", partitions=4)
        opened.create_topic("one")
        yield opened


@pytest.fixture
def producer(log: embedlog.Log) -> Iterator[embedlog.Producer]:
    with log.producer() as made:
        yield made


def records(log: embedlog.Log, topic: str = "one") -> list[embedlog.Record]:
    return list(log.scan(topic).records())


def values(log: embedlog.Log, topic: str = "one") -> list[bytes]:
    return [record.value for record in records(log, topic)]


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.002)


class Stuck:
    """Stops the producer's thread inside `append` until it is released."""

    def __init__(self, log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        partition = type(log._engine.partition("one", 0))
        real = partition.append

        def append(this: Any, *arguments: Any, **keywords: Any) -> Any:
            self.reached.set()
            assert self.go.wait(30)
            return real(this, *arguments, **keywords)

        monkeypatch.setattr(partition, "append", append)


@pytest.fixture
def stuck(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    made = Stuck(log, monkeypatch)
    yield made
    made.go.set()


def run_program(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, program, tmp_path / "log"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def batches(log: embedlog.Log, topic: str = "one", partition: int = 0) -> np.ndarray[Any, Any]:
    """The headers of the batches that lie in a partition."""
    fetched = log._engine.partition(topic, partition).fetch(0, max_bytes=1 << 26)
    return record_batch.scan(fetched.data, record_batch.Chain(gaps_allowed=True)).batches


def counts(log: embedlog.Log, topic: str = "one", partition: int = 0) -> list[int]:
    """The records of each batch."""
    return [int(count) for count in batches(log, topic, partition)["records"]]
