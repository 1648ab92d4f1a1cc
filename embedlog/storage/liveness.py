"""Process slots: a lock on one byte of `embedlog.slots`, held by a running process, with an entry
of 32 bytes beside it.

- The kernel releases the lock when its process ends for any reason; no other process waits for a
  timeout to detect that.
- Slots are reused: the nonce distinguishes the current holder from the previous one.
- A lock is invisible to the descriptor that holds it, so other slots are probed through a second
  descriptor.
- A forked child closes both at once: inherited descriptors would keep the parent's slots locked.
- A lease shows more: a native thread writes heartbeats while the process runs, and stops when the
  polls stop (`Lease`).
- The mutex is reentrant: the garbage collector can end the lease of a lost consumer inside of a
  section of its own thread. Such an end changes the entry of its own slot only.
- A lease holder checks the lease before it acts: nothing can notify a suspended process that its
  lease expired.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Final, NamedTuple

from embedlog._native import system
from embedlog._native.system import SLOT_BYTES
from embedlog.errors import ForkedError, StorageError
from embedlog.format.process_slot import ProcessSlot
from embedlog.storage import file_names, files, locks

SLOTS_MAX: Final = 1 << 16
_LOCKS_AT: Final = 1 << 40  # offset of the slot locks, far after the end of the file
# with `shared="locks"`: offset of the locks that a reader or writer of an entry holds
_ENTRY_LOCKS_AT: Final = 1 << 41
_NONCE_BYTES: Final = 8

_all: weakref.WeakSet[Liveness] = weakref.WeakSet()


class SlotState(NamedTuple):
    """The state of a slot as read by one probe."""

    is_held: bool  # locked: the process exists, perhaps suspended
    heartbeat: int = 0  # differs at the next probe if the process runs
    has_left: bool = False  # the holder has recorded that its polls stopped


_GONE: Final = SlotState(False)


class _Entry(NamedTuple):
    """What the file shows of a slot."""

    is_locked: bool
    nonce: int
    heartbeat: int
    has_left: bool


def _state_of(process_slot: ProcessSlot, entry: _Entry) -> SlotState:
    """The state in the entry of the slot. With another nonce the slot has another holder, so this
    one has ended.
    """
    if entry.nonce != process_slot.nonce:
        return _GONE
    return SlotState(entry.is_locked, entry.heartbeat, entry.has_left)


class Lease:
    """A process slot with a heartbeat. Threads: `begin_poll` and `end_poll` from the polling
    thread, the others from any.

    The poll interval does not run during a poll; the end of a poll starts the next interval.
    """

    def __init__(
        self, liveness: Liveness, process_slot: ProcessSlot, heartbeat: system.Heartbeat
    ) -> None:
        self.process_slot = process_slot
        self._liveness = liveness
        self._heartbeat = heartbeat

    def begin_poll(self) -> None:
        self._heartbeat.begin_poll()

    def end_poll(self) -> None:
        self._heartbeat.end_poll()

    @property
    def is_expired(self) -> bool:
        """Whether other members may have reassigned this member's partitions: check before each
        action. Stays true until `renew`.

        True once no heartbeat was written for the session timeout, the polls stopped for too long,
        or the lease ended.
        """
        return self._heartbeat.is_expired

    @property
    def good_until_ns(self) -> int:
        """When the lease expires without another heartbeat, on the boot clock; 0 after it has
        expired.
        """
        return self._heartbeat.good_until_ns

    @property
    def has_left(self) -> bool:
        """Whether the polls stopped for longer than the maximum poll interval, as recorded in the
        slot's entry.
        """
        return self._heartbeat.has_left

    def age(self, ns: int) -> bool:
        """Count `ns` more since the last poll, and act on it before this returns; False during a
        poll. For tests.
        """
        return self._heartbeat.age(ns)

    @property
    def path(self) -> Path:
        """The file of its slot."""
        return self._liveness.path

    def renew(self) -> None:
        """Start again with a heartbeat now, inside a poll. Raises StorageError.

        Check for reassignment *after* this call: a process that reassigns reads the heartbeat
        again, so one detects the other.
        """
        code = self._heartbeat.renew()
        if code < 0:
            raise StorageError(
                "cannot renew a lease",
                errno=system.errno_of(code) or None,
                path=self._liveness.path,
            )

    def end(self) -> None:
        """Stop the heartbeat thread and free the slot. Idempotent."""
        self._heartbeat.end()
        self._liveness.end(self.process_slot)

    def abandon(self) -> None:
        """Release the lease in a forked child."""
        self._heartbeat.abandon()


class Liveness:
    """The process slots of one log directory for one open log.

    `locked`: a network file system may be between them. Threads: any.
    """

    def __init__(self, directory: Path, mode: int = 0o666, locked: bool = False) -> None:
        self.path = directory / file_names.SLOTS
        self._mode = mode
        self._entry_locks_at = _ENTRY_LOCKS_AT if locked else 0
        self._mutex = threading.RLock()
        self._nonces: dict[int, int] = {}  # of the slots that this object holds
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._holder_fd = self._probe_fd = -1
        self._forked = False
        _all.add(self)

    # ---- slots of this process ---------------------------------------------------------------------

    def begin(self) -> ProcessSlot:
        """A slot of this process, until `end` or until the process ends. Raises StorageError."""
        with self._mutex:
            return self._begin_locked()

    def lease(
        self, *, session_timeout_ms: int, heartbeat_interval_ms: int, max_poll_interval_ms: int
    ) -> Lease:
        """A slot with a heartbeat; it starts inside a poll. Raises StorageError."""
        with self._mutex:
            process_slot = self._begin_locked()
            heartbeat = system.Heartbeat(
                self._holder_fd,
                process_slot.slot * SLOT_BYTES,
                self._entry_lock_of(process_slot.slot),
                session_timeout_ms,
                heartbeat_interval_ms,
                max_poll_interval_ms,
            )
            if heartbeat.code < 0:
                self._end_locked(process_slot)
                raise StorageError(
                    "cannot begin a heartbeat",
                    errno=system.errno_of(heartbeat.code) or None,
                    path=self.path,
                )
            lease = Lease(self, process_slot, heartbeat)
            self._leases.add(lease)
        return lease

    def shows(self, lease: Lease) -> bool:
        """Whether other processes see the slot of this lease. If not, its holder needs another
        one.
        """
        return True

    def shows_slot(self, process_slot: ProcessSlot) -> bool:
        """As `shows`, for a slot of `begin`."""
        return True

    def is_of_file(self) -> bool:
        """Whether no other file is at its path now. Raises StorageError."""
        with self._mutex:
            fd = self._holder_fd if self._holder_fd >= 0 else self._probe_fd
            if fd < 0:
                return True
            own = files.facts(fd, self.path)
            facts = files.facts_of(self.path)
        return facts is None or (own.device, own.inode) == (facts.device, facts.inode)

    def open_probe(self) -> None:
        """Open the descriptor that probes slots now, while the path leads to the file of its own
        slots. Raises StorageError.
        """
        with self._mutex:
            self._probe_fd_locked()

    def holds(self, process_slot: ProcessSlot) -> bool:
        """Whether this object has the slot."""
        with self._mutex:
            return self._nonces.get(process_slot.slot) == process_slot.nonce

    def end(self, process_slot: ProcessSlot) -> None:
        """Free the slot. Idempotent."""
        with self._mutex:
            self._end_locked(process_slot)

    def close(self) -> None:
        """Free all slots of this object. Idempotent."""
        for lease in list(self._leases):  # before the descriptor that they write through
            lease.end()
        with self._mutex:
            self._nonces.clear()
            holder_fd = self._holder_fd
            self._holder_fd = -1
            files.close(holder_fd)
            probe_fd = self._probe_fd
            self._probe_fd = -1
            files.close(probe_fd)

    def abandon(self) -> None:
        """Close the descriptors in a forked child: inherited ones must not outlive the parent."""
        for lease in list(self._leases):
            lease.abandon()
        for fd in (self._holder_fd, self._probe_fd):
            files.close_inherited(fd)
        self._holder_fd = self._probe_fd = -1
        self._nonces.clear()
        # another thread of the parent may have held it during the fork
        self._mutex = threading.RLock()
        self._forked = True

    # ---- slots of other processes ------------------------------------------------------------------

    def probe(self, process_slot: ProcessSlot) -> bool:
        """Whether the slot is still held by its process: one system call if it is free, two if it
        is held.
        """
        return self.slot_state(process_slot).is_held

    def slot_state(self, process_slot: ProcessSlot) -> SlotState:
        """Probe any slot once. Raises StorageError."""
        entry = self._read(process_slot)
        if entry is None:
            return _GONE
        return _state_of(process_slot, entry)

    def find_state(self, process_slot: ProcessSlot) -> SlotState | None:
        """As `slot_state`; None if the file does not show the nonce of this slot."""
        entry = self._read(process_slot)
        if entry is None or entry.nonce != process_slot.nonce:
            return None
        return _state_of(process_slot, entry)

    def _read(self, process_slot: ProcessSlot) -> _Entry | None:
        """The entry of the slot; None without a file. Raises StorageError."""
        with self._mutex:
            fd = self._probe_fd_locked()
            if fd < 0:
                return None
            code, raw = system.read_slot(
                fd,
                _LOCKS_AT + process_slot.slot,
                process_slot.slot * SLOT_BYTES,
                self._entry_lock_of(process_slot.slot),
            )
        if code < 0:
            raise StorageError(
                "cannot read a process slot", errno=system.errno_of(code) or None, path=self.path
            )
        nonce, heartbeat, left, _ = system.SLOT_ENTRY.unpack(raw)
        return _Entry(code > 0, nonce, heartbeat, left != 0)

    # ---- internals ---------------------------------------------------------------------------------

    def _begin_locked(self) -> ProcessSlot:
        fd = self._holder_fd_locked()
        for slot in range(SLOTS_MAX):
            if slot in self._nonces:
                continue
            code = system.byte_lock_try(fd, _LOCKS_AT + slot)
            if code == 0:
                nonce = int.from_bytes(os.urandom(_NONCE_BYTES), "big")
                try:
                    self._write_locked(fd, slot, system.SLOT_ENTRY.pack(nonce, 0, 0, 0))
                except BaseException:
                    system.byte_unlock(fd, _LOCKS_AT + slot)
                    raise
                self._nonces[slot] = nonce
                return ProcessSlot(slot, nonce)
            if code != system.EAGAIN:
                raise StorageError(
                    "cannot lock a process slot", errno=system.errno_of(code), path=self.path
                )
        raise StorageError(
            "all process slots are in use", path=self.path, expected=f"fewer than {SLOTS_MAX} slots"
        )

    def _write_locked(self, fd: int, slot: int, entry: bytes) -> None:
        if not self._entry_locks_at:
            files.write_all(fd, entry, slot * SLOT_BYTES, self.path)
            return
        # a network file system flushes written data when the lock is released
        system.byte_lock_try(fd, self._entry_lock_of(slot))
        try:
            files.write_all(fd, entry, slot * SLOT_BYTES, self.path)
        finally:
            system.byte_unlock(fd, self._entry_lock_of(slot))

    def _end_locked(self, process_slot: ProcessSlot) -> None:
        if self._nonces.get(process_slot.slot) == process_slot.nonce and self._holder_fd >= 0:
            del self._nonces[process_slot.slot]
            system.byte_unlock(self._holder_fd, _LOCKS_AT + process_slot.slot)

    def _entry_lock_of(self, slot: int) -> int:
        """The position of the lock of an entry; 0 if entries need none."""
        return self._entry_locks_at + slot if self._entry_locks_at else 0

    def _holder_fd_locked(self) -> int:
        if self._forked:
            raise ForkedError(
                "this log was opened in the parent process; open it again here", path=self.path
            )
        if self._holder_fd < 0:
            self._holder_fd = locks.open_lock(self.path, self._mode)
        return self._holder_fd

    def _probe_fd_locked(self) -> int:
        """A descriptor to probe slots through; -1 if the file is absent, so no slot was ever
        held.
        """
        if self._probe_fd < 0 and files.exists(self.path):
            self._probe_fd = files.open_file(self.path, files.READ)
        return self._probe_fd


def age_leases(ns: int, process_slot: ProcessSlot | None = None) -> int:
    """As `Lease.age` for every lease of this process, or for one; returns the number of those that
    were between two polls.
    """
    aged_count = 0
    for liveness in list(_all):
        for lease in list(liveness._leases):
            if process_slot is None or lease.process_slot == process_slot:
                aged_count += lease.age(ns)
    return aged_count


def _after_fork() -> None:
    for liveness in list(_all):
        liveness.abandon()


os.register_at_fork(after_in_child=_after_fork)
