"""Converts the arguments of `send_batch` to columns: lists of bytes, numpy arrays, Arrow data.

INGEST-1  lists are copied, because they can change; numpy and Arrow memory is read in place until
    `send_batch` returns
INGEST-2  the output is pieces with equal lengths of all columns; columns with other chunk bounds
    are split
INGEST-3  an unsupported value is refused with name and type before any piece of its list or array
    is returned
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from embedlog._native import _rows
from embedlog._native.lazy_numpy import np
from embedlog.columns import arrow_import
from embedlog.columns.one_record import bytes_like, normal_headers
from embedlog.config.times import milliseconds
from embedlog.errors import InvalidRecordError
from embedlog.format.buffer_pool import shared_pool
from embedlog.format.record_columns import BytesColumn, Headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES = 4 << 20  # of a list that is copied at once: it fits into the CPU cache
PIECE_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows. A column None has only nulls; for `partitions` None or -1 the partitioner
    chooses.
    """

    count: int
    values: BytesColumn | None
    keys: BytesColumn | None = None
    headers: Headers | None = None
    timestamps: NDArray[np.int64] | None = None
    partitions: NDArray[np.int64] | None = None


def pieces_of(
    values: Any, keys: Any = None, timestamps_ms: Any = None, headers: Any = None
) -> Iterator[Piece]:
    """The rows of a `send_batch`, checked and split into pieces.

    Raises TypeError for unsupported types, InvalidRecordError for inconsistent columns.
    """
    timestamps_ms = times_of(timestamps_ms)
    check_lengths(values, keys, timestamps_ms, headers)
    if (
        not hasattr(values, "__len__")
        and callable(getattr(values, "collect", None))
        and not arrow_import.has_arrow_interface(values)
    ):
        raise TypeError(
            f"send_batch takes rows, and a {type(values).__name__} is a query: send its collect()"
        )
    is_table = arrow_import.has_arrow_interface(values)
    pieces = (
        _table_pieces(values)
        if is_table
        else ((piece,) for piece in _bytes_pieces(values, "value"))
    )
    rows: Iterator[Piece] = (
        piece if isinstance(piece, Piece) else Piece(len(piece[0]), piece[0]) for piece in pieces
    )
    if keys is not None:
        rows = _with_keys(rows, keys)
    if headers is not None:
        rows = _with_headers(rows, headers)
    if timestamps_ms is not None and not isinstance(timestamps_ms, int):
        rows = _with_timestamps(rows, timestamps_ms)
    return (piece for piece in rows if piece.count)


def check_lengths(values: Any, keys: Any, timestamps_ms: Any, headers: Any) -> None:
    """Checks known lengths before any piece is returned. Raises InvalidRecordError."""
    if not hasattr(values, "__len__"):
        return
    for name, other in (("keys", keys), ("timestamps", timestamps_ms), ("headers", headers)):
        if hasattr(other, "__len__") and len(other) != len(values):
            raise InvalidRecordError(
                f"there are not as many {name} as values", expected=len(values), found=len(other)
            )


def rows_of(
    values: Any, keys: Any, timestamps_ms: Any, headers: Any
) -> Iterator[tuple[Any, Any, int | None, Any, int | None]]:
    """(value, key, timestamp, headers, partition) of every row; items of lists are not checked.
    Raises as `pieces_of`.
    """
    if isinstance(values, (list, tuple)) and (keys is None or isinstance(keys, (list, tuple))):
        timestamps_ms = times_of(timestamps_ms)
        check_lengths(values, keys, timestamps_ms, headers)
        count = len(values)
        is_single = timestamps_ms is None or isinstance(timestamps_ms, int)
        times = [timestamps_ms] * count if is_single else np.asarray(timestamps_ms).tolist()
        nothing = [None] * count
        return zip(values, keys or nothing, times, headers or [()] * count, nothing, strict=True)
    single_ms = timestamps_ms if isinstance(timestamps_ms, int) else None
    return (
        row
        for piece in pieces_of(values, keys, timestamps_ms, headers)
        for row in _piece_rows(piece, single_ms)
    )


