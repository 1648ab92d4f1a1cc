"""Rows at random, and the tasks of Spark that stage them."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from embedlog.spark import staging, write_task
from embedlog.spark.staging import Staged
from embedlog.spark.write_task import WriteTask

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = dict[str, Any]


def staged(area: staging.StagingArea, batches: list[Any], topic: str = "", task: int = 0) -> Staged:
    names = batches[0].schema.names if batches else []
    places = {
        name: at
        for at, name in enumerate(names)
        if name in write_task.SINK_COLUMNS and not (topic and name == "topic")
    }
    return WriteTask(area, places, topic, task=task).stage(batches)


def rows_at_random(rng: random.Random, count: int) -> list[Row]:
    def some(*choices: Any) -> Any:
        return rng.choice(choices)

    return [
        {
            "value": some(None, b"", rng.randbytes(rng.randint(1, 60))),
            "key": some(None, b"k%d" % rng.randint(0, 3)),
            "headers": some(
                None,
                [],
                [{"key": "h" * rng.randint(0, 3), "value": some(None, b"v" * rng.randint(0, 9))}]
                * 2,
            ),
            "topic": some("t", "t", "u", "long" * 5),
            "partition": some(None, 0, 1, 2),
        }
        for _ in range(count)
    ]


def as_batches(rows: list[Row], rng: random.Random) -> list[Any]:
    schema = pa.schema(
        [
            ("value", pa.binary()),
            ("key", pa.binary()),
            ("headers", HEADERS),
            ("topic", pa.string()),
            ("partition", pa.int32()),
        ]
    )
    cuts = sorted(rng.choices(range(len(rows) + 1), k=5))
    bounds = zip([0, *cuts], [*cuts, len(rows)], strict=True)
    return [pa.RecordBatch.from_pylist(rows[start:end], schema) for start, end in bounds]
