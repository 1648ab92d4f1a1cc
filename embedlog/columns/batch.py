"""Contains `Batch`, records of one partition as columns without an object per record.

- A Batch needs numpy only; Arrow consumers take it through `__arrow_c_array__`, without a copy.
- Its arrays are read-only views that keep their memory alive without the Batch.
- Rows are in offset order; offsets may have gaps (compaction, markers).
- A column that the scan does not read is an error, never an empty column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from embedlog._native import _rows
from embedlog._native._rows import Record
from embedlog._native.lazy_numpy import np
from embedlog.columns.arrow_export import ALL_COLUMNS, Layout, schema_of
from embedlog.config import keywords, other_clients
from embedlog.errors import ConfigError
from embedlog.format.record_columns import BytesColumn, Decoded, Headers

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Batch", "record_of", "records_of"]

Column = TypeVar("Column")


def _buffers_of(column: BytesColumn | None) -> tuple[Any, Any, Any, int] | None:
    """A column in the form of `_rows`."""
    if column is None:
        return None
    return column.data, column.offsets, column.validity, column.validity_offset


def records_of(topic: str, partition: int, decoded: Decoded) -> list[Record]:
    """All rows as `Record`s, made in one call. REQUIRES: every column was decoded."""
    return _records(topic, partition, decoded, 0, decoded.count)


def record_of(topic: str, partition: int, decoded: Decoded, row: int) -> Record:
    """The `Record` of one row. REQUIRES: every column was decoded."""
    return _records(topic, partition, decoded, row, row + 1)[0]


def _records(topic: str, partition: int, decoded: Decoded, start: int, stop: int) -> list[Record]:
    headers = None
    if decoded.headers is not None:
        headers = (
            decoded.headers.starts,
            _buffers_of(decoded.headers.keys),
            _buffers_of(decoded.headers.values),
        )
    return _rows.records_from_columns(
        topic,
        partition,
        decoded.offsets,
        decoded.timestamps,
        decoded.timestamp_types,
        decoded.leader_epochs,
        _buffers_of(decoded.keys),
        _buffers_of(decoded.values),
        headers,
        start,
        stop,
    )


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


@keywords.checked
class Batch(metaclass=other_clients.Hinting):
    """Consecutive records of one partition in columns.

    `keys` and `values` have `data` (uint8), `offsets` (row i is `data[offsets[i]:offsets[i + 1]]`)
    and `validity` (a bitmap, or None if no row is null). `values[i]` is row i as bytes or None. A
    batch of a scan has the columns of the scan: any other raises ConfigError.

    Examples:
        >>> for batch in consumer.batches(timeout=0):                  # doctest: +SKIP
        ...     total += int(np.diff(batch.values.offsets).sum())
    """

    __slots__ = ("_decoded", "columns", "partition", "topic")

    topic: str
    """The name of the topic."""
    partition: int
    """The number of the partition."""
    columns: tuple[str, ...]
    """The names of the columns that were read."""

    def __init__(
        self, topic: str, partition: int, decoded: Decoded, columns: Sequence[str] = ALL_COLUMNS
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.columns = tuple(columns)
        self._decoded = decoded

    def __len__(self) -> int:
        return self._decoded.count

    def __repr__(self) -> str:
        return (
            f"Batch({self.topic}-{self.partition}, {self.num_rows} records from offset "
            f"{self.base_offset})"
        )

    @property
    def num_rows(self) -> int:
        """The number of records."""
        return self._decoded.count

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return int(self.offsets[0])

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The offset of each record."""
        return _read_only(self._require_column("offset", self._decoded.offsets))

    @property
    def timestamps_ms(self) -> NDArray[np.int64]:
        """The timestamp of each record, in milliseconds since 1970 UTC."""
        return _read_only(self._require_column("timestamp", self._decoded.timestamps))

    @property
    def timestamp_types(self) -> NDArray[np.int8]:
        """0 for a timestamp of the producer, 1 for the time of the append."""
        return _read_only(self._require_column("timestamp_type", self._decoded.timestamp_types))

    @property
    def leader_epochs(self) -> NDArray[np.int32]:
        """The leader epoch in which each record was appended."""
        return _read_only(self._require_column("leader_epoch", self._decoded.leader_epochs))

    @property
    def keys(self) -> BytesColumn:
        """The keys; `keys[i]` is bytes or None."""
        return self._require_column("key", self._decoded.keys)

    @property
    def values(self) -> BytesColumn:
        """The values; `values[i]` is bytes or None."""
        return self._require_column("value", self._decoded.values)

    @property
    def headers(self) -> Headers | None:
        """The headers: those of row i are `keys` and `values` from `starts[i]` up to
        `starts[i + 1]`.
        """
        self._check_columns(("headers",))
        return self._decoded.headers

    def _require_column(self, name: str, column: Column | None) -> Column:
        """The column, if it was read."""
        if column is None:
            self._check_columns((name,))
        assert column is not None
        return column

    def _check_columns(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise ConfigError(
                "columns of this batch", expected=", ".join(missing), found=", ".join(self.columns)
            )

    def records(self) -> list[Record[bytes, bytes]]:
        """The same records as objects. Raises ConfigError for a batch of a scan that does not read
        all columns.
        """
        self._check_columns(ALL_COLUMNS)
        return records_of(self.topic, self.partition, self._decoded)

    def __arrow_c_schema__(self) -> object:
        return _rows.arrow_schema(schema_of(self.columns))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """A struct array with the columns of a scan. A requested schema is ignored: the consumer
        may cast.
        """
        rows = Layout(self.topic, self.partition, self.columns).describe_rows(self._decoded)
        return _rows.arrow_schema(schema_of(self.columns)), _rows.arrow_array(rows)
