"""The messages for mistakes of users: the error, its place, and the correction. No mistake is
silently accepted.

Names of other libraries are among them: kafka-python, aiokafka, confluent-kafka and Kafka's first
clients.
"""

from __future__ import annotations

import asyncio
import datetime
import errno
import inspect
import logging
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import (
    ConfigError,
    EmbedlogError,
    InvalidReplicationFactorError,
    StorageError,
    TopicExistsError,
    UnknownOptionError,
)
from embedlog.storage import location

QUIET = {"housekeeping": False}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with embedlog.open(tmp_path_factory.mktemp("messages") / "log", config=QUIET) as opened:
        opened.create_topic("orders", 2)
        yield opened


Act = Callable[[Any], Any]
Row = tuple[Act, type[BaseException] | tuple[type[BaseException], ...], tuple[str, ...]]


def consumer(act: Act, *topics: str, **options: Any) -> Act:
    def call(log: Any) -> Any:
        with log.consumer(*(topics or ("orders",)), **options) as made:
            return act(made)

    return call


def producer(act: Act, **options: Any) -> Act:
    def call(log: Any) -> Any:
        with log.producer(**options) as made:
            return act(made)

    return call


def entering(make: Act) -> Act:
    def call(log: Any) -> None:
        made = make(log)
        try:
            with made:
                pass
        finally:
            if not hasattr(made, "_executor"):
                made.close()

    return call


def arrow(*arguments: Any) -> Act:
    pyarrow = pytest.importorskip("pyarrow")
    return producer(lambda made: made.send_batch("orders", pyarrow.array(*arguments)).result(5))


def table(**columns: Any) -> Act:
    pyarrow = pytest.importorskip("pyarrow")
    return producer(lambda made: made.send_batch("orders", pyarrow.table(columns)).result(5))


OPTIONS: dict[str, Row] = {
    "create_topic(num_partitions=)": (
        lambda log: log.create_topic("x", num_partitions=3),
        UnknownOptionError,
        ("num_partitions is not an option of a topic", "did you mean partitions?"),
    ),
    "create_topic(replication_factor=)": (
        lambda log: log.create_topic("x", replication_factor=3),
        InvalidReplicationFactorError,
        ("open a list of directories", "1, in one directory", "3"),
    ),
    "create_topic(compresion_type=)": (
        lambda log: log.create_topic("x", compresion_type="zstd"),
        UnknownOptionError,
        ("did you mean compression_type?",),
    ),
    "create_topic(exists_ok=)": (
        lambda log: log.create_topic("x", exists_ok=True),
        UnknownOptionError,
        ("did you mean exist_ok?",),
    ),
    "open(retention_ms=)": (
        lambda log: embedlog.open(log.path, retention_ms=3),
        UnknownOptionError,
        ("an option of a topic", "log.retention.ms"),
    ),
    "open(readonly=)": (
        lambda log: embedlog.open(log.path, readonly=True),
        UnknownOptionError,
        ("did you mean read_only?",),
    ),
    "alter_topic(retention=)": (
        lambda log: log.alter_topic("orders", retention=3),
        UnknownOptionError,
        ("did you mean retention",),
    ),
    "request.required.acks": (
        lambda log: log.producer({"request.required.acks": 1}),
        UnknownOptionError,
        ("did you mean acks?",),
    ),
    "producer.type": (
        lambda log: log.producer({"producer.type": "async"}),
        UnknownOptionError,
        ("result()",),
    ),
    "queue.buffering.max.ms": (
        lambda log: log.producer(queue_buffering_max_ms=1),
        UnknownOptionError,
        ("linger_ms?",),
    ),
    "message.send.max.retries": (
        lambda log: log.producer({"message.send.max.retries": 1}),
        UnknownOptionError,
        ("retries?",),
    ),
    "compressed.topics": (
        lambda log: log.producer({"compressed.topics": "a"}),
        UnknownOptionError,
        ("compression.type",),
    ),
    "batch.num.messages": (
        lambda log: log.producer({"batch.num.messages": 1}),
        UnknownOptionError,
        ("batch.size?",),
    ),
    "max_batch_size": (
        lambda log: log.async_producer(max_batch_size=1),
        UnknownOptionError,
        ("batch_size?",),
    ),
    "bootstrap_servers": (
        lambda log: log.producer(bootstrap_servers="a:1"),
        UnknownOptionError,
        ("there is no server",),
    ),
    "auto.commit.enable": (lambda log: log.consumer({"a": 1}), TypeError, ("config={",)),
    "autocommit": (
        lambda log: log.consumer("orders", config={"auto.commit.enable": 1}),
        UnknownOptionError,
        ("enable.auto.commit?",),
    ),
    "smallest": (
        lambda log: log.consumer("orders", auto_offset_reset="smallest"),
        ConfigError,
        ("'smallest'", "'earliest'?"),
    ),
    "first": (
        lambda log: log.consumer("orders", auto_offset_reset="first"),
        ConfigError,
        ("'first'", "'earliest'?"),
    ),
    "misspelt choice": (
        lambda log: log.producer(compression_type="zst"),
        ConfigError,
        ("'zst'", "did you mean 'zstd'?"),
    ),
    "retention.ms of days": (
        lambda log: log.create_topic("x", retention_ms="7d"),
        ConfigError,
        ("'7d'", "the unit is ms"),
    ),
    "retention.ms of a timedelta": (
        lambda log: log.create_topic("x", retention_ms=datetime.timedelta(7)),
        ConfigError,
        ("timedelta", "the unit is ms"),
    ),
}

