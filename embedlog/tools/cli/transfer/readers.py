"""Reads rows of files in one of the formats, for an import.

- Columns are value, key, headers, timestamp and partition; the other columns of a scan are ignored,
  unknown ones are errors.
- Contents are checked: a damaged or foreign file is an InvalidRecordError with its path.
- Memory is bounded by a group of rows; the number of the first row is given, and earlier ones are
  not converted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO, Protocol

from embedlog import ConfigError, InvalidRecordError, Producer
from embedlog.tools.cli.transfer.csv_text import bytes_column_of, headers_of
from embedlog.tools.cli.transfer.json_rows import NO_TIMESTAMP, ListRows, read_list_rows

if TYPE_CHECKING:
    import pyarrow

COLUMNS = ("value", "key", "headers", "timestamp", "partition")
IGNORED = ("topic", "offset", "timestamp_type", "leader_epoch")
GROUP_BYTES = 8 << 20
GROUP_ROWS = 1 << 16
BLOCK_BYTES = 32 << 20  # of a CSV file: the largest row


class Rows(Protocol):
    """Some rows of a file, in their order."""

    @property
    def count(self) -> int: ...
    @property
    def partition_count(self) -> int:
        """The partitions that a topic needs for the rows that name theirs; 0 if none does."""

    @property
    def size_bytes(self) -> int: ...
    def send(
        self, producer: Producer[bytes, bytes], topic: str, partition: int | None, keep: bool
    ) -> None:
        """Send the rows; to their own partitions with `keep`, or to `partition`."""


Read = Callable[[BinaryIO, str, int], Iterator[Rows]]  # file, its path for messages, the first row


@dataclass(frozen=True)
class ArrowRows:
    """Rows as a record batch with some of COLUMNS."""

    batch: pyarrow.RecordBatch

    @property
    def count(self) -> int:
        return int(self.batch.num_rows)

    @property
    def partition_count(self) -> int:
        import pyarrow
        from pyarrow import compute

        if "partition" not in self.batch.schema.names:
            return 0
        column = self.batch.column("partition")
        if not pyarrow.types.is_integer(column.type):
            return 0  # the producer refuses it, by the name of the column
        highest = compute.max(column).as_py()
        return 0 if highest is None else int(highest) + 1

    @property
    def size_bytes(self) -> int:
        return int(self.batch.nbytes)

    def send(
        self, producer: Producer[bytes, bytes], topic: str, partition: int | None, keep: bool
    ) -> None:
        batch = self.batch
        if not keep and "partition" in batch.schema.names:
            batch = batch.drop_columns(["partition"])
        producer.send_batch(topic, batch, partition=partition)


# ---- Arrow ---------------------------------------------------------------------------------------


def _read_parquet(file: BinaryIO, path: str, first: int) -> Iterator[Rows]:
    from pyarrow import parquet

    parquet_file = parquet.ParquetFile(file)
    metadata = parquet_file.metadata
    names = _select_columns(parquet_file.schema_arrow.names, path)
    counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    ends = list(accumulate(counts))
    groups = [number for number, end in enumerate(ends) if end > first]
    if not groups:
        return
    size = sum(metadata.row_group(number).total_byte_size for number in groups)
    rows = sum(counts[number] for number in groups)
    count = max(1, min(GROUP_ROWS, GROUP_BYTES * rows // max(1, size)))
    skipped = ends[groups[0]] - counts[groups[0]]
    yield from _skip_rows(parquet_file.iter_batches(count, groups, names), first - skipped)


def _read_arrow(file: BinaryIO, path: str, first: int) -> Iterator[Rows]:
    from pyarrow import ipc

    arrow_file = ipc.open_file(file)
    names = _select_columns(arrow_file.schema.names, path)

    def batches() -> Iterator[pyarrow.RecordBatch]:
        for number in range(arrow_file.num_record_batches):
            batch = arrow_file.get_batch(number)
            batch.validate(full=True)
            yield batch.select(names)

    yield from _skip_rows(batches(), first)


def _read_csv(file: BinaryIO, path: str, first: int) -> Iterator[Rows]:
    import pyarrow
    from pyarrow import csv

    kinds = {
        "key": pyarrow.binary(),
        "value": pyarrow.binary(),
        "headers": pyarrow.string(),
        "partition": pyarrow.int32(),
    }
    csv_file = csv.open_csv(
        file,
        csv.ReadOptions(block_size=BLOCK_BYTES),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=kinds,
            check_utf8=False,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    names = _select_columns(csv_file.schema.names, path)
    yield from _skip_rows((_decode_texts(batch.select(names)) for batch in csv_file), first)


def _decode_texts(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """The columns of a CSV file with the types of a scan."""
    import json

    import pyarrow

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in ("key", "value"):
        if name in columns:
            columns[name] = bytes_column_of(columns[name])
    if "headers" in columns:
        kind = pyarrow.list_(
            pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
        )
        pairs = [
            headers_of(None if text is None else json.loads(text))
            for text in columns["headers"].to_pylist()
        ]
        columns["headers"] = pyarrow.array(
            [[{"key": name, "value": value} for name, value in row] for row in pairs], kind
        )
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _select_columns(names: list[str], path: str) -> list[str]:
    """The columns to read. Raises ConfigError for an unknown one, and without a value."""
    expected = f"value, and some of {', '.join(COLUMNS[1:])}"
    for name in names:
        if name not in COLUMNS and name not in IGNORED:
            raise ConfigError(f"columns of {path}", expected=expected, found=repr(name))
    if "value" not in names or len(set(names)) < len(names):
        raise ConfigError(f"columns of {path}", expected=expected, found=", ".join(names))
    return [name for name in names if name in COLUMNS]


def _skip_rows(batches: Iterator[pyarrow.RecordBatch], first: int) -> Iterator[Rows]:
    """The rows from `first` on."""
    for batch in batches:
        if first < batch.num_rows:
            for start in range(max(first, 0), batch.num_rows, GROUP_ROWS):
                yield ArrowRows(_fill_times(_simplify_types(batch.slice(start, GROUP_ROWS))))
        first -= batch.num_rows


def _simplify_types(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """The batch without the types that a producer does not take: dictionaries, bytes of a fixed
    size, unsigned integers.
    """
    import pyarrow

    columns = []
    for column in batch.columns:
        plain = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
        if pyarrow.types.is_fixed_size_binary(plain.type):
            plain = plain.cast(pyarrow.binary())
        elif pyarrow.types.is_integer(plain.type):
            plain = plain.cast(pyarrow.int64())
        columns.append(plain)
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _fill_times(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """The batch with the current time in the place of missing timestamps, which are null or -1.
    Raises InvalidRecordError.
    """
    import pyarrow
    from pyarrow import compute

    if "timestamp" not in batch.schema.names:
        return batch
    at = batch.schema.get_field_index("timestamp")
    column = batch.column(at)
    if pyarrow.types.is_null(column.type):
        return batch.drop_columns(["timestamp"])
    if not pyarrow.types.is_timestamp(column.type) and not pyarrow.types.is_integer(column.type):
        raise InvalidRecordError(
            "the column timestamp",
            expected="timestamps, or integers of milliseconds",
            found=column.type,
        )
    if pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.timestamp("ms"), safe=False)
    numbers = column.cast(pyarrow.int64())
    least = compute.min(numbers).as_py()
    if least is not None and least < NO_TIMESTAMP:
        raise InvalidRecordError(
            "the column timestamp",
            expected="0 and more milliseconds since 1970, or -1 for none",
            found=least,
        )
    missing = compute.fill_null(compute.less(numbers, 0), True)
    numbers = compute.if_else(missing, int(time.time() * 1000), numbers)
    return batch.set_column(at, "timestamp", numbers)


# ---- all formats ---------------------------------------------------------------------------------


def _read_lines(file: BinaryIO, path: str, first: int) -> Iterator[ListRows]:
    yield from read_list_rows(file, first, GROUP_BYTES)


READERS: dict[str, Read] = {
    "parquet": _read_parquet,
    "delta": _read_parquet,
    "arrow": _read_arrow,
    "jsonl": _read_lines,
    "csv": _read_csv,
}
SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}


def read_rows(layout: str, file: BinaryIO, path: str, first: int) -> Iterator[Rows]:
    """The rows of a file from number `first` on. Raises InvalidRecordError, ConfigError."""
    groups = READERS[layout](file, path, first)
    while True:
        try:
            group = next(groups, None)
        except InvalidRecordError as error:
            error.path = path
            raise
        except (
            ValueError,
            OSError,
            KeyError,
            TypeError,
            NotImplementedError,
            RecursionError,
            MemoryError,
        ) as problem:
            text = " ".join(str(problem).split())[:200]
            raise InvalidRecordError(
                f"not a readable {layout} file", path=path, found=text or repr(problem)
            ) from problem
        if group is None:
            return
        yield group
