"""Converts Arrow data (capsules of the C data interface) to columns, without pyarrow.

- Byte strings are read in place; only the view layouts are copied, because they have no offsets.
- An unknown column, a wrong type, or a null row is refused with the name and Arrow's format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from embedlog._native import _rows, system
from embedlog._native.lazy_numpy import np
from embedlog.errors import InvalidRecordError
from embedlog.format.record_columns import BytesColumn, Headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = ("key", "value", "headers", "timestamp", "partition")
# columns of a scan that an append determines
ASSIGNED = frozenset(("topic", "offset", "timestamp_type", "leader_epoch"))

_NARROW = ("z", "u")
_WIDE = ("Z", "U")
_VIEWS = ("vz", "vu")
_INTEGERS = {"c": "int8", "s": "int16", "i": "int32", "l": "int64"}
_INDEXES = {**_INTEGERS, "C": "uint8", "S": "uint16", "I": "uint32", "L": "uint64"}
_DATES = {"tdD": ("int32", 86_400_000), "tdm": ("int64", 1)}  # the milliseconds of one unit
_FORMATS = {kind: format for format, kind in _INTEGERS.items()}
_PER_MILLISECOND = {"tss:": 0, "tsm:": 1, "tsu:": 1_000, "tsn:": 1_000_000}

_NAMES = {
    "n": "null",
    "b": "bool",
    "c": "int8",
    "C": "uint8",
    "s": "int16",
    "S": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "e": "float16",
    "f": "float32",
    "g": "float64",
    "z": "binary",
    "Z": "large_binary",
    "vz": "binary_view",
    "u": "string",
    "U": "large_string",
    "vu": "string_view",
    "tdD": "date32",
    "tdm": "date64",
    "tts": "time32[s]",
    "ttm": "time32[ms]",
    "ttu": "time64[us]",
    "ttn": "time64[ns]",
    "tDs": "duration[s]",
    "tDm": "duration[ms]",
    "tDu": "duration[us]",
    "tDn": "duration[ns]",
    "tiM": "month_interval",
    "+l": "list",
    "+L": "large_list",
    "+s": "struct",
    "+m": "map",
    "+r": "run_end_encoded",
}
_HEADS = {
    "d:": "decimal",
    "w:": "fixed_size_binary",
    "tss:": "timestamp[s]",
    "tsm:": "timestamp[ms]",
    "tsu:": "timestamp[us]",
    "tsn:": "timestamp[ns]",
    "+w:": "fixed_size_list",
    "+ud:": "dense_union",
    "+us:": "sparse_union",
}


class Node(NamedTuple):
    """One array, as `_rows` describes it: `length` rows, beginning at row `offset` of the
    buffers.
    """

    name: str
    format: str
    length: int
    offset: int
    null_count: int
    buffers: tuple[Any, ...]
    children: tuple[Any, ...]
    dictionary: tuple[Any, ...] | None

    @property
    def validity(self) -> NDArray[np.uint8] | None:
        if self.null_count == 0 or not self.buffers or self.buffers[0] is None:
            return None
        return np.frombuffer(self.buffers[0], dtype=np.uint8)

    def valid_rows(self) -> NDArray[np.bool_]:
        """Which rows are not null."""
        bits = self.validity
        if bits is None:
            return np.ones(self.length, dtype=np.bool_)
        return np.unpackbits(bits, count=self.offset + self.length, bitorder="little")[
            self.offset :
        ].astype(np.bool_)


@dataclass(slots=True)
class Table:
    """The known columns of a record batch; None: it does not have the column."""

    values: BytesColumn | None = None
    keys: BytesColumn | None = None
    headers: Headers | None = None
    timestamps: NDArray[np.int64] | None = None
    partitions: NDArray[np.int64] | None = None


def has_arrow_interface(source: object) -> bool:
    return hasattr(source, "__arrow_c_array__") or hasattr(source, "__arrow_c_stream__")


def read_arrays(source: Any) -> Iterator[Node]:
    """The arrays of an object with `__arrow_c_array__` (one) or `__arrow_c_stream__` (any
    number).
    """
    if hasattr(source, "__arrow_c_array__"):
        yield Node(*_rows.arrow_from_array(*source.__arrow_c_array__()))
        return
    for node in _rows.arrow_from_stream(source.__arrow_c_stream__()):
        yield Node(*node)


def read_bytes(node: Node, name: str) -> BytesColumn:
    """A column of binary or string type, in any of Arrow's layouts.

    Dictionaries, run-end encoded and fixed-size columns are made plain by a copy; the others are
    read in place.

    Raises TypeError, InvalidRecordError.
    """
    rows = node.length
    start = node.offset
    if node.dictionary is not None:
        return _select_rows(
            read_bytes(Node(*node.dictionary), name), _read_indexes(node, name), name
        )
    if node.format == "+r" and len(node.children) == 2:
        return _select_rows(read_bytes(Node(*node.children[1]), name), _read_runs(node, name), name)
    if node.format.startswith("w:") and node.buffers:
        return _read_fixed_size(node, name)
    if node.format not in (*_NARROW, *_WIDE, *_VIEWS, "n"):
        raise TypeError(
            f"the column {name!r} has the Arrow type {type_name(node)}: it takes binary or "
            "string, cast it"
        )
    if rows == 0 or node.format == "n":
        validity = np.zeros((rows + 7) // 8, dtype=np.uint8) if rows else None
        return BytesColumn(
            np.empty(0, dtype=np.uint8), np.zeros(rows + 1, dtype=np.int32), validity
        )
    if node.format in _VIEWS:
        valid_bits, views, *pools = node.buffers
        data, ends = _rows.column_from_views(
            views, valid_bits if node.null_count else None, tuple(pools[:-1]), start, rows
        )
        return BytesColumn(
            np.frombuffer(data, dtype=np.uint8),
            np.frombuffer(ends, dtype=np.int64),
            node.validity,
            start,
        )
    offset_type: Any = np.int32 if node.format in _NARROW else np.int64
    offsets = np.frombuffer(node.buffers[1], dtype=offset_type)[start : start + rows + 1]
    return BytesColumn(
        np.frombuffer(node.buffers[2], dtype=np.uint8), offsets, node.validity, start
    )


def _read_indexes(node: Node, name: str) -> list[int | None]:
    """The dictionary's row of each row; None for a null."""
    kind: Any = _INDEXES.get(node.format)
    if kind is None:
        raise TypeError(
            f"the column {name!r} has the Arrow type {type_name(node)}: the indices are no integers"
        )
    if node.length == 0:
        return []
    numbers: list[int | None] = np.frombuffer(node.buffers[1], dtype=kind)[node.offset :][
        : node.length
    ].tolist()
    if node.null_count:
        numbers = [
            number if is_valid else None
            for number, is_valid in zip(numbers, node.valid_rows(), strict=True)
        ]
    return numbers


