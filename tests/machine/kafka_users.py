"""Two users of one topic with the same verbs: confluent-kafka at a real broker, and embedlog. Their
answers can be compared.

An answer is the value of a call, or the name of its error in Kafka's words.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import embedlog
from embedlog import TopicPartition
from tests.kafka import client
from tests.kafka.scenarios import WAIT_S, KafkaDriver, OurDriver, Scenario

SAME_ERRORS = {
    "MSG_SIZE_TOO_LARGE": "RECORD_TOO_LARGE",
    "UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION",
    "_UNKNOWN_PARTITION": "UNKNOWN_TOPIC_OR_PARTITION",
    "_UNKNOWN_TOPIC": "UNKNOWN_TOPIC_OR_PARTITION",
}
Answer = tuple[str, Any]
# partition, offset, key, value, timestamp
Rows = list[tuple[int, int, bytes | None, bytes | None, int]]


def answer_of(user: Any, verb: str, arguments: tuple[Any, ...]) -> Answer:
    act: Callable[..., Any] = getattr(user, f"do_{verb}")
    try:
        return ("ok", act(*arguments))
    except Exception as problem:  # noqa: BLE001  (whatever it is, the other side must say the same)
        return ("error", user.word_for(problem))


class KafkaUser(KafkaDriver):
    """confluent-kafka. REQUIRES a running broker."""

    def __init__(self, scenario: Scenario, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        super().__init__(scenario, bootstrap)
        self.partition_count = scenario.partition_count
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._barriers = 0
        self._consumers: dict[str, Any] = {}

    def word_for(self, problem: Exception) -> str:
        if isinstance(problem, SystemError) and isinstance(problem.__cause__, Exception):
            # the client's C code returned a result beside its exception
            problem = problem.__cause__
        word = super().word_for(problem)
        return SAME_ERRORS.get(word, word)

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()

    # ---- producers -----------------------------------------------------------------------------

    def do_forget(self, who: str) -> None:
        self.made.pop(who, None)

    def do_send_at(
        self, who: str, key: bytes | None, value: bytes | None, partition: int, time_ms: int
    ) -> tuple[int, int]:
        from confluent_kafka import KafkaException

        done: list[Any] = []
        producer = self.producer(who)
        producer.produce(
            self.topic,
            value,
            key,
            partition=partition,
            timestamp=time_ms,
            on_delivery=lambda *given: done.append(given),
        )
        assert producer.flush(WAIT_S) == 0
        error, message = done[0]
        if error is not None:
            raise KafkaException(error)
        return (message.partition(), message.offset())

    # ---- the topic -----------------------------------------------------------------------------

    def do_grow(self, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self._admin.create_partitions([NewPartitions(self.topic, total)], operation_timeout=30)[
            self.topic
        ].result(60)
        self.partition_count = total
        for number in range(total):
            self._until_led(number)

    def _until_led(self, number: int) -> None:
        from confluent_kafka import Consumer, KafkaException
        from confluent_kafka import TopicPartition as Place

        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "ends"})
        end = time.monotonic() + WAIT_S
        while True:
            try:
                reader.get_watermark_offsets(Place(self.topic, number), WAIT_S)
                break
            except KafkaException:
                if time.monotonic() > end:
                    raise
        reader.close()

    def do_alter(self, changes: Mapping[str, str]) -> None:
        from confluent_kafka.admin import (
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=entries)
        (future,) = self._admin.incremental_alter_configs([resource]).values()
        future.result(60)
        end = time.monotonic() + WAIT_S
        while any(
            self.do_settings(list(changes))[name] != value for name, value in changes.items()
        ):
            assert time.monotonic() < end, f"the broker does not apply {changes}"
        self._barriers += (
            # it shows a setting before its logs follow it; a topic that is made later has a leader
            # only after that
            1
        )
        client.create_topics(self.bootstrap, {f"{self.topic}-after-{self._barriers}": 1})

    def do_settings(self, names: list[str]) -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        (future,) = self._admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, self.topic)]
        ).values()
        found = future.result(60)
        return {name: found[name].value for name in names}

    def do_delete_records(self, offsets: Mapping[int, int]) -> dict[int, int]:
        from confluent_kafka import TopicPartition as Place

        given = [Place(self.topic, number, offset) for number, offset in offsets.items()]
        return {
            place.partition: future.result(60).low_watermark
            for place, future in self._admin.delete_records(given).items()
        }

    # ---- consumers -----------------------------------------------------------------------------

    def _consumer(self, isolation: str) -> Any:
        from confluent_kafka import Consumer

        if isolation not in self._consumers:
            self._consumers[isolation] = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": f"{self.topic}-{isolation}",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": isolation,
                    "fetch.wait.max.ms": 10,
                    "enable.auto.offset.store": False,
                }
            )
        return self._consumers[isolation]

    def do_read(self, isolation: str, offsets: Mapping[int, int | None], count: int) -> Rows:
        """Assign with these offsets, where None means the committed one, and read until there are
        `count` records and no more.
        """
        from confluent_kafka import OFFSET_STORED
        from confluent_kafka import TopicPartition as Place

        consumer = self._consumer(isolation)
        consumer.assign(
            [
                Place(self.topic, number, OFFSET_STORED if offset is None else offset)
                for number, offset in offsets.items()
            ]
        )
        rows: Rows = []
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            messages = consumer.consume(1000, 0.3)
            for message in messages:
                assert message.error() is None, message.error()
                rows.append(
                    (
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.timestamp()[1],
                    )
                )
            if len(rows) >= count and not messages:
                break
        consumer.unassign()
        return sorted(rows)

    def do_commit_offsets(self, isolation: str, offsets: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition as Place

        given = [Place(self.topic, number, offset) for number, offset in offsets.items()]
        self._consumer(isolation).commit(offsets=given, asynchronous=False)

    def do_committed(self, isolation: str, numbers: list[int]) -> list[int | None]:
        from confluent_kafka import TopicPartition as Place

        found = self._consumer(isolation).committed(
            [Place(self.topic, number) for number in numbers], WAIT_S
        )
        return [each.offset if each.offset >= 0 else None for each in found]

    def do_offset_for_time(self, number: int, time_ms: int) -> int | None:
        from confluent_kafka import TopicPartition as Place

        (found,) = self._consumer("read_uncommitted").offsets_for_times(
            [Place(self.topic, number, time_ms)], WAIT_S
        )
        return found.offset if found.offset >= 0 else None

    def do_ends(self, isolation: str) -> list[tuple[int, int]]:
        from confluent_kafka import TopicPartition as Place

        # the client may know fewer partitions for a while
        self._until_led(self.partition_count - 1)
        reader = self._consumer(isolation)
        reader.list_topics(self.topic, WAIT_S)
        return [
            reader.get_watermark_offsets(Place(self.topic, number), WAIT_S)
            for number in range(self.partition_count)
        ]


class OurUser(OurDriver):
    """embedlog."""

    def __init__(self, scenario: Scenario, log: embedlog.Log) -> None:
        super().__init__(scenario, log)
        self.partition_count = scenario.partition_count
        self._consumers: dict[str, Any] = {}

    def word_for(self, problem: Exception) -> str:
        word = super().word_for(problem)
        if word in ("fenced", "state") or not isinstance(problem, embedlog.EmbedlogError):
            return word
        return re.sub(
            r"(?<=[a-z])(?=[A-Z])", "_", type(problem).__name__.removesuffix("Error")
        ).upper()

    def close(self) -> None:
        for ours in [*self._consumers.values(), *self.made.values()]:
            ours.close(0)

    def tp(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    # ---- producers -----------------------------------------------------------------------------

    def do_forget(self, who: str) -> None:
        producer = self.made.pop(who, None)
        if producer is not None:
            producer.close()

    def do_send_at(
        self, who: str, key: bytes | None, value: bytes | None, partition: int, time_ms: int
    ) -> tuple[int, int]:
        future = self.producer(who).send(
            self.topic, value, key, partition=partition, timestamp_ms=time_ms
        )
        done = future.result(WAIT_S)
        return (done.partition, done.offset)

    # ---- the topic -----------------------------------------------------------------------------

    def do_grow(self, total: int) -> None:
        self.log.create_partitions(self.topic, total)
        self.partition_count = total

    def do_alter(self, changes: Mapping[str, str]) -> None:
        self.log.alter_topic(self.topic, changes)

    def do_settings(self, names: list[str]) -> dict[str, str]:
        found = self.log._engine.config.topic_config(
            self.log.describe_topic(self.topic).config
        ).as_kafka()
        return {name: str(found[name]) for name in names}

    def do_delete_records(self, offsets: Mapping[int, int]) -> dict[int, int]:
        found = self.log.delete_records(
            {self.tp(number): offset for number, offset in offsets.items()}
        )
        return {tp.partition: offset for tp, offset in found.items()}

    # ---- consumers -----------------------------------------------------------------------------

    def _consumer(self, isolation: str) -> Any:
        if isolation not in self._consumers:
            self._consumers[isolation] = self.log.consumer(
                config={
                    "group.id": f"{self.topic}-{isolation}",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": isolation,
                }
            )
        return self._consumers[isolation]

    def do_read(self, isolation: str, offsets: Mapping[int, int | None], count: int) -> Rows:
        consumer = self._consumer(isolation)
        consumer.assign([self.tp(number) for number in offsets])
        for number, offset in offsets.items():
            if offset is not None:
                consumer.seek(self.tp(number), offset)
        rows: Rows = []
        while records := consumer.poll(0):
            rows += [
                (each.partition, each.offset, each.key, each.value, each.timestamp_ms)
                for each in records
            ]
        consumer.assign([])
        return sorted(rows)

    def do_commit_offsets(self, isolation: str, offsets: Mapping[int, int]) -> None:
        self._consumer(isolation).commit(
            {self.tp(number): offset for number, offset in offsets.items()}
        )

    def do_committed(self, isolation: str, numbers: list[int]) -> list[int | None]:
        found = self._consumer(isolation).committed(*[self.tp(number) for number in numbers])
        return [
            None if found[self.tp(number)] is None else found[self.tp(number)].offset
            for number in numbers
        ]

    def do_offset_for_time(self, number: int, time_ms: int) -> int | None:
        found = self._consumer("read_uncommitted").offsets_for_times({self.tp(number): time_ms})[
            self.tp(number)
        ]
        return None if found is None else int(found.offset)

    def do_ends(self, isolation: str) -> list[tuple[int, int]]:
        tps = [self.tp(number) for number in range(self.partition_count)]
        reader = self._consumer(isolation)
        begins = reader.beginning_offsets(tps)
        ends = reader.end_offsets(tps)
        return [(begins[tp], ends[tp]) for tp in tps]