CALLS: dict[str, Row] = {
    "consumer of a list": (
        lambda log: log.consumer(["orders"]),
        TypeError,
        ("separate arguments", "consumer(*names)"),
    ),
    "consumer of a pattern": (
        lambda log: log.consumer("ord.*"),
        EmbedlogError,
        ("'ord.*'", "subscribe(pattern="),
    ),
    "poll(timeout_ms=)": (
        consumer(lambda made: made.poll(timeout_ms=5)),
        UnknownOptionError,
        ("poll()", "timeout_ms", "in seconds"),
    ),
    "poll(max_record=)": (
        consumer(lambda made: made.poll(max_record=5)),
        UnknownOptionError,
        ("did you mean max_records?",),
    ),
    "poll(-1)": (
        consumer(lambda made: made.poll(-1)),
        ConfigError,
        ("poll()", "None to wait forever", "found -1"),
    ),
    "poll(nan)": (consumer(lambda made: made.poll(float("nan"))), TypeError, ("seconds or None",)),
    "poll('1')": (consumer(lambda made: made.poll("1")), TypeError, ("seconds or None", "str '1'")),
    "poll(timedelta)": (
        consumer(lambda made: made.poll(datetime.timedelta(1))),
        TypeError,
        ("seconds or None", "timedelta"),
    ),
    "batches(-1)": (
        consumer(lambda made: next(made.batches(-1))),
        ConfigError,
        ("batches()", "found -1"),
    ),
    "flush('1')": (
        producer(lambda made: made.flush("1")),
        TypeError,
        ("flush()", "seconds or None", "'1'"),
    ),
    "flush(-1)": (
        producer(lambda made: made.flush(-1)),
        ConfigError,
        ("flush()", "None to wait forever"),
    ),
    "result('1')": (
        producer(lambda made: made.send("orders", b"v").result("1")),
        TypeError,
        ("seconds or None", "'1'"),
    ),
    "subscribe(listener=)": (
        consumer(lambda made: made.subscribe(["orders"], listener=5)),
        TypeError,
        ("on_partitions_assigned",),
    ),
    "subscribe(on_assign=)": (
        consumer(lambda made: made.subscribe(["orders"], on_assign=print)),
        UnknownOptionError,
        ("on_assigned= is a callable",),
    ),
    "commit(timeout_ms=)": (
        consumer(lambda made: made.commit(timeout_ms=5)),
        UnknownOptionError,
        ("Consumer.commit()", "no timeout of its own", "default_api_timeout_ms"),
    ),
    "close(timeout_ms=)": (
        producer(lambda made: made.close(timeout_ms=5)),
        UnknownOptionError,
        ("Producer.close()", "in seconds"),
    ),
    "seek(tp=)": (
        consumer(lambda made: made.seek(tp=5, offset=3)),
        UnknownOptionError,
        ("seek()", "partition, offset"),
    ),
    "send_batch(timestamps=)": (
        producer(lambda made: made.send_batch("orders", [], timestamps=[])),
        UnknownOptionError,
        ("timestamps_ms",),
    ),
    "scan(partition=)": (
        lambda log: log.scan("orders", partition=0),
        UnknownOptionError,
        ("Log.scan()", "did you mean partitions?"),
    ),
    "create_partitions(count=)": (
        lambda log: log.create_partitions("orders", count=3),
        UnknownOptionError,
        ("total_count?",),
    ),
    "reset_group_offsets(dryrun=)": (
        lambda log: log.reset_group_offsets("g", "orders", to=0, dryrun=True),
        UnknownOptionError,
        ("Log.reset_group_offsets()", "did you mean dry_run?"),
    ),
    "flush(timeout=) of a log": (
        lambda log: log.flush(timeout=5),
        UnknownOptionError,
        ("Log.flush()", "it takes topic"),
    ),
    "consumer[0]": (consumer(lambda made: made[0]), TypeError, ("poll() returns a list",)),
    "with async_producer": (
        entering(lambda log: log.async_producer()),
        TypeError,
        ("async with", "log.producer("),
    ),
    "with async_consumer": (
        entering(lambda log: log.async_consumer("orders")),
        TypeError,
        ("async with", "log.consumer("),
    ),
    "TopicPartition of a text": (
        lambda log: TopicPartition("orders", "0"),  # type: ignore[arg-type]
        TypeError,
        ("is an int, not str", "'0'"),
    ),
    "open(5)": (
        lambda log: embedlog.open(5),
        TypeError,
        ("str or an os.PathLike of str, not int",),
    ),  # type: ignore[arg-type]
    "open(bytes)": (
        lambda log: embedlog.open(b"x"),
        TypeError,
        ("str or an os.PathLike of str, not bytes",),
    ),
    "pickled future": (
        producer(lambda made: pickle.dumps(made.send("orders", b"v"))),
        TypeError,
        ("result()",),
    ),
    "polars.scan of a path": (
        lambda log: __import__("embedlog.polars").polars.scan("path", "orders"),
        TypeError,
        ("an open log", "embedlog.open('path'", "not str"),
    ),
    "duckdb.register of a path": (
        lambda log: __import__("embedlog.duckdb").duckdb.register("path"),
        TypeError,
        ("an open log", "embedlog.open('path'", "not str"),
    ),
    "unknown topic": (
        lambda log: log.describe_topic("order"),
        EmbedlogError,
        ("'order' is unknown", "did you mean 'orders'?"),
    ),
    "unknown topic, nothing near": (
        lambda log: log.describe_topic("zebra"),
        EmbedlogError,
        ("create_topic()",),
    ),
    "topic that exists": (
        lambda log: log.create_topic("orders"),
        TopicExistsError,
        ("'orders'", "exist_ok=True"),
    ),
    "no directory": (
        lambda log: embedlog.open(log.path / "no", create=False),
        StorageError,
        ("no such log directory", "create=False"),
    ),
    "closed consumer": (
        lambda log: shut(log.consumer("orders")).poll(),
        EmbedlogError,
        ("was closed", "log.consumer("),
    ),
    "closed producer": (
        lambda log: shut(log.producer()).send("orders"),
        EmbedlogError,
        ("was closed", "log.producer("),
    ),
    "closed log": (
        lambda log: shut(embedlog.open(log.path)).topics(),
        EmbedlogError,
        ("was closed", "embedlog.open(path)"),
    ),
    "read-only log": (
        lambda log: shut_after(
            embedlog.open(log.path, read_only=True), lambda made: made.create_topic("x")
        ),
        EmbedlogError,
        ("read-only", "without read_only=True"),
    ),
}

