"""From staged files into the log: records are written once, as a whole, and refused before the
first one. No Spark.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import embedlog
from embedlog.coordination.internal_topic import java_partition
from embedlog.spark import staging, transactional_write, write_task
from embedlog.spark.transactional_write import WriteId
from embedlog.spark.write_options import parse_write
from embedlog.types import TopicPartition
from tests.support.staged_rows import HEADERS, Row, as_batches, rows_at_random, staged

TOPICS = {"t": 3, "u": 3, "long" * 5: 3}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Open beside the driver: then that one need not close it in order each time."""
    config = {
        "housekeeping": False,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
    }
    with embedlog.open(tmp_path / "log", config=config) as made:
        for internal in (made._engine.groups, made._engine.transactions):
            internal.topic.partition_of("")  # made here, with one partition
        for name, count in TOPICS.items():
            made.create_topic(name, partitions=count)
        yield made


class Driver:
    """Commits batches of rows that are all staged by one task, or by several."""

    def __init__(self, log: embedlog.Log, topic: str = "", **options: str) -> None:
        self.settings = parse_write({"path": str(log.path)} | options, stream=False)
        self.topic = topic
        (place,) = self.settings.staging_places()
        self.area = staging.StagingArea(place.staging, staging.driver_name(), "job")
        if topic:
            self.settings = parse_write(
                {"path": str(log.path), "topic": topic} | options, stream=False
            )

    def write(self, *tasks: list[Any], who: WriteId | None = None, overwrite: bool = False) -> bool:
        files = [
            staged(self.area, batches, self.topic, task=number)
            for number, batches in enumerate(tasks)
        ]
        return transactional_write.commit(
            self.settings, who or WriteId(), files, self.area, overwrite=overwrite
        )


def values(*given: bytes, **columns: Any) -> list[Any]:
    return [pa.record_batch({"value": pa.array(given, pa.binary())} | columns)]


def seen(log: embedlog.Log, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in log.scan(topic, isolation_level="read_committed").records()]


def staging_is_clean(log: embedlog.Log) -> bool:
    return not os.path.exists(f"{log.path}.staging")


# ---- truth ---------------------------------------------------------------------------------------


def as_sent_one_by_one(log: embedlog.Log, rows: list[Row]) -> None:
    """The obvious way to write rows."""
    with log.producer() as producer:
        for row in rows:
            pairs = [(each["key"], each["value"]) for each in row["headers"] or []]
            producer.send(
                row["topic"], row["value"], row["key"], partition=row["partition"], headers=pairs
            )


def contents(log: embedlog.Log, loose: frozenset[Any]) -> dict[str, Counter[Any]]:
    """Rows by topic, with their partition unless the producer was free to choose."""
    return {
        topic: Counter(
            (
                -1 if record.value in loose else record.partition,
                record.key,
                record.value,
                record.headers,
            )
            for record in log.scan(topic, isolation_level="read_committed").records()
        )
        for topic in TOPICS
    }


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_come_to_lie_as_if_they_were_sent_one_by_one(
    log: embedlog.Log, tmp_path: Path, rng: random.Random, codec: str
) -> None:
    rows = rows_at_random(rng, 400)
    for number, row in enumerate(rows):
        row["value"] = b"%d %s" % (number, row["value"] or b"")
    loose = frozenset(
        row["value"] for row in rows if row["key"] is None and row["partition"] is None
    )
    tasks = [as_batches(rows[start::3], rng) for start in range(3)]
    assert Driver(log, **{"compression.type": codec}).write(*tasks)
    with embedlog.open(tmp_path / "reference") as reference:
        for name, count in TOPICS.items():
            reference.create_topic(name, partitions=count)
        as_sent_one_by_one(reference, rows)
        assert contents(log, loose) == contents(reference, loose)
    assert staging_is_clean(log)
    assert log.groups() == []


def test_rows_of_a_task_keep_their_order_and_tasks_theirs(log: embedlog.Log) -> None:
    ordered = [[b"%d.%d" % (task, number) for number in range(50)] for task in range(4)]
    Driver(log, "t").write(
        *(values(*rows, partition=pa.array([1] * 50, pa.int32())) for rows in ordered)
    )
    assert seen(log) == [value for rows in ordered for value in rows]


def test_a_partitioner_is_asked(log: embedlog.Log) -> None:
    Driver(log, "t", partitioner="roundrobin").write(
        values(*(b"%d" % number for number in range(9)))
    )
    # three rows and a marker
    assert [each.log_end_offset for each in log.describe_topic("t").partitions] == [4, 4, 4]


# ---- after the commit ----------------------------------------------------------------------------


