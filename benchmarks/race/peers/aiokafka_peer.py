"""aiokafka, the client for asyncio, with a local broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

from .base import Peer, Values
from .kafka_facts import BROKER_SETTINGS, DURABLE, LACKS, fetch_bytes

T = TypeVar("T")


class AiokafkaPeer(Peer):
    NAME = "aiokafka"
    TITLE = "Kafka, aiokafka"
    MODULES = ("aiokafka",)
    DISTRIBUTION = "aiokafka"
    BROKER = True
    CHECKSUM = "CRC-32C of each batch, verified by broker and reader"
    SETTINGS = (
        "`send()` and `send_batch()` of 1 MB, linger 5 ms (0 for latencies); `getmany(10000)`, "
        "fetches of 8 MB (64 kB for latencies); " + BROKER_SETTINGS
    )
    DURABLE = DURABLE + "; tasks instead of threads"
    LACKS = LACKS

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self._runner = asyncio.Runner()

    def run(self, asked: Awaitable[T]) -> T:
        async def within() -> T:
            return await asked

        return self._runner.run(within())

    def begin(self) -> None:
        self.run(self._begin())

    async def _begin(self) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer: Any = AIOKafkaProducer(
            bootstrap_servers=self.job.where,
            acks="all" if self.job.durable else 1,
            max_batch_size=1 << 20,
            linger_ms=0 if self.job.samples or self.job.durable else 5,
            max_request_size=4 << 20,
            compression_type=None if self.job.codec == "none" else self.job.codec,
        )
        await self._producer.start()
        await self._producer.partitions_for(self.job.topic)

    def append_each(self, values: Values) -> None:
        self.run(self._append_each(values))

    async def _append_each(self, values: Values) -> None:
        for value in values:
            await self._producer.send(self.job.topic, value, partition=0)

    def append_batch(self, values: Values) -> None:
        self.run(self._append_batch(values, None))

    def append_timed(self, values: Values, first_ms: int) -> None:
        self.run(self._append_batch(values, first_ms))

    async def _append_batch(self, values: Values, first_ms: int | None) -> None:
        batch = self._producer.create_batch()
        for number, value in enumerate(values):
            stamp = first_ms + number if first_ms is not None else time.time_ns() // 1_000_000
            if batch.append(key=None, value=value, timestamp=stamp) is None:
                await self._producer.send_batch(batch, self.job.topic, partition=0)
                batch = self._producer.create_batch()
                assert batch.append(key=None, value=value, timestamp=stamp) is not None
        await self._producer.send_batch(batch, self.job.topic, partition=0)

    def acknowledged(self, value: bytes) -> None:
        self.run(self._producer.send_and_wait(self.job.topic, value, partition=0))

    async def keep_sending(self, value: bytes, seconds: float) -> int:
        """One of the writers of durable appends."""
        count = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self._producer.send_and_wait(self.job.topic, value, partition=0)
            count += 1
        return count

    def acknowledged_by_tasks(self, value: bytes, tasks: int, seconds: float) -> int:
        """Records that so many tasks send, one in flight for each."""

        async def all_of_them() -> int:
            return sum(
                await asyncio.gather(*(self.keep_sending(value, seconds) for _ in range(tasks)))
            )

        return self.run(all_of_them())

    def finish(self) -> None:
        self.run(self._producer.flush())

    async def _open(self) -> Any:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        self._partition = TopicPartition(self.job.topic, 0)
        found = AIOKafkaConsumer(
            bootstrap_servers=self.job.where,
            enable_auto_commit=False,
            max_partition_fetch_bytes=fetch_bytes(self.job),
            check_crcs=True,
            fetch_max_wait_ms=10,
            auto_offset_reset="earliest",
            group_id=None,
        )
        await found.start()
        found.assign([self._partition])
        return found

    async def _stored(self) -> int:
        consumer = await self._open()
        try:
            return int((await consumer.end_offsets([self._partition]))[self._partition])
        finally:
            await consumer.stop()

    def stored(self) -> int:
        return self.run(self._stored())

    def open_reader(self) -> None:
        self._consumer: Any = self.run(self._open())
        self._consumer.seek(self._partition, 0)
        self._many(30_000, 1)  # connected

    def _many(self, timeout_ms: int, count: int) -> Values:
        found = self.run(self._consumer.getmany(timeout_ms=timeout_ms, max_records=count))
        return [record.value for records in found.values() for record in records]

    def records(self, first: int) -> Iterator[Values]:
        self._consumer.seek(self._partition, first)
        while True:
            yield self._many(1000, 10_000)

    def value_at(self, offset: int) -> bytes:
        self._consumer.seek(self._partition, offset)
        while not (found := self._many(30_000, 1)):
            continue
        return found[0]

    def value_since(self, time_ms: int) -> bytes:
        found = self.run(self._consumer.offsets_for_times({self._partition: time_ms}))
        return self.value_at(found[self._partition].offset)

    def warm_reader(self) -> None:
        """`open_reader` has read a record."""

    def follow(self) -> Iterator[Values]:
        self._consumer = self.run(self._open())
        self.run(self._consumer.seek_to_end(self._partition))
        yield []
        while True:
            yield self._many(1000, 10_000)

    def close(self) -> None:
        for each in ("_producer", "_consumer"):
            if hasattr(self, each):
                self.run(getattr(self, each).stop())
        self._runner.close()
