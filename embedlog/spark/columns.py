"""Converts record batches of a scan to the exact types that Spark requires, in limited sizes.

- The columns have the types and nullability of the target schema: Spark compares schemas for
  equality.
- Bytes are never copied: keys and values are the scan's own buffers; only small columns are
  created.
- A batch has at most about `BATCH_BYTES`, so a task's memory does not depend on the records.
- As in Spark's Kafka source, headers are null for a record without headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import embedlog
from embedlog.spark.read_options import COLUMNS

BATCH_BYTES = 8 << 20
BATCH_ROWS = 65_536

SOURCES = {"timestampType": "timestamp_type"}  # Spark's names that differ from those of a scan


def source_columns(names: Sequence[str]) -> list[str]:
    """The scan's columns for these. Partition and offset are always read: they are cheap, and show
    the progress of a task.
    """
    columns = [SOURCES.get(name, name) for name in names if name != "topic"]
    return list(dict.fromkeys([*columns, "partition", "offset"]))


class Shaper:
    """Creates batches of one topic."""

    def __init__(self, topic: str, schema: Any) -> None:
        self._topic = topic
        self._schema = schema
        self._topics: Any = None
        special: dict[str, Callable[[Any], Any]] = {
            "topic": self._repeat_topic,
            "headers": self._headers,
        }
        self._makers = [(field, special.get(field.name)) for field in schema]

    def shape(self, batch: Any) -> Iterator[Any]:
        """The rows of one batch of the scan, in batches of limited size."""
        import pyarrow

        arrays = []
        for field, make in self._makers:
            if make is not None:
                arrays.append(make(batch))
            else:
                column = batch.column(SOURCES.get(field.name, field.name))
                arrays.append(column if column.type == field.type else self._cast(column, field))
        yield from split_into_batches(pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _repeat_topic(self, batch: Any) -> Any:
        """The topic's name in every row: a slice of one column that all batches share."""
        import pyarrow

        if self._topics is None or len(self._topics) < batch.num_rows:
            self._topics = pyarrow.repeat(
                pyarrow.scalar(self._topic, pyarrow.string()), max(batch.num_rows, 4096)
            )
        return self._topics[: batch.num_rows]

    def _cast(self, column: Any, field: Any) -> Any:
        """Raises InvalidTimestampError, which names the option that leaves the column out: Spark
        asks for unused columns, too.
        """
        import pyarrow

        try:
            return column.cast(field.type)
        except pyarrow.ArrowInvalid as problem:
            others = ",".join(name for name in self._schema.names if name != field.name)
            hint = ""
            if others:
                hint = f"; a query that does not use it needs the option columns={others}"
            raise embedlog.InvalidTimestampError(
                f"Spark's column {field.name} cannot represent a value{hint}: {problem}"
            ) from None

    def _headers(self, batch: Any) -> Any:
        import pyarrow

        lists = batch.column("headers")
        kind = self._schema.field("headers").type
        pairs = pyarrow.StructArray.from_arrays(
            lists.values.flatten(), fields=list(kind.value_type)
        )
        counts = lists.value_lengths()
        none = pyarrow.compute.equal(counts, 0)
        return pyarrow.ListArray.from_arrays(lists.offsets, pairs, type=kind, mask=none)


def split_into_batches(batch: Any) -> Iterator[Any]:
    """Slices of at most `BATCH_ROWS` rows and, unless a single row is larger, about
    `BATCH_BYTES`.
    """
    rows = batch.num_rows
    size = batch.nbytes
    if rows <= 1 or (rows <= BATCH_ROWS and size <= BATCH_BYTES):
        yield batch
        return
    step = min(BATCH_ROWS, max(1, rows * BATCH_BYTES // max(size, 1)), -(-rows // 2))
    for first in range(0, rows, step):
        yield from split_into_batches(batch.slice(first, step))


def struct_of(names: Sequence[str]) -> Any:
    """These columns as Spark's types; `COLUMNS` has their SQL names."""
    from pyspark.sql import types

    header = types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
    kinds = {
        "BINARY": types.BinaryType(),
        "STRING": types.StringType(),
        "INT": types.IntegerType(),
        "BIGINT": types.LongType(),
        "TIMESTAMP": types.TimestampType(),
        "ARRAY<STRUCT<key: STRING, value: BINARY>>": types.ArrayType(header),
    }
    return types.StructType([types.StructField(name, kinds[COLUMNS[name]]) for name in names])


def arrow_schema(struct: Any) -> Any:
    """The Arrow schema that Spark requires for these columns of the source. Raises
    MissingExtraError without pyarrow.

    pyspark's own function for this is not public, and its arguments differ from version to version.
    """
    try:
        import pyarrow
    except ImportError as missing:
        raise embedlog.MissingExtraError(
            "the Spark source needs pyarrow, on the executors too", extra="spark"
        ) from missing
    header = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    kinds = {
        "BINARY": pyarrow.binary(),
        "STRING": pyarrow.string(),
        "INT": pyarrow.int32(),
        "BIGINT": pyarrow.int64(),
        "TIMESTAMP": pyarrow.timestamp("us", tz="UTC"),
        "ARRAY<STRUCT<key: STRING, value: BINARY>>": pyarrow.list_(
            pyarrow.field("element", header)
        ),
    }
    return pyarrow.schema(
        [
            pyarrow.field(field.name, kinds[COLUMNS[field.name]], nullable=field.nullable)
            for field in struct
        ]
    )