AFTER_THE_COMMIT = {
    "removing a staged file": (staging, "_remove"),
    "housekeeping": (embedlog.Log, "housekeep"),
    "closing the log": (embedlog.Log, "close"),
    "closing the producer": (embedlog.Producer, "close"),
}


@pytest.mark.parametrize("step", AFTER_THE_COMMIT)
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize(
    "problem",
    [OSError(13, "Permission denied"), embedlog.StorageError("No space left"), ValueError("x")],
)
def test_a_failure_after_the_commit_is_a_warning(
    log: embedlog.Log,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
    named: bool,
    problem: Exception,
) -> None:
    """Spark repeats a job that raises, and the rows of an unnamed one would be there twice."""
    driver = Driver(log, "t", transactionalId="nightly") if named else Driver(log, "t")
    where, name = AFTER_THE_COMMIT[step]
    original = getattr(where, name)
    failures: list[Exception] = []

    def failing(*args: Any, **options: Any) -> Any:
        if where is staging:  # reports, and raises nothing
            return problem if isinstance(problem, OSError) else OSError(str(problem))
        original(*args, **options)
        if args[0] is not log and not failures:
            failures.append(problem)
            raise problem

    monkeypatch.setattr(where, name, failing)
    assert driver.write(values(b"row"), who=WriteId("nightly", 7) if named else WriteId())
    assert seen(log) == [b"row"]
    (warning,) = [each.getMessage() for each in caplog.records if each.name == "embedlog.spark"]
    assert str(problem) in warning
    assert ("staged files" if where is staging else step) in warning
    monkeypatch.undo()
    if named:
        assert not driver.write(values(b"row"), who=WriteId("nightly", 7))
        assert seen(log) == [b"row"]


