"""Helpers for tests of one interleaving, step by step, with two or three processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.faults.harness.batches import append_batch
from tests.faults.harness.content import Mark, Verdict, check, value_of
from tests.faults.harness.processes import Died, Nursery, RemoteError, Victim
from tests.faults.harness.tasks import TOPIC
from tests.support.campaign_report import add_counts

MARK = ".kafka_cleanshutdown"
QUIET = {"flush.ms": 3_600_000}  # no sync except explicit ones


class Play:
    """A directory, the processes in it by name, and the records that each process has
    acknowledged.
    """

    def __init__(
        self,
        nursery: Nursery,
        directory: Path,
        *,
        mutants: Sequence[str] = (),
        config: dict[str, Any] | None = None,
        partitions: int = 1,
    ) -> None:
        self.nursery = nursery
        self.directory = directory
        self.mutants = tuple(mutants)
        self.acks: dict[tuple[int, int], Mark] = {}
        self._numbers = 0
        self._pending: dict[int, list[Mark]] = {}
        maker = self.enter(housekeeping=False)
        maker.call("create_topic", TOPIC, partitions, QUIET | (config or {}))
        maker.call("close")
        nursery.end(maker)

    def enter(self, **options: Any) -> Victim:
        """One more process opens the directory. It has no housekeeper unless requested: the steps
        decide what happens.
        """
        victim = self.nursery.spawn()
        if self.mutants:
            victim.call("mutants", *self.mutants)
        victim.call("open", str(self.directory), **self.opening(options))
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
        (offset,) = victim.result()
        (mark,) = self._pending.pop(victim.pid)
        self.acks[partition, offset] = mark
        return int(offset)

    def stop_in_append(
        self,
        victim: Victim,
        name: str,
        kind: str = "point",
        action: str = "stop_before",
        nth: int = 1,
    ) -> None:
        """Let it begin an append and freeze at a named point or call of it."""
        victim.arm([kind], action, name=name, nth=nth)
        self.start_append(victim)
        victim.wait_stopped()

    def die_in_append(
        self,
        victim: Victim,
        name: str,
        kind: str = "point",
        action: str = "kill_before",
        nth: int = 1,
    ) -> None:
        """Let it begin an append and be killed at a named point or call of it."""
        victim.arm([kind], action, name=name, nth=nth)
        self.start_append(victim)
        victim.wait_dead()

    def leave(self, victim: Victim) -> None:
        victim.call("close")
        self.nursery.end(victim)

    def seen_by(self, victim: Victim) -> Verdict:
        """The records that a running process reads, against every acknowledgement."""
        return check(victim.call("read"), self.acks, ordered=False)

    def seen_afresh(self) -> Verdict:
        """The records that a new process reads."""
        reader = self.nursery.spawn()
        rows = reader.call("read_directory", str(self.directory))
        self.nursery.end(reader)
        return check(rows, self.acks, ordered=False)

    @property
    def partition(self) -> Path:
        return self.directory / f"{TOPIC}-0"


Steps = Callable[[Play], Verdict]


def fails_without(
    mutant: str,
    steps: Steps,
    nursery: Nursery,
    directory: Path,
    config: dict[str, Any] | None = None,
) -> None:
    """The same steps with the rule off must show a violation, an error or a death."""
    try:
        verdict = steps(Play(nursery, directory, mutants=(mutant,), config=config))
    except (AssertionError, RemoteError, Died):
        add_counts("mutants", killed=1)
        return
    assert verdict.violations, f"{mutant}: nothing was noticed"
    add_counts("mutants", killed=1)


def check_rule(mutant: str, steps: Steps, nursery: Nursery, directory: Path) -> None:
    """The steps show no violation, and with the rule off they show one."""
    verdict = steps(Play(nursery, directory / "log"))
    assert not verdict.violations, verdict
    fails_without(mutant, steps, nursery, directory / "mutant")


class FakeBroker:
    """The locking of a broker: an exclusive POSIX lock on `.lock`, unlocked before it is
    unlinked.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / ".lock"
        self._fd = -1

    def start(self) -> bool:
        """False if another process has the lock. A broker that runs continues."""
        if self._fd >= 0:
            return True
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.die()
            return False
        (self.path.parent / MARK).unlink(missing_ok=True)
        return True

    def append(self, value: bytes) -> None:
        """One more batch with one record, in Kafka's format, by copying the last one's shape."""
        append_batch(self.path.parent / f"{TOPIC}-0", value)

    def mark_and_unlock(self) -> None:
        (self.path.parent / MARK).write_text('{"version":0,"brokerEpoch":1}')
        self.die()

    def die(self) -> None:
        """Without a mark; the lock file stays."""
        fd = self._fd
        self._fd = -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.die()

    def unlink(self) -> None:
        self.path.unlink(missing_ok=True)
