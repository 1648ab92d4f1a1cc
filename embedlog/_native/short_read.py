"""Python calls of the reads around one offset in `_core`.

A result that is not a count of batches leaves the read to the general reader, which finds out why.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from embedlog._native._core import ffi, lib
from embedlog._native.system import Page, Published, tuple_of


class Segment(NamedTuple):
    """A segment as it was published, with its open files; `digest_fd` is -1 without digests."""

    base: int
    size: int
    index_entries: int
    digest: int
    log_fd: int
    index_fd: int
    digest_fd: int
    gapless: bool


class Read(NamedTuple):
    """`batch_count` batches from byte `position` on, `size` bytes, and the state of the digest
    comparison after them.

    Row `row` is the batch that holds the offset. `epoch` is -1 if the batches have several leader
    epochs. With a count of 0 a buffer of `size` bytes is needed.
    """

    batch_count: int
    size: int
    position: int
    number: int
    digest: int
    row: int
    first_offset: int
    last_offset: int
    epoch: int


def read(segment: Segment, offset: int, buffer: Any, rows: Any) -> Read | None:
    """Read the batch that holds `offset`, and what must be verified with it; None if the general
    reader must do it.

    `rows` gets a BATCH row for each batch. **Threads:** any.
    """
    memory = ffi.from_buffer("uint8_t[]", buffer)
    batches = ffi.from_buffer("el_batch[]", rows)
    out = ffi.new("el_short_read *", segment)
    count = lib.el_read_short(out, offset, memory, len(memory), batches, len(batches))
    if count > 0:
        return Read(
            count,
            out.need,
            out.position,
            out.number,
            out.chain.digest,
            out.row,
            out.first_offset,
            out.last_offset,
            out.epoch,
        )
    return Read(0, out.need, -1, -1, 0, 0, 0, 0, 0) if count == lib.EL_ESPACE else None


OTHERWISE = 0
FOUND = 1
TOO_SMALL = int(lib.EL_ESPACE)
ANY_TIME = -(1 << 63)


class Point:
    """A segment of which single batches are read. `end`: the next offset of a closed segment, -1
    for the active one.

    `state` is the control page, or the published tuple of a log that no process has open.

    **Threads:** any; nothing in it changes.
    """

    __slots__ = ("_referenced", "raw")

    def __init__(
        self,
        segment: Segment,
        state: Page | Published,
        *,
        end: int,
        generation: int,
        flags: int,
        times: tuple[int, int],
    ) -> None:
        if isinstance(state, Page):
            page = state.raw
            fixed = ffi.NULL
        else:
            page = ffi.NULL
            fixed = tuple_of(state)
        self.raw = ffi.new("el_place *")
        self.raw.segment = ffi.new("el_short_read *", segment)[0]
        self.raw.page = page
        self.raw.fixed = fixed
        self.raw.end = end
        self.raw.generation = generation
        self.raw.flags = flags
        self.raw.time_entries, self.raw.lateness_ms = times
        self._referenced = state, fixed  # while this object may read them


def make_placed() -> Any:
    """An `el_placed` for one read."""
    return ffi.new("el_placed *")


def row_of(out: Any) -> Any:
    """The BATCH row of the batch that was read, as a buffer."""
    return ffi.buffer(ffi.addressof(out.batch))


place_begin = lib.el_place_begin
place_since = lib.el_place_since


def place_read(
    point: Point, offset: int, timestamp_ms: int, committed: bool, buffer: Any, out: Any
) -> int:
    """FOUND, OTHERWISE, or TOO_SMALL (see `el_place_read`)."""
    memory = ffi.from_buffer("uint8_t[]", buffer)
    return int(
        lib.el_place_read(point.raw, offset, timestamp_ms, committed, memory, len(memory), out)
    )
