"""Who is alive: a lock on one byte of `embedlog.slots`, held for life, and a nonce beside it.

V1  the lock goes with its holder, however that one dies; nobody needs to wait for a timeout to learn of it
V2  a slot is used again: the nonce tells its present holder from the one before
V3  a lock that its own descriptor holds is invisible to it, so others are asked about through a second one
V4  a forked child closes both at once: what it inherits would keep its parent alive for the others
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Final, NamedTuple

from embedlog import files, layout
from embedlog._native import system
from embedlog.errors import ForkedError, StorageError

SLOT_BYTES: Final = 8  # the nonce
SLOTS_MAX: Final = 1 << 16
_LOCKS_AT: Final = 1 << 40  # locks lie far behind the bytes of the file, which is no hindrance to them

_all: weakref.WeakSet[Liveness] = weakref.WeakSet()


class Life(NamedTuple):
    """One life: it is over when nobody holds the slot, or somebody with another nonce."""

    slot: int
    nonce: int


class Liveness:
    """The slots of one log directory, as one open log sees them. Threads: any."""

    def __init__(self, directory: Path, mode: int = 0o666) -> None:
        self.path = directory / layout.SLOTS
        self._mode = mode
        self._mutex = threading.Lock()
        self._held: set[int] = set()
        self._holding = self._asking = -1
        self._forked = False
        _all.add(self)

    def begin(self) -> Life:
        """A life of this process's own, until `end` or until the process dies. Raises StorageError."""
        with self._mutex:
            fd = self._descriptor_locked()
            for slot in range(SLOTS_MAX):
                if slot in self._held:
                    continue
                code = system.byte_lock_try(fd, _LOCKS_AT + slot)
                if code == 0:
                    self._held.add(slot)
                    nonce = int.from_bytes(os.urandom(SLOT_BYTES), "big")
                    files.write_all(fd, nonce.to_bytes(SLOT_BYTES, "big"), slot * SLOT_BYTES, self.path)
                    return Life(slot, nonce)
                if code != system.EAGAIN:
                    raise StorageError("cannot lock a slot", errno=system.errno_of(code), path=self.path)
        raise StorageError("every slot is taken", path=self.path, expected=f"fewer than {SLOTS_MAX} lives")

    def end(self, life: Life) -> None:
        """Give the slot back. Idempotent."""
        with self._mutex:
            if life.slot in self._held and self._holding >= 0:
                self._held.discard(life.slot)
                system.byte_unlock(self._holding, _LOCKS_AT + life.slot)

    def probe(self, life: Life) -> bool:
        """Whether it goes on: one system call for a dead one, two for a living one."""
        with self._mutex:
            fd = self._asking_locked()
            if fd < 0 or system.mutated("no_probe"):
                return fd >= 0  # the mutant: who ever lived is alive
            if system.byte_lock_probe(fd, _LOCKS_AT + life.slot) == 0:
                return False
            found = files.pread(fd, SLOT_BYTES, life.slot * SLOT_BYTES, self.path)
        return found == life.nonce.to_bytes(SLOT_BYTES, "big") or system.mutated("no_nonce")

    def close(self) -> None:
        """End every life that began here. Idempotent."""
        with self._mutex:
            self._held.clear()
            for fd in (self._holding, self._asking):
                files.close(fd)
            self._holding = self._asking = -1

    def abandon(self) -> None:
        """In a forked child: what was inherited must not outlive the parent."""
        for fd in (self._holding, self._asking):
            if fd >= 0:
                os.close(fd)
        self._holding = self._asking = -1
        self._held.clear()
        self._mutex = threading.Lock()  # the parent's may have been held in that moment
        self._forked = True

    def _descriptor_locked(self) -> int:
        if self._forked:
            raise ForkedError("this log was opened in the parent process; open it again here", path=self.path)
        if self._holding < 0:
            self._holding = files.open_file(self.path, files.CREATE, self._mode)
        return self._holding

    def _asking_locked(self) -> int:
        """A descriptor to ask through; -1 if there never was a slot, so nobody who had one can be alive."""
        if self._asking < 0 and files.exists(self.path):
            self._asking = files.open_file(self.path, files.READ)
        return self._asking


def _after_fork() -> None:
    for each in list(_all):
        each.abandon()


os.register_at_fork(after_in_child=_after_fork)
