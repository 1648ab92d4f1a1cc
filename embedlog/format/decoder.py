"""Decodes record batches into columns.

- All columns of one decoding are in one lease of the buffer pool.
- Memory is allocated by the actual size of the data, never by the claim of a header.
- A column that is not requested is not written, and only its lengths are checked.
- At most GROUP_BYTES of uncompressed data and one batch are decoded together, and no batch beyond
  the given limit.
- With `in_place` the scanned buffer is overwritten: values are moved inside it, which halves the
  touched memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from embedlog._native import codec
from embedlog._native.lazy_numpy import np
from embedlog.errors import CorruptRecordError
from embedlog.format import compression, legacy
from embedlog.format.buffer_pool import BufferPool, SharedBytes, shared_pool
from embedlog.format.record_columns import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    Batches,
    BytesColumn,
    Decoded,
    Headers,
    Window,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = frozenset(codec.WANT)

RECORD_SIZE_MIN = 7
DATA_BYTES_MAX = 2**31 - 1  # the range of int32 offsets
MOVED_BYTES_MIN = 256  # mean size of records from which decoding in place is faster
# uncompressed, of batches that are decoded together, so that memory is bounded
GROUP_BYTES = 8 << 20
NOT_PLAIN = codec.HAS_COMPRESSED | codec.HAS_LEGACY


class DecodedPart(NamedTuple):
    """The records of the first `batch_count` given batches; 0 if the first one may not be decoded
    yet.
    """

    decoded: Decoded | None
    batch_count: int


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
    """The records of scanned batches inside the window, without control records.

    `columns` are the requested ones (None: all of COLUMNS; other names are ignored). `data` begins
    at `position`, as in the scan. With `in_place` the bytes of `data` are changed, and the values
    may be a view of them. Raises CorruptRecordError with the position of the record that cannot be
    read.

    **Threads:** any.
    """
    batches, survey = _survey_data_batches(batches)
    job = _Decoding(columns, window, pool, position)
    if survey.kinds & NOT_PLAIN:
        return job.from_bodies(*_expand_sections(data, batches, position))
    return job.from_run(data, batches, survey, in_place and _may_move(data, survey))


def decode_some(
    data: Any,
    batches: Batches,
    *,
    window: Window | None = None,
    columns: Collection[str] | None = None,
    pool: BufferPool | None = None,
    limit: int = compression.LIMIT_BYTES,
    alone_bytes: int | None = None,
    in_place: bool = False,
) -> DecodedPart:
    """As `decode`, but only the first batches, at least one, up to about GROUP_BYTES of
    uncompressed bytes.

    A batch with more than `limit` uncompressed bytes raises CorruptRecordError. If the first batch
    has more than `alone_bytes`, the part is empty.
    """
    data_batches, survey = _survey_data_batches(batches)
    job = _Decoding(columns, window, pool, 0)
    if survey.kinds & NOT_PLAIN:
        try:
            rows, bodies = _expand_first_sections(data, data_batches, 0, limit, alone_bytes)
        except compression.LimitExceeded:
            return DecodedPart(None, 0)
        decoded = job.from_bodies(rows, bodies)
        return DecodedPart(decoded, _count_covered(batches, data_batches, len(rows)))
    if survey.body_size > DATA_BYTES_MAX:
        sizes = np.cumsum(data_batches["size"], dtype=np.int64)
        count = max(1, int(np.searchsorted(sizes, DATA_BYTES_MAX)))
        rows = data_batches[:count]
        decoded = job.from_run(data, rows, codec.survey(rows), False)
        return DecodedPart(decoded, _count_covered(batches, data_batches, count))
    in_place = in_place and _may_move(data, survey)
    return DecodedPart(job.from_run(data, data_batches, survey, in_place), len(batches))


def decode_parts(
    data: Any, batches: Batches, *, columns: Collection[str] | None = None
) -> Iterator[Decoded]:
    """All records of the batches, part by part. Raises CorruptRecordError."""
    while len(batches):
        part = decode_some(data, batches, columns=columns)
        if part.decoded is not None:
            yield part.decoded
        batches = batches[part.batch_count :]


def control_keys(data: Any, batches: Batches, position: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(offset, key, value) of the records of control batches."""
    job = _Decoding({"offset", "key", "value"}, None, None, position)
    while len(batches):
        rows, bodies = _expand_first_sections(
            data, batches, position, compression.LIMIT_BYTES, None
        )
        decoded = job.from_bodies(rows, bodies)
        assert decoded.offsets is not None
        assert decoded.keys is not None
        assert decoded.values is not None
        for row, offset in enumerate(decoded.offsets.tolist()):
            yield offset, decoded.keys[row] or b"", decoded.values[row] or b""
        batches = batches[len(rows) :]