def _read_runs(node: Node, name: str) -> list[int | None]:
    """The run of each row. The offset and the length of the array count rows, not runs."""
    ends = _read_integers(Node(*node.children[0]), name)
    if node.length == 0:
        return []
    rows_end = node.offset + node.length
    is_rising = len(ends) > 0 and ends[0] >= 1 and not (np.diff(ends) < 1).any()
    if not is_rising or ends[-1] < rows_end:
        raise InvalidRecordError(
            f"the runs of the column {name!r} do not cover its rows",
            expected=f"rising ends up to {rows_end}",
        )
    rows = np.arange(node.offset, rows_end)
    runs: list[int | None] = np.searchsorted(ends, rows, side="right").tolist()
    return runs


def _select_rows(column: BytesColumn, rows: list[int | None], name: str) -> BytesColumn:
    """Some rows of a column, each any number of times; None is a null.

    Raises InvalidRecordError for a row that does not exist.
    """
    values = list(column)
    for row in rows:
        if row is not None and not 0 <= row < len(values):
            raise InvalidRecordError(
                f"the column {name!r} refers to a value that its dictionary does not have",
                expected=f"0 to {len(values) - 1}",
                found=row,
            )
    return BytesColumn.of([None if row is None else values[row] for row in rows])


def _read_fixed_size(node: Node, name: str) -> BytesColumn:
    """A column of byte strings of one size, which has no offsets. Raises InvalidRecordError."""
    width = int(node.format[2:])
    first = node.offset * width
    last = (node.offset + node.length) * width
    data = np.frombuffer(node.buffers[1], dtype=np.uint8)[first:last]
    offsets = np.arange(node.length + 1, dtype=np.int64) * width
    return BytesColumn(data, offsets, node.validity, node.offset)


def type_name(node: Node) -> str:
    """The type of an array as pyarrow writes it; a type without a name here as its format in the C
    data interface.
    """
    name = _NAMES.get(node.format)
    if name is None:
        name = f"with the format {node.format!r}"
        for head, head_name in _HEADS.items():
            if node.format.startswith(head):
                name = head_name
    return name if node.dictionary is None else f"dictionary of {name} indices"


