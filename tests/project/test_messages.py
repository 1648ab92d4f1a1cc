"""The messages for mistakes of users: the error, its place, and the correction. No mistake is silently accepted.

Names of other libraries are among them: kafka-python, aiokafka, confluent-kafka and Kafka's first clients.
"""

from __future__ import annotations

import datetime
import errno
import logging
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
Row = tuple[Act, type[BaseException], tuple[str, ...]]


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
    "create_topic(num_partitions=)": (lambda log: log.create_topic("x", num_partitions=3), UnknownOptionError,
                                      ("num_partitions is not an option of a topic", "did you mean partitions?")),
    "create_topic(replication_factor=)": (lambda log: log.create_topic("x", replication_factor=3), InvalidReplicationFactorError,
                                          ("open a list of directories", "1, in one directory", "3")),
    "create_topic(compresion_type=)": (lambda log: log.create_topic("x", compresion_type="zstd"), UnknownOptionError,
                                       ("did you mean compression_type?",)),
    "create_topic(exists_ok=)": (lambda log: log.create_topic("x", exists_ok=True),
                                 UnknownOptionError, ("did you mean exist_ok?",)),
    "open(retention_ms=)": (lambda log: embedlog.open(log.path, retention_ms=3), UnknownOptionError,
                            ("an option of a topic", "log.retention.ms")),
    "open(readonly=)": (lambda log: embedlog.open(log.path, readonly=True), UnknownOptionError, ("did you mean read_only?",)),
    "alter_topic(retention=)": (lambda log: log.alter_topic("orders", retention=3),
                                UnknownOptionError, ("did you mean retention",)),
    "request.required.acks": (lambda log: log.producer({"request.required.acks": 1}),
                              UnknownOptionError, ("did you mean acks?",)),
    "producer.type": (lambda log: log.producer({"producer.type": "async"}), UnknownOptionError, ("result()",)),
    "queue.buffering.max.ms": (lambda log: log.producer(queue_buffering_max_ms=1), UnknownOptionError, ("linger_ms?",)),
    "message.send.max.retries": (lambda log: log.producer({"message.send.max.retries": 1}), UnknownOptionError, ("retries?",)),
    "compressed.topics": (lambda log: log.producer({"compressed.topics": "a"}), UnknownOptionError, ("compression.type",)),
    "batch.num.messages": (lambda log: log.producer({"batch.num.messages": 1}), UnknownOptionError, ("batch.size?",)),
    "max_batch_size": (lambda log: log.async_producer(max_batch_size=1), UnknownOptionError, ("batch_size?",)),
    "bootstrap_servers": (lambda log: log.producer(bootstrap_servers="a:1"), UnknownOptionError, ("there is no server",)),
    "auto.commit.enable": (lambda log: log.consumer({"a": 1}), TypeError, ("config={",)),
    "autocommit": (lambda log: log.consumer("orders", config={"auto.commit.enable": 1}),
                   UnknownOptionError, ("enable.auto.commit?",)),
    "smallest": (lambda log: log.consumer("orders", auto_offset_reset="smallest"), ConfigError, ("'smallest'", "'earliest'?")),
    "first": (lambda log: log.consumer("orders", auto_offset_reset="first"), ConfigError, ("'first'", "'earliest'?")),
    "misspelt choice": (lambda log: log.producer(compression_type="zst"), ConfigError, ("'zst'", "did you mean 'zstd'?")),
    "retention.ms of days": (lambda log: log.create_topic("x", retention_ms="7d"), ConfigError, ("'7d'", "the unit is ms")),
    "retention.ms of a timedelta": (lambda log: log.create_topic("x", retention_ms=datetime.timedelta(7)), ConfigError,
                                    ("timedelta", "the unit is ms")),
}  # fmt: skip

