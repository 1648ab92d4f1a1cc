"""Record batches into columns.

D1  all columns of one decoding lie in one lease: one look into the pool, and warm pages
D2  memory is asked for by what is really there, never by what a header claims
D3  a column that is not asked for is neither written nor checked beyond its length
D4  `in_place` gives the scanned buffer up: values move together inside it, which halves the memory that a core must touch
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlog import compression, legacy
from embedlog._native import codec
from embedlog.buffers import BufferPool, shared_pool
from embedlog.columns import CODEC_MASK, CONTROL, HEADER_SIZE, Batches, BytesColumn, Decoded, Headers, Window
from embedlog.errors import CorruptRecordError

COLUMNS = frozenset({"offset", "timestamp", "timestamp_type", "leader_epoch", "key", "value", "headers"})

RECORD_SIZE_MIN = 7
DATA_BYTES_MAX = 2**31 - 1  # what int32 offsets reach
ALIGNMENT = 64
MOVED_BYTES_MIN = 256  # mean size of records that are decoded in place: smaller ones gain nothing

# name: (its array in el_columns, C type, numpy type)
_FIXED = {
    "offset": ("offsets", "int64_t[]", np.int64),
    "timestamp": ("timestamps", "int64_t[]", np.int64),
    "timestamp_type": ("timestamp_types", "int8_t[]", np.int8),
    "leader_epoch": ("leader_epochs", "int32_t[]", np.int32),
}


def decode(
    data: Any,
    batches: Batches,
    *,
    window: Window | None = None,
    columns: Collection[str] | None = None,
    pool: BufferPool | None = None,
    position: int = 0,
    in_place: bool = False,
) -> Decoded:
    """The records of scanned batches that lie in the window, without control records.

    `columns` names what is wanted (None: everything of COLUMNS; other names mean nothing here). `data` begins at `position`, as
    in the scan. With `in_place` the caller gives `data` up: its bytes are changed, and the values may be a view of it.
    Raises CorruptRecordError with the position of the record that cannot be read.

    **Threads:** any.
    """
    kept = batches if not (batches["attributes"] & CONTROL).any() else batches[batches["attributes"] & CONTROL == 0]
    job = _Job(COLUMNS if columns is None else COLUMNS.intersection(columns), window or Window(), pool or shared_pool(), position)
    plain = bool(((kept["attributes"] & CODEC_MASK == 0) & (kept["magic"] == 2)).all())
    if not plain:
        return job.from_bodies(*_bodies(data, kept, position))
    return job.from_run(data, kept, in_place and _may_move(data, kept))


def control_keys(data: Any, batches: Batches, position: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(offset, key, value) of the records of control batches."""
    job = _Job(frozenset({"offset", "key", "value"}), Window(), shared_pool(), position)
    decoded = job.from_bodies(*_bodies(data, batches, position))
    assert decoded.offsets is not None
    assert decoded.keys is not None
    assert decoded.values is not None
    for row, offset in enumerate(decoded.offsets.tolist()):
        yield offset, decoded.keys[row] or b"", decoded.values[row] or b""


def _may_move(data: Any, batches: Batches) -> bool:
    """Whether values can be moved within `data`: batches in order, and records long enough for it to be worth while."""
    if memoryview(data).readonly or len(batches) == 0:
        return False
    rising = bool((batches["position"][1:] > batches["position"][:-1]).all())
    return rising and int(batches["size"].sum(dtype=np.int64)) >= MOVED_BYTES_MIN * int(batches["records"].sum(dtype=np.int64))


# ---- records sections ----------------------------------------------------------------------------


def _bodies(data: Any, batches: Batches, position: int) -> tuple[Batches, list[memoryview]]:
    """The records section of every batch, uncompressed, on all cores; old messages become sections of today's form."""
    view = memoryview(data).cast("B")
    rows = batches.copy()
    budget = min(compression.LIMIT_BYTES, DATA_BYTES_MAX)

    def unpack(number: int) -> memoryview:
        row = rows[number]
        start, size = int(row["position"]) - position, int(row["size"])
        if row["magic"] < 2:
            return legacy.body(view[start : start + size], rows, number, budget)
        body = view[start + HEADER_SIZE : start + size]
        try:
            plain = memoryview(compression.decompress(int(row["attributes"]) & CODEC_MASK, body, budget)).cast("B")
        except CorruptRecordError as error:
            error.position = int(row["position"])
            raise
        if int(row["records"]) > len(plain) // RECORD_SIZE_MIN:
            raise _miscounted(row, len(plain))
        return plain

    return rows, compression.each(unpack, range(len(rows)))


