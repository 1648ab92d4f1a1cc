"""Programs of other clients: a name that means the same is an alias, another name or value gets the
right call in its error.
"""

from __future__ import annotations

import abc
import asyncio
import enum
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

import embedlog
from embedlog import ConfigError, OffsetAndMetadata, TopicPartition, UnknownOptionError
from embedlog.config import other_clients
from embedlog.config.client import ConsumerConfig, ProducerConfig
from embedlog.config.options import Options, parse, rows
from embedlog.config.topic import LogConfig, TopicConfig
from tests.support.event_loops import run

HERE = {
    "AsyncConsumer": embedlog.AsyncConsumer,
    "AsyncProducer": embedlog.AsyncProducer,
    "Batch": embedlog.Batch,
    "Consumer": embedlog.Consumer,
    "Log": embedlog.Log,
    "Producer": embedlog.Producer,
    "Scan": embedlog.Scan,
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t")
        yield opened


# ---- absent names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, name) for owner, names in other_clients.ABSENT.items() for name in names],
)
def test_an_absent_name_states_the_right_call(owner: str, name: str) -> None:
    cls = HERE[owner]
    with pytest.raises(AttributeError) as caught:
        getattr(cls, name)
    assert other_clients.ABSENT[owner][name] in str(caught.value)
    assert caught.value.name == name


def test_an_object_has_no_absent_name(log: embedlog.Log) -> None:
    with log.producer() as producer, log.consumer("t") as consumer:
        for made in (log, producer, consumer):
            absent = other_clients.ABSENT[type(made).__name__]
            assert absent
            assert not any(hasattr(made, name) for name in absent)
            assert set(dir(made)).isdisjoint(absent)
        assert "flush" in dir(producer)
        with pytest.raises(
            AttributeError,
            match=r"'Producer' has no attribute 'produce'; send\(topic, value, key\)",
        ) as caught:
            producer.produce("t", b"v")  # type: ignore[attr-defined]
        assert caught.value.obj is producer


@pytest.mark.parametrize("cls", HERE.values(), ids=HERE)
def test_a_class_offers_only_what_exists(cls: type) -> None:
    """To completion, and to a mock: a mocked test of a call that does not exist must fail."""
    assert [name for name in dir(cls) if not hasattr(cls, name)] == []
    mocks = [mock.Mock(spec=cls), mock.create_autospec(cls, instance=True)]
    for absent in other_clients.ABSENT[cls.__name__]:
        for mocked in mocks:
            with pytest.raises(AttributeError):
                getattr(mocked, absent)


def test_a_subclass_may_define_an_absent_name_and_be_abstract() -> None:
    class Compatible(embedlog.Log, abc.ABC):
        def list_topics(self) -> list[str]:
            return self.topics()

    assert "list_topics" in dir(Compatible)
    assert "list_groups" not in dir(Compatible)
    assert mock.Mock(spec=Compatible).list_topics()


def test_an_absent_name_that_exists_is_noticed() -> None:
    class Producer:
        def poll(self) -> None: ...

    with pytest.raises(TypeError, match=r"Producer\.poll exists"):
        other_clients.with_hints(Producer)


def test_the_package_explains_names_of_other_packages() -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'KafkaProducer'; embedlog.open\(path\) returns the log"
    ):
        embedlog.KafkaProducer  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"no attribute 'Kafka'$"):
        embedlog.Kafka  # type: ignore[attr-defined]
    with pytest.raises(
        AttributeError,
        match=r"no attribute 'spark'; it is a module of its own: import embedlog.spark",
    ):
        embedlog.__getattr__("spark")  # an attribute after an import of it
    assert not any(
        hasattr(embedlog, name)
        for name in other_clients.MODULE
        if name not in other_clients.SUBMODULES
    )
    assert all(find_spec(f"embedlog.{name}") for name in other_clients.SUBMODULES)


@pytest.mark.parametrize(
    "make",
    [
        lambda: embedlog.Producer(bootstrap_servers="x"),  # type: ignore[call-arg]
        lambda: embedlog.Producer({"bootstrap.servers": "x"}),  # type: ignore[call-arg,arg-type]
        lambda: embedlog.Consumer("t", group_id="g"),  # type: ignore[arg-type]
        lambda: embedlog.AsyncProducer(),  # type: ignore[call-arg]
        lambda: embedlog.AsyncConsumer("t"),  # type: ignore[call-arg,arg-type]
    ],
)
def test_a_client_is_made_by_its_log(make: Any) -> None:
    with pytest.raises(TypeError, match=r"it is made by log\.(async_)?(producer|consumer)\("):
        make()


# ---- aliases -------------------------------------------------------------------------------------