def _survey_data_batches(batches: Batches) -> tuple[Batches, Any]:
    """The batches that are not control batches, and their totals. Raises CorruptRecordError for an
    impossible count.
    """
    batches = np.ascontiguousarray(batches)
    survey = codec.survey(batches)
    if survey.kinds & codec.HAS_CONTROL:
        batches = batches[batches["attributes"] & CONTROL == 0]
        survey = codec.survey(batches)
    if survey.bad >= 0 and not survey.kinds & NOT_PLAIN:
        row = batches[survey.bad]
        raise _count_error(row, int(row["size"]) - HEADER_SIZE)
    return batches, survey


def _count_covered(batches: Batches, data_batches: Batches, count: int) -> int:
    """How many of `batches` the first `count` data batches cover."""
    if count == len(data_batches):
        return len(batches)
    return int((batches["position"] == data_batches["position"][count]).argmax())


def _may_move(data: Any, survey: Any) -> bool:
    """Whether values can be moved within `data`: the batches are in order, and the records long
    enough.
    """
    if memoryview(data).readonly or survey.kinds & codec.UNORDERED:
        return False
    return bool(survey.body_size >= MOVED_BYTES_MIN * survey.records)


# ---- records sections ----------------------------------------------------------------------------


def _expand_sections(
    data: Any, batches: Batches, position: int
) -> tuple[Batches, list[memoryview]]:
    """The records section of every batch, uncompressed, on all cores; old messages are
    converted.
    """
    sections = _Sections(data, batches, position)
    expand = partial(sections.expand_bounded, limit=compression.LIMIT_BYTES)
    return sections.rows, compression.each(expand, range(len(batches)))


def _expand_first_sections(
    data: Any, batches: Batches, position: int, limit: int, alone_bytes: int | None
) -> tuple[Batches, list[memoryview]]:
    """The sections of the first batches; all but the first one have about GROUP_BYTES at most.

    Raises CorruptRecordError for a first batch beyond `limit`, and LimitExceeded for one of more
    than `alone_bytes`.
    """
    sections = _Sections(data, batches, position)
    bodies: list[memoryview] = []
    if len(batches) > 1:
        total_bytes = 0
        expand = partial(sections.expand_in_group, limit=min(limit, GROUP_BYTES))
        for body in compression.each(expand, range(len(batches))):
            if body is None or total_bytes + len(body) > DATA_BYTES_MAX:
                break
            bodies.append(body)
            total_bytes += len(body)
    if not bodies and len(batches):
        if alone_bytes is None or alone_bytes >= limit:
            bodies.append(sections.expand_bounded(0, limit))
        else:
            bodies.append(sections.expand(0, alone_bytes))
    return sections.rows[: len(bodies)], bodies


class _Sections:
    """The records sections of some batches. Threads: any, each batch by one."""

    def __init__(self, data: Any, batches: Batches, position: int) -> None:
        self.rows = batches.copy()  # old messages change their rows
        self._data = SharedBytes(data)
        self._position = position
        # uncompressed so far; a later addition corrects one that is lost to another thread
        self._group_bytes = 0

    def expand(self, number: int, limit: int) -> memoryview:
        """Uncompressed. Raises CorruptRecordError with the batch's position, and LimitExceeded."""
        row = self.rows[number]
        view = self._data.view()
        if row["magic"] < 2:
            start = int(row["position"]) - self._position
            try:
                return legacy.convert_message(
                    view[start : start + int(row["size"])], self.rows, number, limit
                )
            except CorruptRecordError as error:
                error.position = int(row["position"])
                raise
        plain = expand_section(view, row, self._position, limit)
        if int(row["records"]) > len(plain) // RECORD_SIZE_MIN:
            raise _count_error(row, len(plain))
        return plain

    def expand_in_group(self, number: int, limit: int) -> memoryview | None:
        """None if the section exceeds the group, or the group is full. Raises
        CorruptRecordError.
        """
        if self._group_bytes >= GROUP_BYTES:
            return None
        try:
            plain = self.expand(number, limit)
        except compression.LimitExceeded:
            self._group_bytes = GROUP_BYTES
            return None
        self._group_bytes += len(plain)
        return plain

    def expand_bounded(self, number: int, limit: int) -> memoryview:
        """Uncompressed, or CorruptRecordError."""
        try:
            return self.expand(number, min(limit, DATA_BYTES_MAX))
        except compression.LimitExceeded:
            raise too_large_error(self.rows[number], limit) from None


