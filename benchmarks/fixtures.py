"""The time until a log for one test is ready (`embedlog.testing.open_log`), in a process that has imported embedlog."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from embedlog.testing import open_log

from .context import Context
from .measure import Outcome

TOPICS = {"orders": 3, "invoices": 3}
LOGS = 50


def ready(context: Context) -> Iterator[Outcome]:
    """Logs in memory one after the other, each with two topics, as the fixture `embedlog_log` makes them."""
    until_ready_ms, whole_ms = [], []
    for _ in range(LOGS):
        began = time.perf_counter()
        with open_log(TOPICS):
            until_ready_ms.append((time.perf_counter() - began) * 1e3)
        whole_ms.append((time.perf_counter() - began) * 1e3)
    detail = {"p99": statistics.quantiles(until_ready_ms, n=100)[-1], "with its removal": statistics.median(whole_ms)}
    yield Outcome("test-log/topics=2/partitions=6", statistics.median(until_ready_ms), "ms", 10.0, False, detail)