def test_results_have_the_names_of_other_clients(log: embedlog.Log) -> None:
    with log.producer() as producer, log.consumer("t", auto_offset_reset="earliest") as consumer:
        metadata = producer.send(
            "t", b"v", b"k", [("a", b"1"), ("b", None)], timestamp_ms=5000
        ).get(timeout=10)
        assert (metadata.timestamp, metadata.topic_partition) == (5000, TopicPartition("t", 0))
        assert producer.send("t", b"w", None, None).get(10).offset == 1
        record = next(consumer)
        assert (record.timestamp, record.timestamp_ms, record.headers) == (
            5000,
            5000,
            (("a", b"1"), ("b", None)),
        )
        found = consumer.offsets_for_times({TopicPartition("t", 0): 5000})[TopicPartition("t", 0)]
        assert found is not None
        assert (found.timestamp, found.timestamp_ms) == (5000, 5000)
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            producer.send("t", b"v", partition=7).get(10)


def test_the_message_of_send_names_its_arguments(log: embedlog.Log) -> None:
    """It is called for each record, so the message is Python's own."""
    wanted = (
        r"Producer\.send\(topic, value, key, headers, partition, timestamp_ms, expected_offset\): "
        r"send\(\) got an unexpected"
    )
    for wrong in ("timestamp", "time", "message", "expected_version"):
        with (
            log.producer() as producer,
            pytest.raises(TypeError, match=rf"{wanted} keyword argument '{wrong}'"),
        ):
            producer.send("t", **{wrong: b"v"})

    async def asynchronous() -> None:
        async with log.async_producer() as producer:
            with pytest.raises(TypeError, match=rf"Async{wanted} keyword argument 'timestamp'"):
                await producer.send("t", timestamp=5)  # type: ignore[call-arg]

    run(asynchronous())


def test_a_list_of_topics_is_refused_with_the_type(log: embedlog.Log) -> None:
    with pytest.raises(TypeError, match=r"the name of a topic is a str, not list: \['t'\]"):
        log.scan(["t"])  # type: ignore[arg-type]


def test_a_partition_in_the_place_of_headers_is_not_mistaken(log: embedlog.Log) -> None:
    """aiokafka and confluent-kafka have the partition in fourth place."""
    with (
        log.producer() as producer,
        pytest.raises(TypeError, match="partition= and timestamp_ms= are keywords"),
    ):
        producer.send("t", b"v", b"k", 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "said"),
    [("add_callback", "add_done_callback"), ("is_done", r"done\(\)"), ("value", r"result\(\)")],
)
def test_a_future_states_the_right_call(log: embedlog.Log, name: str, said: str) -> None:
    with log.producer() as producer:
        future = producer.send("t", b"v")
        with pytest.raises(AttributeError, match=said):
            getattr(future, name)
        assert not hasattr(future, name)
        assert future.result(10).offset == 0


def test_records_and_results_state_what_to_use_for_absent_fields(log: embedlog.Log) -> None:
    with log.producer() as producer:
        place = producer.send("t", b"v").result(10)
    record = log.last_record("t", 0)
    for name, said in (
        ("checksum", "checks every batch"),
        ("error", r"poll\(\) raises"),
        ("serialized_value_size", r"len\(record.value\)"),
    ):
        with pytest.raises(AttributeError, match=said):
            getattr(record, name)
    with pytest.raises(AttributeError, match="the sender has key, value and headers"):
        place.serialized_key_size  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute ofset$"):
        place.ofset  # type: ignore[attr-defined]
    assert not hasattr(record, "error")
    assert not hasattr(place, "checksum")


class NewTopic(NamedTuple):
    """As that of other clients."""

    name: str
    num_partitions: int
    replication_factor: int


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda log: log.create_topics([NewTopic("n", 1, 1)]),
            r"embedlog.NewTopic\(name, partitions, config\), not tests",
        ),
        (lambda log: log.create_topics({"n": {"num_partitions": 3}}), "not as a mapping"),
        (lambda log: log.delete_records({("t", 0): 0}, timeout_ms=5), "no timeout of its own"),
        (
            lambda log: log.consumer("t").end_offsets([("t", 0)], timeout_ms=5),
            "no timeout of its own",
        ),
        (lambda log: log.consumer("t").close(timeout_ms=5), "timeout=, in seconds"),
        (
            lambda log: log.consumer("t").offsets_for_times(timestamps={("t", 0): 5}),
            "times= is a mapping",
        ),
        (
            lambda log: log.consumer("t", group_id="g").committed({("t", 0)}),
            r"separate arguments, not in a set",
        ),
    ],
)
def test_calls_of_other_forms_state_the_right_one(log: embedlog.Log, call: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call(log)
    assert log.topics() == ["t"]


def test_a_program_of_aiokafka_starts_and_stops(log: embedlog.Log) -> None:
    async def program() -> list[Any]:
        producer = log.async_producer(linger_ms=60_000, delivery_timeout_ms=100_000)
        await producer.start()
        try:
            place = await producer.send_and_wait("t", b"v", b"k", timestamp_ms=7)
        finally:
            await producer.stop()
        consumer = log.async_consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0)
        await consumer.start()
        try:
            return [place.offset, *[(record.value, record.timestamp) async for record in consumer]]
        finally:
            await consumer.stop()

    assert run(program()) == [0, (b"v", 7)]


