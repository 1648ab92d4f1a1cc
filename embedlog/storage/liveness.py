"""Who is alive: a lock on one byte of `embedlog.slots`, held for life, and an entry of 32 bytes beside it.

LIVENESS-1  the lock goes with its holder, however that one dies; nobody needs to wait for a timeout to learn of it
LIVENESS-2  a slot is used again: the nonce tells its present holder from the one before
LIVENESS-3  a lock that its own descriptor holds is invisible to it, so others are asked about through a second one
LIVENESS-4  a forked child closes both at once: what it inherits would keep its parent alive for the others
LIVENESS-5  a lease says more: a native thread beats while the process runs at all, and stops once its polls did (`Lease`)
LIVENESS-6  who holds a lease looks at it before he acts on it: nobody can tell a frozen process that it was given up
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Final, NamedTuple

from embedlog._native import leases, system
from embedlog._native.leases import SLOT_BYTES
from embedlog.errors import ForkedError, StorageError
from embedlog.storage import file_names, files, locks

SLOTS_MAX: Final = 1 << 16
_LOCKS_AT: Final = 1 << 40  # locks lie far behind the bytes of the file, which is no hindrance to them
_ROOMS_AT: Final = 1 << 41  # with `shared="locks"`: of who writes or reads an entry now
_NONCE_BYTES: Final = 8

_all: weakref.WeakSet[Liveness] = weakref.WeakSet()


class Life(NamedTuple):
    """One life: it is over when nobody holds the slot, or somebody with another nonce."""

    slot: int
    nonce: int


class Sign(NamedTuple):
    """What one look at another one's slot shows."""

    held: bool  # it lives; frozen or not
    beat: int = 0  # another number at the next look: it runs
    left: bool = False  # it said that its polls stopped


_GONE: Final = Sign(False)


class Lease:
    """A life with a heartbeat. Threads: `polling` and `polled` from the one that polls, the others from any.

    `polling` begins a poll, in which nobody is late; `polled` ends it: from there on the time for the next one runs.
    """

    def __init__(self, liveness: Liveness, life: Life, beats: leases.Beats) -> None:
        self.life = life
        self._liveness, self._beats = liveness, beats

    def polling(self) -> None:
        self._beats.polling()

    def polled(self) -> None:
        self._beats.polled()

    @property
    def lapsed(self) -> bool:
        """Whether others may have given this one up: look before you go on. It stays so until `renew`.

        True once no beat was written for the session timeout, the polls stopped for too long, or the lease ended.
        """
        return self._beats.lapsed and not system.mutated("no_lease_check")

    @property
    def good_until_ns(self) -> int:
        """When it lapses if no beat comes any more, on the boot clock; 0 once it has."""
        return self._beats.good_until_ns

    @property
    def left(self) -> bool:
        """Whether the polls stopped for longer than the member promised, and the others were told."""
        return self._beats.left

    def renew(self) -> None:
        """Begin anew with a beat of this moment, inside a poll. Look whether you were given up *behind* it: who gives up reads
        the beat once more, so either sees the other. Raises StorageError.
        """
        code = self._beats.renew()
        if code < 0:
            raise StorageError("cannot renew a lease", errno=system.errno_of(code) or None, path=self._liveness.path)

    def end(self) -> None:
        """The thread ends, and the life with it. Idempotent."""
        self._beats.end()
        self._liveness.end(self.life)

    def abandon(self) -> None:
        """In a forked child."""
        self._beats.abandon()


