"""Records for Spark, and the rows that its data source returns."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import embedlog
from embedlog.spark.read_plan import ReadTask
from embedlog.spark.read_task import read

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", HEADER))),
    ]
)
Row = tuple[Any, ...]


def table(planned: list[ReadTask], schema: Any = SCHEMA) -> Any:
    return pa.Table.from_batches(
        [batch for task in planned for batch in read(pickle.loads(pickle.dumps(task)), schema)],
        schema,
    )


def rows_of(whole: Any) -> dict[str, list[Row]]:
    """The rows of each topic, in the form of `random_log.row_of`, in order."""
    found: dict[str, list[Row]] = {}
    for row in whole.to_pylist():
        time_ms = (row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        assert row["headers"] != []
        facts = (
            row["partition"],
            row["offset"],
            time_ms,
            row["timestampType"],
            row["key"],
            row["value"],
            headers,
        )
        found.setdefault(row["topic"], []).append(facts)
    return {topic: sorted(rows, key=lambda row: row[:2]) for topic, rows in found.items()}


def offsets(planned: list[ReadTask]) -> list[tuple[int, int]]:
    found = table(planned, SCHEMA)
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def span(number: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(number, offset) for offset in range(start, end)]


def append(log: embedlog.Log, count: int) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(
                "t",
                b"value %d" % number,
                key=b"k",
                partition=number % 2,
                timestamp_ms=1000 * (number // 2),
            )
            if number % 10 == 9:
                producer.flush()
