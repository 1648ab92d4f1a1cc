"""Compares the command line with kcat: lines of a whole topic to /dev/null, and the time of `ls`.

    python -m benchmarks.rivals_command_line [--small N] [--large N] [--rounds N] [--json FILE]

L1  both logs have the same records: 100 bytes of value, a key of 8, uncompressed, one partition, in
the page cache L2  a turn is a whole process; both alternate in one run, and a figure is the ratio
of the medians L3  the rate is that of the records between the small and the large log: start and
end are in both, and cancel out L4  `ls` is compared with the start of the interpreter and with the
import of numpy in the same run

Needs Java, Kafka's jars (tests/kafka/oracle.py), confluent-kafka and kcat.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kafka.oracle import Broker

from .measure import Outcome, report, workspace
from .rivals_consumer import TOPIC, fill_broker, fill_ours

RATE_TARGET = 5.0
LS_TARGET_MS = 150.0
LS_ROUNDS = 21


def took(command: list[str]) -> float:
    """Seconds of a process that writes to /dev/null."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def kcat(bootstrap: str) -> list[str]:
    return ["kcat", "-C", "-b", bootstrap, "-t", TOPIC, "-o", "beginning", "-e", "-q"]


def ours(directory: Path, verb: str) -> list[str]:
    return [sys.executable, "-m", "embedlog", "-d", str(directory), *verb.split()]


def rates(directory: Path, small: int, large: int, rounds: int) -> Iterator[Outcome]:
    spent: dict[tuple[str, int], list[float]] = {}
    for count in (small, large):
        fill_ours(directory / f"ours-{count}", count)
        with Broker(directory / f"broker-{count}") as broker:
            fill_broker(broker, count)
            for turn in range(rounds):
                commands = {
                    "kcat": kcat(broker.bootstrap),
                    "cat": ours(directory / f"ours-{count}", f"cat {TOPIC}"),
                }
                for name in sorted(commands, reverse=bool(turn % 2)):
                    spent.setdefault((name, count), []).append(took(commands[name]))
        shutil.rmtree(directory / f"broker-{count}")
    median = {key: statistics.median(times) for key, times in spent.items()}
    rate = {
        name: (large - small) / (median[name, large] - median[name, small])
        for name in ("cat", "kcat")
    }
    detail = {"cat": rate["cat"], "kcat": rate["kcat"], "per": "records/s", "rounds": rounds}
    yield Outcome(
        "command line/cat/rate/record=100B",
        rate["cat"] / rate["kcat"],
        "x",
        RATE_TARGET,
        True,
        detail,
    )
    for count in (small, large):
        detail = {
            "cat": median["cat", count],
            "kcat": median["kcat", count],
            "per": "s",
            "records": count,
        }
        ratio = median["kcat", count] / median["cat", count]
        yield Outcome(
            f"command line/cat/whole process/records={count}", ratio, "x", RATE_TARGET, True, detail
        )


def ls(directory: Path) -> Iterator[Outcome]:
    commands = {
        "ls": ours(directory, "ls"),
        "interpreter": [sys.executable, "-c", "pass"],
        "numpy": [sys.executable, "-c", "import numpy"],
    }
    spent: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(LS_ROUNDS):
        for name, command in commands.items():
            spent[name].append(took(command) * 1000)
    median = {name: statistics.median(times) for name, times in spent.items()}
    yield Outcome(
        "command line/ls",
        median.pop("ls"),
        "ms",
        LS_TARGET_MS,
        False,
        {**median, "fastest": min(spent["ls"])},
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rivals_command_line", description=__doc__
    )
    parser.add_argument("--small", type=int, default=2_000_000, help="records of the small log")
    parser.add_argument("--large", type=int, default=10_000_000, help="records of the large log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()

    def figures(directory: Path) -> Iterator[Outcome]:
        yield from rates(directory, chosen.small, chosen.large, chosen.rounds)
        yield from ls(directory / f"ours-{chosen.small}")

    with workspace(None) as directory:
        return report(figures(directory), chosen.json)


if __name__ == "__main__":
    sys.exit(main())
