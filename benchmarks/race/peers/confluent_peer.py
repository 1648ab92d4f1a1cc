"""confluent-kafka (librdkafka) with a local broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from .base import Peer, Values
from .kafka_facts import BROKER_SETTINGS, DURABLE, LACKS, fetch_bytes

CONSUMED = 10_000


class ConfluentPeer(Peer):
    NAME = "confluent-kafka"
    TITLE = "Kafka, confluent-kafka"
    MODULES = ("confluent_kafka",)
    DISTRIBUTION = "confluent-kafka"
    BROKER = True
    CHECKSUM = "CRC-32C of each batch, verified by broker and reader (`check.crcs`)"
    SETTINGS = (
        "`produce()`, batches of 1 MB, linger 5 ms (0 for latencies); `consume(10000)`, fetches "
        "of 8 MB (64 kB for latencies); " + BROKER_SETTINGS
    )
    DURABLE = DURABLE
    LACKS = LACKS

    def begin(self) -> None:
        from confluent_kafka import Producer

        self._linger_ms = 0 if self.job.samples or self.job.durable else 5
        self._producer: Any = Producer(
            {
                "bootstrap.servers": self.job.where,
                "acks": "all" if self.job.durable else 1,
                "linger.ms": self._linger_ms,
                "batch.size": 1 << 20,
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "compression.type": self.job.codec,
                "message.max.bytes": 2 << 20,
            }
        )
        self._producer.list_topics(self.job.topic, 30)
        self._failed: list[object] = []

    def _produced(self, value: bytes, **more: Any) -> None:
        while True:
            try:
                self._producer.produce(self.job.topic, value, partition=0, **more)
                return
            except BufferError:
                self._producer.poll(0.05)

    def append_each(self, values: Values) -> None:
        produce = self._producer.produce
        topic = self.job.topic
        for value in values:
            try:
                produce(topic, value, partition=0)
            except BufferError:
                self._produced(value)

    append_batch = append_each

    def append_timed(self, values: Values, first_ms: int) -> None:
        for time_ms, value in enumerate(values, first_ms):
            self._produced(value, timestamp=time_ms)

    def acknowledged(self, value: bytes) -> None:
        """For several threads: one of them at a time serves the callbacks of all."""
        done = threading.Event()

        def delivered(error: object, _: object) -> None:
            if error:
                self._failed.append(error)
            done.set()

        self._produced(value, on_delivery=delivered)
        while not done.is_set():
            self._producer.poll(0.01)
        assert not self._failed, self._failed

    def finish(self) -> None:
        assert self._producer.flush(120) == 0

    def stored(self) -> int:
        return int(self._reader().get_watermark_offsets(self._partition(0), 30)[1])

    def _partition(self, offset: int) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self.job.topic, 0, offset)

    def _reader(self) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": self.job.where,
                "group.id": "race",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.message.max.bytes": fetch_bytes(self.job),
                "queued.min.messages": 1 if self.job.samples else 1_000_000,
                "queued.max.messages.kbytes": 1 << 20,
                "fetch.queue.backoff.ms": 1,
                "fetch.wait.max.ms": 10,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
            }
        )

    def open_reader(self) -> None:
        self._consumer = self._reader()
        self._consumer.assign([self._partition(0)])
        assert self._consumer.consume(1, 30)  # connected

    def records(self, first: int) -> Iterator[Values]:
        self._consumer.assign([self._partition(first)])
        left = self.job.count - first
        while left > 0:  # to ask for more than there are would be a wait
            found = [message.value() for message in self._consumer.consume(min(CONSUMED, left), 1)]
            left -= len(found)
            yield found

    def value_at(self, offset: int) -> bytes:
        self._consumer.assign([self._partition(offset)])
        found: bytes = self._consumer.consume(1, 30)[0].value()
        return found

    def value_since(self, time_ms: int) -> bytes:
        return self.value_at(
            self._consumer.offsets_for_times([self._partition(time_ms)], 30)[0].offset
        )

    def warm_reader(self) -> None:
        """`open_reader` has read a record."""

    def follow(self) -> Iterator[Values]:
        self._consumer = self._reader()
        self._consumer.assign(
            [self._partition(self._consumer.get_watermark_offsets(self._partition(0), 30)[1])]
        )
        self._consumer.poll(0.5)
        yield []
        while True:
            message = self._consumer.poll(1.0)
            yield [] if message is None else [message.value()]

    def close(self) -> None:
        if hasattr(self, "_consumer"):
            self._consumer.close()
