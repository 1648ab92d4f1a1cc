"""The driver that plays group scenarios in a log of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from tests.kafka.groups import WAIT_S, Driver, GroupScenario, Name, how_ended

# as the broker's
CONFIG = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}


class OurDriver(Driver):
    """embedlog."""

    def __init__(self, scenario: GroupScenario, log: embedlog.Log, prefix: str = "") -> None:
        self.log = log
        super().__init__(scenario, prefix)

    def make_topic(self, topic: str, count: int) -> None:
        self.log.create_topic(self.topic(topic), count)
        with self.log.producer() as producer:
            for number in range(count):
                values, times = map(list, zip(*self.times(number), strict=True))
                producer.send_batch(
                    self.topic(topic), values, partition=number, timestamps_ms=times
                ).result(WAIT_S)

    def grow_topic(self, topic: str, count: int) -> None:
        self.log.create_partitions(self.topic(topic), count)

    def drop_topic(self, topic: str) -> None:
        self.log.delete_topic(self.topic(topic))

    def make_member(self, who: str, strategy: str, instance: str | None) -> Any:
        static = {"group_instance_id": instance} if instance else {}
        return self.log.consumer(
            group_id=self.group,
            client_id=who,
            partition_assignment_strategy=strategy.split(","),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=1000,
            **static,
        )

    def subscribe(self, who: str, topics: list[str], pattern: str | None) -> None:
        if pattern is None:
            self.members[who].subscribe(topics)
        else:
            self.members[who].subscribe(pattern=pattern)

    def poll(self, who: str) -> list[tuple[Name, int]]:
        return [
            ((each.topic, each.partition), each.offset) for each in self.members[who].poll(0.005)
        ]

    def assigned(self, who: str) -> list[Name]:
        return [tuple(tp) for tp in self.members[who].assignment()]

    def position(self, who: str, tp: Name) -> int:
        return int(self.members[who].position(TopicPartition(*tp)))

    @staticmethod
    def placed(offsets: Mapping[Name, tuple[int, str]]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {TopicPartition(*tp): OffsetAndMetadata(*offset) for tp, offset in offsets.items()}

    def commit(self, who: str, offsets: Mapping[Name, tuple[int, str]] | None) -> None:
        self.members[who].commit(None if offsets is None else self.placed(offsets))

    def transaction(
        self, who: str, offsets: Mapping[Name, tuple[int, str]], end: str
    ) -> list[Callable[[], Any]]:
        producer = self.log.producer(transactional_id=self.group)
        producer.init_transactions()
        producer.begin_transaction()

        def send() -> None:
            producer.send_offsets_to_transaction(
                self.placed(offsets), self.members[who].group_metadata()
            )

        def finish() -> None:
            (producer.commit_transaction if end == "commit" else producer.abort_transaction)()
            producer.close()

        return [send, finish]

    def described(self) -> tuple[str, str, dict[str, list[str]]]:
        try:
            found = self.log.describe_group(self.group)
        except embedlog.GroupNotFoundError:
            return "Dead", "", {}
        given = {
            each.client_id: sorted(self.short(*tp) for tp in each.assignment)
            for each in found.members
        }
        return found.state, found.assignor or "", dict(sorted(given.items()))

    def committed(self) -> dict[Name, tuple[int, str]]:
        return {
            tuple(tp): (each.offset, each.metadata)
            for tp, each in self.log.group_offsets(self.group).items()
        }

    def bounds(self) -> dict[Name, tuple[int, int]]:
        described = [self.log.describe_topic(self.topic(topic)) for topic in self.counts]
        return {
            (topic.name, each.partition): (each.log_start_offset, each.high_watermark)
            for topic in described
            for each in topic.partitions
        }

    def do_cut(self, tp: str, offset: int) -> None:
        self.log.delete_records({TopicPartition(*self.place(tp)): offset})

    def do_reset(self, to: Any, scope: tuple[str, ...], dry_run: bool) -> dict[str, int]:
        places = [
            TopicPartition(*self.place(each)) if "-" in each else self.topic(each) for each in scope
        ]
        plan = self.log.reset_group_offsets(self.group, places or None, to=to, dry_run=dry_run)
        return {self.short(*tp): found.offset for tp, found in plan.items()}

    def do_delete(self) -> None:
        self.log.delete_group(self.group)

    def do_delete_offsets(self, tps: tuple[str, ...]) -> None:
        self.log.delete_group_offsets(
            self.group, [TopicPartition(*self.place(each)) for each in tps]
        )

    def word_for(self, problem: Exception) -> str:
        return how_ended(type(problem).__name__, str(problem))
