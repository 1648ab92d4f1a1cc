"""The driver that runs group scenarios at a real broker: confluent-kafka, and Kafka's own tool for
the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tests.kafka import client, oracle
from tests.kafka.groups import WAIT_S, Driver, GroupScenario, Name, how_ended

STATES = {"STABLE": "Stable", "EMPTY": "Empty", "DEAD": "Dead", "UNKNOWN": "Unknown"}
NOT_YET = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")


class KafkaDriver(Driver):
    """confluent-kafka at the broker; Kafka's own tool for steps that it does not support."""

    def __init__(self, scenario: GroupScenario, broker: oracle.Broker, prefix: str = "") -> None:
        from confluent_kafka import Consumer
        from confluent_kafka.admin import AdminClient

        self.broker = broker
        self.where = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.where)
        self.ends = Consumer(self.where | {"group.id": "ends"})
        super().__init__(scenario, prefix)

    def close(self) -> None:
        super().close()
        self.ends.close()

    def make_topic(self, topic: str, count: int) -> None:
        from confluent_kafka import Producer

        client.create_topics(self.broker.bootstrap, {self.topic(topic): count})
        producer = Producer(self.where | {"linger.ms": 1})
        for number in range(count):
            for value, time_ms in self.times(number):
                producer.produce(self.topic(topic), value, partition=number, timestamp=time_ms)
        assert producer.flush(WAIT_S) == 0

    def grow_topic(self, topic: str, count: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self.one(lambda: self.admin.create_partitions([NewPartitions(self.topic(topic), count)]))

    def drop_topic(self, topic: str) -> None:
        self.one(lambda: self.admin.delete_topics([self.topic(topic)]))

    def one(self, ask: Callable[[], Mapping[Any, Any]]) -> Any:
        """The answer for the one group; repeated while its coordinator still reads the
        partition.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + WAIT_S
        while True:
            (future,) = ask().values()
            try:
                return future.result(WAIT_S)
            except KafkaException as problem:
                if problem.args[0].name() not in NOT_YET or time.monotonic() > deadline:
                    raise

    def make_member(self, who: str, strategy: str, instance: str | None) -> Any:
        from confluent_kafka import Consumer

        config: dict[str, Any] = {
            "group.id": self.group,
            "client.id": who,
            "partition.assignment.strategy": strategy,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 50,
            "session.timeout.ms": 6000,
            "fetch.wait.max.ms": 10,
            "topic.metadata.refresh.interval.ms": 200,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "reconnect.backoff.ms": 10,
        }
        return Consumer(self.where | config | ({"group.instance.id": instance} if instance else {}))

    def subscribe(self, who: str, topics: list[str], pattern: str | None) -> None:
        self.members[who].subscribe([pattern] if pattern else topics)

    def poll(self, who: str) -> list[tuple[Name, int]]:
        from confluent_kafka import KafkaException

        found = []
        for message in self.members[who].consume(1000, 0.01):
            if message.error():
                raise KafkaException(message.error())
            found.append(((message.topic(), message.partition()), message.offset()))
        return found

    def assigned(self, who: str) -> list[Name]:
        return [(tp.topic, tp.partition) for tp in self.members[who].assignment()]

    def position(self, who: str, tp: Name) -> int:
        from confluent_kafka import TopicPartition

        (found,) = self.members[who].position([TopicPartition(*tp)])
        return int(found.offset)

    @staticmethod
    def placed(offsets: Mapping[Name, tuple[int, str]]) -> list[Any]:
        from confluent_kafka import TopicPartition

        return [
            TopicPartition(topic, number, offset, note)
            for (topic, number), (offset, note) in offsets.items()
        ]

    def commit(self, who: str, offsets: Mapping[Name, tuple[int, str]] | None) -> None:
        from confluent_kafka import KafkaException

        given = {} if offsets is None else {"offsets": self.placed(offsets)}
        try:
            found = self.members[who].commit(asynchronous=False, **given)
        except KafkaException as problem:
            if problem.args[0].name() != "_NO_OFFSET":  # nothing was read since the last one
                raise
            return
        for tp in found:
            if tp.error is not None:
                raise KafkaException(tp.error)

    def transaction(
        self, who: str, offsets: Mapping[Name, tuple[int, str]], end: str
    ) -> list[Callable[[], Any]]:
        from confluent_kafka import Producer

        metadata = self.members[who].consumer_group_metadata()
        producer = Producer(self.where | {"transactional.id": self.group})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()

        def send() -> None:
            producer.send_offsets_to_transaction(self.placed(offsets), metadata, WAIT_S)

        def finish() -> None:
            before = self.committed()
            (producer.commit_transaction if end == "commit" else producer.abort_transaction)(WAIT_S)
            if end == "commit":  # the marker is written after the answer
                self.wait(lambda: self.committed() != before, "the marker")

        return [send, finish]

    def described(self) -> tuple[str, str, dict[str, list[str]]]:
        found = self.one(
            lambda: self.admin.describe_consumer_groups([self.group], request_timeout=WAIT_S)
        )
        given = {
            member.client_id: sorted(
                self.short(tp.topic, tp.partition) for tp in member.assignment.topic_partitions
            )
            for member in found.members
        }
        return (
            STATES.get(found.state.name, found.state.name),
            found.partition_assignor,
            dict(sorted(given.items())),
        )

    def committed(self) -> dict[Name, tuple[int, str]]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        found = self.one(
            lambda: self.admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self.group)]
            )
        )
        return {
            (tp.topic, tp.partition): (tp.offset, tp.metadata or "")
            for tp in found.topic_partitions
        }

    def bounds(self) -> dict[Name, tuple[int, int]]:
        from confluent_kafka import TopicPartition

        names = [
            (self.topic(topic), number)
            for topic, count in self.counts.items()
            for number in range(count)
        ]
        return {
            name: self.ends.get_watermark_offsets(TopicPartition(*name), WAIT_S) for name in names
        }

    def do_cut(self, tp: str, offset: int) -> None:
        self.one(lambda: self.admin.delete_records(self.placed({self.place(tp): (offset, "")})))

    def do_reset(self, to: Any, scope: tuple[str, ...], dry_run: bool) -> dict[str, int] | str:
        places = [
            ":".join(map(str, self.place(each))) if "-" in each else self.topic(each)
            for each in scope
        ]
        wanted = [word for each in places for word in ("--topic", each)] or ["--all-topics"]
        options = ["--reset-offsets", *how(to), *wanted, "--dry-run" if dry_run else "--execute"]
        answer = self.broker.tool("consumer-groups", "--group", self.group, *options, check=False)
        if "Error" in answer.stdout + answer.stderr:
            return (
                "not empty"
                if "inactive" in answer.stdout + answer.stderr
                else answer.stdout + answer.stderr
            )
        rows = [line.split() for line in answer.stdout.splitlines() if line.startswith(self.group)]
        return {
            self.short(topic, int(number)): int(offset) for _, topic, number, offset in sorted(rows)
        }

    def do_delete(self) -> None:
        self.one(lambda: self.admin.delete_consumer_groups([self.group]))

    def do_delete_offsets(self, tps: tuple[str, ...]) -> str:
        places = [
            word for each in tps for word in ("--topic", ":".join(map(str, self.place(each))))
        ]
        answer = self.broker.tool(
            "consumer-groups", "--group", self.group, "--delete-offsets", *places, check=False
        )
        rows = [
            line.split(None, 2)
            for line in answer.stdout.splitlines()
            if line.startswith(self.group)
        ]
        said = {status.strip() for _, _, status in rows} or {answer.stdout + answer.stderr}
        if said == {"Successful"}:
            return "ok"
        text = " ".join(said)
        return (
            "subscribed"
            if "subscribed" in text
            else "not found"
            if "does not exist" in text
            else text
        )

    def word_for(self, problem: Exception) -> str:
        error = problem.args[0] if problem.args else problem
        name = error.name() if hasattr(error, "name") else type(problem).__name__
        return how_ended(name, str(problem))


def how(to: Any) -> list[str]:
    """The tool's options for `to` of embedlog."""
    if isinstance(to, str):
        return [f"--to-{to}"]
    if isinstance(to, int):
        return ["--to-offset", str(to)]
    ((kind, value),) = to.items()
    if kind == "time":
        text = datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
        return ["--to-datetime", text.replace("+00:00", "Z")]
    return ["--by-duration" if kind == "duration" else "--shift-by", str(value)]
