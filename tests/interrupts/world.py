"""Contains the log of a run of interrupts, and the ledger of its values: each acknowledged one
once, each other at most once.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import embedlog
from embedlog import TopicPartition
from tests.interrupts.writers import PARTITIONS, SETTINGS, TOPIC, OtherProcess, OtherThread, Writer

TPS = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


class World:
    """One open log, another thread and another process that write, and the ledger."""

    def __init__(self, directories: int = 1) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="interrupts-"))
        self.paths = [str(self.root / f"disk{number}") for number in range(directories)]
        self.ends = contextlib.ExitStack()
        self.log = embedlog.open(self.paths if directories > 1 else self.paths[0], config=SETTINGS)
        self.log.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=directories)
        self.thread = OtherThread()
        self.process = OtherProcess(self.paths)
        self._writer = Writer(self.log, "thread")
        self._reader = self.log.consumer(
            auto_offset_reset="earliest", isolation_level="read_committed"
        )
        self._reader.assign(TPS)
        self._count = 0
        self._certain: set[bytes] = set()
        self._possible: set[bytes] = set()
        self._together: list[frozenset[bytes]] = []
        self._seen: Counter[bytes] = Counter()

    # ---- the ledger: of committed records ----

    def value(self) -> bytes:
        """A new value, which may be in the log once or not."""
        self._count += 1
        value = b"value %d" % self._count
        self._possible.add(value)
        return value

    def values(self, count: int, together: bool = False) -> list[bytes]:
        """New values. `together`: all of them are in the log, or none."""
        values = [self.value() for _ in range(count)]
        if together:
            self._together.append(frozenset(values))
        return values

    def acknowledge(self, *values: bytes) -> None:
        """These must be in the log."""
        self._certain.update(values)

    def refuse(self, *values: bytes) -> None:
        """These must not become visible: their transaction was aborted."""
        self._possible.difference_update(values)

    def write_elsewhere(self, topics: bool = False) -> None:
        """Another process and another thread write. Raises what prevents them."""
        self.acknowledge(*self.process.write(topics))
        self.acknowledge(*self.thread.call(lambda: self._writer.write(topics)))

    def read(self) -> None:
        """Each value is in the log as often as it may be. Raises AssertionError. REQUIRES that no
        transaction is open.
        """
        ends = self._reader.end_offsets(TPS)
        while any(self._reader.position(tp) < ends[tp] for tp in TPS):
            for record in self._reader.poll(timeout=10):
                assert record.value is not None
                self._seen[record.value] += 1
        doubled = [value for value, count in self._seen.items() if count > 1]
        strange = [
            value
            for value in self._seen
            if value not in self._certain and value not in self._possible
        ]
        lost = self._certain - self._seen.keys()
        assert not doubled, f"doubled: {doubled}"
        assert not strange, f"values that nobody wrote, or that were aborted: {strange}"
        assert not lost, f"lost: {sorted(lost)}"
        divided = [
            group for group in self._together if 0 < len(group & self._seen.keys()) < len(group)
        ]
        assert not divided, f"a part of them is in the log: {divided}"
        self._together.clear()

    # ---- the end ----

    def until_end(self, close: Callable[[], Any]) -> None:
        self.ends.callback(close)

    def close(self) -> None:
        with contextlib.ExitStack() as last:
            last.callback(shutil.rmtree, self.root, ignore_errors=True)
            last.callback(self.thread.close)
            last.callback(self.process.close)
            last.callback(self.log.close)
            last.callback(self.ends.close)
        gc.collect()