def times_of(given: Any) -> Any:
    """Times as milliseconds: an Arrow array, numpy's datetimes (in UTC) and a list of datetimes
    become integers.

    None, an int and integers are returned as they are. Raises TypeError, InvalidRecordError, and
    the errors of `milliseconds`.
    """
    if given is None or isinstance(given, int):
        return given
    if arrow_import.has_arrow_interface(given):
        return arrow_import.times(given)
    column = np.asarray(given)
    if column.ndim == 0:
        raise TypeError(
            f"timestamps_ms is an int or one int a row, not {type(given).__name__}; it is in "
            "milliseconds, or a list"
        )
    if column.dtype.kind == "M":
        if np.isnat(column).any():
            raise InvalidRecordError(
                "timestamps_ms has a time that is none (NaT)", expected="a time for each row"
            )
        return column.astype("datetime64[ms]").astype(np.int64)
    if column.dtype.kind == "O" and all(isinstance(time, datetime) for time in column):
        return np.array([milliseconds(time) for time in column], dtype=np.int64)
    return given


def _piece_rows(
    piece: Piece, single_ms: int | None
) -> Iterator[tuple[Any, Any, int | None, Any, int | None]]:
    for row in range(piece.count):
        at = -1 if piece.partitions is None else int(piece.partitions[row])
        pairs = []
        if piece.headers is not None:
            start, stop = piece.headers.starts[row : row + 2].tolist()
            pairs = [
                ((piece.headers.keys[n] or b"").decode(), piece.headers.values[n])
                for n in range(start, stop)
            ]
        time_ms = single_ms if piece.timestamps is None else int(piece.timestamps[row])
        value, key = (
            None if column is None else column[row] for column in (piece.values, piece.keys)
        )
        yield value, key, time_ms, pairs, None if at < 0 else at


def slice_column(column: BytesColumn | None, start: int, stop: int) -> BytesColumn | None:
    """Rows of a column, without a copy."""
    if column is None:
        return None
    return BytesColumn(
        column.data,
        column.offsets[start : stop + 1],
        column.validity,
        column.validity_offset + start,
    )


# ---- byte strings --------------------------------------------------------------------------------


def _bytes_pieces(items: Any, what: str) -> Iterator[BytesColumn]:
    if arrow_import.has_arrow_interface(items):
        return (
            arrow_import.bytes_column(node, what)
            for node in arrow_import.arrays(items)
            if node.length
        )
    if isinstance(items, np.ndarray):
        return _array_pieces(items, what)
    if isinstance(items, (str, bytes, bytearray, memoryview, dict)) or not isinstance(
        items, Iterable
    ):
        raise TypeError(
            f"send_batch takes many {what}s: a list of bytes, a numpy array or Arrow data, not "
            f"{type(items).__name__}"
        )
    return _list_pieces(items, what)


def _list_pieces(items: Iterable[Any], what: str) -> Iterator[BytesColumn]:
    """Checks all items before any is returned (INGEST-3), and copies them (INGEST-1)."""
    given = items if type(items) is list else list(items)
    try:
        taken = _rows.list_take(given)
    except TypeError:
        taken = _rows.list_take([_item(number, item, what) for number, item in enumerate(given)])
    return _moved(*taken)


def _item(number: int, item: object, what: str) -> bytes | None:
    """One item as bytes. The TypeError has its number."""
    try:
        return bytes_like(item, what)
    except TypeError as error:
        raise TypeError(f"item {number} of the {what}s: {error}") from None


def _moved(items: list[bytes | None], left: int, largest: int, nulls: int) -> Iterator[BytesColumn]:
    """Items as columns in memory of a pool."""
    pool = shared_pool()
    start = 0
    while start < len(items):
        rows = min(len(items) - start, PIECE_ROWS)
        data = pool.lease(max(1, min(left, PIECE_BYTES))).array
        offsets = pool.lease(4 * (rows + 1)).array.view(np.int32)
        validity = np.empty((rows + 7) // 8, np.uint8) if nulls else None
        after, size = _rows.column_fill(items, start, data, offsets, validity)
        if after == start:  # larger than a piece: alone
            data = pool.lease(largest).array
            after, size = _rows.column_fill(items, start, data, offsets[:2], validity)
        yield BytesColumn(data[:size], offsets[: after - start + 1], validity)
        start = after
        left = left - size


def _array_pieces(array: NDArray[Any], what: str) -> Iterator[BytesColumn]:
    """Objects and byte strings one by one; rows of raw bytes (two dimensions, or a void type) in
    place.
    """
    if array.ndim == 1 and array.dtype.kind in "OS":
        return _list_pieces(array.tolist(), what)
    if (
        array.ndim == 1
        and array.dtype.kind == "V"
        and array.dtype.names is None
        and array.dtype.itemsize
    ):
        array = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize)
    if array.ndim == 2 and array.dtype == np.uint8:
        rows, width = array.shape
        offsets = np.arange(rows + 1, dtype=np.int64) * width
        return iter([BytesColumn(np.ascontiguousarray(array).reshape(-1), offsets)])
    raise TypeError(
        f"{what}s in a numpy array are objects, bytes (S), raw bytes (V) or rows of uint8,"
        f" not {array.dtype} in {array.ndim} dimensions"
    )


