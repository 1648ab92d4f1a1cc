"""kafka-python, a client in pure Python, with a local broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .base import Peer, Values
from .kafka_facts import BROKER_SETTINGS, DURABLE, LACKS, fetch_bytes


class KafkaPythonPeer(Peer):
    NAME = "kafka-python"
    TITLE = "Kafka, kafka-python"
    MODULES = ("kafka",)
    DISTRIBUTION = "kafka-python"
    BROKER = True
    CHECKSUM = "CRC-32C of each batch, verified by broker and reader"
    SETTINGS = (
        "`send()`, batches of 128 kB, linger 5 ms (0 for latencies); `poll`, fetches of 8 MB (64 "
        "kB for latencies); " + BROKER_SETTINGS
    )
    DURABLE = DURABLE
    LACKS = LACKS

    def begin(self) -> None:
        from kafka import KafkaProducer

        self._producer: Any = KafkaProducer(
            bootstrap_servers=self.job.where,
            acks="all" if self.job.durable else 1,
            enable_idempotence=False,
            linger_ms=0 if self.job.samples or self.job.durable else 5,
            batch_size=1 << 17,
            max_request_size=2 << 20,
            compression_type=None if self.job.codec == "none" else self.job.codec,
        )
        self._producer.partitions_for(self.job.topic)

    def append_each(self, values: Values) -> None:
        for value in values:
            self._producer.send(self.job.topic, value, partition=0)

    append_batch = append_each

    def append_timed(self, values: Values, first_ms: int) -> None:
        for time_ms, value in enumerate(values, first_ms):
            self._producer.send(self.job.topic, value, partition=0, timestamp_ms=time_ms)

    def acknowledged(self, value: bytes) -> None:
        self._producer.send(self.job.topic, value, partition=0).get(30)

    def finish(self) -> None:
        self._producer.flush(120)

    def _open(self) -> Any:
        from kafka import KafkaConsumer, TopicPartition

        self._partition = TopicPartition(self.job.topic, 0)
        found = KafkaConsumer(
            bootstrap_servers=self.job.where,
            enable_auto_commit=False,
            max_poll_records=10_000,
            check_crcs=True,
            max_partition_fetch_bytes=fetch_bytes(self.job),
            fetch_max_wait_ms=10,
            auto_offset_reset="earliest",
            group_id=None,
        )
        found.assign([self._partition])
        return found

    def stored(self) -> int:
        consumer = self._open()
        try:
            return int(consumer.end_offsets([self._partition])[self._partition])
        finally:
            consumer.close()

    def open_reader(self) -> None:
        self._consumer: Any = self._open()
        self._consumer.seek(self._partition, 0)
        assert self._consumer.poll(30_000, max_records=1)  # connected

    def records(self, first: int) -> Iterator[Values]:
        self._consumer.seek(self._partition, first)
        while True:
            yield [record.value for found in self._consumer.poll(1000).values() for record in found]

    def value_at(self, offset: int) -> bytes:
        self._consumer.seek(self._partition, offset)
        while not (found := self._consumer.poll(30_000, max_records=1)):
            continue
        value: bytes = found[self._partition][0].value
        return value

    def value_since(self, time_ms: int) -> bytes:
        return self.value_at(
            self._consumer.offsets_for_times({self._partition: time_ms})[self._partition].offset
        )

    def warm_reader(self) -> None:
        """`open_reader` has read a record."""

    def follow(self) -> Iterator[Values]:
        self._consumer = self._open()
        self._consumer.seek_to_end(self._partition)
        self._consumer.position(self._partition)
        yield []
        while True:
            yield [record.value for found in self._consumer.poll(1000).values() for record in found]

    def close(self) -> None:
        for each in ("_producer", "_consumer"):
            if hasattr(self, each):
                getattr(self, each).close()