POSITIONS: dict[str, Row] = {
    'scan("t", 0)': (
        lambda log: log.scan("orders", 0),
        TypeError,
        ("Log.scan(topic: str, *, partitions:", "expected at most 1, found 2"),
    ),
    'seek("t", 0, 3)': (
        consumer(lambda made: made.seek("orders", 0, 3)),
        TypeError,
        ("Consumer.seek(partition: TopicPartition, offset:", "expected at most 2, found 3"),
    ),
    'delete_records("t", 5)': (
        lambda log: log.delete_records("orders", 5),
        TypeError,
        ("Log.delete_records(offsets: Mapping[TopicPartition, int])", "found 2"),
    ),
    'alter_topic("t", "retention.ms", 5)': (
        lambda log: log.alter_topic("orders", "retention.ms", 5),
        TypeError,
        ("config: Mapping[str, Any] | None, **settings)", "found 3"),
    ),
    'create_topic("t", 1, 1)': (
        lambda log: log.create_topic("x", 1, 1),
        TypeError,
        ("not int", "by name"),
    ),
    "open(path, {})": (
        lambda log: embedlog.open(log.path, {}),  # type: ignore[call-arg]
        TypeError,
        ("open(path:", "*, read_only: bool", "found 2"),
    ),
    "poll(1, 2, 3)": (
        consumer(lambda made: made.poll(1, 2, 3)),
        TypeError,
        ("Consumer.poll(timeout, max_records)",),
    ),
    "send(v, k, h, 0, 5)": (
        producer(lambda made: made.send("orders", b"v", b"k", [], 0, 5)),
        TypeError,
        ("Producer.send(topic, value, key, headers, partition, timestamp_ms",),
    ),
    'topics("t")': (
        lambda log: log.topics("orders"),
        TypeError,
        ("a bool, not str", "describe_topic(name)"),
    ),
}