def _miscounted(row: Any, body_bytes: int) -> CorruptRecordError:
    most, found = f"at most {body_bytes // RECORD_SIZE_MIN}", int(row["records"])
    return CorruptRecordError(codec.WORDS[codec.BAD_COUNT], position=int(row["position"]), expected=most, found=found)


# ---- one decoding --------------------------------------------------------------------------------


class _Job:
    """What is wanted, and the arrays it goes to."""

    def __init__(self, names: frozenset[str], window: Window, pool: BufferPool, position: int) -> None:
        self.names, self.pool, self.position = names, pool, position
        self.window = codec.window(window.start_offset, window.end_offset, window.start_ms, window.end_ms)
        self.arrays: dict[str, NDArray[Any]] = {}

    def from_run(self, data: Any, batches: Batches, in_place: bool) -> Decoded:
        sizes = batches["size"].astype(np.int64) - HEADER_SIZE
        records = batches["records"].astype(np.int64)
        wrong = np.flatnonzero((records < 0) | (records * RECORD_SIZE_MIN > sizes))
        if len(wrong):
            row = batches[wrong[0]]
            raise _miscounted(row, int(row["size"]) - HEADER_SIZE)
        batches = np.ascontiguousarray(batches)
        if in_place and "headers" in self.names:
            in_place = self._without_headers(data, batches)
        values = np.frombuffer(data, np.uint8) if in_place else None
        decoder = self._decoder(int(records.sum()), int(sizes.sum()), values)
        if decoder.run(data, self.position, batches, self.window) < 0:
            raise self._error(decoder, batches, HEADER_SIZE)
        bodies = []
        if decoder.columns.header_count:
            view = memoryview(data).cast("B")
            starts = (batches["position"] - self.position).tolist()
            places = zip(starts, batches["size"].tolist(), strict=True)
            bodies = [view[start + HEADER_SIZE : start + size] for start, size in places]
        return self._decoded(decoder, batches, bodies)

    def _without_headers(self, data: Any, batches: Batches) -> bool:
        """Whether no record has a header: they would be read a second time, when values have moved over them."""
        decoder = codec.Decoder(int(batches["records"].sum(dtype=np.int64)))
        return decoder.run(data, self.position, batches, self.window) == 0 and not decoder.columns.header_count

    def from_bodies(self, batches: Batches, bodies: list[memoryview]) -> Decoded:
        decoder = self._decoder(int(batches["records"].sum(dtype=np.int64)), sum(map(len, bodies)), None)
        if decoder.bodies(bodies, batches, self.window) < 0:
            raise self._error(decoder, batches, None)
        return self._decoded(decoder, batches, bodies)

    # ---- memory ----

    def _decoder(self, records: int, body_bytes: int, values: NDArray[np.uint8] | None) -> codec.Decoder:
        if body_bytes > DATA_BYTES_MAX:
            raise CorruptRecordError("uncompressed size of one decoding", expected=f"at most {DATA_BYTES_MAX}", found=body_bytes)
        wanted: list[tuple[str, str, Any, int]] = []
        for name, (array, kind, number) in _FIXED.items():
            if name in self.names:
                wanted.append((array, kind, number, records))
        for name in ("key", "value"):
            if name in self.names:
                wanted.append((f"{name}_offsets", "int32_t[]", np.int32, records + 1))
                wanted.append((f"{name}_validity", "uint8_t[]", np.uint8, (records + 7) // 8))
        if "headers" in self.names:
            wanted.append(("header_starts", "int32_t[]", np.int32, records + 1))
        # The data last: what is not used of it then lies together, untouched.
        pools = [name for name in ("value", "key") if name in self.names and not (name == "value" and values is not None)]
        wanted += [(f"{name}_data", "uint8_t[]", np.uint8, body_bytes) for name in pools]
        self._lay_out(wanted)
        if "value" in self.names and values is not None:
            self.arrays["value_data"] = values
        decoder = codec.Decoder(records)
        kinds = {array: kind for array, kind, _, _ in wanted} | {"value_data": "uint8_t[]"}
        for array, memory in self.arrays.items():
            decoder.array(array, kinds[array], memory)
        decoder.columns.key_capacity = body_bytes
        decoder.columns.value_capacity = body_bytes if values is None else min(len(values), DATA_BYTES_MAX)
        return decoder

    def _lay_out(self, wanted: list[tuple[str, str, Any, int]]) -> None:
        """One lease, cut into arrays that begin at multiples of ALIGNMENT."""
        starts, size = [], 0
        for _, _, number, count in wanted:
            starts.append(size)
            size += -(-count * np.dtype(number).itemsize // ALIGNMENT) * ALIGNMENT
        memory = self.pool.lease(max(size, 1)).array
        for start, (array, _, number, count) in zip(starts, wanted, strict=True):
            self.arrays[array] = memory[start : start + count * np.dtype(number).itemsize].view(number)

    # ---- results ----

    def _decoded(self, decoder: codec.Decoder, batches: Batches, bodies: list[memoryview]) -> Decoded:
        counted = decoder.columns
        count = int(counted.count)

        def fixed(array: str) -> Any:
            return self.arrays[array][:count] if array in self.arrays else None

        return Decoded(
            count=count,
            offsets=fixed("offsets"),
            timestamps=fixed("timestamps"),
            timestamp_types=fixed("timestamp_types"),
            leader_epochs=fixed("leader_epochs"),
            keys=self._column("key", count, int(counted.key_size), int(counted.key_nulls)),
            values=self._column("value", count, int(counted.value_size), int(counted.value_nulls)),
            headers=self._headers(decoder, batches, bodies, count) if "headers" in self.names else None,
        )

    def _column(self, name: str, count: int, size: int, nulls: int) -> BytesColumn | None:
        if name not in self.names:
            return None
        validity = self.arrays[f"{name}_validity"][: (count + 7) // 8] if nulls else None
        return BytesColumn(self.arrays[f"{name}_data"][:size], self.arrays[f"{name}_offsets"][: count + 1], validity)

    def _headers(self, decoder: codec.Decoder, batches: Batches, bodies: list[memoryview], count: int) -> Headers:
        counted = decoder.columns
        number, keys, values = int(counted.header_count), int(counted.header_key_size), int(counted.header_value_size)
        largest = max(number, keys, values)
        if largest > DATA_BYTES_MAX:
            raise CorruptRecordError("headers of one decoding", expected=f"at most {DATA_BYTES_MAX}", found=largest)
        arrays: dict[str, Any] = {
            "key_offsets": np.zeros(number + 1, np.int32),
            "key_data": np.empty(keys, np.uint8),
            "value_offsets": np.zeros(number + 1, np.int32),
            "value_data": np.empty(values, np.uint8),
            "value_validity": np.empty((number + 7) // 8, np.uint8),
        }
        capacities = {"header_capacity": number, "key_capacity": keys, "value_capacity": values}
        if number and codec.decode_headers(arrays, capacities, bodies, batches, self.window) < 0:
            raise CorruptRecordError("headers changed while they were read")
        key_column = BytesColumn(arrays["key_data"], arrays["key_offsets"])
        value_column = BytesColumn(arrays["value_data"], arrays["value_offsets"], arrays["value_validity"] if number else None)
        return Headers(self.arrays["header_starts"][: count + 1], key_column, value_column)

    def _error(self, decoder: codec.Decoder, batches: Batches, header_size: int | None) -> CorruptRecordError:
        """`header_size` None: the section was compressed, and a position within it is none of the file's."""
        row, problem = batches[int(decoder.bad[0])], decoder.problem
        position = int(row["position"]) + (0 if header_size is None else header_size + int(problem.position))
        words = codec.WORDS.get(problem.what, "room for the records of a batch")
        record = f"record {problem.record} of " if problem.record >= 0 else ""
        told = bool(problem.expected or problem.found)
        return CorruptRecordError(
            f"{record}the batch at offset {int(row['base_offset'])}: {words}",
            position=position,
            expected=int(problem.expected) if told else None,
            found=int(problem.found) if told else None,
        )


__all__ = ["COLUMNS", "control_keys", "decode"]
