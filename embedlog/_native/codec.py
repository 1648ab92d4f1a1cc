"""Python calls of the codec in `_core`: take numpy arrays, return numbers and filled arrays.

- These functions only convert arguments and results: sizes, columns and errors are chosen by the
  callers. C checks every length that it gets; where an array is given without one, the docstring
  says how long it is.
- Every array stays referenced during the call of C that uses it.
- An object (`Encoder`, `Decoder`, `OffsetTable`, `Cleaner`, `Digests`) belongs to one operation.
  Threads: one at a time.

A result below 0 is a code. Where a function differs, as with -1 for "none", its docstring says it:

| code | meaning |
| --- | --- |
| `ECORRUPT` | the bytes break the format: `problem` has the place |
| `EMORE` | the input ends too early |
| `ESPACE` | the output is too small |
| `EINVALID` | an argument breaks the contract |
| `ECHANGED` | the input changed while it was read |
| -1000 - errno | an error of the system, only of functions that take a descriptor |
"""

from __future__ import annotations

from typing import Any

from embedlog._native._core import ffi, lib
from embedlog.errors import CorruptRecordError, StorageError

EMORE: int = lib.EL_EMORE
ESPACE: int = lib.EL_ESPACE
ECORRUPT: int = lib.EL_ECORRUPT
EINVALID: int = lib.EL_EINVALID
ECHANGED: int = lib.EL_ECHANGED

# Texts of the errors in `el_problem`, except EL_BAD_DIGEST: `Digests.compare` returns that one.
PROBLEM_TEXTS: dict[int, str] = {
    lib.EL_BAD_SIZE: "size of a batch",
    lib.EL_BAD_MAGIC: "magic of a batch",
    lib.EL_BAD_CRC: "checksum of a batch",
    lib.EL_BAD_COUNT: "record count of a batch",
    lib.EL_BAD_OFFSET: "base offset of a batch does not continue the log",
    lib.EL_BAD_EPOCH: "leader epoch of a batch decreases",
    lib.EL_BAD_VARINT: "integer in a record is cut off or too long",
    lib.EL_BAD_RECORD_SIZE: "size of a record differs from the size of its fields",
    lib.EL_BAD_LENGTH: "length in a record points outside it",
    lib.EL_BAD_HEADER_COUNT: "header count of a record",
    lib.EL_SURPLUS: "bytes after the last record of a batch",
    lib.EL_BAD_RANGE: "offsets of a batch are outside its segment",
    lib.EL_BAD_DELTA: "offset of a record is outside its batch or decreases",
}
BAD_CRC: int = lib.EL_BAD_CRC
BAD_RANGE: int = lib.EL_BAD_RANGE
BAD_COUNT: int = lib.EL_BAD_COUNT
DIGEST_SIZE: int = lib.EL_DIGEST_SIZE
RECORD_SIZE_MIN: int = lib.EL_RECORD_SIZE_MIN
LEGACY: int = lib.EL_LEGACY


def pointer(kind: str, array: Any) -> Any:
    """A typed pointer to the memory of an array, which it keeps alive; NULL for None."""
    if array is None:
        return ffi.NULL
    return ffi.from_buffer(kind, array)


# ---- checksums and hashes ------------------------------------------------------------------------


def crc32c(data: Any, crc: int = 0) -> int:
    """CRC-32C of a buffer, continued from `crc`."""
    view = ffi.from_buffer("uint8_t[]", data)
    return int(lib.el_crc32c(crc, view, len(view)))


def crc32c_combine(crc1: int, crc2: int, size2: int) -> int:
    """CRC of a + b from the CRCs of a and of b; b has `size2` bytes."""
    return int(lib.el_crc32c_combine(crc1, crc2, size2))


def crc32c_backend() -> str:
    """Name of the implementation in use."""
    name: str = ffi.string(lib.el_crc32c_backend()).decode()
    return name


