"""Interceptors of a producer: their input, and that they cannot break it; serializers that are
objects.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import embedlog
from embedlog import ProducerRecord, RecordMetadata
from embedlog.errors import (
    ClosedError,
    ConfigError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from tests.support.producer_helpers import log as log
from tests.support.producer_helpers import records, values


class Seeing:
    """Writes down all it hears, and marks the value."""

    def __init__(self, mark: bytes = b"", story: list[Any] | None = None) -> None:
        self.mark = mark
        self.story: list[Any] = [] if story is None else story

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.story.append((self.mark, "send", record.value))
        return record._replace(value=record.value + self.mark)

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        self.story.append((self.mark, "heard", metadata.partition, metadata.offset, type(error)))

    def close(self) -> None:
        self.story.append((self.mark, "closed"))


def test_interceptors_run_in_the_order_of_the_list_and_hear_before_the_users_callback(
    log: embedlog.Log,
) -> None:
    story: list[Any] = []
    both = [Seeing(b"1", story), Seeing(b"2", story)]
    with log.producer(
        interceptor_classes=both, value_serializer=lambda value: value + b"!", linger_ms=50
    ) as producer:
        future = producer.send("one", b"v")
        future.add_done_callback(lambda done: story.append("user"))
        assert future.result(10).offset == 0
        producer.flush(10)
    assert values(log) == [b"v12!"]
    heard = [(b"1", "heard", 0, 0, type(None)), (b"2", "heard", 0, 0, type(None))]
    assert story == [
        (b"1", "send", b"v"),
        (b"2", "send", b"v1"),
        *heard,
        "user",
        (b"1", "closed"),
        (b"2", "closed"),
    ]


class Raising:
    def on_send(self, record: ProducerRecord) -> Any:
        raise RuntimeError("of the interceptor")

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        raise RuntimeError("of the interceptor")

    def close(self) -> None:
        raise RuntimeError("of the interceptor")


@pytest.mark.parametrize(
    "returned", ["raises", None, 5, ProducerRecord("one", b"v", partition=-1)], ids=str
)
def test_a_broken_interceptor_is_logged_and_the_last_good_record_goes_on(
    log: embedlog.Log, returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Raising()
    if returned != "raises":
        broken.on_send = lambda record: returned  # type: ignore[method-assign]
    last = Seeing(b"b")
    with log.producer(interceptor_classes=[Seeing(b"a"), broken, last]) as producer:
        assert producer.send("one", b"v").result(10).offset == 0
        producer.flush(10)
    assert values(log) == [b"vab"]
    assert [entry[1] for entry in last.story] == ["send", "heard", "closed"]
    assert "on_send of the interceptor" in caplog.text
    assert "on_acknowledgement of the interceptor" in caplog.text
    assert "close of the interceptor" in caplog.text


def test_an_interceptor_may_send_a_record_elsewhere(log: embedlog.Log) -> None:
    class Moving:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record._replace(
                topic="t", partition=2, key=b"k", headers=(("h", b"x"),), timestamp_ms=5
            )

    with log.producer(interceptor_classes=[Moving]) as producer:
        assert producer.send("one", b"v").result(10)[:3] == ("t", 2, 0)
        assert producer.send_batch("one", [b"v", b"w"]).result(10) == [("t", 2, 1, 2)]
        assert producer.send("one", b"v", headers=None).result(10).offset == 3
    found = records(log, "t")[0]
    assert (found.key, found.headers, found.timestamp_ms) == (b"k", (("h", b"x"),), 5)


def test_interceptors_hear_of_what_never_got_into_the_log(log: embedlog.Log) -> None:
    seeing = Seeing()
    with log.producer(
        interceptor_classes=[seeing], value_serializer=lambda value: 1 // 0
    ) as producer:
        assert isinstance(
            producer.send("unknown", b"v").exception(10), UnknownTopicOrPartitionError
        )
        with pytest.raises(SerializationError):
            producer.send("t", b"v", partition=3)
    with pytest.raises(ClosedError):
        producer.send("t", b"v")
    heard = [entry[2:] for entry in seeing.story if entry[1] == "heard"]
    assert heard == [
        (-1, -1, UnknownTopicOrPartitionError),
        (3, -1, SerializationError),
        (-1, -1, ClosedError),
    ]


def test_interceptors_hear_where_a_record_was_that_could_not_be_written(log: embedlog.Log) -> None:
    seeing = Seeing()
    log.create_topic("small", config={"max.message.bytes": 200})
    with log.producer(interceptor_classes=[seeing]) as producer:
        error = producer.send("small", b"x" * 1000).exception(10)
        producer.flush(10)
    assert seeing.story[1][2:] == (0, -1, type(error))


def test_every_row_of_a_batch_is_seen(log: embedlog.Log) -> None:
    pa = pytest.importorskip("pyarrow")
    seeing = Seeing(b"!")
    table = pa.table(
        {
            "value": [b"a", b"b", b"c"],
            "key": [b"k", None, b"k"],
            "partition": pa.array([3, 1, 3], pa.int32()),
        }
    )
    with log.producer(interceptor_classes=[seeing], acks=1) as producer:
        assert sorted(producer.send_batch("t", table).result(10)) == [
            ("t", 1, 0, 1),
            ("t", 3, 0, 2),
        ]
        headers = [[("h", b"")], ()]
        given = producer.send_batch(
            "t", [b"d", b"e"], [b"k", b"k"], partition=0, timestamps_ms=[5, 6], headers=headers
        )
        assert given.result(10) == [("t", 0, 0, 2)]
        assert producer.send_batch("t", []).result(10) == []
    assert sorted(values(log, "t")) == [b"a!", b"b!", b"c!", b"d!", b"e!"]
    times = [
        (record.timestamp_ms, record.headers)
        for record in records(log, "t")
        if record.partition == 0
    ]
    assert times == [(5, (("h", b""),)), (6, ())]
    assert sum(entry[1] == "heard" for entry in seeing.story) == 5


def test_a_row_that_fails_fails_its_batch(log: embedlog.Log) -> None:
    with log.producer(interceptor_classes=[Seeing()], max_request_size=200) as producer:
        error = producer.send_batch("one", [b"a", b"x" * 1000, b"b"]).exception(10)
        assert "max.request.size" in str(error)
    assert values(log) == [b"a", b"b"]


def test_unacknowledged_rows_know_no_offset(log: embedlog.Log) -> None:
    with log.producer(interceptor_classes=[Seeing()], acks=0) as producer:
        assert producer.send_batch("one", [b"a", b"b"]).result(10) == [("one", 0, -1, 2)]


@pytest.mark.parametrize("given", [print, object(), type("Empty", (), {})])
def test_what_is_no_interceptor_is_refused(log: embedlog.Log, given: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"interceptor\.classes: expected .*on_send or on_acknowledgement"
    ):
        log.producer(interceptor_classes=[given])


def test_acknowledgements_come_on_the_producers_thread_in_append_order(log: embedlog.Log) -> None:
    heard: list[int] = []
    threads: set[str] = set()

    class Listening:
        def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
            heard.append(metadata.offset)
            threads.add(threading.current_thread().name)

    with log.producer(
        interceptor_classes=[Listening()], linger_ms=0, client_id="p", batch_size=500
    ) as producer:
        for _ in range(2000):
            producer.send("one", b"v" * 40)
        producer.flush(10)
        assert heard == list(range(2000))
    assert threads == {"embedlog-p"}


# ---- serializers that are objects ---------------------------------------------------------------


class Tagging:
    """As kafka-python's: gets the topic, and may add headers."""

    def serialize(self, topic: str, headers: list[tuple[str, bytes]], data: Any) -> bytes:
        headers.append(("kind", type(data).__name__.encode()))
        return f"{topic}:{data}".encode()


def test_a_serializer_object_sees_topic_and_headers(log: embedlog.Log) -> None:
    with log.producer(key_serializer=Tagging(), value_serializer=Tagging()) as producer:
        producer.send("one", 5, "k", headers=(("own", b"1"),)).result(10)
        producer.send_batch("one", [6], ["j"]).result(10)
    first, second = records(log)
    assert (first.key, first.value) == (b"one:k", b"one:5")
    assert first.headers == (("own", b"1"), ("kind", b"str"), ("kind", b"int"))
    assert second.headers == (("kind", b"str"), ("kind", b"int"))


@pytest.mark.parametrize("batch", [False, True])
def test_a_failing_serializer_says_of_which_record(log: embedlog.Log, batch: bool) -> None:
    with (
        log.producer(key_serializer=lambda key: key.encode()) as producer,
        pytest.raises(SerializationError) as caught,
    ):
        if batch:
            producer.send_batch("t", [b"v"], [5], partition=2)
        else:
            producer.send("t", b"v", 5, partition=2)
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("t", 2, None)
    assert "the key_serializer failed on a record" in str(error)
    assert "(topic t, partition 2, field key)" in str(error)
    assert error.field == "key"
    assert isinstance(error.__cause__, AttributeError)
