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


def directories_in(root: str) -> list[str]:
    """The paths of the directories of the set."""
    return [os.path.join(root, f"d{number}") for number in range(1, DIRECTORY_COUNT + 1)]


class Loss:
    """The loss and the return of one directory, seen by one open log."""

    def __init__(self, log: embedlog.Log, topic: str) -> None:
        self._log = log
        self._topic = topic
        self.before = self._read_isr()
        self.leaders = self._read_leaders()
        self.lost = max(
            log.replicas(topic).directories,
            key=lambda directory: (directory.leads, directory.node),
        )
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

    def note_if_out(self) -> bool:
        """Whether no ISR has the directory any more; the first time is noted."""
        if self.during is not None:
            return True
        isr_by_partition = self._read_isr()
        leaders = self._read_leaders()
        is_in_sync = any(self.lost.node in isr for isr in isr_by_partition.values())
        if is_in_sync or self.lost.node in leaders.values():
            return False
        self.during = isr_by_partition
        self.figures |= {
            "out_s": time.perf_counter() - self._lost_at,
            "isr": isr_by_partition,
            "leaders": leaders,
        }
        return True

    def give_back(self, acknowledged: int) -> None:
        """Give the directory back, and wait until each ISR has it. Raises ReplicaError."""
        self._wait(self.note_if_out, "leave the ISR of each partition")
        self._away.rename(self._path)
        began_s = time.perf_counter()
        self._wait(self._is_back, "join the ISR of each partition")
        self.figures |= {
            "acknowledged_without": acknowledged - self.figures["acknowledged_before"],
            "joined_s": time.perf_counter() - began_s,
            "isr_before": self.before,
            "leaders_before": self.leaders,
            "isr_after": self._read_isr(),
        }

    def _is_back(self) -> bool:
        return all(self.lost.node in isr for isr in self._read_isr().values())

    def _read_isr(self) -> Isr:
        return {
            f"{partition.topic}-{partition.partition}": sorted(partition.isr)
            for partition in self._log.replicas(self._topic).partitions
        }

    def _read_leaders(self) -> dict[str, int]:
        return {
            f"{partition.topic}-{partition.partition}": partition.leader
            for partition in self._log.replicas(self._topic).partitions
        }

    def _wait(self, probe: Callable[[], bool], step: str) -> None:
        until_s = time.perf_counter() + STALLED_S
        while not probe():
            if time.perf_counter() > until_s:
                raise ReplicaError(
                    f"{self._path.name} did not {step} within {STALLED_S:.0f} "
                    f"s\n{self._log.replicas(self._topic)}"
                )
            time.sleep(POLL_S)


def compare(paths: Sequence[str], topic: str, table: Any) -> None:
    """Open each directory alone, and compare its records with `table`, byte for byte. Raises
    ReplicaError.
    """
    columns = ["partition", "offset", "key", "value"]
    order = [("partition", "ascending"), ("offset", "ascending")]
    of_set = table.select(columns).sort_by(order)
    for path in paths:
        with embedlog.open(path, read_only=True) as log:
            of_directory = log.scan(topic, columns=columns).to_arrow().sort_by(order)
        for name in columns:
            if not of_directory[name].combine_chunks().equals(of_set[name].combine_chunks()):
                raise ReplicaError(
                    f"the {name}s in {path} differ from those of the set: {of_directory.num_rows} "
                    f"of {of_set.num_rows} records"
                )


def make_table(figures: dict[str, Any]) -> list[str]:
    """The leader and the ISR of each partition before, during and after the loss, one line per
    partition.
    """

    def cell_text(leader: int, isr: list[int]) -> str:
        return f"d{leader} of " + " ".join(f"d{node}" for node in isr)

    lost = figures["lost"]
    lines = [f"{'partition':<14}{'leader and ISR':<24}{f'without {lost}':<24}{lost} is back"]
    for name, isr in figures["isr_before"].items():
        before = cell_text(figures["leaders_before"][name], isr)
        during = cell_text(figures["leaders"][name], figures["isr"][name])
        after = " ".join(f"d{node}" for node in figures["isr_after"][name])
        lines.append(f"{name:<14}{before:<24}{during:<24}{after}")
    return lines
