"""The start of a small program: the import of embedlog, and the first record that it writes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .context import Context
from .measure import Outcome, workspace

RUNS = 15
EMPTY = "pass"
IMPORT = "import embedlog"
FIRST_RECORD = """
import os, sys, embedlog
log = embedlog.open(sys.argv[1])
log.create_topic("events")
log.producer().send("events", b"value").result()
os._exit(0)
"""


def start(context: Context) -> Iterator[Outcome]:
    """Median wall times of whole processes, which take turns; compiled modules are in a cache, as after an installation."""
    with workspace(context.directory) as directory:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(directory) / "compiled")
        times: dict[str, list[float]] = {EMPTY: [], IMPORT: [], FIRST_RECORD: []}
        for turn in range(RUNS + 1):  # the first turn compiles
            for program, found in times.items():
                began = time.perf_counter()
                command = [sys.executable, "-c", program, str(Path(directory) / f"log-{turn}")]
                subprocess.run(command, check=True, timeout=60, env=environment)
                found.append((time.perf_counter() - began) * 1000)
    empty, imported, first = (statistics.median(found[1:]) for found in times.values())
    detail = {"an empty program": f"{empty:.0f} ms"}
    yield Outcome("start/import", imported, "ms", 100, False, detail)
    yield Outcome("start/first-record", first, "ms", 150, False, detail)
