"""Plans and tasks of the Spark source, without Spark: every row once, fixed bounds, reported
losses, batches in Spark's form.
"""

from __future__ import annotations

import logging
import random
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.engine.engine import Engine
from embedlog.spark import columns, read_plan, read_task
from embedlog.spark.read_options import parse
from embedlog.spark.read_plan import PlannedPiece, ReadTask, join_pieces, plan
from embedlog.spark.read_task import read
from embedlog.topic import Topic
from tests.support import random_log
from tests.support.golden_records import TOPICS
from tests.support.spark_rows import SCHEMA, offsets, pa, rows_of, span, table


def tasks(directory: Path, topic: str = "t", **options: str) -> list[ReadTask]:
    given = {"path": str(directory), "subscribe": topic} | {
        name.replace("_", "."): text for name, text in options.items()
    }
    return plan(parse(given, stream=False), parallel=2)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `t`: 2 partitions of 100 records, one a second, in batches of ten."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("t", partitions=2)
        append(made, 200)
        yield made


def append(log: embedlog.Log, count: int) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(
                "t", b"v%d" % number, partition=number % 2, timestamp_ms=1000 * (number // 2)
            )
            if number % 20 == 19:
                producer.flush()


@pytest.fixture
def big(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> embedlog.Log:
    """Topic `big`: 2000 records in 2 partitions of many segments, read in small chunks."""
    monkeypatch.setattr("embedlog.columns.scan.CHUNK_BYTES", 100)
    log.create_topic("big", partitions=2, config={"segment.bytes": "5000"})
    with log.producer() as producer:
        for number in range(2000):
            producer.send("big", b"v" * 100, partition=number % 2)
            if number % 20 == 19:
                producer.flush()
    return log


# ---- truth -----------------------------------------------------------------------------------------------------------


@pytest.mark.sample(0.15)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(("name", "topic"), TOPICS)
def test_kafkas_directories_say_what_a_consumer_says(
    golden: Path, name: str, topic: str, isolation: str
) -> None:
    directory = golden / name / "log"
    found = rows_of(table(tasks(directory, topic, isolation_level=isolation, minPartitions="3")))
    with embedlog.open(directory, read_only=True) as log:
        wanted = random_log.consumed(log, topic, isolation)
    assert found.get(topic, []) == wanted


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_random_logs_cut_at_random_say_what_a_consumer_says(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    topics = random_log.write(tmp_path / "log", rng, rows=60)
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        wanted = {topic: random_log.consumed(log, topic, isolation) for topic in topics}
    for _ in range(3):
        monkeypatch.setattr(read_plan, "PIECE_BYTES_MIN", rng.choice([1, 700, 8 << 20]))
        options = {
            "maxBytesPerPartition": str(rng.choice([400, 5000, 1 << 20])),
            "isolation_level": isolation,
        }
        if rng.random() < 0.5:
            options["maxRecordsPerPartition"] = str(rng.choice([15, 1000]))
        if rng.random() < 0.3:
            options["minPartitions"] = str(rng.randrange(1, 20))
        planned = tasks(tmp_path / "log", ",".join(topics), **options)
        found = rows_of(table(planned))
        assert {topic: found.get(topic, []) for topic in topics} == wanted, options
        assert len(planned) >= int(options.get("minPartitions", "1"))


def test_a_plan_made_before_an_append_does_not_see_it(log: embedlog.Log) -> None:
    planned = tasks(log.path)
    append(log, 50)
    assert offsets(planned) == span(0, 0, 100) + span(1, 0, 100)
    assert len(offsets(tasks(log.path))) == 250


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            {"startingOffsets": "40", "endingOffsets": '{"t": {"1": 60}}'},
            span(0, 40, 100) + span(1, 40, 60),
        ),
        ({"startingOffsets": '{"t": {"0": -2, "1": 99}}'}, span(0, 0, 100) + span(1, 99, 100)),
        (
            {"startingTimestamp": "20500", "endingTimestamp": "1970-01-01T00:00:30Z"},
            span(0, 21, 30) + span(1, 21, 30),
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 95000, "1": 99000}}'},
            span(0, 95, 100) + span(1, 99, 100),
        ),
        ({"endingOffsetsByTimestamp": '{"t": 3000}'}, span(0, 0, 3) + span(1, 0, 3)),
        ({"startingTimestamp": "99999999"}, []),
        ({"startingOffsets": "50", "endingOffsets": "50"}, []),
    ],
)
def test_bounds(log: embedlog.Log, options: dict[str, str], wanted: list[tuple[int, int]]) -> None:
    assert offsets(tasks(log.path, **options)) == wanted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"startingOffsets": "60", "endingOffsets": "50"},
            "startingOffsets of topic t, partition 0.*at most endingOffsets, 50",
        ),
        (
            {"startingOffsets": '{"t": {"1": 60}}', "endingOffsets": '{"t": {"1": 50}}'},
            "startingOffsets of topic t, partition 1",
        ),
        (
            {"startingTimestamp": "1001", "endingTimestamp": "1000"},
            "startingTimestamp of topic t.*endingTimestamp, 1000",
        ),
    ],
)
def test_a_start_behind_its_end_is_refused(
    log: embedlog.Log, options: dict[str, str], words: str
) -> None:
    with pytest.raises(embedlog.ConfigError, match=words):
        tasks(log.path, **options)
    assert offsets(tasks(log.path, startingOffsets="60", endingTimestamp="1000")) == [], (
        "an offset and a time cannot be compared"
    )