CALLS: dict[str, Row] = {
    "consumer of a list": (lambda log: log.consumer(["orders"]), TypeError, ("separate arguments", "consumer(*names)")),
    "consumer of a pattern": (lambda log: log.consumer("ord.*"), EmbedlogError, ("'ord.*'", "subscribe(pattern=")),
    "poll(timeout_ms=)": (consumer(lambda made: made.poll(timeout_ms=5)),
                          UnknownOptionError, ("poll()", "timeout_ms", "in seconds")),
    "poll(max_record=)": (consumer(lambda made: made.poll(max_record=5)), UnknownOptionError, ("did you mean max_records?",)),
    "poll(-1)": (consumer(lambda made: made.poll(-1)), ConfigError, ("poll()", "None to wait forever", "found -1")),
    "poll(nan)": (consumer(lambda made: made.poll(float("nan"))), TypeError, ("seconds or None",)),
    "poll('1')": (consumer(lambda made: made.poll("1")), TypeError, ("seconds or None", "str '1'")),
    "poll(timedelta)": (consumer(lambda made: made.poll(datetime.timedelta(1))), TypeError, ("seconds or None", "timedelta")),
    "batches(-1)": (consumer(lambda made: next(made.batches(-1))), ConfigError, ("batches()", "found -1")),
    "flush('1')": (producer(lambda made: made.flush("1")), TypeError, ("flush()", "seconds or None", "'1'")),
    "flush(-1)": (producer(lambda made: made.flush(-1)), ConfigError, ("flush()", "None to wait forever")),
    "result('1')": (producer(lambda made: made.send("orders", b"v").result("1")), TypeError, ("seconds or None", "'1'")),
    "subscribe(listener=)": (consumer(lambda made: made.subscribe(["orders"], listener=5)),
                             TypeError, ("on_partitions_assigned",)),
    "subscribe(on_assign=)": (consumer(lambda made: made.subscribe(["orders"], on_assign=print)),
                              UnknownOptionError, ("on_assigned= is a callable",)),
    "commit(timeout_ms=)": (consumer(lambda made: made.commit(timeout_ms=5)),
                            UnknownOptionError, ("Consumer.commit()", "no timeout of its own", "default_api_timeout_ms")),
    "close(timeout_ms=)": (producer(lambda made: made.close(timeout_ms=5)),
                           UnknownOptionError, ("Producer.close()", "in seconds")),
    "seek(tp=)": (consumer(lambda made: made.seek(tp=5, offset=3)), UnknownOptionError, ("seek()", "partition, offset")),
    "send_batch(timestamps=)": (producer(lambda made: made.send_batch("orders", [], timestamps=[])), UnknownOptionError,
                                ("timestamps_ms",)),
    "scan(partition=)": (lambda log: log.scan("orders", partition=0),
                         UnknownOptionError, ("Log.scan()", "did you mean partitions?")),
    "create_partitions(count=)": (lambda log: log.create_partitions("orders", count=3), UnknownOptionError, ("total_count?",)),
    "reset_group_offsets(dryrun=)": (lambda log: log.reset_group_offsets("g", "orders", to=0, dryrun=True), UnknownOptionError,
                                     ("Log.reset_group_offsets()", "did you mean dry_run?")),
    "flush(timeout=) of a log": (lambda log: log.flush(timeout=5), UnknownOptionError, ("Log.flush()", "it takes topic")),
    "consumer[0]": (consumer(lambda made: made[0]), TypeError, ("poll() returns a list",)),
    "with async_producer": (entering(lambda log: log.async_producer()), TypeError, ("async with", "log.producer(")),
    "with async_consumer": (entering(lambda log: log.async_consumer("orders")), TypeError, ("async with", "log.consumer(")),
    "TopicPartition of a text": (lambda log: TopicPartition("orders", "0"),  # type: ignore[arg-type]
                                 TypeError, ("is an int, not str", "'0'")),
    "open(5)": (lambda log: embedlog.open(5), TypeError, ("str or an os.PathLike of str, not int",)),  # type: ignore[arg-type]
    "open(bytes)": (lambda log: embedlog.open(b"x"), TypeError, ("str or an os.PathLike of str, not bytes",)),
    "pickled future": (producer(lambda made: pickle.dumps(made.send("orders", b"v"))), TypeError, ("result()",)),
    "polars.scan of a path": (lambda log: __import__("embedlog.polars").polars.scan("path", "orders"),
                              TypeError, ("an open log", "embedlog.open('path'", "not str")),
    "duckdb.register of a path": (lambda log: __import__("embedlog.duckdb").duckdb.register("path"),
                                  TypeError, ("an open log", "embedlog.open('path'", "not str")),
    "unknown topic": (lambda log: log.describe_topic("order"), EmbedlogError, ("'order' is unknown", "did you mean 'orders'?")),
    "unknown topic, nothing near": (lambda log: log.describe_topic("zebra"), EmbedlogError, ("create_topic()",)),
    "topic that exists": (lambda log: log.create_topic("orders"), TopicExistsError, ("'orders'", "exist_ok=True")),
    "no directory": (lambda log: embedlog.open(log.path / "no", create=False),
                     StorageError, ("no such log directory", "create=False")),
    "closed consumer": (lambda log: shut(log.consumer("orders")).poll(), EmbedlogError, ("was closed", "log.consumer(")),
    "closed producer": (lambda log: shut(log.producer()).send("orders"), EmbedlogError, ("was closed", "log.producer(")),
    "closed log": (lambda log: shut(embedlog.open(log.path)).topics(), EmbedlogError, ("was closed", "embedlog.open(path)")),
    "read-only log": (lambda log: shut_after(embedlog.open(log.path, read_only=True), lambda made: made.create_topic("x")),
                      EmbedlogError,
                      ("read-only", "without read_only=True")),
}  # fmt: skip

