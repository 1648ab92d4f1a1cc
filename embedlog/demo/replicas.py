"""The directories of the demo: one of them is lost while lines are written, and returns.

- Every directory has a copy of each partition. A line is acknowledged when at least two of them
  have it.
- The lost directory leads the most partitions. It is renamed without any notice to the processes,
  and renamed back when all lines are written.
- A loss counts when no ISR has the directory, a return when every ISR has it. In the end each
  directory is opened alone and compared with the others.
- The demo uses public names only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import embedlog

DIRECTORY_COUNT = 3
IN_SYNC_MIN = 2
STALLED_S = 60.0
POLL_S = 0.005

Isr = dict[str, list[int]]  # by partition


class ReplicaError(Exception):
    """A directory does not leave or join the ISR, or its records differ from those of the
    others.
    """


def directories(root: str) -> list[str]:
    """The paths of the directories of the set."""
    return [os.path.join(root, f"d{number}") for number in range(1, DIRECTORY_COUNT + 1)]


class Loss:
    """The loss and the return of one directory, seen by one open log."""

    def __init__(self, log: embedlog.Log, topic: str) -> None:
        self._log = log
        self._topic = topic
        described = log.replicas(topic)
        self.before, self.leaders = self._isr(), self._leaders()
        self.lost = max(described.directories, key=lambda each: (each.leads, each.node))
        self._path = Path(self.lost.path)
        self._away = self._path.with_name(f"{self._path.name}.lost")
        self._lost_at = 0.0
        self.during: Isr | None = None
        self.figures: dict[str, Any] = {}

    def lose(self, acknowledged: int) -> None:
        """Take the directory away."""
        self._path.rename(self._away)
        self._lost_at = time.perf_counter()
        self.figures = {
            "lost": self._path.name,
            "led": self.lost.leads,
            "acknowledged_before": acknowledged,
        }

    @property
    def is_lost(self) -> bool:
        return self._lost_at > 0

    def is_out(self) -> bool:
        """Whether no ISR has the directory any more; the first time is noted."""
        if self.during is None:
            found = self._isr()
            leaders = self._leaders()
            if (
                not any(self.lost.node in isr for isr in found.values())
                and self.lost.node not in leaders.values()
            ):
                self.during = found
                self.figures |= {
                    "out_s": time.perf_counter() - self._lost_at,
                    "isr": found,
                    "leaders": leaders,
                }
        return self.during is not None

    def give_back(self, acknowledged: int) -> None:
        """Give the directory back, and wait until each ISR has it. Raises ReplicaError."""
        self._wait(self.is_out, "leave the ISR of each partition")
        self._away.rename(self._path)
        began = time.perf_counter()
        self._wait(
            lambda: all(self.lost.node in isr for isr in self._isr().values()),
            "join the ISR of each partition",
        )
        self.figures |= {
            "acknowledged_without": acknowledged - self.figures["acknowledged_before"],
            "joined_s": time.perf_counter() - began,
            "isr_before": self.before,
            "leaders_before": self.leaders,
            "isr_after": self._isr(),
        }

    def _isr(self) -> Isr:
        return {
            f"{each.topic}-{each.partition}": sorted(each.isr)
            for each in self._log.replicas(self._topic).partitions
        }

    def _leaders(self) -> dict[str, int]:
        return {
            f"{each.topic}-{each.partition}": each.leader
            for each in self._log.replicas(self._topic).partitions
        }

    def _wait(self, probe: Callable[[], bool], what: str) -> None:
        until = time.perf_counter() + STALLED_S
        while not probe():
            if time.perf_counter() > until:
                raise ReplicaError(
                    f"{self._path.name} did not {what} within {STALLED_S:.0f} "
                    f"s\n{self._log.replicas(self._topic)}"
                )
            time.sleep(POLL_S)


def compare(paths: Sequence[str], topic: str, table: Any) -> None:
    """Open each directory alone, and compare its records with `table`, byte for byte. Raises
    ReplicaError.
    """
    columns = ["partition", "offset", "key", "value"]
    order = [("partition", "ascending"), ("offset", "ascending")]
    wanted = table.select(columns).sort_by(order)
    for path in paths:
        with embedlog.open(path, read_only=True) as alone:
            found = alone.scan(topic, columns=columns).to_arrow().sort_by(order)
        for name in columns:
            if not found[name].combine_chunks().equals(wanted[name].combine_chunks()):
                raise ReplicaError(
                    f"the {name}s in {path} differ from those of the set: {found.num_rows} of "
                    f"{wanted.num_rows} records"
                )


def as_table(found: dict[str, Any]) -> list[str]:
    """The leader and the ISR of each partition before, during and after the loss, one line per
    partition.
    """

    def cell(leader: int, isr: list[int]) -> str:
        return f"d{leader} of " + " ".join(f"d{node}" for node in isr)

    lost = found["lost"]
    lines = [f"{'partition':<14}{'leader and ISR':<24}{f'without {lost}':<24}{lost} is back"]
    for name, isr in found["isr_before"].items():
        before = cell(found["leaders_before"][name], isr)
        during = cell(found["leaders"][name], found["isr"][name])
        after = " ".join(f"d{node}" for node in found["isr_after"][name])
        lines.append(f"{name:<14}{before:<24}{during:<24}{after}")
    return lines