def reading(act: Act) -> Act:
    return lambda log: act(log.scan("orders"))


def sending(act: Act) -> Act:
    """Of a record that was read, and of the future of its send."""

    def call(log: Any) -> Any:
        with log.producer() as made:
            future = made.send("orders", b"v", partition=0)
            future.result(10)
            return act(log.last_record("orders", 0), future)

    return call


def batch_value(log: Any) -> Any:
    with log.producer() as made:
        made.send("orders", b"v", partition=0).result(10)
    return next(log.scan("orders").batches()).value


def awaiting(act: Act) -> Act:
    async def body(log: Any) -> None:
        async with act(log):
            pass

    return lambda log: asyncio.run(body(log))


CONTAINERS: dict[str, Row] = {
    'log["t"]': (
        lambda log: log["orders"],
        TypeError,
        ("'Log' is no container", "topics()", "scan(name).records()"),
    ),
    "for t in log": (lambda log: list(log), TypeError, ("'Log' is no container", "topics()")),
    "len(log)": (lambda log: len(log), TypeError, ("'Log' is no container", "topics()")),
    '"t" in log': (lambda log: "orders" in log, TypeError, ("'Log' is no container", "topics()")),
    "dict(log)": (lambda log: dict(log), TypeError, ("'Log' is no container",)),
    "a, b = producer": (
        producer(lambda made: list(made)),
        TypeError,
        ("'Producer' is no container", "records() reads"),
    ),
    "len(consumer)": (consumer(lambda made: len(made)), TypeError, ("poll() returns a list",)),
    "x in consumer": (consumer(lambda made: b"x" in made), TypeError, ("poll() returns a list",)),
    "scan[0]": (reading(lambda scan: scan[0]), TypeError, ("'Scan' is no container", "head(n)")),
    "len(scan)": (reading(lambda scan: len(scan)), TypeError, ("num_rows",)),
    "x in scan": (reading(lambda scan: b"x" in scan), TypeError, ("search(pattern)",)),
    "scan.records()[0]": (
        reading(lambda scan: scan.records()[0]),
        TypeError,
        ("'RecordIterator'", "head(n)"),
    ),
    "len(scan.records())": (
        reading(lambda scan: len(scan.records())),
        TypeError,
        ("for record in scan.records()",),
    ),
    "scan.records().value": (
        reading(lambda scan: scan.records().value),
        AttributeError,
        ("'value'", "next(scan.records())"),
    ),
    "scan.batches()[0]": (
        reading(lambda scan: scan.batches()[0]),
        TypeError,
        ("next(scan.batches())",),
    ),
    "batch.value": (batch_value, AttributeError, ("values[i]", "records()")),
    'record["value"]': (
        sending(lambda record, _: record["value"]),
        TypeError,
        ("record.value", "_asdict()"),
    ),
    "record[0]": (sending(lambda record, _: record[0]), TypeError, ("record.value",)),
    "key, value = record": (sending(lambda record, _: tuple(record)), TypeError, ("record.value",)),
    '"value" in record': (
        sending(lambda record, _: "value" in record),
        TypeError,
        ("record.value",),
    ),
    "dict(record)": (sending(lambda record, _: dict(record)), TypeError, ("_asdict()",)),
    "future.offset": (
        sending(lambda _, future: future.offset),
        AttributeError,
        ("result()", "RecordMetadata"),
    ),
    "async with log": (
        awaiting(lambda log: log),
        TypeError,
        ("supports `with`", "log.async_producer(…)"),
    ),
    "asyncio.run(send())": (
        producer(lambda made: asyncio.run(made.send("orders", b"v", partition=0))),
        (TypeError, ValueError, AssertionError),
        ("result() waits", "a coroutine can await it"),
    ),
    "moment for timestamp_ms": (
        producer(lambda made: made.send("orders", b"v", timestamp_ms=datetime.datetime.now())),
        TypeError,
        ("not datetime", "int(moment.timestamp() * 1000)"),
    ),
    "seconds for timestamp_ms": (
        producer(lambda made: made.send("orders", b"v", timestamp_ms=1.5)),
        TypeError,
        ("not float", "int(time.time() * 1000)"),
    ),
    "moment for timestamps_ms": (
        producer(
            lambda made: made.send_batch("orders", [b"v"], timestamps_ms=datetime.datetime.now())
        ),
        TypeError,
        ("one int a row, not datetime",),
    ),
    "send([topic])": (
        producer(lambda made: made.send(["orders"], b"v")),
        TypeError,
        ("a topic is a str, not list",),
    ),
}