def crc32c_select(name: str) -> bool:
    """Switches to another implementation, for tests; False if this machine does not support it."""
    return int(lib.el_crc32c_select(name.encode())) == 0


def murmur2(key: bytes) -> int:
    """Kafka's murmur2, as an unsigned number."""
    return int(lib.el_murmur2(key, len(key)))


def xxh3_64(data: Any, seed: int) -> int:
    """XXH3 with 64 bits."""
    view = ffi.from_buffer("uint8_t[]", data)
    return int(lib.el_xxh3_64(view, len(view), seed))


# ---- columns -------------------------------------------------------------------------------------


def set_bytes(to: Any, data: Any, offsets: Any, validity: Any, validity_offset: int) -> list[Any]:
    """Fills an el_bytes; returns the buffers that must stay referenced."""
    pins = [pointer("uint8_t[]", data), ffi.from_buffer(offsets), pointer("uint8_t[]", validity)]
    to.data, to.offsets, to.validity = pins
    to.data_size = len(data)
    to.validity_offset = validity_offset
    to.count = len(offsets) - 1
    to.offset_width = offsets.itemsize
    return pins


def assign_partitions(keys: tuple[Any, Any, Any, int], count: int, out: Any) -> int:
    """Write the partition of each key into `out`, one number for each key; -1: the key is null.
    EINVALID for offsets that are not valid; `count` is that of the partitions.
    """
    column = ffi.new("el_bytes *")
    pins = set_bytes(column, *keys)
    result = int(lib.el_partitions(column, count, ffi.from_buffer("int32_t[]", out)))
    del pins
    return result


def group_rows(numbers: Any, partition_count: int, rows: Any, starts: Any) -> int:
    """Group rows by the partition in `numbers` (-1: left out); the count of grouped rows, or a
    code.

    The rows of p become rows[starts[p] : starts[p + 1]]. `rows` is as long as `numbers`, `starts`
    has `partition_count` + 1 elements.
    """
    return int(
        lib.el_group_rows(
            ffi.from_buffer("int32_t[]", numbers),
            len(numbers),
            partition_count,
            ffi.from_buffer("int64_t[]", rows),
            ffi.from_buffer("int64_t[]", starts),
        )
    )


# ---- encoding ------------------------------------------------------------------------------------


class Encoder:
    """The state of one encoding: pointers to all columns, and the next row."""

    __slots__ = ("_count", "_pins", "_state")

    def __init__(self, rows: int, count: int, batch_bytes: int, attributes: int) -> None:
        self._state = ffi.new("el_encoder *")
        self._state.rows = rows
        self._state.count = count
        self._state.batch_bytes = batch_bytes
        self._state.attributes = attributes
        self._pins: list[Any] = []
        self._count = ffi.new("int64_t *")

    def set_column(
        self, name: str, data: Any, offsets: Any, validity: Any, validity_offset: int
    ) -> None:
        """Set a column of bytes, by its name in el_encoder."""
        self._pins += set_bytes(
            getattr(self._state, name), data, offsets, validity, validity_offset
        )

    def set_array(self, name: str, kind: str, array: Any) -> None:
        """Set a column of numbers, by its name in el_encoder; it has a number for each row."""
        self._pins.append(pointer(kind, array))
        setattr(self._state, name, self._pins[-1])

    def set_timestamp(self, timestamp_ms: int) -> None:
        self._state.timestamp = timestamp_ms

    @property
    def next(self) -> int:
        """The next row; after an error the row that caused it."""
        return int(self._state.next)

    @property
    def need(self) -> int:
        """After ESPACE: the bytes that the batch of the next row needs."""
        return int(self._state.need)

    def run(self, out: Any, batches: Any) -> tuple[int, int]:
        """Encodes into `out` as el_encode does: (size or code, count of batches)."""
        target = ffi.from_buffer("uint8_t[]", out)
        rows = ffi.from_buffer("el_batch[]", batches)
        written = lib.el_encode(self._state, target, len(out), rows, len(batches), self._count)
        return int(written), int(self._count[0])


