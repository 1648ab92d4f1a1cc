"""Mistakes of a newcomer: the answer names what to write instead.

Four answers are those of other code, which never asks embedlog: Python's own for an unknown keyword
of `send`, whose check would cost a tenth of each call; `asyncio.run`'s, which shows the future;
`json`'s, which has no form for bytes; and pyarrow's for the batches that a scan iterates over. The
first two contain the remedy nevertheless.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import embedlog
from embedlog import TopicPartition

MISTAKES: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    'scan("t", 0)': (lambda log, _: log.scan("t", 0), "partitions"),
    'seek("t", 0, 3)': (
        lambda log, _: log.consumer("t").seek("t", 0, 3),
        "partition: TopicPartition",
    ),
    'delete_records("t", 5)': (
        lambda log, _: log.delete_records("t", 5),
        "offsets: Mapping[TopicPartition, int]",
    ),
    "alter_topic by position": (
        lambda log, _: log.alter_topic("t", "retention.ms", 5),
        "config: Mapping[str, Any]",
    ),
    'log["t"]': (lambda log, _: log["t"], "scan(name).records()"),
    "for t in log": (lambda log, _: list(log), "topics() is the list of topics"),
    "len(log)": (lambda log, _: len(log), "topics() is the list of topics"),
    '"t" in log': (lambda log, _: "t" in log, "topics() is the list of topics"),
    "records()[0]": (lambda log, _: log.scan("t").records()[0], "next(scan.records())"),
    "records().value": (
        lambda log, _: log.scan("t").records().value,
        "for record in scan.records()",
    ),
    'record["value"]': (lambda log, _: log.last_record("t", 0)["value"], "record.value"),
    "send(timestamp=5)": (
        lambda _, producer: producer.send("t", b"x", timestamp=5),
        "timestamp_ms",
    ),
    "a datetime": (
        lambda _, producer: producer.send("t", b"x", timestamp_ms=datetime.datetime.now()),
        "moment.timestamp() * 1000",
    ),
    "asyncio.run(send())": (
        lambda _, producer: asyncio.run(producer.send("t", b"x")),
        "a coroutine can await it",
    ),
    "an unknown group": (lambda log, _: log.describe_group("nope"), "poll()"),
    "beyond the end": (
        lambda log, _: log.delete_records({TopicPartition("t", 0): 999999}),
        "found 999999",
    ),
    "seek before poll": (
        lambda log, _: log.consumer("t", group_id="s").seek(TopicPartition("t", 0), 3),
        "poll()",
    ),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"v").result(20)
        yield log


@pytest.mark.parametrize("name", MISTAKES)
def test_the_answer_names_what_to_write_instead(log: embedlog.Log, name: str) -> None:
    mistake, remedy = MISTAKES[name]
    with log.producer() as producer, pytest.raises(Exception, match=r".+") as refused:
        mistake(log, producer)
    assert remedy in str(refused.value)


def test_answers_that_other_code_gives_without_asking(log: embedlog.Log) -> None:
    record = log.last_record("t", 0)
    with pytest.raises(TypeError, match="Object of type Record is not JSON serializable"):
        json.dumps(record)
    with pytest.raises(TypeError, match="Object of type bytes is not JSON serializable"):
        json.dumps(record._asdict())  # type: ignore[union-attr]
    batch = next(iter(log.scan("t")))
    assert type(batch) is pyarrow.RecordBatch, (
        "each function of pyarrow makes this type, so a class with a hint would be lost"
    )
    with pytest.raises(AttributeError, match="RecordBatch"):
        batch.value  # type: ignore[attr-defined]