RECORDS: dict[str, Row] = {
    "text": (
        producer(lambda made: made.send("orders", "v")),
        TypeError,
        ("bytes, not str", "value_serializer", "serializers.string"),
    ),
    "dict": (
        producer(lambda made: made.send("orders", {})),
        TypeError,
        ("bytes, not dict", "value_serializer", "serializers.json"),
    ),
    "key": (
        producer(lambda made: made.send("orders", b"", 5)),
        TypeError,
        ("bytes, not int", "key_serializer"),
    ),
    "object": (
        producer(lambda made: made.send("orders", object())),
        TypeError,
        ("not object", "a callable that returns bytes"),
    ),
    "array": (
        producer(lambda made: made.send("orders", np.zeros(3))),
        TypeError,
        ("not ndarray", "send_batch()"),
    ),
    "item of a list": (
        producer(lambda made: made.send_batch("orders", [b"a", None, "c"])),
        TypeError,
        ("item 2 of the values", "str"),
    ),
    "item of keys": (
        producer(lambda made: made.send_batch("orders", [b"a"], [7])),
        TypeError,
        ("item 0 of the keys", "int"),
    ),
    "column of doubles": (
        lambda log: arrow([1.5])(log),
        TypeError,
        ("float64", "binary or string"),
    ),
    "column of longs": (lambda log: arrow([1])(log), TypeError, ("int64", "binary or string")),
    "column of moments": (
        lambda log: table(value=[datetime.datetime(2024, 1, 1)])(log),
        TypeError,
        ("timestamp[us]",),
    ),
    "column of lists": (
        lambda log: table(value=[[b"a"]])(log),
        TypeError,
        ("the Arrow type list",),
    ),
    "column of a wrong name": (
        lambda log: table(value=[b"a"], valu=[b"a"])(log),
        TypeError,
        ("'valu'", "key, value, headers"),
    ),
    "index of a frame": (
        lambda log: table(value=[b"a"], __index_level_0__=[1])(log),
        TypeError,
        ("reset_index()",),
    ),
}


def shut(made: Any) -> Any:
    made.close()
    return made


def shut_after(made: Any, act: Act) -> Any:
    with made:
        return act(made)