def reseal(batch: Any, body_size: int, codec: int) -> int:
    """Set size, codec and CRC after the records section was replaced. `batch` has 61 + `body_size`
    bytes or more.
    """
    return int(lib.el_reseal(ffi.from_buffer("uint8_t[]", batch), body_size, codec))


def stamp(run: Any, base_offset: int, leader_epoch: int, digest: int) -> tuple[int, int]:
    """Stamp offsets and epoch into every batch of a run: (next offset or code, digest)."""
    view = ffi.from_buffer("uint8_t[]", run)
    chained = ffi.new("uint64_t *", digest)
    following = lib.el_stamp(view, len(view), base_offset, leader_epoch, chained)
    return int(following), int(chained[0])


def stamp_producer(
    run: Any, batches: Any, producer_id: int, epoch: int, sequence: int, transactional: bool
) -> int:
    """Stamp the producer into every batch of a run and its row: the next sequence, or a code."""
    view = ffi.from_buffer("uint8_t[]", run)
    rows = ffi.from_buffer("el_batch[]", batches)
    return int(
        lib.el_stamp_producer(
            view, len(view), rows, len(rows), producer_id, epoch, sequence, transactional
        )
    )


def set_header_fields(
    batch: Any, fields: Any, attributes: bool, max_timestamp: bool, producer: bool, sequence: bool
) -> int:
    """Change fields of a sealed batch to those of a batch row, and update the CRC."""
    mask = (
        (lib.EL_SET_ATTRIBUTES if attributes else 0)
        | (lib.EL_SET_MAX_TIMESTAMP if max_timestamp else 0)
        | (lib.EL_SET_PRODUCER if producer else 0)
        | (lib.EL_SET_SEQUENCE if sequence else 0)
    )
    view = ffi.from_buffer("uint8_t[]", batch)
    return int(
        lib.el_set_header_fields(view, len(view), ffi.from_buffer("el_batch[]", fields), mask)
    )


# ---- scanning ------------------------------------------------------------------------------------


def scan(
    data: Any, start: int, state: tuple[int, int, int, int, bool], batches: Any
) -> tuple[int, int, int, tuple[int, ...], Any]:
    """el_scan over data[start:]: (count, consumed, need, (next offset, epoch, digest), problem)."""
    view = ffi.from_buffer("uint8_t[]", data)
    chain = ffi.new("el_chain *")
    problem = ffi.new("el_problem *")
    sizes = ffi.new("int64_t[2]")
    chain.next_offset, chain.segment_base, chain.epoch, chain.digest, chain.gaps_allowed = state
    rows = ffi.from_buffer("el_batch[]", batches)
    count = lib.el_scan(
        view + start, len(view) - start, chain, rows, len(rows), sizes, sizes + 1, problem
    )
    return (
        int(count),
        int(sizes[0]),
        int(sizes[1]),
        (int(chain.next_offset), int(chain.epoch), int(chain.digest)),
        problem,
    )


# ---- interval digests ----------------------------------------------------------------------------

DIGEST_RECORD_SIZE: int = lib.EL_DIGEST_RECORD_SIZE


