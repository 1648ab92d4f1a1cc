"""Scripts of producers, as data, and two drivers that run them: one at a real broker, one in a log
of embedlog.

A step is a tuple: a verb, its client, and its arguments. `play` notes each step's end in a common
word: "ok", "fenced", "state" (not allowed in this state), or the name of another error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import embedlog
from tests.kafka import client
from tests.kafka.client import told

WORDS = {
    "_FENCED": "fenced",
    "PRODUCER_FENCED": "fenced",
    "INVALID_PRODUCER_EPOCH": "fenced",
    "_STATE": "state",
}
START_MS = 1_700_000_000_000
WAIT_S = 30.0

Step = tuple[Any, ...]
# key, value, headers, partition
Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int | None]


@dataclass(frozen=True)
class Scenario:
    """The steps of one topic. `producers` has each `who`'s configuration, in keywords of both
    clients.
    """

    name: str
    steps: Sequence[Step]
    partition_count: int = 7
    producers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)


# ---- verbs -------------------------------------------------------------------------------------------------------------


def send(who: str, *rows: Row) -> Step:
    """Rows one after the other, and then a flush: as few batches as the client makes of them."""
    return ("send", who, rows)


def row(
    value: bytes | None,
    key: bytes | None = None,
    partition: int | None = None,
    *headers: tuple[str, bytes | None],
) -> Row:
    return (key, value, headers, partition)


def init(who: str) -> Step:
    return ("init", who)


def begin(who: str) -> Step:
    return ("begin", who)


def commit(who: str) -> Step:
    return ("commit", who)


def abort(who: str) -> Step:
    return ("abort", who)


def decided(partition: int) -> Step:
    """Wait until no transaction holds a committed reader of this partition back."""
    return ("decided", "", partition)


def committed(who: str, *rows: Row) -> list[Step]:
    return [begin(who), send(who, *rows), commit(who)]


def aborted(who: str, *rows: Row) -> list[Step]:
    return [begin(who), send(who, *rows), abort(who)]


# ---- the common part of both drivers -----------------------------------------------------------------------------------


class Driver:
    """Plays a scenario. Below it a client; `made` holds its producers by name."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.topic = f"scenario-{scenario.name}"
        self.made: dict[str, Any] = {}
        self._clock_ms = START_MS

    def play(self) -> list[str]:
        """How each step ended."""
        return [self._outcome(*step) for step in self.scenario.steps]

    def _outcome(self, verb: str, who: str, *arguments: Any) -> str:
        act: Callable[..., None] = getattr(self, f"do_{verb}")
        try:
            act(*([who] if who else []), *arguments)
        except Exception as problem:  # noqa: BLE001  (whatever it is, the other side must say the same)
            return self.word_for(problem)
        return "ok"

    def producer(self, who: str) -> Any:
        if who not in self.made:
            self.made[who] = self.make_producer(dict(self.scenario.producers.get(who, {})))
        return self.made[who]

    def times(self, rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
        for each in rows:
            self._clock_ms += 7
            yield each, self._clock_ms

    def make_producer(self, config: dict[str, Any]) -> Any:
        raise NotImplementedError

    def word_for(self, problem: Exception) -> str:
        raise NotImplementedError

    def ends(self, isolation: str) -> list[tuple[int, int]]:
        """(beginning, end) of each partition for this isolation level."""
        raise NotImplementedError

    def do_decided(self, partition: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.ends("read_committed")[partition] != self.ends("read_uncommitted")[partition]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partition {partition} of {self.topic} is still undecided")
            self.pause(partition)

    def pause(self, partition: int) -> None:
        raise NotImplementedError


class KafkaDriver(Driver):
    """confluent-kafka at the broker. After the end of a transaction it waits for the markers, which
    a broker writes later.
    """

    def __init__(self, scenario: Scenario, bootstrap: str) -> None:
        super().__init__(scenario)
        self.bootstrap = bootstrap
        self._touched: dict[str, set[int]] = {}  # by the present transaction of each producer
        client.create_topics(
            bootstrap, {self.topic: scenario.partition_count}, {self.topic: scenario.config}
        )

    def make_producer(self, config: dict[str, Any]) -> Any:
        from confluent_kafka import Producer

        dotted = {key.replace("_", "."): value for key, value in config.items()}
        like_ours = {"linger.ms": 20, "partitioner": "murmur2_random", "enable.idempotence": True}
        return Producer({"bootstrap.servers": self.bootstrap} | like_ours | dotted)

    def do_send(self, who: str, rows: Sequence[Row]) -> None:
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)
            else:
                self._touched.setdefault(who, set()).add(message.partition())

        producer = self.producer(who)
        for (key, value, headers, partition), time_ms in self.times(rows):
            place = {} if partition is None else {"partition": partition}
            producer.produce(
                self.topic,
                value,
                key,
                headers=list(headers),
                timestamp=time_ms,
                on_delivery=delivered,
                **place,
            )
        assert producer.flush(WAIT_S) == 0
        if failed:
            from confluent_kafka import KafkaException

            raise KafkaException(failed[0])

    def do_init(self, who: str) -> None:
        self.producer(who).init_transactions(WAIT_S)

    def do_begin(self, who: str) -> None:
        self._touched[who] = set()
        self.producer(who).begin_transaction()

    def do_commit(self, who: str) -> None:
        self._end(who, self.producer(who).commit_transaction)

    def do_abort(self, who: str) -> None:
        self._end(who, self.producer(who).abort_transaction)

    def _end(self, who: str, verb: Callable[[float], None]) -> None:
        before = self.ends("read_uncommitted")
        touched = self._touched.pop(who, set())
        verb(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while any(self.ends("read_uncommitted")[number] == before[number] for number in touched):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no markers in {self.topic}")
            self.pause(0)

    def pause(self, partition: int) -> None:
        time.sleep(0.02)  # the broker's own clock decides; nothing here can be waited on

    def word_for(self, problem: Exception) -> str:
        error = problem.args[0] if problem.args else problem
        name = error.name() if hasattr(error, "name") else type(problem).__name__
        return WORDS.get(name, name)

    def rows(self, isolation: str) -> list[dict[str, object]]:
        return client.read(self.bootstrap, {self.topic: self.scenario.partition_count}, isolation)[
            self.topic
        ]

    def ends(self, isolation: str) -> list[tuple[int, int]]:
        from confluent_kafka import Consumer, TopicPartition

        reader = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "ends", "isolation.level": isolation}
        )
        numbers = range(self.scenario.partition_count)
        found = [
            reader.get_watermark_offsets(TopicPartition(self.topic, number), WAIT_S)
            for number in numbers
        ]
        reader.close()
        return found


