"""Process slots: a lock on one byte of `embedlog.slots`, held by a running process, with an entry
of 32 bytes beside it.

LIVENESS-1  the kernel releases the lock when its process ends for any reason; no other process
    waits for a timeout to detect that
LIVENESS-2  slots are reused: the nonce distinguishes the present holder from the previous one
LIVENESS-3  a lock is invisible to the descriptor that holds it, so other slots are probed through a
    second descriptor
LIVENESS-4  a forked child closes both at once: inherited descriptors would keep the parent's slots
    locked
LIVENESS-5  a lease shows more: a native thread writes heartbeats while the process runs, and stops
    when the polls stop (`Lease`)
LIVENESS-6  the mutex is reentrant: the garbage collector can end the lease of a lost consumer
    inside of a section of its own thread. Such an end changes the entry of its own slot only
LIVENESS-7  a lease holder checks the lease before it acts: nothing can notify a suspended process
    that its lease expired
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

    held: bool  # locked: the process exists, perhaps suspended
    heartbeat: int = 0  # differs at the next probe if the process runs
    left: bool = False  # the holder has recorded that its polls stopped


_GONE: Final = SlotState(False)


def _state_of(
    process_slot: ProcessSlot, held: bool, nonce: int, heartbeat: int, left: bool
) -> SlotState:
    """The state in the entry of the slot. With another nonce the slot has another holder, so this
    one has ended.
    """
    return SlotState(held, heartbeat, left) if nonce == process_slot.nonce else _GONE


class Lease:
    """A process slot with a heartbeat. Threads: `polling` and `polled` from the polling thread, the
    others from any.

    `polling` begins a poll, during which the poll interval does not run; `polled` ends it and
    starts the next interval.
    """

    def __init__(
        self, liveness: Liveness, process_slot: ProcessSlot, heartbeat: system.Heartbeat
    ) -> None:
        self.process_slot = process_slot
        self._liveness = liveness
        self._heartbeat = heartbeat

    def polling(self) -> None:
        self._heartbeat.polling()

    def polled(self) -> None:
        self._heartbeat.polled()

    @property
    def expired(self) -> bool:
        """Whether other members may have reassigned this member's partitions: check before each
        action. Stays true until `renew`.

        True once no heartbeat was written for the session timeout, the polls stopped for too long,
        or the lease ended.
        """
        return self._heartbeat.expired

    @property
    def good_until_ns(self) -> int:
        """When the lease expires without another heartbeat, on the boot clock; 0 after it has
        expired.
        """
        return self._heartbeat.good_until_ns

    @property
    def left(self) -> bool:
        """Whether the polls stopped for longer than the maximum poll interval, as recorded in the
        slot's entry.
        """
        return self._heartbeat.left

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
        self._held: dict[int, int] = {}  # nonce by slot
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
            opened = files.facts(fd, self.path)
            there = files.facts_of(self.path)
        return there is None or (opened.device, opened.inode) == (there.device, there.inode)

    def open_probe(self) -> None:
        """Open the descriptor that probes slots now, while the path leads to the file of its own
        slots. Raises StorageError.
        """
        with self._mutex:
            self._probe_fd_locked()

    def holds(self, process_slot: ProcessSlot) -> bool:
        """Whether this object has the slot."""
        with self._mutex:
            return self._held.get(process_slot.slot) == process_slot.nonce

    def end(self, process_slot: ProcessSlot) -> None:
        """Free the slot. Idempotent."""
        with self._mutex:
            self._end_locked(process_slot)

    def close(self) -> None:
        """Free all slots of this object. Idempotent."""
        for lease in list(self._leases):  # before the descriptor that they write through
            lease.end()
        with self._mutex:
            self._held.clear()
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
        self._held.clear()
        # another thread of the parent may have held it during the fork
        self._mutex = threading.RLock()
        self._forked = True

    # ---- slots of other processes ------------------------------------------------------------------

    def probe(self, process_slot: ProcessSlot) -> bool:
        """Whether the slot is still held by its process: one system call if it is free, two if it
        is held.
        """
        return self.slot_state(process_slot).held

    def slot_state(self, process_slot: ProcessSlot) -> SlotState:
        """Probe any slot once. Raises StorageError."""
        found = self._read(process_slot)
        return _GONE if found is None else _state_of(process_slot, *found)

    def known_state(self, process_slot: ProcessSlot) -> SlotState | None:
        """As `slot_state`; None if the file does not show the nonce of this slot."""
        found = self._read(process_slot)
        return (
            None
            if found is None or found[1] != process_slot.nonce
            else _state_of(process_slot, *found)
        )

    def _read(self, process_slot: ProcessSlot) -> tuple[bool, int, int, bool] | None:
        """Whether the slot is locked; nonce, heartbeat and `left` of its entry. None without a
        file.
        """
        with self._mutex:
            fd = self._probe_fd_locked()
            if fd < 0:
                return None
            code, entry = system.read_slot(
                fd,
                _LOCKS_AT + process_slot.slot,
                process_slot.slot * SLOT_BYTES,
                self._entry_lock_of(process_slot.slot),
            )
        if code < 0:
            raise StorageError(
                "cannot read a process slot", errno=system.errno_of(code) or None, path=self.path
            )
        nonce, heartbeat, left, _ = system.SLOT_ENTRY.unpack(entry)
        return code > 0, nonce, heartbeat, left != 0

    # ---- internals ---------------------------------------------------------------------------------

    def _begin_locked(self) -> ProcessSlot:
        fd = self._holder_fd_locked()
        for slot in range(SLOTS_MAX):
            if slot in self._held:
                continue
            code = system.byte_lock_try(fd, _LOCKS_AT + slot)
            if code == 0:
                nonce = int.from_bytes(os.urandom(_NONCE_BYTES), "big")
                try:
                    self._write_locked(fd, slot, system.SLOT_ENTRY.pack(nonce, 0, 0, 0))
                except BaseException:
                    system.byte_unlock(fd, _LOCKS_AT + slot)
                    raise
                self._held[slot] = nonce
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
        system.byte_lock_try(
            fd, self._entry_lock_of(slot)
        )  # a network file system flushes written data when the lock is released
        try:
            files.write_all(fd, entry, slot * SLOT_BYTES, self.path)
        finally:
            system.byte_unlock(fd, self._entry_lock_of(slot))

    def _end_locked(self, process_slot: ProcessSlot) -> None:
        if self._held.get(process_slot.slot) == process_slot.nonce and self._holder_fd >= 0:
            del self._held[process_slot.slot]
            system.byte_unlock(self._holder_fd, _LOCKS_AT + process_slot.slot)

    def _entry_lock_of(self, slot: int) -> int:
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
    leases = [lease for each in list(_all) for lease in list(each._leases)]
    return sum(
        lease.age(ns)
        for lease in leases
        if process_slot is None or lease.process_slot == process_slot
    )


def _after_fork() -> None:
    for each in list(_all):
        each.abandon()


os.register_at_fork(after_in_child=_after_fork)