class Digests:
    """The first `count` records of a segment's digest file."""

    __slots__ = ("_file",)

    def __init__(self, fd: int, base: int, count: int) -> None:
        self._file = ffi.new("el_digests *", {"base": base, "count": count, "fd": fd})

    def at(self, number: int, position: int) -> tuple[int, int]:
        """(1, digest), or (0, 0) if the record is missing or damaged; or a code and 0."""
        digest = ffi.new("uint64_t *")
        return int(lib.el_digest_at(self._file, number, position, digest)), int(digest[0])

    def reach(self, number: int, position: int, limit: int, end: int) -> int:
        """The best end of a read from `position`, so that all of it can be compared: the last record
        up to `limit`, else the next record, or `end` if that is nearer; 0 if no record helps.

        `number`: a record at or before the next one.
        """
        return int(lib.el_digests_reach(self._file, number, position, limit, end))

    def compare(
        self, number: int, data: Any, batches: Any, state: tuple[int, int, int]
    ) -> tuple[int, tuple[int, int, int], tuple[int, int, int] | None]:
        """(next number or code, (position, agreed, digest), (position, expected, found) of a
        difference).
        """
        view = ffi.from_buffer("uint8_t[]", data)
        rows = ffi.from_buffer("el_batch[]", batches)
        after = ffi.new("el_compared *")
        problem = ffi.new("el_problem *")
        after.position, after.agreed, after.digest = state
        following = int(
            lib.el_digests_compare(
                self._file, number, view, len(view), rows, len(batches), after, problem
            )
        )
        difference = None
        if problem.what == lib.EL_BAD_DIGEST:
            difference = (
                int(problem.position),
                problem.expected & (2**64 - 1),
                problem.found & (2**64 - 1),
            )
        return following, (int(after.position), int(after.agreed), int(after.digest)), difference


def digests_before(data: Any, batches: Any, digest: int, out: Any) -> int:
    """Write the chain digest before each batch of `data` into `out`, an array of u64 as long as
    `batches`; `digest` is that before the first one.
    """
    view = ffi.from_buffer("uint8_t[]", data)
    rows = ffi.from_buffer("el_batch[]", batches)
    return int(
        lib.el_digests_before(
            view, len(view), rows, len(batches), digest, ffi.from_buffer("uint64_t[]", out)
        )
    )


def digest_record(base: int, number: int, position: int, digest: int) -> bytes:
    """The record of a digest file for the batch at `position`; `digest` is that of all earlier
    batches.
    """
    record = ffi.new("uint8_t[]", DIGEST_RECORD_SIZE)
    lib.el_digest_record(record, base, number, position, digest)
    return bytes(ffi.buffer(record))


# ---- decoding ------------------------------------------------------------------------------------


def make_window(start_offset: int, end_offset: int, start_ms: int, end_ms: int) -> Any:
    window = ffi.new("el_window *")
    window.start_offset = start_offset
    window.end_offset = end_offset
    window.start_ms = start_ms
    window.end_ms = end_ms
    return window


HAS_CONTROL: int = lib.EL_HAS_CONTROL
HAS_COMPRESSED: int = lib.EL_HAS_COMPRESSED
HAS_LEGACY: int = lib.EL_HAS_LEGACY
UNORDERED: int = lib.EL_UNORDERED

VALUE_DATA: int = lib.EL_WANT_VALUE_DATA
WANT: dict[str, int] = {
    "offset": lib.EL_WANT_OFFSET,
    "timestamp": lib.EL_WANT_TIMESTAMP,
    "timestamp_type": lib.EL_WANT_TIMESTAMP_TYPE,
    "leader_epoch": lib.EL_WANT_LEADER_EPOCH,
    "key": lib.EL_WANT_KEY,
    "value": lib.EL_WANT_VALUE,
    "headers": lib.EL_WANT_HEADERS,
}


def survey(batches: Any) -> Any:
    """Totals over the headers of batches: an el_survey."""
    totals = ffi.new("el_survey *")
    lib.el_survey_batches(ffi.from_buffer("el_batch[]", batches), len(batches), totals)
    return totals


