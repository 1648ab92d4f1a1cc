"""The tasks of a write: their input columns, their notes, their files. No Spark."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import embedlog
from embedlog.spark import staging, write_task
from embedlog.spark.staging import TopicRows
from embedlog.spark.transactional_write import _pieces
from embedlog.spark.write_task import HEADER_OVERHEAD, RECORD_OVERHEAD, WriteTask, sink_columns
from tests.support.staged_rows import Row, as_batches, rows_at_random, staged


def kind(text: str) -> Any:
    """A type of Spark, as far as it is used."""
    if text != "headers":
        return SimpleNamespace(simpleString=lambda: text)
    fields = [
        SimpleNamespace(name="key", dataType=kind("string")),
        SimpleNamespace(name="value", dataType=kind("binary")),
    ]
    return SimpleNamespace(
        simpleString=lambda: "array<…>", elementType=SimpleNamespace(fields=fields)
    )


def struct(**kinds: str) -> Any:
    return SimpleNamespace(
        fields=[SimpleNamespace(name=name, dataType=kind(text)) for name, text in kinds.items()]
    )


@pytest.fixture
def area(tmp_path: Path) -> staging.StagingArea:
    return staging.make_area(
        [staging.StagingPlace(str(tmp_path / "staging"), str(tmp_path))], "job"
    )


# ---- columns -------------------------------------------------------------------------------------


def test_columns_are_found_in_any_case_and_others_stay_behind() -> None:
    rows = struct(
        offset="bigint",
        VALUE="string",
        Key="binary",
        topic="string",
        partition="int",
        headers="headers",
    )
    assert sink_columns(rows, topic="", headers=True) == {
        "value": 1,
        "key": 2,
        "topic": 3,
        "partition": 4,
        "headers": 5,
    }
    assert sink_columns(rows, topic="t", headers=False) == {"value": 1, "key": 2, "partition": 4}


def test_a_time_is_written_only_if_that_is_asked_for() -> None:
    rows = struct(value="binary", Timestamp="timestamp")
    assert sink_columns(rows, topic="t", headers=True) == {"value": 0}
    assert sink_columns(rows, topic="t", headers=True, timestamp=True) == {
        "value": 0,
        "timestamp": 1,
    }
    with pytest.raises(embedlog.ConfigError, match=r"CAST\(timestamp AS TIMESTAMP\)"):
        sink_columns(
            struct(value="binary", timestamp="timestamp_ntz"),
            topic="t",
            headers=True,
            timestamp=True,
        )


def test_a_time_that_no_record_can_have_is_told_with_its_row(area: staging.StagingArea) -> None:
    times = pa.array([1_000, None, -1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.record_batch([pa.array([b"a", b"b", b"c"]), times], names=["value", "timestamp"])
    with pytest.raises(
        embedlog.InvalidTimestampError, match=r"row 5 of task 1: .*topic t .*1970 or later"
    ):
        staged(area, [batch.slice(0, 2), batch.slice(0, 1), batch], topic="t", task=1)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": "binary", "topic": "string"}, "no column value"),
        ({"value": "binary"}, "the topic is missing"),
        (
            {"value": "int", "topic": "string"},
            r"type of value; .*CAST\(value AS STRING\).*expected string or binary",
        ),
        ({"value": "binary", "VALUE": "binary", "topic": "string"}, "two columns value"),
        ({"value": "binary", "topic": "binary"}, "type of topic"),
        ({"value": "binary", "topic": "string", "partition": "bigint"}, "type of partition"),
        (
            {"value": "binary", "topic": "string", "headers": "map<string,binary>"},
            "type of headers.*ARRAY<STRUCT",
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(columns: dict[str, str], words: str) -> None:
    with pytest.raises(embedlog.ConfigError, match=words):
        sink_columns(struct(**columns), topic="", headers=True)


# ---- files ---------------------------------------------------------------------------------------


def noted_row_by_row(rows: list[Row]) -> dict[str, TopicRows]:
    """The obvious way to the facts; sizes in bytes are left out."""
    found: dict[str, TopicRows] = {}
    for number, row in enumerate(rows):
        facts = found.setdefault(row["topic"], TopicRows())
        facts.rows += 1
        size = RECORD_OVERHEAD + len(row["value"] or b"") + len(row["key"] or b"")
        size += sum(
            HEADER_OVERHEAD + len(each["key"]) + len(each["value"] or b"")
            for each in row["headers"] or []
        )
        if size > facts.largest:
            facts.largest = size
            facts.largest_row = number
        if row["partition"] is not None and row["partition"] > facts.partition:
            facts.partition = row["partition"]
            facts.partition_row = number
        if row["key"] is None and facts.keyless_row < 0:
            facts.keyless_row = number
    return found


def test_a_file_has_the_rows_and_the_facts_are_those_of_row_after_row(
    area: staging.StagingArea, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_task, "PIECE_ROWS", 40)
    rows = rows_at_random(rng, 300)
    left = staged(area, as_batches(rows, rng))
    assert (left.rows, left.size) == (300, os.path.getsize(left.path))
    wanted = noted_row_by_row(rows)
    for topic, facts in left.topics.items():
        assert facts.size > 0
        facts.size = 0
        assert facts == wanted.pop(topic)
    assert not wanted
    found: dict[str, list[Row]] = {}
    for topic, batch in _pieces(left):
        found.setdefault(topic, []).extend(batch.to_pylist())
    for topic, there in found.items():
        assert there == [
            {name: row[name] for name in there[0]} for row in rows if row["topic"] == topic
        ]


def test_no_rows_leave_no_file(area: staging.StagingArea) -> None:
    assert staged(area, []).rows == 0
    assert staged(area, [pa.record_batch({"value": pa.array([], pa.binary())})], "t").path == ""
    assert os.listdir(area.path) == []


def test_an_attempt_that_fails_leaves_nothing(area: staging.StagingArea) -> None:
    def broken() -> Any:
        yield pa.record_batch({"value": [b"x"]})
        raise RuntimeError("the query's own")

    with pytest.raises(RuntimeError):
        WriteTask(area, {"value": 0}, "t", task=0).stage(broken())
    assert os.listdir(area.path) == []


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"topic": None}, "row 2 of task 7: the column topic is null"),
        ({"partition": -1}, "row 2 of task 7: topic t has no partition -1"),
        (
            {"headers": [{"key": None, "value": b"x"}]},
            "row 2 of task 7: a header has no key, topic t",
        ),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    area: staging.StagingArea, rng: random.Random, row: Row, words: str
) -> None:
    good = {
        "value": b"v",
        "key": b"k",
        "headers": [{"key": "a", "value": b"b"}],
        "topic": "t",
        "partition": 0,
    }
    with pytest.raises(embedlog.EmbedlogError, match=words):
        staged(area, as_batches([good, good, good | row, good], rng), task=7)
    assert os.listdir(area.path) == []


@pytest.mark.parametrize(("option", "warns"), [(None, True), ("false", False), ("true", False)])
@pytest.mark.parametrize("stream", [False, True], ids=["job", "stream"])
def test_times_that_are_not_written_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, option: str | None, warns: bool, stream: bool
) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'embedlog[spark]'")
    from embedlog.spark import sink

    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t")
    options = {"path": str(tmp_path / "log"), "topic": "t"} | (
        {} if option is None else {"timestamp": option}
    )
    rows = struct(value="binary", Timestamp="timestamp")
    if stream:
        for batch in range(3):
            sink.stream_writer(options, rows).commit([], batch)
    else:
        sink.writer(options, rows, False).abort([])
        sink.writer(options, struct(value="binary"), False).abort([])
    told = [
        record.getMessage() for record in caplog.records if "timestamp=true" in record.getMessage()
    ]
    assert len(told) == warns
    assert not (tmp_path / "log.staging").exists()
