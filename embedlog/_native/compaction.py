"""The cleaner's half of `_core` as Python calls.

C1  nothing here decides; every array stays referenced for as long as C works on it
"""

from __future__ import annotations

from typing import Any

from embedlog._native._core import ffi, lib
from embedlog._native.codec import pointer

SLOT_BYTES: int = lib.EL_MAP_SLOT_BYTES
DISCARD: int = lib.EL_ORDER_DISCARD
WHOLE: int = lib.EL_ORDER_WHOLE
HORIZON: int = lib.EL_ORDER_HORIZON
KEEP_EMPTY: int = lib.EL_ORDER_KEEP_EMPTY


class Table:
    """An `el_offset_map` over an array of zeros, `capacity` slots long (a power of two)."""

    def __init__(self, slots: Any, capacity: int, limit: int, seed: tuple[int, int]) -> None:
        self._slots = slots
        self.raw = ffi.new("el_offset_map *", {"capacity": capacity, "limit": limit, "latest": -1, "seed": list(seed)})
        self.raw.slots = pointer("uint8_t[]", slots)
        self.problem = ffi.new("el_problem *")

    def add(self, batch: Any, body: Any, start_offset: int) -> int:
        """`batch`: one BATCH row in an array of its own; `body`: its records section, uncompressed."""
        view = ffi.from_buffer("uint8_t[]", body)
        rows = ffi.from_buffer("el_batch[]", batch)
        return int(lib.el_map_add(self.raw, rows, view, len(view), start_offset, self.problem))

    def find(self, key: bytes) -> int:
        return int(lib.el_map_find(self.raw, ffi.from_buffer("uint8_t[]", key), len(key)))


class Cleaner:
    """One pass: what is compared with, and when."""

    def __init__(self, table: Table, now_ms: int, horizon_ms: int) -> None:
        self._table = table
        self._raw = ffi.new("el_cleaner *", {"map": table.raw, "now_ms": now_ms, "horizon_ms": horizon_ms})
        self._done, self.problem = ffi.new("int64_t *"), ffi.new("el_problem *")

    def run(self, data: Any, base: int, batches: Any, orders: Any, out: Any, cleaned: Any) -> tuple[int, int]:
        """(bytes written or a code, batches dealt with)."""
        view, room = ffi.from_buffer("uint8_t[]", data), ffi.from_buffer("uint8_t[]", out)
        rows, answer = ffi.from_buffer("el_batch[]", batches), ffi.from_buffer("el_batch[]", cleaned)
        written = lib.el_clean_run(
            self._raw,
            view,
            len(view),
            base,
            rows,
            ffi.from_buffer("uint8_t[]", orders),
            len(batches),
            room,
            len(room),
            answer,
            self._done,
            self.problem,
        )
        return int(written), int(self._done[0])