class OurDriver(Driver):
    """embedlog."""

    def __init__(self, scenario: Scenario, log: embedlog.Log) -> None:
        super().__init__(scenario)
        self.log = log
        log.create_topic(self.topic, scenario.partition_count, config=dict(scenario.config))

    def make_producer(self, config: dict[str, Any]) -> Any:
        # as Kafka, which raises nothing in flush()
        return self.log.producer(linger_ms=20, on_delivery_error="log", **config)

    def do_send(self, who: str, rows: Sequence[Row]) -> None:
        producer = self.producer(who)
        futures = [
            producer.send(
                self.topic, value, key, partition=partition, headers=headers, timestamp_ms=time_ms
            )
            for (key, value, headers, partition), time_ms in self.times(rows)
        ]
        producer.flush(WAIT_S)
        for future in futures:
            future.result(WAIT_S)

    def do_init(self, who: str) -> None:
        self.producer(who).init_transactions()

    def do_begin(self, who: str) -> None:
        self.producer(who).begin_transaction()

    def do_commit(self, who: str) -> None:
        self.producer(who).commit_transaction()

    def do_abort(self, who: str) -> None:
        self.producer(who).abort_transaction()

    def pause(self, partition: int) -> None:
        with self.log.consumer(isolation_level="read_committed") as reader:
            reader.assign([(self.topic, partition)])
            reader.seek_to_end()
            reader.poll(0.2)  # a reader that waits there, helps

    def word_for(self, problem: Exception) -> str:
        words = {embedlog.FencedError: "fenced", embedlog.InvalidTransactionStateError: "state"}
        return words.get(type(problem), repr(problem))

    def rows(self, isolation: str) -> list[dict[str, object]]:
        found: list[Any] = []
        with self.log.consumer(
            self.topic,
            auto_offset_reset="earliest",
            isolation_level=isolation,
            consumer_timeout_ms=0,
        ) as reader:
            found += reader
        return [
            told(record)
            for record in sorted(found, key=lambda record: (record.partition, record.offset))
        ]

    def ends(self, isolation: str) -> list[tuple[int, int]]:
        tps = [
            embedlog.TopicPartition(self.topic, number)
            for number in range(self.scenario.partition_count)
        ]
        with self.log.consumer(isolation_level=isolation) as reader:
            begins = reader.beginning_offsets(tps)
            ends = reader.end_offsets(tps)
        return [(begins[tp], ends[tp]) for tp in tps]
