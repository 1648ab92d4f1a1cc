"""Words for tests that walk through an interleaving step by step with two or three processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .content import Mark, Verdict, check, value_of
from .processes import Nursery, Victim
from .tasks import TOPIC

QUIET = {"flush.ms": 3_600_000}                     # no sync but those that a step asks for


class Play:
    """A directory, the processes in it by name, and what was acknowledged to whom."""

    def __init__(self, nursery: Nursery, directory: Path, *, mutants: Sequence[str] = (), config: dict[str, Any] | None = None,
                 partitions: int = 1) -> None:
        self.nursery, self.directory = nursery, directory
        self.mutants = tuple(mutants)
        self.acks: dict[tuple[int, int], Mark] = {}
        self._numbers = 0
        self._pending: dict[int, list[Mark]] = {}
        maker = self.enter(housekeeping=False)
        maker.call("create_topic", TOPIC, partitions, QUIET | (config or {}))
        maker.call("close")
        nursery.end(maker)

    def enter(self, **options: Any) -> Victim:
        """One more process opens the directory. It keeps no house unless asked: the steps decide what happens."""
        victim = self.start_entering(**options)
        victim.result()
        return victim

    def start_entering(self, **options: Any) -> Victim:
        victim = self.nursery.spawn()
        if self.mutants:
            victim.call("mutants", *self.mutants)
        victim.start("open", str(self.directory), **self.opening(options))
        return victim

    @staticmethod
    def opening(options: dict[str, Any]) -> dict[str, Any]:
        config = {"housekeeping": False} | options.pop("config", {})
        options.pop("housekeeping", None)
        return options | {"config": config}

    def append(self, victim: Victim, partition: int = 0, size: int = 150) -> int:
        """Append one record and take note of its acknowledgement; its offset."""
        self.start_append(victim, partition, size)
        return self.finish_append(victim, partition)

    def start_append(self, victim: Victim, partition: int = 0, size: int = 150) -> None:
        mark = Mark(victim.pid, self._numbers)
        self._numbers += 1
        self._pending[victim.pid] = [mark]
        victim.start("append", [value_of(*mark, size)], partition)

    def finish_append(self, victim: Victim, partition: int = 0) -> int:
        offset, = victim.result()
        mark, = self._pending.pop(victim.pid)
        self.acks[partition, offset] = mark
        return int(offset)

    def stop_in_append(self, victim: Victim, name: str, kind: str = "point", action: str = "stop_before", nth: int = 1) -> None:
        """Let it begin an append and freeze at a named point or call of it."""
        victim.arm([kind], action, name=name, nth=nth)
        self.start_append(victim)
        victim.wait_stopped()

    def die_in_append(self, victim: Victim, name: str, kind: str = "point", action: str = "kill_before", nth: int = 1) -> None:
        """Let it begin an append and be killed at a named point or call of it."""
        victim.arm([kind], action, name=name, nth=nth)
        self.start_append(victim)
        victim.wait_dead()

    def leave(self, victim: Victim) -> None:
        victim.call("close")
        self.nursery.end(victim)

    def seen_by(self, victim: Victim) -> Verdict:
        """What a living process reads, against every acknowledgement."""
        return check(victim.call("read"), self.acks, ordered=False)

    def seen_afresh(self) -> Verdict:
        """What a new process reads."""
        reader = self.nursery.spawn()
        rows = reader.call("read_directory", str(self.directory))
        self.nursery.end(reader)
        return check(rows, self.acks, ordered=False)

    @property
    def partition(self) -> Path:
        return self.directory / f"{TOPIC}-0"
