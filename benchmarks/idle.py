"""The cost of an idle group member: processor time, including its native thread, and wake-ups.

`python -m benchmarks.idle DIRECTORY` is such a member; it answers with one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import embedlog

from .context import Context, remove
from .measure import Outcome
from .references import sleeping_percent

MEMBERS = 8
PARTITIONS = 64
SECONDS = 10.0


def idle_member(context: Context) -> Iterator[Outcome]:
    """Members in one process each, each in a loop of polls without records."""
    directory = context.fresh("idle")
    try:
        with embedlog.open(directory) as log:
            log.create_topic("bench", PARTITIONS)
        command = [sys.executable, "-m", "benchmarks.idle", str(directory)]
        root = Path(__file__).resolve().parent.parent
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        members = [subprocess.Popen(command, text=True, cwd=root, **pipes) for _ in range(MEMBERS)]  # type: ignore[call-overload]
        for verb in ("settled", "measured"):
            answers = [member.stdout.readline() for member in members]
            assert all(answers), verb
            for member in members:
                member.stdin.write("go on\n")
                member.stdin.flush()
        for member in members:
            member.communicate()
    finally:
        remove(directory)
    found = [json.loads(answer) for answer in answers]
    shares = [each["share"] for each in found]
    wakes = max(each["wakes"] for each in found)
    detail = {
        "least": min(shares),
        "most": max(shares),
        "wake-ups a second": wakes,
        "bare sleeps %": sleeping_percent(wakes),
    }
    name = f"idle-member/members={MEMBERS}/partitions={PARTITIONS}"
    yield Outcome(name, sum(shares) / MEMBERS, "% of a core", 0.5, False, detail)


def spent() -> tuple[float, int]:
    """Run time of this process's threads in seconds, and their number of wake-ups."""
    found = [
        Path(f"/proc/self/task/{name}/schedstat").read_text().split()
        for name in os.listdir("/proc/self/task")
    ]
    return sum(int(each[0]) for each in found) / 1e9, sum(int(each[2]) for each in found)


def member(directory: str) -> None:
    with (
        embedlog.open(directory, config={"housekeeping": False}) as log,
        log.consumer("bench", group_id="bench") as consumer,
    ):
        while len(consumer.assignment()) != PARTITIONS // MEMBERS:
            consumer.poll(timeout=1.0)
        print("settled", flush=True)
        sys.stdin.readline()
        consumer.poll(timeout=1.0)
        ran, wakes = spent()
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            consumer.poll(timeout=1.0)
        lasted = time.monotonic() - began
        (ran_then, wakes_then) = spent()
        print(
            json.dumps(
                {"share": 100 * (ran_then - ran) / lasted, "wakes": (wakes_then - wakes) / lasted}
            ),
            flush=True,
        )
        sys.stdin.readline()


if __name__ == "__main__":
    member(sys.argv[1])
