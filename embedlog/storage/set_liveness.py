"""Process slots of a set of directories, any of which may fail.

SETLIVENESS-1  a slot begins in the first directory that is usable then, and stays there. Another
    process may use another first directory, so a slot is looked for in all of them; the nonce
    identifies it
SETLIVENESS-2  a slot whose nonce no directory shows has ended, unless a directory is away: then it
    counts as held, without a heartbeat. Session and transaction timeouts end such a holder
SETLIVENESS-3  descriptors of a directory that was removed stay open: they still show the slots in
    it
SETLIVENESS-4  the holder of a lease whose directory fails takes another one in a directory that is
    usable. The owner of a transactional id does so with its next registration, and keeps the
    earlier slot, which records may still name
SETLIVENESS-5  a directory counts as usable until a call has noticed its loss: a slot begins in the
    next one then
SETLIVENESS-6  a slot can name a directory that has left the set. It counts as held, without a
    heartbeat, for a process that has not opened that directory before. The node of a directory is
    not used again
SETLIVENESS-7  a directory can be put back from a copy while it is open. Other processes open the
    present file, without the slots of the earlier one. Slots begin in the present file, and the
    holder of an earlier slot takes another one (SETLIVENESS-4)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from embedlog.errors import StorageError
from embedlog.storage.liveness import Lease, Liveness, SlotState

if TYPE_CHECKING:
    from embedlog.format.process_slot import ProcessSlot

T = TypeVar("T")

_UNKNOWN = SlotState(True)


class SetLiveness(Liveness):
    """The process slots of a set for one open log. Threads: any."""

    def __init__(
        self,
        directories: Callable[[], tuple[Mapping[int, Path], bool]],
        home: Path,
        mode: int = 0o666,
        locked: bool = False,
    ) -> None:
        """`directories`: those that are usable now, by node, and whether others are away.

        `home` is the first one now, for messages.
        """
        super().__init__(home, mode, locked)
        self._directories = directories
        self._locked = locked
        self._each: dict[Path, Liveness] = {}
        self._earlier: list[Liveness] = []  # of files that were replaced (SETLIVENESS-7)
        # a signal handler may end a slot inside of a section of its own thread
        self._choosing = threading.RLock()

    def _in(self, directory: Path) -> Liveness:
        """The slots in the file that a directory has now. Raises StorageError."""
        with self._choosing:
            known = [
                each for each in (self._each.get(directory), *self._earlier) if each is not None
            ]
        present = next(
            (each for each in known if each.path.parent == directory and each.is_of_file()), None
        )
        with self._choosing:
            before = self._each.get(directory)
            if present is None and (before is None or before in known):
                present = Liveness(directory, self._mode, self._locked)
            if present is None or present is before:  # another thread was faster
                return self._each[directory]
            if before is not None:
                self._earlier.append(before)
            self._earlier = [each for each in self._earlier if each is not present]
            self._each[directory] = present
            return present

    def _all_of_them(self) -> list[Liveness]:
        with self._choosing:
            return [*self._each.values(), *self._earlier]

    def _in_first(self, call: Callable[[Liveness, int], T]) -> T:
        """The result of a call in the first directory in which it succeeds. Raises StorageError
        (SETLIVENESS-5).
        """
        usable, _ = self._directories()
        problem = StorageError(
            "no directory of the set is usable for a process slot", path=self.path
        )
        for node, directory in usable.items():
            try:
                slots = self._in(directory)
                found = call(slots, node)
                slots.open_probe()  # the file can be replaced before a probe (SETLIVENESS-7)
                return found
            except StorageError as failed:
                problem = failed
        raise problem

    def begin(self) -> ProcessSlot:
        return self._in_first(lambda each, node: each.begin()._replace(node=node))

    def lease(
        self, *, session_timeout_ms: int, heartbeat_interval_ms: int, max_poll_interval_ms: int
    ) -> Lease:
        return self._in_first(
            lambda each, _: each.lease(
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                max_poll_interval_ms=max_poll_interval_ms,
            )
        )

    def shows(self, lease: Lease) -> bool:
        return self.shows_slot(lease.process_slot)

    def shows_slot(self, process_slot: ProcessSlot) -> bool:
        usable, _ = self._directories()
        with self._choosing:
            known = [self._each[path] for path in usable.values() if path in self._each]
        with suppress(StorageError):  # the directory that has the slot fails
            return not usable or any(
                each.holds(process_slot) and each.is_of_file() for each in known
            )
        return False

    def end(self, process_slot: ProcessSlot) -> None:
        for each in self._all_of_them():
            each.end(process_slot)

    def close(self) -> None:
        for each in self._all_of_them():
            each.close()
        super().close()

    def abandon(self) -> None:
        super().abandon()
        # another thread of the parent may have held it during the fork
        self._choosing = threading.RLock()

    def slot_state(self, process_slot: ProcessSlot) -> SlotState:
        usable, away = self._directories()
        for directory in usable.values():
            try:
                self._in(directory)
            except StorageError:
                away = True
        ended: SlotState | None = None
        for each in self._all_of_them():
            try:
                found = each.known_state(process_slot)
            except StorageError:
                away = True
                continue
            if found is not None and found.held:
                return found
            ended = ended or found  # the copy of a file has its nonces, and none of its locks
        if ended is not None:
            return ended
        node = process_slot.node
        # SETLIVENESS-6
        return _UNKNOWN if away or (node is not None and node not in usable) else SlotState(False)
