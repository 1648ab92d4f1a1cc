"""The time until a log for one test is ready (`embedlog.testing.open_log`), in a process that has
imported embedlog.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from embedlog.testing import open_log

from .context import Context
from .measure import Outcome, workspace
from .references import files_ms

TOPICS = {"orders": 3, "invoices": 3}
LOGS = 50


def ready(context: Context) -> Iterator[Outcome]:
    """Logs in memory one after the other, each with two topics, as the fixture `embedlog_log` makes
    them.
    """
    until_ready_ms = []
    whole_ms = []
    bare_ms = []
    for _ in range(LOGS):
        began = time.perf_counter()
        with open_log(TOPICS) as log:
            until_ready_ms.append((time.perf_counter() - began) * 1e3)
            path = Path(log.path)
            files = sum(len(names) for _, _, names in os.walk(path))
            where = path.parent
        whole_ms.append((time.perf_counter() - began) * 1e3)
        with workspace(str(where)) as directory:
            bare_ms.append(files_ms(directory, files))
    detail = {
        "p99": statistics.quantiles(until_ready_ms, n=100)[-1],
        "with its removal": statistics.median(whole_ms),
    }
    detail |= {"files": files, "bare files ms": statistics.median(bare_ms)}
    yield Outcome(
        "test-log/topics=2/partitions=6",
        statistics.median(until_ready_ms),
        "ms",
        10.0,
        False,
        detail,
    )
