"""Contains `KafkaSide`, the calls of both sides that are Kafka clusters, and the errors of Kafka's
client as typed errors.

- Every call has a deadline, for which an unreachable broker is waited for.
- The client's own log lines are not printed; an error contains their text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import confluent_kafka
from confluent_kafka import admin

from embedlog import EmbedlogError, FencedError, RecordTooLargeError, TopicPartition
from embedlog.mirror.sides import Settings, TopicFacts

CONNECT_S = 15.0  # of the first call
DEADLINE_S = 60.0
FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
TRANSIENT = (  # while brokers start, or are elected
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "NOT_CONTROLLER",
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "BROKER_NOT_AVAILABLE",
    "OFFSET_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
    "KAFKA_STORAGE_ERROR",
    "_TRANSPORT",
    "_TIMED_OUT",
    "_ALL_BROKERS_DOWN",
    "_WAIT_COORD",
    "_RESOLVE",
)
AGAIN_S = 0.2
ABSENT = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")


Answer = TypeVar("Answer")


class KafkaClusterError(EmbedlogError):
    """A Kafka cluster refused a call, or did not answer in time; `name` is Kafka's name of the
    error.
    """

    __module__ = "embedlog.mirror.kafka_client"

    def __init__(self, message: str, *, name: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.name = name

    def _keywords(self) -> dict[str, Any]:
        return super()._keywords() | {"name": self.name}


def typed_error(error: Any, label: str) -> EmbedlogError:
    """An error of Kafka's client as one of embedlog."""
    text = f"{label}: {error.str() or error.name()}"
    if error.name() in FENCED:
        return FencedError(text)
    if error.name() == "MSG_SIZE_TOO_LARGE":
        return RecordTooLargeError(text)
    return KafkaClusterError(text, name=error.name())


def _silent_logger() -> logging.Logger:
    """A logger that does not print the lines of the client."""
    logger = logging.getLogger("embedlog.mirror.kafka_client")
    logger.disabled = True
    return logger


def _ignore_error(error: Any) -> None:
    """Errors of connections: the client connects again."""


