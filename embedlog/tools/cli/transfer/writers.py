"""Writes the records of a scan to an open file in one of the formats.

Memory is bounded by a group of rows, with any size of the file. parquet, Arrow IPC and CSV have the
columns of a scan; JSON lines have the fields of `cat --json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from embedlog import MissingExtraError, Scan
from embedlog.tools.cli.record_format import envelope

if TYPE_CHECKING:
    import pyarrow

# scan, file and compression; returns the number of records
Write = Callable[[Scan, BinaryIO, str], int]

GROUP_BYTES = 64 << 20  # of a row group of a parquet file


def _write_parquet(scan: Scan, file: BinaryIO, compression: str) -> int:
    return _write_parquet_file(scan, file, compression, None)


def _write_parquet_file(
    scan: Scan, file: BinaryIO, compression: str, timestamps: str | None
) -> int:
    from pyarrow import Table, parquet

    rows = 0
    with parquet.ParquetWriter(
        file, scan.schema, compression=compression, coerce_timestamps=timestamps
    ) as writer:
        for group in _group_batches(scan):
            writer.write_table(Table.from_batches(group))
            rows += sum(batch.num_rows for batch in group)
    return rows


def _write_delta(scan: Scan, file: BinaryIO, compression: str) -> int:
    """A parquet file of a Delta table: its timestamps have microseconds."""
    return _write_parquet_file(scan, file, compression, "us")


def _group_batches(scan: Scan) -> Iterator[list[pyarrow.RecordBatch]]:
    group = []
    size = 0
    for batch in scan:
        group.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield group
            group = []
            size = 0
    if group:
        yield group


def _write_arrow(scan: Scan, file: BinaryIO, compression: str) -> int:
    from pyarrow import ipc

    rows = 0
    options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with ipc.new_file(file, scan.schema, options=options) as writer:
        for batch in scan:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_csv(scan: Scan, file: BinaryIO, compression: str) -> int:
    from pyarrow import csv

    from embedlog.tools.cli.transfer.csv_text import text_columns_of

    rows = 0
    for batch in scan:
        csv.write_csv(text_columns_of(batch), file, csv.WriteOptions(include_header=rows == 0))
        rows += batch.num_rows
    return rows


def _write_lines(scan: Scan, file: BinaryIO, compression: str) -> int:
    rows = 0
    for record in scan.records():
        file.write(envelope(record))
        rows += 1
    return rows


WRITERS: dict[str, Write] = {
    "parquet": _write_parquet,
    "delta": _write_delta,
    "arrow": _write_arrow,
    "jsonl": _write_lines,
    "csv": _write_csv,
}
_OF_PARQUET = ("zstd", "none", "snappy", "gzip", "lz4", "brotli")
COMPRESSIONS = {"parquet": _OF_PARQUET, "delta": _OF_PARQUET, "arrow": ("zstd", "none", "lz4")}


def check_installed(layout: str) -> None:
    """Raises MissingExtraError if the format needs pyarrow and it is not installed."""
    if layout == "jsonl":
        return
    try:
        import pyarrow  # noqa: F401
    except ImportError as missing:
        raise MissingExtraError(
            f"{layout} files need pyarrow; jsonl does not", extra="arrow"
        ) from missing