def test_the_second_step_of_overwriting_is_no_clean_up(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the earlier rows are still there: the job is not done, and a repetition completes
    it.
    """
    driver = Driver(log, "t", transactionalId="nightly")
    assert driver.write(values(b"old"), who=WriteId("nightly", 1))

    def failing(*_: Any) -> None:
        raise embedlog.StorageError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(embedlog.Log, "delete_records", failing)
        with pytest.raises(embedlog.StorageError, match="No space left"):
            driver.write(values(b"new"), who=WriteId("nightly", 2), overwrite=True)
    assert sorted(seen(log)) == [b"new", b"old"]
    assert not driver.write(values(b"new"), who=WriteId("nightly", 2), overwrite=True)
    assert seen(log) == [b"new"]


# ---- once ----------------------------------------------------------------------------------------


def test_a_batch_is_written_once_and_its_number_is_kept(log: embedlog.Log) -> None:
    driver = Driver(log, "t", transactionalId="import")
    for number, new in ((0, True), (1, True), (1, False), (0, False), (4, True)):
        assert driver.write(values(b"%d" % number), who=WriteId("import", number)) == new
    assert sorted(seen(log)) == [b"0", b"1", b"4"]
    ((place, offset),) = log.group_offsets("import").items()
    assert (place.topic, offset.offset) == ("__consumer_offsets", 5)
    assert log.describe_group("import").protocol_type == "embedlog"
    log.delete_group("import")
    assert driver.write(values(b"again"), who=WriteId("import", 0))
    assert staging_is_clean(log)


def test_batches_of_another_stream_are_others(log: embedlog.Log) -> None:
    driver = Driver(log, "t")
    driver.write(values(b"old"), who=WriteId("name", 7, "first query"))
    with pytest.raises(
        embedlog.ConfigError,
        match=r"belongs to another stream or job, whose last batch was 7.*delete_group",
    ):
        driver.write(values(b"new"), who=WriteId("name", 0, "second query"))
    with pytest.raises(embedlog.ConfigError, match="belongs to another stream or job"):
        driver.write(values(b"new"), who=WriteId("name", 8, "second query"))
    with pytest.raises(embedlog.ConfigError, match="found query none: a job"):
        driver.write(values(b"new"), who=WriteId("name", 8))
    assert seen(log) == [b"old"]


def test_a_name_that_consumers_have_is_refused(log: embedlog.Log) -> None:
    with log.consumer(group_id="readers") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(1)
        with pytest.raises(embedlog.InconsistentGroupProtocolError, match="readers"):
            Driver(log, "t").write(values(b"x"), who=WriteId("readers", 0))
    assert seen(log) == []


def test_a_job_with_a_name_is_done_even_if_it_had_no_rows(log: embedlog.Log) -> None:
    driver = Driver(log, "t")
    assert driver.write([], who=WriteId("import", 0))
    assert not driver.write(values(b"late"), who=WriteId("import", 0))
    assert not driver.write([])
    assert seen(log) == []


def test_a_zombie_is_fenced_and_writes_nothing(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that resumes in the middle of a batch that another one has written meanwhile."""
    slow = Driver(log, "t")
    quick = Driver(log, "t")
    send = transactional_write._Write._send
    reached = threading.Event()
    goes_on = threading.Event()

    def held(self: Any, producer: Any) -> None:
        send(self, producer)
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            goes_on.wait(30)

    monkeypatch.setattr(transactional_write._Write, "_send", held)
    raised: list[BaseException] = []

    def zombie() -> None:
        try:
            slow.write(values(b"zombie"), who=WriteId("id", 0))
        except embedlog.EmbedlogError as problem:
            raised.append(problem)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert reached.wait(30)
    assert quick.write(values(b"heir"), who=WriteId("id", 0))
    goes_on.set()
    thread.join(30)
    assert [type(problem) for problem in raised] == [embedlog.FencedError]
    assert seen(log) == [b"heir"]


def test_readers_see_a_batch_as_a_whole(log: embedlog.Log) -> None:
    """While a dozen batches come in: of each of them all that goes to a partition, or nothing."""
    whole = [b"%d" % number for number in range(200)]
    over = threading.Event()
    half = []

    def reader() -> None:
        with embedlog.open(log.path, read_only=True) as beside:
            while not over.is_set():
                for number in range(3):
                    found = (
                        beside.scan("t", partitions=number, isolation_level="read_committed")
                        .to_arrow()
                        .num_rows
                    )
                    if found % len([value for value in whole if partition_of(value) == number]):
                        half.append((number, found))

    thread = threading.Thread(target=reader)
    thread.start()
    driver = Driver(log, "t")
    try:
        for batch in range(12):
            driver.write(values(*whole, key=pa.array(whole)), who=WriteId("id", batch, "q"))
    finally:
        over.set()
        thread.join(30)
    assert not half


def partition_of(key: bytes) -> int:
    return embedlog.partitioners.partition_of(key, TOPICS["t"])


def test_what_no_message_refers_to_is_not_written_and_goes(log: embedlog.Log) -> None:
    """Attempts that died, and those that ran beside the one that counts."""
    driver = Driver(log, "t")
    attempts = [staged(driver.area, values(b"row"), "t") for _ in range(3)]
    assert len({each.path for each in attempts}) == 3
    transactional_write.commit(driver.settings, WriteId(), attempts[1:2], driver.area)
    assert seen(log) == [b"row"]
    assert staging_is_clean(log)


def test_a_batch_that_is_written_needs_its_files_no_more(log: embedlog.Log) -> None:
    """A run that was stopped in its commit and completes it then removes the files that the next
    one has staged for the batch.
    """
    driver = Driver(log, "t")
    name = WriteId("id", 3, "q")
    old, new = (staged(driver.area, values(b"row"), "t") for _ in range(2))
    assert transactional_write.commit(driver.settings, name, [old], driver.area)
    assert not os.path.exists(new.path)
    assert not transactional_write.commit(driver.settings, name, [new], driver.area)
    assert seen(log) == [b"row"]


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "columns", "kind", "words"),
    [
        (
            "missing",
            {},
            embedlog.UnknownTopicOrPartitionError,
            "no such topic: missing .named by row 0 of task 1.*one of",
        ),
        ("__consumer_offsets", {}, embedlog.InvalidTopicError, "the log's own"),
        ("a/b", {}, embedlog.InvalidTopicError, "a/b"),
        (
            "t",
            {"partition": pa.array([0, 3], pa.int32())},
            embedlog.UnknownTopicOrPartitionError,
            "row 1 of task 1: topic t has no partition 3: expected 0 to 2",
        ),
        (
            "t",
            {"key": pa.array([b"", b"x" * 2000])},
            embedlog.RecordTooLargeError,
            "row 1 of task 1 for topic t, before compression, is larger than "
            "max.message.bytes.*1000",
        ),
        (
            "compact",
            {"key": pa.array([b"k", None])},
            embedlog.InvalidRecordError,
            "row 1 of task 1 has no key, and topic compact",
        ),
        ("compact", {}, embedlog.InvalidRecordError, "row 0 of task 1 has no key"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    log: embedlog.Log, topic: str, columns: dict[str, Any], kind: type[Exception], words: str
) -> None:
    log.create_topic("compact", config={"cleanup.policy": "compact"})
    log.alter_topic("t", {"max.message.bytes": "1000"})
    good = values(b"a", b"b", topic=pa.array(["u", "u"]))
    with pytest.raises(kind, match=words):
        Driver(log).write(
            good, values(b"x", b"y", topic=pa.array([topic] * 2), **columns), who=WriteId("id", 0)
        )
    assert all(
        each.log_end_offset == 0
        for name in log.topics()
        for each in log.describe_topic(name).partitions
    )
    assert log.groups() == []


def test_what_is_just_small_enough_is_taken(log: embedlog.Log) -> None:
    """The check before the first byte refuses everything that the append would refuse later."""
    log.alter_topic("t", {"max.message.bytes": "1000"})
    area = 1000 - write_task.RECORD_OVERHEAD
    headers = pa.array([[{"key": "a" * 30, "value": b"b"}] * 9], HEADERS)
    Driver(log, "t").write(
        values(b"x" * area),
        values(b"x" * (area - 100), key=pa.array([b"k" * 100])),
        values(b"x" * (area - 9 * (31 + write_task.HEADER_OVERHEAD)), headers=headers),
    )
    assert len(seen(log)) == 3
    with pytest.raises(embedlog.RecordTooLargeError):
        Driver(log, "t").write(values(b"x" * (area + 1)))


def test_a_file_that_is_not_there_or_not_whole_is_told_with_its_host(log: embedlog.Log) -> None:
    driver = Driver(log, "t")
    left = staged(driver.area, values(b"x" * 1000), "t", task=3)
    with open(left.path, "r+b") as file:
        file.truncate(500)
    with pytest.raises(
        embedlog.StorageError,
        match=f"the file that task 3 staged on {left.host} is incomplete.*found 500",
    ):
        transactional_write.commit(driver.settings, WriteId(), [left], driver.area)
    os.unlink(left.path)
    with pytest.raises(
        embedlog.StorageError,
        match=r"the driver cannot see the file that task 3 staged.*stagingDirectory",
    ):
        transactional_write.commit(driver.settings, WriteId(), [left], driver.area)


def test_a_directory_without_a_log_is_not_made(tmp_path: Path) -> None:
    settings = parse_write({"path": str(tmp_path / "nothing"), "topic": "t"}, stream=False)
    with pytest.raises(embedlog.EmbedlogError):
        transactional_write.write(settings, WriteId(), [])
    assert not (tmp_path / "nothing").exists()


# ---- overwriting ---------------------------------------------------------------------------------


def test_overwriting_leaves_the_new_rows_alone(log: embedlog.Log) -> None:
    driver = Driver(log, "t")
    driver.write(
        values(
            *(b"old %d" % number for number in range(30)),
            key=pa.array([b"%d" % number for number in range(30)]),
        )
    )
    driver.write(values(b"new", partition=pa.array([1], pa.int32())), overwrite=True)
    assert seen(log) == [b"new"]
    driver.write([], overwrite=True)
    assert seen(log) == []


def broken(*_: object) -> None:
    raise OSError("for once")


def test_overwriting_that_stopped_in_the_middle_goes_on(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(log, "t")
    name = WriteId("id", 0)
    driver.write(values(b"old"))
    with monkeypatch.context() as patch:
        patch.setattr(transactional_write._Write, "_delete_before", broken)
        with pytest.raises(OSError, match="for once"):
            driver.write(values(b"new"), who=name, overwrite=True)
    assert sorted(seen(log)) == [b"new", b"old"]
    with log.producer() as producer:
        producer.send_batch("t", [b"later"] * 5)
    assert not driver.write(values(b"new"), who=name, overwrite=True)
    assert sorted(seen(log)) == [b"later"] * 5 + [b"new"]
    assert log.group_offsets("id").keys() >= {TopicPartition("t", 0)}


def test_a_compacted_topic_is_not_overwritten(log: embedlog.Log) -> None:
    log.create_topic("compact", config={"cleanup.policy": "compact"})
    with pytest.raises(embedlog.PolicyViolationError, match="compact cannot be overwritten"):
        Driver(log, "compact").write(values(b"x", key=pa.array([b"k"])), overwrite=True)
    assert seen(log, "compact") == []


@pytest.mark.parametrize(
    "name",
    ["group-1", "żółć-grupa", "polygenelubricants", "", "\U0001f600 job", "embedlog-spark-0"],
)
def test_a_group_has_the_partition_that_the_log_gives_it(name: str) -> None:
    for count in (1, 5, 50):
        assert transactional_write.group_partition(name, count) == java_partition(name, count)


def test_the_time_of_a_row_is_that_of_its_record_and_null_is_now(log: embedlog.Log) -> None:
    times = pa.array([1_577_836_800_123_456, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    before_ms = time.time_ns() // 1_000_000
    Driver(log, "t").write(
        values(b"a", b"b", partition=pa.array([0, 0], pa.int32()), timestamp=times)
    )
    found = [
        record.timestamp_ms for record in log.scan("t", isolation_level="read_committed").records()
    ]
    assert found[0] == 1_577_836_800_123
    assert found[1] >= before_ms