class Decoder:
    """One decoding: destination columns and counts so far."""

    __slots__ = ("_memory", "bad", "columns", "problem", "size", "starts", "wanted")

    def __init__(self, wanted: int, records: int, body_size: int) -> None:
        self.columns = ffi.new("el_columns *")
        self.problem = ffi.new("el_problem *")
        self.bad = ffi.new("int64_t *")
        self.starts = ffi.new("int64_t[11]")  # the position of each array that el_lay_out names
        self.wanted = wanted
        self._memory: Any = None
        self.size = int(
            lib.el_lay_out(self.columns, wanted, records, body_size, ffi.NULL, self.starts)
        )

    def set_memory(self, memory: Any, values: Any) -> None:
        """Set the memory of the columns, `size` bytes; `values`: other memory for the values'
        bytes, or None.
        """
        self._memory = (ffi.from_buffer("uint8_t[]", memory), pointer("uint8_t[]", values))
        columns = self.columns
        # as in the constructor: the first layout has stored its sizes as these two capacities
        lib.el_lay_out(
            columns,
            self.wanted,
            columns.record_capacity,
            columns.key_capacity,
            self._memory[0],
            self.starts,
        )
        if values is not None:
            columns.value_data = self._memory[1]
            columns.value_capacity = min(len(values), 2**31 - 1)

    def run(self, data: Any, base: int, batches: Any, within: Any) -> int:
        """Decode uncompressed batches in `data`."""
        view = ffi.from_buffer("uint8_t[]", data)
        rows = ffi.from_buffer("el_batch[]", batches)
        return int(
            lib.el_decode_run(
                view,
                len(view),
                base,
                rows,
                len(batches),
                within,
                self.columns,
                self.bad,
                self.problem,
            )
        )

    def bodies(self, bodies: list[Any], batches: Any, within: Any) -> int:
        """Decode separate records sections."""
        views = [ffi.from_buffer("uint8_t[]", body) for body in bodies]
        starts = ffi.new("uint8_t *[]", views)
        sizes = ffi.new("int64_t[]", [len(view) for view in views])
        rows = ffi.from_buffer("el_batch[]", batches)
        return int(
            lib.el_decode(
                rows, starts, sizes, len(batches), within, self.columns, self.bad, self.problem
            )
        )


def decode_headers(
    arrays: dict[str, Any], capacities: dict[str, int], bodies: list[Any], batches: Any, within: Any
) -> int:
    """Second pass over all bodies: decode headers into the arrays, which are named as in
    el_headers.
    """
    out = ffi.new("el_headers *")
    kinds = {name: "int32_t[]" if name.endswith("offsets") else "uint8_t[]" for name in arrays}
    pins = {name: ffi.from_buffer(kinds[name], array) for name, array in arrays.items()}
    for name, pin in pins.items():
        setattr(out, name, pin)
    for name, capacity in capacities.items():
        setattr(out, name, capacity)
    rows = ffi.from_buffer("el_batch[]", batches)
    for row, body in enumerate(bodies):
        view = ffi.from_buffer("uint8_t[]", body)
        result = int(lib.el_decode_headers(rows + row, view, len(view), within, out))
        if result < 0:
            return result
    return 0


# ---- index search --------------------------------------------------------------------------------


