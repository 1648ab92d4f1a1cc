"""Process slots of a set of directories, any of which may fail.

SETLIVENESS-1  a slot begins in the first directory that is usable then, and stays there. Another process may use another first
    directory, so a slot is looked for in all of them; the nonce identifies it
SETLIVENESS-2  a slot whose nonce no directory shows has ended, unless a directory is away: then it counts as held, without a
    heartbeat. Session and transaction timeouts end such a holder
SETLIVENESS-3  descriptors of a directory that was removed stay open: they still show the slots in it
SETLIVENESS-4  the holder of a lease whose directory fails takes another one in a directory that is usable. The owner of a
    transactional id does so with its next registration, and keeps the earlier slot, which records may still name
SETLIVENESS-5  a directory counts as usable until a call has noticed its loss: a slot begins in the next one then
SETLIVENESS-6  a slot that names a directory which has left the set counts as held, without a heartbeat, for a process that has
    not opened that directory before. The node of a directory is not used again
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
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
        self, directories: Callable[[], tuple[Mapping[int, Path], bool]], home: Path, mode: int = 0o666, locked: bool = False
    ) -> None:
        """`directories`: those that are usable now, by node, and whether others are away.

        `home` is the first one now, for messages.
        """
        super().__init__(home, mode, locked)
        self._directories, self._locked = directories, locked
        self._each: dict[Path, Liveness] = {}
        self._choosing = threading.Lock()

    def _in(self, directory: Path) -> Liveness:
        with self._choosing:
            found = self._each.get(directory)
            if found is None:
                found = self._each[directory] = Liveness(directory, self._mode, self._locked)
            return found

    def _all_of_them(self) -> list[Liveness]:
        with self._choosing:
            return list(self._each.values())

    def _in_first(self, call: Callable[[Liveness, int], T]) -> T:
        """The result of a call in the first directory in which it succeeds. Raises StorageError (SETLIVENESS-5)."""
        usable, _ = self._directories()
        problem = StorageError("no directory of the set is usable for a process slot", path=self.path)
        for node, directory in usable.items():
            try:
                return call(self._in(directory), node)
            except StorageError as failed:
                problem = failed
        raise problem

    def begin(self) -> ProcessSlot:
        return self._in_first(lambda each, node: each.begin()._replace(node=node))

    def lease(self, *, session_timeout_ms: int, heartbeat_interval_ms: int, max_poll_interval_ms: int) -> Lease:
        return self._in_first(
            lambda each, _: each.lease(
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                max_poll_interval_ms=max_poll_interval_ms,
            )
        )

    def shows(self, lease: Lease) -> bool:
        usable, _ = self._directories()
        return not usable or lease.path.parent in usable.values()

    def shows_slot(self, process_slot: ProcessSlot) -> bool:
        usable, _ = self._directories()
        return not usable or process_slot.node in usable

    def end(self, process_slot: ProcessSlot) -> None:
        for each in self._all_of_them():
            each.end(process_slot)

    def close(self) -> None:
        for each in self._all_of_them():
            each.close()
        super().close()

    def abandon(self) -> None:
        super().abandon()
        self._choosing = threading.Lock()  # another thread of the parent may have held it during the fork

    def slot_state(self, process_slot: ProcessSlot) -> SlotState:
        usable, away = self._directories()
        for directory in usable.values():
            self._in(directory)
        for each in self._all_of_them():
            try:
                found = each.known_state(process_slot)
            except StorageError:
                away = True
                continue
            if found is not None:
                return found
        node = process_slot.node
        return _UNKNOWN if away or (node is not None and node not in usable) else SlotState(False)  # SETLIVENESS-6
