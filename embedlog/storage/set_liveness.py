"""Process slots of a set of directories, any of which may fail.

- A slot begins in the first directory that is usable then, and stays there. Another process may use
  another first directory, so a slot is looked for in all of them; the nonce identifies it.
- A slot whose nonce no directory shows has ended, unless a directory is away: then it counts as held,
  without a heartbeat. Session and transaction timeouts end such a holder.
- Descriptors of a directory that was removed stay open: they still show the slots in it.
- The holder of a lease whose directory fails takes another one in a directory that is usable. The
  owner of a transactional id does so with its next registration, and keeps the earlier slot, which
  records may still name.
- A directory counts as usable until a call has noticed its loss: a slot begins in the next one then.
- A slot can name a directory that has left the set. It counts as held, without a heartbeat, for a
  process that has not opened that directory before. The node of a directory is not used again.
- A directory can be put back from a copy while it is open. Other processes open the current file,
  without the slots of the earlier one. Slots begin in the current file, and the holder of an
  earlier slot takes another one.
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
        self._current: dict[Path, Liveness] = {}  # by directory
        self._earlier: list[Liveness] = []  # of files that were replaced by a copy
        # a signal handler may end a slot inside of a section of its own thread
        self._choosing = threading.RLock()

    def _slots_in(self, directory: Path) -> Liveness:
        """The slots in the file that a directory has now. Raises StorageError."""
        with self._choosing:
            candidates = list(self._earlier)
            if directory in self._current:
                candidates.insert(0, self._current[directory])
        current: Liveness | None = None
        for slots in candidates:
            if slots.path.parent == directory and slots.is_of_file():
                current = slots
                break
        with self._choosing:
            before = self._current.get(directory)
            if current is None and (before is None or before in candidates):
                current = Liveness(directory, self._mode, self._locked)
            if current is None or current is before:  # another thread was faster
                return self._current[directory]
            if before is not None:
                self._earlier.append(before)
            self._earlier = [slots for slots in self._earlier if slots is not current]
            self._current[directory] = current
            return current

    def _all_slots(self) -> list[Liveness]:
        with self._choosing:
            return [*self._current.values(), *self._earlier]

    def _call_in_first(self, call: Callable[[Liveness, int], T]) -> T:
        """The result of a call in the first directory in which it succeeds: the call may be the
        first that notices the loss of a directory. Raises StorageError.
        """
        usable, _ = self._directories()
        problem = StorageError(
            "no directory of the set is usable for a process slot", path=self.path
        )
        for node, directory in usable.items():
            try:
                slots = self._slots_in(directory)
                result = call(slots, node)
                slots.open_probe()  # the file can be replaced by a copy before a probe
                return result
            except StorageError as failed:
                problem = failed
        raise problem

    def begin(self) -> ProcessSlot:
        return self._call_in_first(lambda slots, node: slots.begin()._replace(node=node))

    def lease(
        self, *, session_timeout_ms: int, heartbeat_interval_ms: int, max_poll_interval_ms: int
    ) -> Lease:
        return self._call_in_first(
            lambda slots, _: slots.lease(
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
            current_slots = [
                self._current[path] for path in usable.values() if path in self._current
            ]
        if not usable:
            return True
        with suppress(StorageError):  # the directory that has the slot fails
            return any(slots.holds(process_slot) and slots.is_of_file() for slots in current_slots)
        return False

    def end(self, process_slot: ProcessSlot) -> None:
        for slots in self._all_slots():
            slots.end(process_slot)

    def close(self) -> None:
        for slots in self._all_slots():
            slots.close()
        super().close()

    def abandon(self) -> None:
        super().abandon()
        # another thread of the parent may have held it during the fork
        self._choosing = threading.RLock()

    def slot_state(self, process_slot: ProcessSlot) -> SlotState:
        usable, is_any_away = self._directories()
        for directory in usable.values():
            try:
                self._slots_in(directory)
            except StorageError:
                is_any_away = True
        ended: SlotState | None = None
        for slots in self._all_slots():
            try:
                state = slots.find_state(process_slot)
            except StorageError:
                is_any_away = True
                continue
            if state is None:
                continue
            if state.is_held:
                return state
            if ended is None:  # the copy of a file has its nonces, and none of its locks
                ended = state
        if ended is not None:
            return ended
        node = process_slot.node
        has_left_the_set = node is not None and node not in usable
        if is_any_away or has_left_the_set:
            return _UNKNOWN
        return SlotState(False)