def expand_section(view: memoryview, row: Any, position: int, limit: int) -> memoryview:
    """A batch's records section, uncompressed. Raises CorruptRecordError, and LimitExceeded for
    more than `limit`.

    With 0 records the section is not read, whatever codec the batch names: Kafka reads none either.
    """
    if not row["records"]:
        return memoryview(b"")
    start = int(row["position"]) - position
    size = int(row["size"])
    try:
        plain = compression.expand(
            int(row["attributes"]) & CODEC_MASK, view[start + HEADER_SIZE : start + size], limit
        )
    except CorruptRecordError as error:
        error.position = int(row["position"])
        raise
    return memoryview(plain).cast("B")


def too_large_error(row: Any, limit: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"the batch at offset {int(row['base_offset'])} is larger than "
        "max.decompressed.batch.bytes when it is uncompressed",
        position=int(row["position"]),
        expected=f"at most {limit} bytes",
        found="more",
    )


def _count_error(row: Any, body_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        codec.PROBLEM_TEXTS[codec.BAD_COUNT],
        position=int(row["position"]),
        expected=f"at most {body_bytes // RECORD_SIZE_MIN}",
        found=int(row["records"]),
    )


# ---- one decoding --------------------------------------------------------------------------------


class _Decoding:
    """The request of one decoding and its arrays."""

    def __init__(
        self,
        names: Collection[str] | None,
        window: Window | None,
        pool: BufferPool | None,
        position: int,
    ) -> None:
        self.names = COLUMNS if names is None else COLUMNS.intersection(names)
        self.pool = pool or shared_pool()
        self.position = position
        window = window or Window()
        self.window = codec.make_window(
            window.start_offset, window.end_offset, window.start_ms, window.end_ms
        )

    def from_run(self, data: Any, batches: Batches, survey: Any, in_place: bool) -> Decoded:
        if in_place and "headers" in self.names:
            in_place = self._has_no_headers(data, batches, survey.records)
        values = np.frombuffer(data, np.uint8) if in_place and "value" in self.names else None
        decoder = self._make_decoder(survey.records, survey.body_size, values)
        memory = self._lease_memory(decoder, values)
        if decoder.run(data, self.position, batches, self.window) < 0:
            raise self._make_error(decoder, batches, HEADER_SIZE)
        bodies = []
        if decoder.columns.header_count:
            view = memoryview(data).cast("B")
            starts = (batches["position"] - self.position).tolist()
            sizes = batches["size"].tolist()
            bodies = [
                view[start + HEADER_SIZE : start + size]
                for start, size in zip(starts, sizes, strict=True)
            ]
        return self._collect_columns(decoder, memory, values, batches, bodies)

    def _has_no_headers(self, data: Any, batches: Batches, records: int) -> bool:
        """Whether no record has a header: headers are read a second time, after values were moved
        over them.
        """
        decoder = codec.Decoder(0, records, 0)
        if decoder.run(data, self.position, batches, self.window) != 0:
            return False
        return not decoder.columns.header_count

    def from_bodies(self, batches: Batches, bodies: list[memoryview]) -> Decoded:
        record_count = int(batches["records"].sum(dtype=np.int64))
        decoder = self._make_decoder(record_count, sum(map(len, bodies)), None)
        memory = self._lease_memory(decoder, None)
        if decoder.bodies(bodies, batches, self.window) < 0:
            raise self._make_error(decoder, batches, None)
        return self._collect_columns(decoder, memory, None, batches, bodies)

    # ---- memory ----

    def _make_decoder(
        self, records: int, body_bytes: int, values: NDArray[np.uint8] | None
    ) -> codec.Decoder:
        if body_bytes > DATA_BYTES_MAX:
            raise CorruptRecordError(
                "uncompressed size of one decoding",
                expected=f"at most {DATA_BYTES_MAX}",
                found=body_bytes,
            )
        columns = sum(codec.WANT[name] for name in self.names)
        if values is None and "value" in self.names:
            columns |= codec.VALUE_DATA
        return codec.Decoder(columns, records, body_bytes)

    def _lease_memory(
        self, decoder: codec.Decoder, values: NDArray[np.uint8] | None
    ) -> NDArray[np.uint8]:
        """The lease for all columns; `values`: another place for the bytes of the values."""
        memory = self.pool.lease(max(decoder.size, 1)).array
        decoder.set_memory(memory, values)
        return memory

    # ---- results ----

    def _collect_columns(
        self,
        decoder: codec.Decoder,
        memory: Any,
        moved: Any,
        batches: Batches,
        bodies: list[memoryview],
    ) -> Decoded:
        counted = decoder.columns
        names = self.names
        count = int(counted.count)
        starts = decoder.starts

        def array(number: Any, index: int, size: int) -> Any:
            return np.ndarray(size, number, memory, starts[index])

        keys = None
        if "key" in names:
            validity = array(np.uint8, 6, (count + 7) // 8) if counted.key_nulls else None
            key_data = array(np.uint8, 10, counted.key_size)
            keys = BytesColumn(key_data, array(np.int32, 5, count + 1), validity)
        values = None
        if "value" in names:
            validity = array(np.uint8, 8, (count + 7) // 8) if counted.value_nulls else None
            if moved is None:
                value_data = array(np.uint8, 9, counted.value_size)
            else:
                value_data = moved[: counted.value_size]
            values = BytesColumn(value_data, array(np.int32, 7, count + 1), validity)
        headers = None
        if "headers" in names:
            headers = self._decode_headers(decoder, array(np.int32, 4, count + 1), batches, bodies)
        return Decoded(
            count,
            array(np.int64, 0, count) if "offset" in names else None,
            array(np.int64, 1, count) if "timestamp" in names else None,
            array(np.int8, 2, count) if "timestamp_type" in names else None,
            array(np.int32, 3, count) if "leader_epoch" in names else None,
            keys,
            values,
            headers,
        )

    def _decode_headers(
        self, decoder: codec.Decoder, starts: Any, batches: Batches, bodies: list[memoryview]
    ) -> Headers:
        counted = decoder.columns
        number = int(counted.header_count)
        keys = int(counted.header_key_size)
        values = int(counted.header_value_size)
        if number == 0:
            no_texts = BytesColumn(np.empty(0, np.uint8), np.zeros(1, np.int32))
            return Headers(starts, no_texts, no_texts)
        largest = max(number, keys, values)
        if largest > DATA_BYTES_MAX:
            raise CorruptRecordError(
                "headers of one decoding", expected=f"at most {DATA_BYTES_MAX}", found=largest
            )
        arrays: dict[str, Any] = {
            "key_offsets": np.zeros(number + 1, np.int32),
            "key_data": np.empty(keys, np.uint8),
            "value_offsets": np.zeros(number + 1, np.int32),
            "value_data": np.empty(values, np.uint8),
            "value_validity": np.empty((number + 7) // 8, np.uint8),
        }
        capacities = {"header_capacity": number, "key_capacity": keys, "value_capacity": values}
        if codec.decode_headers(arrays, capacities, bodies, batches, self.window) < 0:
            raise CorruptRecordError("headers changed while they were read")
        key_column = BytesColumn(arrays["key_data"], arrays["key_offsets"])
        return Headers(
            starts,
            key_column,
            BytesColumn(arrays["value_data"], arrays["value_offsets"], arrays["value_validity"]),
        )

    def _make_error(
        self, decoder: codec.Decoder, batches: Batches, header_size: int | None
    ) -> CorruptRecordError:
        """`header_size` None: the section was compressed, so a position within it is not a position
        of the file.
        """
        row = batches[int(decoder.bad[0])]
        problem = decoder.problem
        position = int(row["position"])
        if header_size is not None:
            position += header_size + int(problem.position)
        words = codec.PROBLEM_TEXTS.get(problem.what, "space for the records of a batch")
        record = f"record {problem.record} of " if problem.record >= 0 else ""
        has_values = bool(problem.expected or problem.found)
        return CorruptRecordError(
            f"{record}the batch at offset {int(row['base_offset'])}: {words}",
            position=position,
            expected=int(problem.expected) if has_values else None,
            found=int(problem.found) if has_values else None,
        )


__all__ = ["COLUMNS", "GROUP_BYTES", "control_keys", "decode", "decode_parts", "decode_some"]