@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        pytest.param(*row, id=name)
        for name, row in (OPTIONS | CALLS | POSITIONS | CONTAINERS | RECORDS).items()
    ],
)
def test_a_mistake_is_answered_with_what_is_wrong_and_the_way_on(
    log: Any,
    act: Act,
    error: type[BaseException] | tuple[type[BaseException], ...],
    said: tuple[str, ...],
) -> None:
    before = log.topics()
    with pytest.raises(error) as caught:
        act(log)
    text = str(caught.value)
    assert [each for each in said if each not in text] == [], text
    assert text.isprintable()
    assert log.topics() == before


PUBLIC = (
    embedlog.AsyncConsumer,
    embedlog.AsyncProducer,
    embedlog.Batch,
    embedlog.Consumer,
    embedlog.Log,
    embedlog.Producer,
    embedlog.Scan,
)


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        pytest.param(cls, name, id=f"{cls.__name__}.{name}")
        for cls in PUBLIC
        for name in dir(cls)
        if name[0] != "_"
    ],
)
def test_too_many_arguments_by_position_are_answered_with_the_signature(
    cls: type, name: str
) -> None:
    verb = inspect.getattr_static(cls, name)
    if not inspect.isfunction(verb):
        return
    parameters = inspect.signature(verb).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return
    with pytest.raises(TypeError) as caught:
        verb(*([None] * 20))
    text = str(caught.value)
    assert f"{cls.__name__}.{name}(" in text, text
    assert [
        one.name
        for one in list(parameters)[1:]
        if one.name not in text and one.kind is not inspect.Parameter.VAR_KEYWORD
    ] == []


def test_no_object_that_is_no_container_seems_to_be_one(log: Any) -> None:
    with log.producer() as made, log.consumer("orders") as reader:
        scan = log.scan("orders")
        for one in (log, made, reader, scan, scan.records(), scan.batches()):
            assert one
            for name in ("__getitem__", "__len__"):
                assert not hasattr(one, name)
                assert name not in dir(type(one))
            with pytest.raises(TypeError):
                len(mock.create_autospec(type(one), instance=True))


def test_the_iterator_of_a_scan_is_one(log: Any) -> None:
    log.create_topic("counted", exist_ok=True)
    with log.producer() as made:
        made.send_batch("counted", [b"%d" % number for number in range(10)]).result(10)
    records = log.scan("counted").records()
    assert isinstance(records, Iterator)
    assert next(records).value == b"0"
    assert [record.value for record in records][:2] == [b"1", b"2"]
    assert next(records, None) is None
    batches = log.scan("counted").batches()
    assert sum(batch.num_rows for batch in batches) == 10
    left = log.scan("counted").records()
    next(left)
    left.close()
    assert list(left) == []


@pytest.mark.parametrize("client", ["async_producer", "async_consumer"])
def test_a_mistake_of_asyncios_clients_is_answered_too(log: Any, client: str) -> None:
    import asyncio

    async def act() -> None:
        made = getattr(log, client)(*(["orders"] if client == "async_consumer" else []))
        async with made:
            with pytest.raises(ConfigError, match="None to wait forever"):
                await (made.poll(-1) if client == "async_consumer" else made.flush(-1))
            if client == "async_consumer":
                with pytest.raises(UnknownOptionError, match="in seconds"):
                    await made.poll(timeout_ms=1)
        with pytest.raises(embedlog.ClosedError, match=f"log.{client}"):
            await (made.poll() if client == "async_consumer" else made.send("orders", b""))

    async def wrong() -> None:
        plain = log.producer() if client == "async_producer" else log.consumer("orders")
        with plain, pytest.raises(TypeError, match=f"log.{client}"):
            async with plain:
                pass

    asyncio.run(act())
    asyncio.run(wrong())


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_directory_that_may_not_be_written_says_how_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Root may write everywhere, so the system's answer is made up."""

    def refused(*arguments: Any, **keywords: Any) -> None:
        raise StorageError("cannot open", errno=number, path=arguments[0])

    embedlog.open(tmp_path / "log", config=QUIET).close()
    monkeypatch.setattr(location, "enter", refused)
    with pytest.raises(StorageError, match="read_only=True needs no write permission") as caught:
        embedlog.open(tmp_path / "log")
    assert (caught.value.errno, caught.value.path) == (number, str(tmp_path / "log"))
    with pytest.raises(StorageError) as caught:
        embedlog.open(tmp_path / "log", read_only=True)
    assert "read_only" not in str(caught.value)


