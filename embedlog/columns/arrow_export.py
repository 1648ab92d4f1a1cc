"""Defines the Arrow columns of records: their names and types, and the descriptions that `_rows`
turns into capsules.

- Names, types and order of the columns are public (the API page); the module does not need pyarrow.
- No buffer is copied: a description refers to the decoder's arrays, and constant columns share one
  array.
- Every field is nullable in the schema, as in a schema written by hand; only keys, values and
  header values can be null.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from embedlog._native.lazy_numpy import np
from embedlog.errors import ConfigError
from embedlog.format.record_columns import BytesColumn, Decoded, Headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

# format, name, nullable, children, dictionary
Schema: TypeAlias = tuple[str, str, bool, tuple[Any, ...], Any]
# length, nulls, offset, buffers, children, dictionary
Array: TypeAlias = tuple[int, int, int, tuple[Any, ...], tuple[Any, ...], Any]

UNKNOWN_NULLS = -1


def _field(name: str, type_: str, *children: Schema, dictionary: Schema | None = None) -> Schema:
    return (type_, name, True, children, dictionary)


_HEADER = _field("item", "+s", _field("key", "u"), _field("value", "z"))

FIELDS: dict[str, Schema] = {
    "topic": _field("topic", "i", dictionary=_field("", "u")),
    "partition": _field("partition", "i"),
    "offset": _field("offset", "l"),
    "timestamp": _field("timestamp", "tsm:UTC"),
    "timestamp_type": _field("timestamp_type", "c"),
    "key": _field("key", "z"),
    "value": _field("value", "z"),
    "headers": _field("headers", "+l", _HEADER),
    "leader_epoch": _field("leader_epoch", "i"),
}
ALL_COLUMNS = tuple(FIELDS)


def check_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """The requested columns in their order; None is all. Raises ConfigError for an unknown or
    repeated column, and for none.
    """
    if columns is None:
        return ALL_COLUMNS
    if isinstance(columns, str):
        raise TypeError(f"columns: a list of names, not one text: [{columns!r}]")
    names = tuple(columns)
    for name in names:
        if name not in FIELDS:
            raise ConfigError(
                "columns: unknown column", expected=", ".join(ALL_COLUMNS), found=repr(name)
            )
    if len(set(names)) < len(names) or not names:
        raise ConfigError("columns", expected="at least one, none twice", found=repr(list(names)))
    return names


def schema_of(columns: Sequence[str]) -> Schema:
    """The schema of a record batch with these columns."""
    return ("+s", "", False, tuple(FIELDS[name] for name in columns), None)


class Layout:
    """Makes Arrow descriptions of the decoded records of one partition; contains their common
    parts.
    """

    def __init__(self, topic: str, partition: int, columns: Sequence[str]) -> None:
        text = topic.encode()
        self._columns = columns
        self._topic: Array = (1, 0, 0, (None, np.array([0, len(text)], np.int32), text), (), None)
        self._partition = partition
        self._constants: dict[str, NDArray[np.int32]] = {}

    def describe_rows(self, decoded: Decoded) -> Array:
        """One struct array: a record batch of `decoded`."""
        count = decoded.count
        columns = tuple(self._describe_column(name, decoded, count) for name in self._columns)
        return (count, 0, 0, (None,), columns, None)

    def _describe_column(self, name: str, decoded: Decoded, count: int) -> Array:
        if name == "key":
            return _describe_bytes(decoded.keys, count)
        if name == "value":
            return _describe_bytes(decoded.values, count)
        if name == "headers":
            return _describe_headers(decoded.headers, count)
        if name == "topic":
            return (count, 0, 0, (None, self._constant(name, 0, count)), (), self._topic)
        if name == "partition":
            return _describe_numbers(self._constant(name, self._partition, count), count)
        return _describe_numbers(getattr(decoded, _ATTRIBUTES[name]), count)

    def _constant(self, name: str, number: int, count: int) -> NDArray[np.int32]:
        """`count` equal numbers: a slice of an array that all batches share."""
        array = self._constants.get(name)
        if array is None or len(array) < count:
            size = count if array is None else max(count, 2 * len(array))
            array = self._constants[name] = np.full(size, number, np.int32)
        return array[:count]


_ATTRIBUTES = {
    "offset": "offsets",
    "timestamp": "timestamps",
    "timestamp_type": "timestamp_types",
    "leader_epoch": "leader_epochs",
}


def _describe_numbers(array: NDArray[Any], count: int) -> Array:
    return (count, 0, 0, (None, array), (), None)


def _describe_bytes(column: BytesColumn | None, count: int) -> Array:
    if column is None:  # not in the data: every row is null
        no_validity = np.zeros((count + 7) // 8, np.uint8)
        return (count, count, 0, (no_validity, np.zeros(count + 1, np.int32), b""), (), None)
    validity = _align_validity(column, count)
    null_count = 0 if validity is None else UNKNOWN_NULLS
    buffers = (validity, _narrow_offsets(column.offsets), column.data)
    return (count, null_count, 0, buffers, (), None)


def _align_validity(column: BytesColumn, count: int) -> NDArray[np.uint8] | None:
    if column.validity is None or column.validity_offset == 0:
        return column.validity
    bits = np.unpackbits(column.validity, bitorder="little")[column.validity_offset :][:count]
    return np.packbits(bits, bitorder="little")


def _narrow_offsets(offsets: NDArray[Any]) -> NDArray[np.int32]:
    """The offsets in 32 bits, as in Arrow's `binary`; the decoder limits a chunk to that size."""
    return offsets if offsets.dtype == np.int32 else offsets.astype(np.int32)


def _describe_headers(headers: Headers | None, count: int) -> Array:
    if headers is None:
        empty: Array = (0, 0, 0, (None, np.zeros(1, np.int32), b""), (), None)
        no_pairs: Array = (0, 0, 0, (None,), (empty, empty), None)
        return (count, 0, 0, (None, np.zeros(count + 1, np.int32)), (no_pairs,), None)
    pair_count = len(headers.keys)
    names = _describe_bytes(_repair_utf8(headers.keys), pair_count)
    values = _describe_bytes(headers.values, pair_count)
    pairs: Array = (pair_count, 0, 0, (None,), (names, values), None)
    return (count, 0, 0, (None, headers.starts), (pairs,), None)


def _repair_utf8(names: BytesColumn) -> BytesColumn:
    """The names as valid UTF-8, which Kafka specifies, a writer may have violated, and Arrow
    requires.

    If the data is valid as a whole, and no name begins inside a character, each name is valid.
    """
    if not len(names):
        return names
    data = names.data[: int(names.offsets[-1])]
    begins = names.offsets[:-1][names.offsets[:-1] < names.offsets[1:]]
    try:
        str(data.data, "utf-8")
        if not ((data[begins] & 0xC0) == 0x80).any():
            return names
    except UnicodeDecodeError:
        pass
    return BytesColumn.of([(name or b"").decode("utf-8", "replace").encode() for name in names])