def index_floor(entries: Any, target: int) -> int:
    """Number of the last entry with a relative offset <= target; -1: all are greater."""
    view = ffi.from_buffer("uint8_t[]", entries)
    return int(lib.el_index_floor(view, len(view) // lib.EL_INDEX_ENTRY_SIZE, target))


def time_floor(entries: Any, timestamp_ms: int) -> int:
    """Number of the last time entry with a timestamp <= `timestamp_ms`; -1: all are greater."""
    view = ffi.from_buffer("uint8_t[]", entries)
    return int(lib.el_time_floor(view, len(view) // lib.EL_TIME_ENTRY_SIZE, timestamp_ms))


def index_floor_file(fd: int, count: int, target: int) -> tuple[int, bytes] | None:
    """Number and bytes of the last entry <= target among the first `count` of a file; None if all
    are greater.
    """
    return _find_floor(lib.el_index_floor_file, fd, count, target, lib.EL_INDEX_ENTRY_SIZE)


def time_floor_file(fd: int, count: int, timestamp_ms: int) -> tuple[int, bytes] | None:
    """As `index_floor_file`, of a time index."""
    return _find_floor(lib.el_time_floor_file, fd, count, timestamp_ms, lib.EL_TIME_ENTRY_SIZE)


def _find_floor(
    search: Any, fd: int, count: int, target: int, entry_size: int
) -> tuple[int, bytes] | None:
    entry = ffi.new("uint8_t[]", entry_size)
    number = int(search(fd, count, target, entry))
    if number >= 0:
        return number, bytes(ffi.buffer(entry))
    if number == -1:  # all are greater
        return None
    if number == EMORE:
        raise CorruptRecordError(
            "an index is shorter than its count", expected=f"{count} entries of {entry_size} bytes"
        )
    raise StorageError("reading an index", errno=-number - 1000)


# ---- compaction ----------------------------------------------------------------------------------

MAP_SLOT_BYTES: int = lib.EL_MAP_SLOT_BYTES
DISCARD: int = lib.EL_ORDER_DISCARD
WHOLE: int = lib.EL_ORDER_WHOLE
HORIZON: int = lib.EL_ORDER_HORIZON
KEEP_EMPTY: int = lib.EL_ORDER_KEEP_EMPTY


class OffsetTable:
    """An `el_offset_map` over an array of zeros, `capacity` slots long (a power of two)."""

    def __init__(self, slots: Any, capacity: int, limit: int, seed: tuple[int, int]) -> None:
        self._slots = slots
        self.raw = ffi.new(
            "el_offset_map *",
            {"capacity": capacity, "limit": limit, "latest": -1, "seed": list(seed)},
        )
        self.raw.slots = pointer("uint8_t[]", slots)
        self.problem = ffi.new("el_problem *")
        self._done = ffi.new("int64_t *")

    def add_run(self, data: Any, base: int, batches: Any, start_offset: int) -> tuple[int, int]:
        """Add uncompressed batches in `data`: (a code, count of batches that were added
        completely).
        """
        view = ffi.from_buffer("uint8_t[]", data)
        rows = ffi.from_buffer("el_batch[]", batches)
        code = lib.el_map_add_run(
            self.raw,
            view,
            len(view),
            base,
            rows,
            len(batches),
            start_offset,
            self._done,
            self.problem,
        )
        return int(code), int(self._done[0])

    def add(self, batch: Any, body: Any, start_offset: int) -> int:
        """Add one batch: `batch` is its batch row in an array, `body` its uncompressed records
        section.
        """
        view = ffi.from_buffer("uint8_t[]", body)
        rows = ffi.from_buffer("el_batch[]", batch)
        return int(lib.el_map_add(self.raw, rows, view, len(view), start_offset, self.problem))

    def find(self, key: bytes) -> int:
        """The latest offset of a key, or -1."""
        return int(lib.el_map_find(self.raw, ffi.from_buffer("uint8_t[]", key), len(key)))


class Cleaner:
    """One compaction pass: the offset map, and the time."""

    def __init__(self, table: OffsetTable, now_ms: int, horizon_ms: int) -> None:
        self._table = table
        self._raw = ffi.new(
            "el_cleaner *", {"map": table.raw, "now_ms": now_ms, "horizon_ms": horizon_ms}
        )
        self._done = ffi.new("int64_t *")
        self.problem = ffi.new("el_problem *")

    def run(
        self, data: Any, base: int, batches: Any, orders: Any, out: Any, cleaned: Any
    ) -> tuple[int, int]:
        """(bytes written or a code, count of processed batches). `orders` and `cleaned` are as long
        as `batches`.
        """
        view = ffi.from_buffer("uint8_t[]", data)
        target = ffi.from_buffer("uint8_t[]", out)
        rows = ffi.from_buffer("el_batch[]", batches)
        answer = ffi.from_buffer("el_batch[]", cleaned)
        written = lib.el_clean_run(
            self._raw,
            view,
            len(view),
            base,
            rows,
            ffi.from_buffer("uint8_t[]", orders),
            len(batches),
            target,
            len(target),
            answer,
            self._done,
            self.problem,
        )
        return int(written), int(self._done[0])