def test_single_partitions_and_patterns(log: embedlog.Log) -> None:
    log.create_topic("other")

    def planned(**given: str) -> list[ReadTask]:
        return plan(parse({"path": str(log.path)} | given, stream=False))

    assert offsets(planned(assign='{"t": [1]}')) == span(1, 0, 100)
    assert offsets(planned(subscribePattern="[a-t]")) == span(0, 0, 100) + span(1, 0, 100)
    assert planned(subscribePattern="oth.*") == []
    for given, words in (
        ({"assign": '{"t": [2]}'}, "no partition 2"),
        ({"subscribe": "missing"}, "one of: other, t"),
        (
            {"subscribe": "t", "startingOffsets": '{"t": {"5": 1}}'},
            "a partition that is not read: t, partition 5",
        ),
        ({"subscribe": "t", "endingOffsets": '{"u": 5}'}, "a partition that is not read: u"),
        ({"subscribePattern": "("}, "regular expression"),
    ):
        with pytest.raises(embedlog.EmbedlogError, match=words):
            planned(**given)


def test_an_offset_that_is_not_there_is_an_error_or_a_warning(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.delete_records({embedlog.TopicPartition("t", 0): 30})
    for bound, number in (
        ("startingOffsets", "10"),
        ("startingOffsets", "101"),
        ("endingOffsets", "101"),
    ):
        with pytest.raises(
            embedlog.OffsetOutOfRangeError,
            match=rf"{bound}.*topic t, partition 0.*30 to 100.*found {number}",
        ):
            tasks(log.path, **{bound: number})
    with caplog.at_level(logging.WARNING, "embedlog.spark"):
        found = offsets(
            tasks(log.path, startingOffsets="10", endingOffsets="1000", failOnDataLoss="false")
        )
    assert found == span(0, 30, 100) + span(1, 10, 100)
    assert "found 10" in caplog.text


def test_no_record_is_new_enough(log: embedlog.Log) -> None:
    strict = {"startingOffsetsByTimestampStrategy": "error", "startingTimestamp": "99999999"}
    with pytest.raises(
        embedlog.OffsetOutOfRangeError,
        match="topic t, partition 0 has no record at or after 99999999 ms",
    ):
        tasks(log.path, **strict)


# ---- how many tasks --------------------------------------------------------------------------------------------------


def test_small_pieces_are_read_by_one_task(log: embedlog.Log) -> None:
    assert len(tasks(log.path)) == 1
    assert [len(task.pieces) for task in tasks(log.path)] == [2]
    assert len(tasks(log.path, minPartitions="7")) == 7
    assert len(tasks(log.path, minPartitions="1000")) == 200
    assert {
        piece.end - piece.start
        for task in tasks(log.path, maxRecordsPerPartition="30")
        for piece in task.pieces
    } == {25}


def test_large_partitions_are_read_by_several_tasks(
    big: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(tasks(big.path, "big")) == 1
    monkeypatch.setattr(read_plan, "PIECE_BYTES_MIN", 1)
    assert len(tasks(big.path, "big")) in (2, 3)  # as many as run at the same time
    assert len(tasks(big.path, "big", maxBytesPerPartition="20k")) > 10


def test_neighbours_of_one_partition_become_one_piece() -> None:
    pieces = [
        PlannedPiece("t", "id", number, start, start + 5, 10)
        for number in (0, 1)
        for start in (0, 5, 10)
    ]
    assert [
        [(p.partition, p.start, p.end) for p in group] for group in join_pieces(pieces, 40, 0)
    ] == [
        [(0, 0, 15), (1, 0, 5)],
        [(1, 5, 15)],
    ]
    assert [sum(p.end - p.start for p in group) for group in join_pieces(pieces, 1000, 12)] == [
        10,
        10,
        10,
    ]


# ---- losses ----------------------------------------------------------------------------------------------------------


def test_what_retention_takes_between_plan_and_task_is_an_error(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    strict = tasks(log.path)
    lenient = tasks(log.path, failOnDataLoss="false")
    log.delete_records({embedlog.TopicPartition("t", 1): 30})
    with pytest.raises(
        embedlog.OffsetOutOfRangeError,
        match=r"t-1: topic t, partition 1, at or after offset 0: planned records were deleted",
    ):
        table(strict)
    with caplog.at_level(logging.WARNING, "embedlog.spark"):
        assert offsets(lenient) == span(0, 0, 100) + span(1, 30, 100)
    assert "topic t, partition 1" in caplog.text


@pytest.mark.parametrize("lenient", [False, True])
def test_what_retention_takes_while_a_task_reads(big: embedlog.Log, lenient: bool) -> None:
    """Rows come once, before the loss and after it."""
    (task,) = tasks(big.path, "big", failOnDataLoss=str(not lenient))
    batches = read(task, SCHEMA)
    places = [(0, offset) for offset in next(batches)["offset"].to_pylist()]
    big.delete_records(
        {embedlog.TopicPartition("big", 0): 800, embedlog.TopicPartition("big", 1): 40}
    )
    if not lenient:
        with pytest.raises(
            embedlog.OffsetOutOfRangeError,
            match=r"topic big, partition 0, at or after offset \d+: planned",
        ):
            list(batches)
        return
    for batch in batches:
        places += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    assert places == sorted(set(places))
    assert set(places) >= set(span(0, 800, 1000) + span(1, 40, 1000))
    assert 960 + 200 <= len(places) < 960 + 1000


def test_a_topic_made_anew_is_another_one(log: embedlog.Log) -> None:
    planned = tasks(log.path)
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    append(log, 200)
    with pytest.raises(
        embedlog.UnknownTopicOrPartitionError, match=r"topic t, partition 0.*is not the planned one"
    ):
        table(planned)


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_task_passes_over_a_lost_topic_if_that_is_allowed(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture, is_made_anew: bool
) -> None:
    planned = tasks(log.path, failOnDataLoss="false")
    log.delete_topic("t")
    if is_made_anew:
        log.create_topic("t", partitions=2)
        append(log, 200)
    assert table(planned).num_rows == 0
    assert caplog.text.count("topic t is passed over") == len(planned)


def test_a_directory_that_a_machine_does_not_see(tmp_path: Path) -> None:
    task = ReadTask(str(tmp_path / "elsewhere"), (PlannedPiece("t", "id", 0, 0, 1),))
    with pytest.raises(
        embedlog.StorageError, match="does not see the same log directory as the driver"
    ):
        list(read(task, SCHEMA))


def test_damage_is_told_with_its_place(big: embedlog.Log) -> None:
    planned = tasks(big.path, "big")
    big.flush()  # unsynced data is checked at the end of the fixture, too
    path = sorted((big.path / "big-1").glob("*.log"))[4]
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(embedlog.CorruptRecordError) as caught:
        table(planned)
    assert str(caught.value).startswith(
        f"{path} at byte 0: topic big, partition 1, at or after offset {int(path.stem)}: "
    )


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batches_have_exactly_the_schema_asked_for(log: embedlog.Log) -> None:
    for names in (
        ["value"],
        ["topic", "timestamp"],
        ["headers"],
        ["timestampType", "partition", "offset", "key"],
    ):
        schema = pa.schema([SCHEMA.field(name) for name in names])
        found = [batch for task in tasks(log.path) for batch in read(task, schema)]
        assert all(batch.schema.equals(schema, check_metadata=True) for batch in found)
        assert sum(batch.num_rows for batch in found) == 200


def test_batches_are_capped_by_rows_and_bytes(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    monkeypatch.setattr(columns, "BATCH_ROWS", 50)
    monkeypatch.setattr(columns, "BATCH_BYTES", 2000)
    values = [rng.randbytes(rng.choice([0, 1, 30, 3000])) for _ in range(500)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    found = list(columns.split_into_batches(batch))
    assert [value for each in found for value in each["value"].to_pylist()] == values
    assert all(
        each.num_rows <= 50 and (each.num_rows == 1 or each.nbytes <= 2000) for each in found
    )


def test_times_filter_record_by_record_where_a_task_has_some(log: embedlog.Log) -> None:
    (task,) = tasks(log.path)
    within = ReadTask(task.directory, task.pieces, start_ms=10_000, end_ms=20_000)
    assert offsets([within]) == span(0, 10, 20) + span(1, 10, 20)


@pytest.mark.parametrize("time_ms", [2**62, 2**63 - 1])
def test_a_time_that_spark_cannot_hold_is_told_with_the_option_that_leaves_it_out(
    tmp_path: Path, time_ms: int
) -> None:
    """Spark asks for all columns of a source, also for those that no query uses."""
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", config={"message.timestamp.after.max.ms": str(2**63 - 1)})
        with log.producer() as producer:
            producer.send("t", b"v", timestamp_ms=time_ms).result(10)
        with pytest.raises(
            embedlog.InvalidTimestampError, match=r"topic t, partition 0, at or after offset 0: "
        ) as problem:
            table(tasks(log.path))
        option = re.search(r"columns=([\w,]+)", str(problem.value))
        assert option is not None
        given = {"path": str(log.path), "subscribe": "t", "columns": option[1]}
        assert set(parse(given, stream=False).columns) == set(SCHEMA.names) - {"timestamp"}
        schema = pa.schema([SCHEMA.field(name) for name in parse(given, stream=False).columns])
        (task,) = tasks(log.path)
        assert sum(batch.num_rows for batch in read(task, schema)) == 1
        with pytest.raises(embedlog.InvalidTimestampError, match="cannot represent a value: "):
            list(read(task, pa.schema([SCHEMA.field("timestamp")])))


def test_reading_writes_nothing(golden_copy: Callable[[str], Path]) -> None:
    directory = golden_copy("unclean")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    table(tasks(directory, "plain"))
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_a_task_collects_garbage_only_where_modules_were_imported(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects that Spark's worker collects after every task stay few."""
    frozen: list[int] = []
    monkeypatch.setattr(read_task, "_frozen", 0)
    monkeypatch.setattr(read_task.gc, "freeze", lambda: frozen.append(1))
    (task,) = tasks(log.path)
    for _ in range(3):
        list(read_task.read(task, SCHEMA))
    assert len(frozen) <= 2
    before = len(frozen)
    monkeypatch.setitem(sys.modules, "one_more", types.ModuleType("one_more"))
    list(read_task.read(task, SCHEMA))
    assert len(frozen) == before + 1


def test_a_task_opens_no_partition_that_it_does_not_read(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = tasks(
        log.path,
        topic="t",
        maxRecordsPerPartition="1000",
        startingOffsets='{"t": {"0": 100, "1": 90}}',
    )
    opened: set[int] = set()
    opening = Engine._open_partition

    def noted(self: Engine, topic: Topic, number: int) -> Any:
        opened.add(number)
        return opening(self, topic, number)

    monkeypatch.setattr(Engine, "_open_partition", noted)
    assert sum(batch.num_rows for batch in read(task, SCHEMA)) == 10
    assert opened == {1}