def read_table(node: Node) -> Table:
    """The columns of a struct array or record batch. Raises TypeError, InvalidRecordError."""
    if not node.valid_rows().all():
        raise InvalidRecordError("a row of the Arrow data is null: it has no value to write")
    columns = Table()
    for description in node.children:
        child = Node(*description)
        name = child.name
        child = _cut_child(child, node, name)
        if name == "value":
            columns.values = read_bytes(child, name)
        elif name == "key":
            columns.keys = read_bytes(child, name)
        elif name == "headers":
            columns.headers = _read_headers(child)
        elif name == "timestamp":
            columns.timestamps = _read_timestamps(child)
        elif name == "partition":
            columns.partitions = _read_partitions(child)
        elif name not in ASSIGNED:
            hint = ""
            if name.startswith("__index_level_"):
                hint = "; reset_index() makes a column of a frame's index, or drops it"
            raise TypeError(f"the column {name!r} is none of {', '.join(COLUMNS)}{hint}")
    if columns.values is None:
        raise TypeError("the Arrow data has no column 'value'")
    return columns


def _cut_child(child: Node, parent: Node, name: str) -> Node:
    """The child of a struct, cut to the rows of the struct, which begin at its own offset. Raises
    InvalidRecordError.

    Nothing is read beyond an array: its buffers are as long as its own offset and length say, and
    the struct can say more.
    """
    end = parent.offset + parent.length
    if child.length < end:
        raise InvalidRecordError(
            f"the column {name!r} is shorter than its Arrow array says",
            expected=end,
            found=child.length,
        )
    return child._replace(offset=child.offset + parent.offset, length=parent.length)


def _read_integers(node: Node, name: str) -> NDArray[np.int64]:
    kind: Any = _INTEGERS.get(node.format)
    if node.format[:4] in _PER_MILLISECOND:
        kind = np.int64
    if kind is None or node.dictionary is not None:
        raise TypeError(
            f"the column {name!r} has the Arrow type {type_name(node)}: it takes integers"
        )
    if node.length == 0:
        return np.empty(0, dtype=np.int64)
    integers = np.frombuffer(node.buffers[1], dtype=kind)
    return integers[node.offset : node.offset + node.length].astype(np.int64)


def _read_timestamps(node: Node) -> NDArray[np.int64]:
    """Milliseconds; a null is the current time, a date its midnight in UTC, and a time without a
    zone one in UTC.
    """
    if node.format in _DATES and node.dictionary is None:
        kind, scale = _DATES[node.format]
        dates = _read_integers(node._replace(format=_FORMATS[kind]), "timestamp") * scale
        return np.where(node.valid_rows(), dates, system.wall_ms()) if node.null_count else dates
    if node.format not in _INTEGERS and node.format[:4] not in _PER_MILLISECOND:
        raise TypeError(
            f"the column 'timestamp' has the Arrow type {type_name(node)}: it takes a timestamp "
            "or integers of milliseconds"
        )
    numbers = _read_integers(node, "timestamp")
    scale = _PER_MILLISECOND.get(node.format[:4], 1)
    milliseconds = numbers * 1000 if scale == 0 else numbers // scale
    if node.null_count:
        return np.where(node.valid_rows(), milliseconds, system.wall_ms())
    return milliseconds


def read_times(source: Any) -> NDArray[np.int64]:
    """The milliseconds of an Arrow array or of a chunked one. Raises TypeError,
    InvalidRecordError.
    """
    chunks = [_read_timestamps(node) for node in read_arrays(source)]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int64)


def _read_partitions(node: Node) -> NDArray[np.int64]:
    """Partition numbers; -1 for a null: the partitioner chooses."""
    if node.format not in _INTEGERS:
        raise TypeError(
            f"the column 'partition' has the Arrow type {type_name(node)}: it takes integers"
        )
    numbers = _read_integers(node, "partition")
    return np.where(node.valid_rows(), numbers, -1) if node.null_count else numbers


def _read_headers(node: Node) -> Headers:
    """list<struct<key: string, value: binary>>, small or large, or a map; a null list is empty."""
    entries = Node(*node.children[0]) if node.format in ("+l", "+L", "+m") else None
    if entries is None or entries.format != "+s" or len(entries.children) != 2:
        raise TypeError(
            f"the column 'headers' has the Arrow type {type_name(node)}: it takes "
            "list<struct<key: string, value: binary>>"
        )
    keys, values = (Node(*child) for child in entries.children)
    keys = _cut_child(keys, entries, "headers")
    values = _cut_child(values, entries, "headers")
    key_column = read_bytes(keys, "headers")
    value_column = read_bytes(values, "headers")
    if key_column.validity is not None and not keys.valid_rows().all():
        raise InvalidRecordError("the key of a header is null")
    if node.length == 0:
        return Headers(np.zeros(1, dtype=np.int32), key_column, value_column)
    kind: Any = np.int64 if node.format == "+L" else np.int32
    starts = np.frombuffer(node.buffers[1], dtype=kind)[node.offset : node.offset + node.length + 1]
    if node.null_count and np.diff(starts)[~node.valid_rows()].any():
        raise InvalidRecordError("a null list of headers is not empty")
    return Headers(starts.astype(np.int32, copy=False), key_column, value_column)