class Liveness:
    """The slots of one log directory, as one open log sees them. `locked`: others may see it through a network. Threads: any."""

    def __init__(self, directory: Path, mode: int = 0o666, locked: bool = False) -> None:
        self.path = directory / file_names.SLOTS
        self._mode = mode
        self._rooms_at = _ROOMS_AT if locked else 0
        self._mutex = threading.Lock()
        self._held: dict[int, int] = {}  # nonce by slot
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._holding = self._asking = -1
        self._forked = False
        _all.add(self)

    # ---- lives of our own ------------------------------------------------------------------------

    def begin(self) -> Life:
        """A life of this process's own, until `end` or until the process dies. Raises StorageError."""
        with self._mutex:
            return self._begin_locked()

    def lease(self, *, session_timeout_ms: int, heartbeat_interval_ms: int, max_poll_interval_ms: int) -> Lease:
        """A life that beats; it begins inside a poll. Raises StorageError."""
        with self._mutex:
            life = self._begin_locked()
            beats = leases.Beats(
                self._holding,
                life.slot * SLOT_BYTES,
                self._room_of(life.slot),
                session_timeout_ms,
                heartbeat_interval_ms,
                max_poll_interval_ms,
            )
            if beats.code < 0:
                self._end_locked(life)
                raise StorageError("cannot begin a heartbeat", errno=system.errno_of(beats.code) or None, path=self.path)
            lease = Lease(self, life, beats)
            self._leases.add(lease)
        return lease

    def end(self, life: Life) -> None:
        """Give the slot back. Idempotent."""
        with self._mutex:
            self._end_locked(life)

    def close(self) -> None:
        """End every life that began here. Idempotent."""
        for lease in list(self._leases):  # before the descriptor that they write through
            lease.end()
        with self._mutex:
            self._held.clear()
            for fd in (self._holding, self._asking):
                files.close(fd)
            self._holding = self._asking = -1

    def abandon(self) -> None:
        """In a forked child: what was inherited must not outlive the parent."""
        for lease in list(self._leases):
            lease.abandon()
        for fd in (self._holding, self._asking):
            if not system.mutated("keep_inherited"):
                files.close_inherited(fd)
        self._holding = self._asking = -1
        self._held.clear()
        self._mutex = threading.Lock()  # the parent's may have been held in that moment
        self._forked = True

    # ---- others ----------------------------------------------------------------------------------

    def probe(self, life: Life) -> bool:
        """Whether it goes on: one system call for a dead one, two for a living one."""
        return self.sign(life).held

    def sign(self, life: Life) -> Sign:
        """One look at a life, anybody's. Raises StorageError."""
        with self._mutex:
            fd = self._asking_locked()
            if fd < 0:
                return _GONE
            code, entry = leases.look(fd, _LOCKS_AT + life.slot, life.slot * SLOT_BYTES, self._room_of(life.slot))
        if code < 0:
            raise StorageError("cannot look at a slot", errno=system.errno_of(code) or None, path=self.path)
        nonce, beat, left, _ = leases.ENTRY.unpack(entry)
        if nonce != life.nonce and not system.mutated("no_nonce") and not system.mutated("no_probe"):
            return _GONE
        return Sign(code > 0 or system.mutated("no_probe"), beat, left != 0)  # no_probe, the mutant: who ever lived is alive

    # ---- below -----------------------------------------------------------------------------------

    def _begin_locked(self) -> Life:
        fd = self._holding_locked()
        for slot in range(SLOTS_MAX):
            if slot in self._held:
                continue
            code = system.byte_lock_try(fd, _LOCKS_AT + slot)
            if code == 0:
                nonce = int.from_bytes(os.urandom(_NONCE_BYTES), "big")
                try:
                    self._write_locked(fd, slot, leases.ENTRY.pack(nonce, 0, 0, 0))
                except BaseException:
                    system.byte_unlock(fd, _LOCKS_AT + slot)
                    raise
                self._held[slot] = nonce
                return Life(slot, nonce)
            if code != system.EAGAIN:
                raise StorageError("cannot lock a slot", errno=system.errno_of(code), path=self.path)
        raise StorageError("every slot is taken", path=self.path, expected=f"fewer than {SLOTS_MAX} lives")

    def _write_locked(self, fd: int, slot: int, entry: bytes) -> None:
        if not self._rooms_at:
            files.write_all(fd, entry, slot * SLOT_BYTES, self.path)
            return
        system.byte_lock_try(fd, self._room_of(slot))  # a network file system sends what was written when it goes
        try:
            files.write_all(fd, entry, slot * SLOT_BYTES, self.path)
        finally:
            system.byte_unlock(fd, self._room_of(slot))

    def _end_locked(self, life: Life) -> None:
        if self._held.get(life.slot) == life.nonce and self._holding >= 0:
            del self._held[life.slot]
            system.byte_unlock(self._holding, _LOCKS_AT + life.slot)

    def _room_of(self, slot: int) -> int:
        return self._rooms_at + slot if self._rooms_at else 0

    def _holding_locked(self) -> int:
        if self._forked:
            raise ForkedError("this log was opened in the parent process; open it again here", path=self.path)
        if self._holding < 0:
            self._holding = locks.open_lock(self.path, self._mode)
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