class TheirOffset(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int = -1


class TheirPlace(NamedTuple):
    topic: str
    partition: int


class Listener:
    """As a ConsumerRebalanceListener of kafka-python."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.calls.append(("assigned", assigned))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.calls.append(("revoked", revoked))


def test_a_listener_object_and_offsets_of_another_client_are_taken(log: embedlog.Log) -> None:
    with log.producer() as producer:
        producer.send("t", b"v").result(10)
    listener = Listener()
    place = TheirPlace("t", 0)
    with log.consumer(
        group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe(["t"], listener=listener)
        assert consumer.poll(30)
        consumer.commit({place: TheirOffset(1, "note")})  # type: ignore[dict-item]
        assert consumer.committed(place) == {("t", 0): OffsetAndMetadata(1, "note")}  # type: ignore[arg-type]
    assert [name for name, _ in listener.calls] == ["assigned", "revoked"]
    assert listener.calls[0][1] == [TopicPartition("t", 0)]


def test_a_listener_object_with_coroutines_runs_in_the_loop(log: embedlog.Log) -> None:
    class Waiting(Listener):
        async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            self.calls.append(
                ("in the loop" if asyncio.current_task() is not None else "", assigned)
            )

    listener = Waiting()

    async def program() -> None:
        async with log.async_consumer(group_id="g") as consumer:
            await consumer.subscribe(["t"], listener=listener)
            async with asyncio.timeout(30):
                while not consumer.assignment():
                    await consumer.poll(0.02)

    run(program())
    assert [name for name, _ in listener.calls] == ["in the loop", "revoked"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"listener": Listener}, "an instance of Listener is expected"),
        ({"listener": Listener(), "on_lost": print}, "are not given with it"),
        ({"listener": object()}, "an object with methods such as on_partitions_assigned"),
        ({"on_assigned": Listener()}, "listener= takes such an object"),
    ],
)
def test_a_wrong_listener_is_refused_before_it_is_needed(
    log: embedlog.Log, arguments: dict[str, Any], said: str
) -> None:
    with log.consumer(group_id="g") as consumer:
        with pytest.raises(TypeError, match=said):
            consumer.subscribe(["t"], **arguments)
        assert consumer.subscription() == set()


# ---- options -------------------------------------------------------------------------------------


class Level(enum.IntEnum):
    READ_COMMITTED = 1


@pytest.mark.parametrize(
    ("cls", "name", "given", "meant"),
    [
        (ProducerConfig, "compression_type", None, "none"),
        (ProducerConfig, "retries", inf, 2**31 - 1),
        (ProducerConfig, "client_id", "", None),
        (ConsumerConfig, "client_rack", "", None),
        (ConsumerConfig, "consumer_timeout_ms", inf, None),
        (ConsumerConfig, "max_poll_records", None, 2**31 - 1),
        (ConsumerConfig, "isolation_level", Level.READ_COMMITTED, "read_committed"),
    ],
)
def test_defaults_of_other_clients_have_their_meaning(
    cls: type[Options], name: str, given: object, meant: object
) -> None:
    assert getattr(parse(cls, {name: given}), name) == meant


def test_spellings_of_values_are_documented() -> None:
    allowed = {name: text for name, _, text, *_ in rows(ProducerConfig)}
    assert allowed["retries"].endswith("(inf: 2147483647)")
    assert "(None: none)" in allowed["compression.type"]


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (ProducerConfig, "retries", -inf),
        (ProducerConfig, "batch_size", inf),
        (ProducerConfig, "acks", None),
        (ProducerConfig, "transactional_id", ""),
        (ConsumerConfig, "group_id", ""),
        (ConsumerConfig, "auto_offset_reset", None),
    ],
)
def test_other_values_have_no_second_meaning(cls: type[Options], name: str, value: object) -> None:
    with pytest.raises(ConfigError):
        parse(cls, {name: value})


@pytest.mark.parametrize(
    ("cls", "name", "said"),
    [
        (LogConfig, "bootstrap_servers", "there is no server"),
        (LogConfig, "group_id", r"it is one of log\.consumer\(\)"),
        (LogConfig, "value_serializer", r"it is one of log\.producer\(\)"),
        (
            ProducerConfig,
            "group_id",
            r"not an option of a producer; it is one of log\.consumer\(\)",
        ),
        (ProducerConfig, "retention_ms", r"it is one of create_topic\(\) and alter_topic\(\)"),
        (ProducerConfig, "error_cb", "the logger is"),
        (ConsumerConfig, "value_serializer", r"it is one of log\.producer\(\)"),
        (ConsumerConfig, "linger.ms", r"it is one of log\.producer\(\)"),
        (ConsumerConfig, "queued.min.messages", "without requests"),
        (ConsumerConfig, "default_offset_commit_callback", r"commit_async\(\) has callback="),
        (TopicConfig, "acks", r"it is one of log\.producer\(\)"),
        (ProducerConfig, "loop", "the running event loop"),
    ],
)
def test_an_option_in_the_wrong_place_names_the_right_one(
    cls: type[Options], name: str, said: str
) -> None:
    with pytest.raises(UnknownOptionError, match=said):
        parse(cls, {name: 1})


# ---- serializers and deserializers ---------------------------------------------------------------


class OfThree:
    def serialize(self, topic: str, headers: Any, data: str) -> bytes:
        return f"{topic} {headers} {data}".encode()

    def deserialize(self, topic: str, headers: Any, data: bytes) -> str:
        return f"{topic} {headers} {data.decode()}"


class OfTwo:
    def serialize(self, topic: str, data: str) -> bytes:
        return f"{topic} {data}".encode()

    def deserialize(self, topic: str, data: bytes) -> str:
        return f"{topic} {data.decode()}"


class OfAny:
    def deserialize(self, *arguments: Any) -> int:
        return len(arguments)


def test_serializer_objects_of_both_forms_are_taken(log: embedlog.Log) -> None:
    with log.producer(key_serializer=OfThree(), value_serializer=OfTwo()) as producer:
        producer.send("t", "v", "k", [("h", b"1")])
        producer.send("t", "w").result(10)
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        assert [(record.key, record.value) for record in consumer.poll(10)] == [
            (b"t [('h', b'1')] k", b"t v"),
            (b"t [] None", b"t w"),
        ]


def test_deserializer_objects_get_topic_and_headers_and_no_null(log: embedlog.Log) -> None:
    with log.producer() as producer:
        producer.send("t", b"v", b"k", (("h", b"1"),)).result(10)
        producer.send("t", None, b"").result(10)
    options: dict[str, Any] = {
        "key_deserializer": OfThree(),
        "value_deserializer": OfAny(),
        "auto_offset_reset": "earliest",
    }
    with log.consumer("t", **options) as consumer:
        assert [(record.key, record.value) for record in consumer.poll(10)] == [
            ("t [('h', b'1')] k", 3),
            ("t [] ", None),
        ]

    async def program() -> list[Any]:
        async with log.async_consumer("t", **options) as consumer:
            return [record.key for record in await consumer.poll(10)]

    assert run(program()) == ["t [('h', b'1')] k", "t [] "]


@pytest.mark.parametrize(("made", "value"), [(OfTwo(), "t v"), (OfThree(), "t [] v"), (OfAny(), 3)])
def test_the_parameters_of_a_method_decide_what_it_gets(
    log: embedlog.Log, made: Any, value: object
) -> None:
    with log.producer() as producer:
        producer.send("t", b"v").result(10)
    with log.consumer("t", value_deserializer=made, auto_offset_reset="earliest") as consumer:
        assert consumer.poll(10)[0].value == value


def test_a_class_in_the_place_of_its_object_is_refused(log: embedlog.Log) -> None:
    with pytest.raises(ConfigError, match=r"value\.deserializer"):
        log.consumer("t", value_deserializer=OfThree)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"value\.serializer"):
        log.producer(value_serializer=OfThree)  # type: ignore[call-overload]


def test_a_failing_deserializer_object_stops_at_its_record(log: embedlog.Log) -> None:
    class Failing:
        def deserialize(self, topic: str, headers: Any, data: bytes) -> int:
            return int(data)

    with log.producer() as producer:
        producer.send("t", b"1")
        producer.send("t", b"x").result(10)
    with (
        log.consumer("t", value_deserializer=Failing(), auto_offset_reset="earliest") as consumer,
        warnings.catch_warnings(),
    ):
        assert [record.value for record in consumer.poll(10)] == [1]
        with pytest.raises(embedlog.SerializationError) as caught:
            consumer.poll(10)
        assert caught.value.offset == 1
