"""Converts the arguments of `send_batch` to columns: lists of bytes, numpy arrays, Arrow data.

- Lists are copied, because they can change; numpy and Arrow memory is read in place until
  `send_batch` returns.
- The output is pieces with equal lengths of all columns; columns with other chunk bounds are split.
- An unsupported value is refused with name and type before any piece of its list or array is
  returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from embedlog._native import _rows
from embedlog._native.lazy_numpy import np
from embedlog.columns import arrow_import
from embedlog.columns.one_record import bytes_of, normalize_headers
from embedlog.config.times import milliseconds
from embedlog.errors import InvalidRecordError
from embedlog.format.buffer_pool import shared_pool
from embedlog.format.record_columns import BytesColumn, Headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE_BYTES = 4 << 20  # of a list that is copied at once: it fits into the CPU cache
PIECE_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class ColumnPiece:
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
) -> Iterator[ColumnPiece]:
    """The rows of a `send_batch`, checked and split into pieces.

    Raises TypeError for unsupported types, InvalidRecordError for inconsistent columns.
    """
    timestamps_ms = times_of(timestamps_ms)
    check_lengths(values, keys, timestamps_ms, headers)
    rows: Iterator[ColumnPiece]
    if arrow_import.has_arrow_interface(values):
        rows = _read_arrow(values)
    elif not hasattr(values, "__len__") and callable(getattr(values, "collect", None)):
        raise TypeError(
            f"send_batch takes rows, and a {type(values).__name__} is a query: send its collect()"
        )
    else:
        rows = (ColumnPiece(len(column), column) for column in _read_bytes(values, "value"))
    if keys is not None:
        rows = _add_keys(rows, keys)
    if headers is not None:
        rows = _add_headers(rows, headers)
    if timestamps_ms is not None and not isinstance(timestamps_ms, int):
        rows = _add_timestamps(rows, timestamps_ms)
    return (piece for piece in rows if piece.count)


def check_lengths(values: Any, keys: Any, timestamps_ms: Any, headers: Any) -> None:
    """Checks known lengths before any piece is returned. Raises InvalidRecordError."""
    if not hasattr(values, "__len__"):
        return
    for name, column in (("keys", keys), ("timestamps", timestamps_ms), ("headers", headers)):
        if hasattr(column, "__len__") and len(column) != len(values):
            raise InvalidRecordError(
                f"there are not as many {name} as values", expected=len(values), found=len(column)
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
        for row in _rows_of_piece(piece, single_ms)
    )


def times_of(times: Any) -> Any:
    """Times as milliseconds: an Arrow array, numpy's datetimes (in UTC) and a list of datetimes
    become integers.

    None, an int and integers are returned as they are. Raises TypeError, InvalidRecordError, and
    the errors of `milliseconds`.
    """
    if times is None or isinstance(times, int):
        return times
    if arrow_import.has_arrow_interface(times):
        return arrow_import.read_times(times)
    column = np.asarray(times)
    if column.ndim == 0:
        raise TypeError(
            f"timestamps_ms is an int or one int a row, not {type(times).__name__}; it is in "
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
    return times


def _rows_of_piece(
    piece: ColumnPiece, single_ms: int | None
) -> Iterator[tuple[Any, Any, int | None, Any, int | None]]:
    for row in range(piece.count):
        partition = None
        if piece.partitions is not None and piece.partitions[row] >= 0:
            partition = int(piece.partitions[row])
        pairs = []
        if piece.headers is not None:
            start, stop = piece.headers.starts[row : row + 2].tolist()
            pairs = [
                ((piece.headers.keys[n] or b"").decode(), piece.headers.values[n])
                for n in range(start, stop)
            ]
        time_ms = single_ms if piece.timestamps is None else int(piece.timestamps[row])
        value = None if piece.values is None else piece.values[row]
        key = None if piece.keys is None else piece.keys[row]
        yield value, key, time_ms, pairs, partition


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


def _read_bytes(items: Any, field: str) -> Iterator[BytesColumn]:
    if arrow_import.has_arrow_interface(items):
        return (
            arrow_import.read_bytes(node, field)
            for node in arrow_import.read_arrays(items)
            if node.length
        )
    if isinstance(items, np.ndarray):
        return _read_array(items, field)
    if isinstance(items, (str, bytes, bytearray, memoryview, dict)) or not isinstance(
        items, Iterable
    ):
        raise TypeError(
            f"send_batch takes many {field}s: a list of bytes, a numpy array or Arrow data, not "
            f"{type(items).__name__}"
        )
    return _read_list(items, field)


def _read_list(items: Iterable[Any], field: str) -> Iterator[BytesColumn]:
    """Checks all items before any is returned, and copies them."""
    rows = items if type(items) is list else list(items)
    try:
        checked, size_bytes, largest_bytes, null_count = _rows.list_take(rows)
    except TypeError:
        converted = [_check_item(number, item, field) for number, item in enumerate(rows)]
        checked, size_bytes, largest_bytes, null_count = _rows.list_take(converted)
    return _copy_to_columns(checked, size_bytes, largest_bytes, null_count)


def _check_item(number: int, item: object, field: str) -> bytes | None:
    """One item as bytes. The TypeError has its number."""
    try:
        return bytes_of(item, field)
    except TypeError as error:
        raise TypeError(f"item {number} of the {field}s: {error}") from None


def _copy_to_columns(
    items: list[bytes | None], size_bytes: int, largest_bytes: int, null_count: int
) -> Iterator[BytesColumn]:
    """Items as columns in memory of a pool. `size_bytes` is that of all items, `largest_bytes`
    that of the largest one.
    """
    pool = shared_pool()
    remaining_bytes = size_bytes
    start = 0
    while start < len(items):
        rows = min(len(items) - start, PIECE_ROWS)
        data = pool.lease(max(1, min(remaining_bytes, PIECE_BYTES))).array
        offsets = pool.lease(4 * (rows + 1)).array.view(np.int32)
        validity = np.empty((rows + 7) // 8, np.uint8) if null_count else None
        stop, column_bytes = _rows.column_fill(items, start, data, offsets, validity)
        if stop == start:  # larger than a piece: alone
            data = pool.lease(largest_bytes).array
            stop, column_bytes = _rows.column_fill(items, start, data, offsets[:2], validity)
        yield BytesColumn(data[:column_bytes], offsets[: stop - start + 1], validity)
        start = stop
        remaining_bytes -= column_bytes


def _read_array(array: NDArray[Any], field: str) -> Iterator[BytesColumn]:
    """Objects and byte strings one by one; rows of raw bytes (two dimensions, or a void type) in
    place.
    """
    if array.ndim == 1 and array.dtype.kind in "OS":
        return _read_list(array.tolist(), field)
    is_raw = array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize
    if array.ndim == 1 and is_raw:
        array = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), array.dtype.itemsize)
    if array.ndim == 2 and array.dtype == np.uint8:
        rows, width = array.shape
        offsets = np.arange(rows + 1, dtype=np.int64) * width
        return iter([BytesColumn(np.ascontiguousarray(array).reshape(-1), offsets)])
    raise TypeError(
        f"{field}s in a numpy array are objects, bytes (S), raw bytes (V) or rows of uint8,"
        f" not {array.dtype} in {array.ndim} dimensions"
    )


def _read_arrow(source: Any) -> Iterator[ColumnPiece]:
    """The rows of Arrow data: of tables, or of a column of values."""
    for node in arrow_import.read_arrays(source):
        if node.format == "+s":
            columns = arrow_import.read_table(node)
            yield ColumnPiece(
                node.length,
                columns.values,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
                partitions=columns.partitions,
            )
        else:
            column = arrow_import.read_bytes(node, "value")
            yield ColumnPiece(len(column), column)


# ---- columns beside the values -------------------------------------------------------------------


def _add_keys(rows: Iterable[ColumnPiece], keys: Any) -> Iterator[ColumnPiece]:
    columns = _read_bytes(keys, "key")
    column = None
    column_row = 0
    for piece in rows:
        if piece.keys is not None:
            raise InvalidRecordError("keys are given twice: as an argument and as a column")
        piece_row = 0
        while piece_row < piece.count:
            if column is None or column_row == len(column):
                column = next(columns, None)
                column_row = 0
                if column is None:
                    raise InvalidRecordError("there are fewer keys than values")
                continue
            count = min(piece.count - piece_row, len(column) - column_row)
            yield replace(
                cut_piece(piece, piece_row, piece_row + count),
                keys=slice_column(column, column_row, column_row + count),
            )
            piece_row += count
            column_row += count
    if column is not None and column_row < len(column):
        raise InvalidRecordError("there are more keys than values")
    if next(columns, None) is not None:
        raise InvalidRecordError("there are more keys than values")


def cut_piece(piece: ColumnPiece, start: int, stop: int) -> ColumnPiece:
    """Some rows of a piece, without a copy."""
    if start == 0 and stop == piece.count:
        return piece
    headers = piece.headers
    if headers is not None:
        headers = headers._replace(starts=headers.starts[start : stop + 1])
    return ColumnPiece(
        stop - start,
        slice_column(piece.values, start, stop),
        keys=slice_column(piece.keys, start, stop),
        headers=headers,
        timestamps=None if piece.timestamps is None else piece.timestamps[start:stop],
        partitions=None if piece.partitions is None else piece.partitions[start:stop],
    )


def _add_headers(rows: Iterable[ColumnPiece], headers: Any) -> Iterator[ColumnPiece]:
    all_headers = list(headers)
    start = 0
    for piece in rows:
        if piece.headers is not None:
            raise InvalidRecordError("headers are given twice: as an argument and as a column")
        stop = start + piece.count
        if len(all_headers) < stop:
            raise InvalidRecordError(
                "there are fewer headers than values", expected=stop, found=len(all_headers)
            )
        yield replace(piece, headers=headers_of(all_headers[start:stop]))
        start = stop
    if start < len(all_headers):
        raise InvalidRecordError(
            "there are more headers than values", expected=start, found=len(all_headers)
        )


def headers_of(rows: Sequence[Any]) -> Headers:
    """The headers of some rows as columns."""
    pairs = [normalize_headers(row) for row in rows]
    starts = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in pairs], out=starts[1:])
    return Headers(
        starts,
        BytesColumn.of([name.encode("utf-8") for row in pairs for name, _ in row]),
        BytesColumn.of([value for row in pairs for _, value in row]),
    )


def _add_timestamps(rows: Iterable[ColumnPiece], timestamps_ms: Any) -> Iterator[ColumnPiece]:
    timestamps = np.asarray(timestamps_ms)
    if timestamps.ndim != 1 or timestamps.dtype.kind not in "iu":
        raise TypeError(
            f"timestamps_ms is an int or one int a row, not {type(timestamps_ms).__name__} of "
            f"{timestamps.dtype}"
        )
    timestamps = timestamps.astype(np.int64, copy=False)
    start = 0
    for piece in rows:
        if piece.timestamps is not None:
            raise InvalidRecordError("timestamps are given twice: as an argument and as a column")
        stop = start + piece.count
        if len(timestamps) < stop:
            raise InvalidRecordError(
                "there are fewer timestamps than values", expected=stop, found=len(timestamps)
            )
        yield replace(piece, timestamps=np.ascontiguousarray(timestamps[start:stop]))
        start = stop
    if start < len(timestamps):
        raise InvalidRecordError(
            "there are more timestamps than values", expected=start, found=len(timestamps)
        )