def _table_pieces(source: Any) -> Iterator[Piece | tuple[BytesColumn]]:
    for node in arrow_import.arrays(source):
        if node.format == "+s":
            found = arrow_import.table(node)
            yield Piece(
                node.length,
                found.values,
                found.keys,
                found.headers,
                found.timestamps,
                found.partitions,
            )
        else:
            yield (arrow_import.bytes_column(node, "value"),)


# ---- columns beside the values -------------------------------------------------------------------


def _with_keys(rows: Iterable[Piece], keys: Any) -> Iterator[Piece]:
    columns = _bytes_pieces(keys, "key")
    column = None
    at = 0
    for piece in rows:
        if piece.keys is not None:
            raise InvalidRecordError("keys are given twice: as an argument and as a column")
        done = 0
        while done < piece.count:
            if column is None or at == len(column):
                column = next(columns, None)
                at = 0
                if column is None:
                    raise InvalidRecordError("there are fewer keys than values")
                continue
            count = min(piece.count - done, len(column) - at)
            yield replace(cut(piece, done, done + count), keys=slice_column(column, at, at + count))
            done = done + count
            at = at + count
    if (column is not None and at < len(column)) or next(columns, None) is not None:
        raise InvalidRecordError("there are more keys than values")


def cut(piece: Piece, start: int, stop: int) -> Piece:
    """Some rows of a piece, without a copy."""
    if start == 0 and stop == piece.count:
        return piece
    headers = (
        None
        if piece.headers is None
        else piece.headers._replace(starts=piece.headers.starts[start : stop + 1])
    )
    return Piece(
        stop - start,
        slice_column(piece.values, start, stop),
        slice_column(piece.keys, start, stop),
        headers,
        None if piece.timestamps is None else piece.timestamps[start:stop],
        None if piece.partitions is None else piece.partitions[start:stop],
    )


def _with_headers(rows: Iterable[Piece], headers: Any) -> Iterator[Piece]:
    given = list(headers)
    at = 0
    for piece in rows:
        if piece.headers is not None:
            raise InvalidRecordError("headers are given twice: as an argument and as a column")
        some = given[at : at + piece.count]
        if len(some) < piece.count:
            raise InvalidRecordError(
                "there are fewer headers than values", expected=at + piece.count, found=len(given)
            )
        at += piece.count
        yield replace(piece, headers=headers_of(some))
    if at < len(given):
        raise InvalidRecordError(
            "there are more headers than values", expected=at, found=len(given)
        )


def headers_of(rows: Sequence[Any]) -> Headers:
    """The headers of some rows as columns."""
    pairs = [normal_headers(row) for row in rows]
    starts = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in pairs], out=starts[1:])
    return Headers(
        starts,
        BytesColumn.of([name.encode("utf-8") for row in pairs for name, _ in row]),
        BytesColumn.of([value for row in pairs for _, value in row]),
    )


def _with_timestamps(rows: Iterable[Piece], timestamps_ms: Any) -> Iterator[Piece]:
    given = np.asarray(timestamps_ms)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise TypeError(
            f"timestamps_ms is an int or one int a row, not {type(timestamps_ms).__name__} of "
            f"{given.dtype}"
        )
    given = given.astype(np.int64, copy=False)
    at = 0
    for piece in rows:
        if piece.timestamps is not None:
            raise InvalidRecordError("timestamps are given twice: as an argument and as a column")
        if len(given) < at + piece.count:
            raise InvalidRecordError(
                "there are fewer timestamps than values",
                expected=at + piece.count,
                found=len(given),
            )
        yield replace(piece, timestamps=np.ascontiguousarray(given[at : at + piece.count]))
        at += piece.count
    if at < len(given):
        raise InvalidRecordError(
            "there are more timestamps than values", expected=at, found=len(given)
        )
