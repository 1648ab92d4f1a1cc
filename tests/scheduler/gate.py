"""The controller's side of the gate: which process stands where, and turns for one of them at a
time.

A process passes a hook only in its turn (`testing/schedule.c`). One that waits can go on when its
lock is free, when a word was woken since, or when the clock has reached its deadline. The
controller looks at the lock itself, so it wakes no process in vain. The clock moves by a
microsecond a step; if every process waits, it jumps to the first deadline.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

from embedlog._native.calls import CALLS, ffi, lib
from tests.faults.harness.processes import until

ABSENT, STOPPED, RUNS, WAITS_FOR_LOCK, WAITS_FOR_WORD, SLEEPS, ENDED = range(7)
STATES: Final = (
    "absent",
    "stopped",
    "running",
    "waiting for a lock",
    "waiting for a word",
    "sleeping",
    "ended",
)
# above every time since the boot that a prepared directory may have
CLOCK_BEGINS_NS: Final = 10**15
TRACE_MAX: Final = 40_000
KINDS: Final = {**dict(enumerate(CALLS)), 32: "page read", 33: "page changed", 34: "lock probed"}
_FLOCK: Final = struct.Struct("=hhxxxxqqixxxx")  # struct flock on 64-bit Linux


class Step(NamedTuple):
    """A passed hook."""

    process: int
    number: int
    kind: str
    name: str
    size: int


class Stuck(AssertionError):
    """A process has its turn, and neither passes a hook nor gives the turn back."""


class Gate:
    """The mapping that controller and processes share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        size = ffi.sizeof("el_schedule") + TRACE_MAX * ffi.sizeof("el_schedule_entry")
        os.ftruncate(self._file, size)
        self._map = mmap.mmap(self._file, size)
        self._view: Any = ffi.from_buffer("uint8_t[]", self._map, require_writable=True)
        self._raw: Any = ffi.cast("el_schedule *", self._view)
        self._lock_files: dict[str, int] = {}

    def reset(self, *, traced: bool) -> None:
        """No process is in, and the clock begins again."""
        ffi.memmove(self._raw, bytes(ffi.sizeof("el_schedule")), ffi.sizeof("el_schedule"))
        self._raw.clock_ns = CLOCK_BEGINS_NS
        self._raw.trace_max = TRACE_MAX if traced else 0
        for number in range(lib.EL_SCHEDULE_SLOTS):
            self._raw.slots[number].number = number
        self.forget_locks()

    def forget_locks(self) -> None:
        for fd in self._lock_files.values():
            os.close(fd)
        self._lock_files.clear()

    def close(self) -> None:
        self.forget_locks()
        self._raw = None
        ffi.release(self._view)
        self._map.close()
        os.close(self._file)
        os.unlink(self.path)

    # ---- one process ---------------------------------------------------------------------------------------------

    def state(self, process: int) -> int:
        return int(self._raw.slots[process].state)

    def steps(self, process: int) -> int:
        return int(self._raw.slots[process].steps)

    def standing_at(self, process: int) -> str:
        """The hook before which it stands, or what it waits for."""
        slot = self._raw.slots[process]
        if slot.state == WAITS_FOR_LOCK:
            return f"{STATES[slot.state]} {ffi.string(slot.lock_path).decode(errors='replace')}"
        return KINDS.get(slot.kind, "?") if slot.state == STOPPED else STATES[slot.state]

    def run(self, process: int, steps: int, error: int = 0, *, timeout_s: float = 60.0) -> int:
        """Give it a turn of so many steps, and wait for its end; its state then. Raises Stuck."""
        state = int(lib.el_schedule_run(self._raw, process, steps, error, int(timeout_s * 1e9)))
        if state == RUNS:
            raise Stuck(
                f"process {process} has not ended its turn for {timeout_s:g} s, after "
                f"{self.steps(process)} steps"
            )
        return state

    def wait_joined(self, process: int) -> None:
        """Wait until a process has taken its slot."""
        until(lambda: self.state(process) != ABSENT, f"process {process} to take its slot")

    def is_runnable(self, process: int) -> bool:
        """Whether a turn would bring it forward."""
        slot = self._raw.slots[process]
        if slot.state == STOPPED:
            return True
        if slot.state not in (WAITS_FOR_LOCK, WAITS_FOR_WORD, SLEEPS):
            return False
        if self._raw.clock_ns >= slot.until_ns:
            return True
        if slot.state == WAITS_FOR_LOCK:
            return self._is_free(slot)
        return bool(slot.state == WAITS_FOR_WORD and slot.seen_wakes != self._raw.wakes)

    def _is_free(self, slot: Any) -> bool:
        path = ffi.string(slot.lock_path).decode()
        fd = self._lock_files.get(path)
        if fd is None:
            try:
                fd = self._lock_files[path] = os.open(path, os.O_RDWR)
            except FileNotFoundError:
                return True  # it finds that out itself
        wanted = fcntl.F_WRLCK if slot.lock_exclusive else fcntl.F_RDLCK
        asked = _FLOCK.pack(wanted, os.SEEK_SET, slot.lock_at, slot.lock_size, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] == fcntl.F_UNLCK)

    # ---- all processes -------------------------------------------------------------------------------------------

    def pass_time(self, processes: list[int]) -> None:
        """Move the clock to the first deadline of processes that wait."""
        first_ns = min(int(self._raw.slots[process].until_ns) for process in processes)
        self._raw.clock_ns = max(int(self._raw.clock_ns), first_ns)

    @property
    def seconds(self) -> float:
        """The time since the beginning, on the clock of the processes."""
        return (int(self._raw.clock_ns) - CLOCK_BEGINS_NS) / 1e9

    def trace(self) -> list[Step]:
        """All steps since `reset`, in their order."""
        entries = ffi.cast("el_schedule_entry *", self._raw + 1)
        count = min(int(self._raw.traced), TRACE_MAX)
        return [
            Step(
                int(entries[at].slot),
                int(entries[at].step),
                KINDS.get(entries[at].kind, "?"),
                ffi.string(entries[at].name).decode(errors="replace"),
                int(entries[at].size),
            )
            for at in range(count)
        ]