# ---- probable mistakes that are no errors --------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize("way", ["send", "send_batch", "column", "serializer"])
def test_a_timestamp_in_seconds_is_mentioned_once_for_a_producer(
    log: Any, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    log.create_topic(f"times-{way}", exist_ok=True)
    options = {"value_serializer": bytes} if way == "serializer" else {}
    with log.producer(**options) as made:
        for seconds in (1_700_000_000, 1_700_000_001):
            if way == "send_batch":
                future = made.send_batch(f"times-{way}", [b"v"], timestamps_ms=seconds)
            elif way == "column":
                future = made.send_batch(
                    f"times-{way}", [b"v", b"w"], timestamps_ms=[seconds, seconds * 1000]
                )
            else:
                future = made.send(f"times-{way}", b"v", timestamp_ms=seconds)
            future.result(10)
        made.send("orders", b"v", timestamp_ms=1_700_000_002).result(10)
    said = [each for each in warnings_of(caplog) if "1970" in each]
    assert len(said) == 1, said
    assert "1700000000 ms" in said[0]
    assert "not in seconds" in said[0]
    stored = [record.timestamp_ms for record in log.scan(f"times-{way}").records()]
    assert 1_700_000_000 in stored, "it is taken as it is: old data may be replayed"
    assert 1_700_000_001 in stored


def test_plausible_timestamps_are_not_mentioned(log: Any, caplog: pytest.LogCaptureFixture) -> None:
    with log.producer() as made:
        for time_ms in (0, 5, 99_999_999, 31_536_000_000, 1_700_000_000_000):
            made.send("orders", b"v", timestamp_ms=time_ms).result(10)
    assert warnings_of(caplog) == []


def test_a_wait_that_was_perhaps_meant_in_milliseconds_warns_once_for_each_line(log: Any) -> None:
    with warnings.catch_warnings(record=True) as caught, log.producer() as made:
        warnings.simplefilter("default")
        with log.consumer("orders", auto_offset_reset="earliest") as reader:
            made.send("orders", b"v").result(10)
            for _ in range(2):
                assert reader.poll(1000, max_records=1)
                made.flush(5000)
            made.flush(5000)
            made.flush(100)
    said = [str(each.message) for each in caught]
    assert [each.split()[0] for each in said] == ["poll()", "flush()", "flush()"], said
    assert all("in seconds, not in ms" in each for each in said)
    assert {(each.filename, each.category) for each in caught} == {(__file__, RuntimeWarning)}


def test_a_wait_of_a_coroutine_that_was_perhaps_meant_in_milliseconds_names_its_line(
    log: Any,
) -> None:
    import asyncio

    async def act() -> None:
        async with log.async_producer() as made:
            await made.flush(5000)

    with pytest.warns(RuntimeWarning, match=r"flush\(\) waits for up to 5000 s") as caught:
        asyncio.run(act())
    assert [each.filename for each in caught] == [__file__]


def test_next_hands_out_one_record_and_loses_none(log: Any) -> None:
    log.create_topic("numbers", exist_ok=True)
    with log.producer() as made:
        made.send_batch("numbers", [b"%d" % number for number in range(10)]).result(10)
    with log.consumer("numbers", auto_offset_reset="earliest", consumer_timeout_ms=0) as reader:
        first = [next(reader).offset for _ in range(3)]
        assert reader.position(TopicPartition("numbers", 0)) == 3
        assert first + [record.offset for record in reader.poll(1, max_records=4)] == [*range(7)]
        assert [record.offset for record in reader] == [7, 8, 9]
        assert next(reader, None) is None


def test_a_partition_number_of_numpy_is_the_same_key() -> None:
    third = TopicPartition("t", np.int64(3))  # type: ignore[arg-type]
    assert (third, type(third.partition)) == (("t", 3), int)
    assert pickle.loads(pickle.dumps(third)) == third == third._replace(partition=3)
    assert repr(third) == "TopicPartition(topic='t', partition=3)"
    for wrong in (True, 1.0, None, "0"):
        with pytest.raises(TypeError, match="is an int, not"):
            TopicPartition("t", wrong)  # type: ignore[arg-type]
