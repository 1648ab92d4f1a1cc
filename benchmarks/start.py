"""The start of a small program: the import of embedlog, the first record that it writes, and
`embedlog ls`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import embedlog

from .context import Context
from .measure import Outcome, workspace

RUNS = 15
TOPICS = 5
MOST_MS = {"import": 100, "first-record": 150, "ls": 150}
FIRST_RECORD = """
import os, sys, embedlog
log = embedlog.open(sys.argv[1])
log.create_topic("events")
log.producer().send("events", b"value").result()
os._exit(0)
"""


def start(context: Context) -> Iterator[Outcome]:
    """Median wall times of whole processes, which take turns; compiled modules are in a cache, as
    after an installation.
    """
    with workspace(context.directory) as directory:
        environment = {
            key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
        }
        environment["PYTHONPYCACHEPREFIX"] = str(directory / "compiled")
        listed = directory / "listed"
        with embedlog.open(listed) as log:
            log.create_topics([embedlog.NewTopic(f"topic-{number}", 3) for number in range(TOPICS)])
            with log.producer() as producer:
                for number in range(TOPICS):
                    producer.send(f"topic-{number}", b"value")
        times: dict[str, list[float]] = {}
        for turn in range(RUNS + 1):  # the first turn compiles
            programs = {
                "empty": ["-c", "pass"],
                "import": ["-c", "import embedlog"],
                "first-record": ["-c", FIRST_RECORD, str(directory / f"log-{turn}")],
                "ls": ["-m", "embedlog", "-d", str(listed), "ls"],
            }
            for name, program in programs.items():
                began = time.perf_counter()
                command = [sys.executable, *program]
                subprocess.run(
                    command, check=True, timeout=60, env=environment, stdout=subprocess.DEVNULL
                )
                times.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    found = {name: statistics.median(each[1:]) for name, each in times.items()}
    detail = {"an empty program": f"{found['empty']:.0f} ms"}
    for name, most_ms in MOST_MS.items():
        yield Outcome(f"start/{name}", found[name], "ms", most_ms, False, detail)