RECORDS: dict[str, Row] = {
    "text": (producer(lambda made: made.send("orders", "v")),
             TypeError, ("bytes, not str", "value_serializer", "serializers.string")),
    "dict": (producer(lambda made: made.send("orders", {})),
             TypeError, ("bytes, not dict", "value_serializer", "serializers.json")),
    "key": (producer(lambda made: made.send("orders", b"", 5)), TypeError, ("bytes, not int", "key_serializer")),
    "object": (producer(lambda made: made.send("orders", object())), TypeError, ("not object", "a callable that returns bytes")),
    "array": (producer(lambda made: made.send("orders", np.zeros(3))), TypeError, ("not ndarray", "send_batch()")),
    "item of a list": (producer(lambda made: made.send_batch("orders", [b"a", None, "c"])),
                       TypeError, ("item 2 of the values", "str")),
    "item of keys": (producer(lambda made: made.send_batch("orders", [b"a"], [7])), TypeError, ("item 0 of the keys", "int")),
    "column of doubles": (lambda log: arrow([1.5])(log), TypeError, ("float64", "binary or string")),
    "column of longs": (lambda log: arrow([1])(log), TypeError, ("int64", "binary or string")),
    "column of moments": (lambda log: table(value=[datetime.datetime(2024, 1, 1)])(log), TypeError, ("timestamp[us]",)),
    "column of lists": (lambda log: table(value=[[b"a"]])(log), TypeError, ("the Arrow type list",)),
    "column of a wrong name": (lambda log: table(value=[b"a"], valu=[b"a"])(log), TypeError, ("'valu'", "key, value, headers")),
    "index of a frame": (lambda log: table(value=[b"a"], __index_level_0__=[1])(log), TypeError, ("reset_index()",)),
}  # fmt: skip


def shut(made: Any) -> Any:
    made.close()
    return made


def shut_after(made: Any, act: Act) -> Any:
    with made:
        return act(made)


@pytest.mark.parametrize(
    ("act", "error", "said"), [pytest.param(*row, id=name) for name, row in (OPTIONS | CALLS | RECORDS).items()]
)
def test_a_mistake_is_answered_with_what_is_wrong_and_the_way_on(
    log: Any, act: Act, error: type[BaseException], said: tuple[str, ...]
) -> None:
    before = log.topics()
    with pytest.raises(error) as caught:
        act(log)
    text = str(caught.value)
    assert [each for each in said if each not in text] == [], text
    assert text.isprintable()
    assert log.topics() == before


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


# ---- probable mistakes that are no errors ----------------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize("way", ["send", "send_batch", "column", "serializer"])
def test_a_timestamp_in_seconds_is_mentioned_once_for_a_producer(log: Any, caplog: pytest.LogCaptureFixture, way: str) -> None:
    log.create_topic(f"times-{way}", exist_ok=True)
    options = {"value_serializer": bytes} if way == "serializer" else {}
    with log.producer(**options) as made:
        for seconds in (1_700_000_000, 1_700_000_001):
            if way == "send_batch":
                future = made.send_batch(f"times-{way}", [b"v"], timestamps_ms=seconds)
            elif way == "column":
                future = made.send_batch(f"times-{way}", [b"v", b"w"], timestamps_ms=[seconds, seconds * 1000])
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


def test_a_wait_of_a_coroutine_that_was_perhaps_meant_in_milliseconds_names_its_line(log: Any) -> None:
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
