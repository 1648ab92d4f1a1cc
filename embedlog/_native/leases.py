"""The leases of the core as Python sees them: a native thread that beats, and a look at another one's entry.

L1  the thread ends before its memory goes: with `end`, or with the last reference
L2  whether a lease is good is one word of memory and the clock: asked for every record, and no call into the core
"""

from __future__ import annotations

import struct
import threading
import time
from typing import Any, Final

from embedlog._native._core import ffi, lib

SLOT_BYTES: Final[int] = lib.EL_SLOT_BYTES
ENTRY: Final = struct.Struct(
    ">Q"  # nonce: who has the slot
    "Q"  # beat: another one at every heartbeat
    "Q"  # 1: it left, as its polls stopped
    "Q"  # nobody's yet
)
assert ENTRY.size == SLOT_BYTES


class Beats:
    """A thread that beats for a slot's holder. Threads: any; `code` of the start is below 0 if there is none."""

    def __init__(self, fd: int, position: int, room_at: int, session_ms: int, heartbeat_ms: int, poll_ms: int) -> None:
        self._raw: Any = ffi.gc(ffi.new("el_lease *"), lib.el_lease_end)
        self._mutex = threading.Lock()
        million = 1_000_000
        self.code = int(
            lib.el_lease_start(self._raw, fd, position, room_at, session_ms * million, heartbeat_ms * million, poll_ms * million)
        )

    @property
    def good_until_ns(self) -> int:
        return int(self._raw.good_until_ns)

    @property
    def lapsed(self) -> bool:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= int(self._raw.good_until_ns)

    @property
    def left(self) -> bool:
        return bool(lib.el_lease_left(self._raw))

    def polling(self) -> bool:
        return bool(lib.el_lease_polling(self._raw))

    def polled(self) -> bool:
        return bool(lib.el_lease_polled(self._raw))

    def renew(self) -> int:
        with self._mutex:
            return int(lib.el_lease_renew(self._raw))

    def end(self) -> None:
        with self._mutex:
            lib.el_lease_end(self._raw)

    def abandon(self) -> None:
        """In a forked child: the thread and the file are the parent's."""
        lib.el_lease_abandon(self._raw)
        self._mutex = threading.Lock()  # the parent's may have been held in that moment


def look(fd: int, lock_at: int, position: int, room_at: int) -> tuple[int, bytes]:
    """(0 free, above 0 held, or a code, the entry's bytes)."""
    entry = ffi.new(f"uint8_t[{SLOT_BYTES}]")
    code = int(lib.el_slot_look(fd, lock_at, position, room_at, entry))
    return code, bytes(ffi.buffer(entry))