class KafkaSide:
    """The calls that both sides need."""

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self.label = f"kafka://{bootstrap}"
        defaults = {
            "bootstrap.servers": bootstrap,
            "logger": _silent_logger(),
            "error_cb": _ignore_error,
        }
        self._settings: dict[str, Any] = {**defaults, **settings}
        with self.calls():
            self._admin = admin.AdminClient(self._settings)
            self.identity: str = self._admin.list_topics(timeout=CONNECT_S).cluster_id
        self._described: dict[str, TopicFacts] = {}

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Turns errors of Kafka's client into typed ones."""
        try:
            yield
        except confluent_kafka.KafkaException as problem:
            raise typed_error(problem.args[0], self.label) from problem

    def _repeat(self, call: Callable[[], Answer]) -> Answer:
        """The answer of a call that may be repeated while brokers are not ready."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                with self.calls():
                    return call()
            except KafkaClusterError as problem:
                if problem.name not in TRANSIENT or time.monotonic() > deadline:
                    raise
            self._admin.poll(AGAIN_S)

    def _collect_answers(self, request: Callable[[], Mapping[Any, Any]]) -> dict[Any, Any]:
        """The answers to a request that only reads, or that may be repeated."""
        return self._repeat(
            lambda: {key: future.result(DEADLINE_S) for key, future in request().items()}
        )

    # ---- topics ----------------------------------------------------------------------------------

    def topic_names(self) -> list[str]:
        return self._repeat(lambda: sorted(self._admin.list_topics(timeout=DEADLINE_S).topics))

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        topics = {}
        for name in names:
            try:
                topic = self._collect_answers(partial(self._describe_topic, name))[name]
            except KafkaClusterError as problem:
                if problem.name not in ABSENT:
                    raise
            else:
                topics[name] = TopicFacts(name, str(topic.topic_id), len(topic.partitions), {})
        return self._add_settings(topics)

    def _describe_topic(self, name: str) -> Mapping[str, Any]:
        futures: Mapping[str, Any] = self._admin.describe_topics(
            confluent_kafka.TopicCollection([name]), request_timeout=DEADLINE_S
        )
        return futures

    def _add_settings(self, topics: dict[str, TopicFacts]) -> dict[str, TopicFacts]:
        """The topics with their settings, which are read when a topic is first seen."""
        configs = {}
        new = []
        for name, topic in topics.items():
            earlier = self._described.get(name)
            if earlier is not None and earlier.topic_id == topic.topic_id:
                configs[name] = earlier.config
            else:
                new.append(admin.ConfigResource(admin.ConfigResource.Type.TOPIC, name))
        if new:
            own = admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            request = partial(self._admin.describe_configs, new, request_timeout=DEADLINE_S)
            for resource, entries in self._collect_answers(request).items():
                configs[resource.name] = {
                    key: entry.value for key, entry in entries.items() if entry.source == own
                }
        complete = {name: topic._replace(config=configs[name]) for name, topic in topics.items()}
        self._described |= complete
        return complete

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        all_partitions = list(partitions)
        if not all_partitions:
            return {}
        starts = self._list_offsets(all_partitions, admin.OffsetSpec.earliest())
        ends = self._list_offsets(all_partitions, admin.OffsetSpec.latest())
        return {tp: (starts[tp], ends[tp]) for tp in all_partitions}

    def _list_offsets(
        self, partitions: list[TopicPartition], spec: Any
    ) -> dict[TopicPartition, int]:
        request = partial(
            self._admin.list_offsets,
            {confluent_kafka.TopicPartition(*tp): spec for tp in partitions},
            isolation_level=confluent_kafka.IsolationLevel.READ_COMMITTED,
            request_timeout=DEADLINE_S,
        )
        return {
            TopicPartition(client_tp.topic, client_tp.partition): answer.offset
            for client_tp, answer in self._collect_answers(request).items()
        }

    # ---- records of a state topic ----------------------------------------------------------------

    def make_consumer(self, **settings: Any) -> Any:
        """A consumer of committed records; the client requires the name of a group, in which
        nothing is committed.
        """
        defaults = {
            "group.id": f"mirror-{uuid4().hex}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 32768,
            "check.crcs": True,
        }
        with self.calls():
            return confluent_kafka.Consumer({**defaults, **self._settings, **settings})

    def lines(self, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
        tp = TopicPartition(topic, 0)
        position, end = self.bounds([tp])[tp]
        reader = self.make_consumer()
        try:
            reader.assign([confluent_kafka.TopicPartition(topic, 0, position)])
            deadline = time.monotonic() + DEADLINE_S
            # a leader that was just elected may report an earlier end of the partition
            while position < end:
                for message in reader.consume(10_000, 0.1):
                    error = message.error()
                    if error is None:
                        yield message.key() or b"", message.value()
                        position = message.offset() + 1
                        deadline = time.monotonic() + DEADLINE_S
                    elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        position = message.offset()
                    elif error.name() not in TRANSIENT:
                        raise typed_error(error, self.label)
                if time.monotonic() > deadline:
                    raise KafkaClusterError(
                        f"{self.label}: no records of {topic} within {DEADLINE_S:g} s"
                    )
        finally:
            reader.close()

    # ---- groups ----------------------------------------------------------------------------------

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        request = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
        call = partial(self._admin.list_consumer_group_offsets, request, request_timeout=DEADLINE_S)
        (answer,) = self._collect_answers(call).values()
        offsets = {}
        for commit in answer.topic_partitions:
            if commit.error is not None:
                raise typed_error(commit.error, self.label)
            if commit.offset >= 0:
                offsets[TopicPartition(commit.topic, commit.partition)] = commit.offset
        return offsets
