"""embedlog itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import embedlog
from embedlog import TopicPartition

from .base import Peer, Values

if TYPE_CHECKING:
    import pyarrow as pa

NEVER_MS = 9_223_372_036_854_775_807
SPIN_US = 10_000


class EmbedlogPeer(Peer):
    NAME = "embedlog"
    TITLE = "embedlog"
    MODULES = ("pyarrow",)
    DISTRIBUTION = "embedlog"
    SLICE = 20
    CHECKSUM = "CRC-32C of each batch, verified by each read"
    SETTINGS = (
        "defaults; no background sync in the page-cache workloads; columns in slices of 20,000 "
        "records of 100 B"
    )
    DURABLE = "`flush.messages=1`"

    def _open(self) -> None:
        self._stack = ExitStack()
        self._log = self._stack.enter_context(embedlog.open(self.job.where))
        self._partition = TopicPartition(self.job.topic, 0)

    def begin(self) -> None:
        self._open()
        keeping = {"flush.messages": 1} if self.job.durable else {"flush.ms": NEVER_MS}
        self._log.create_topic(self.job.topic, 1, config=keeping, exist_ok=True)
        self._producer = self._stack.enter_context(
            self._log.producer({"compression.type": self.job.codec})
        )

    def append_each(self, values: Values) -> None:
        send = self._producer.send
        topic = self.job.topic
        for value in values:
            send(topic, value)

    def append_batch(self, values: Values) -> None:
        self._producer.send_batch(self.job.topic, values)

    def append_columns(self, values: pa.Array) -> None:
        self._producer.send_batch(self.job.topic, values)

    def append_timed(self, values: Values, first_ms: int) -> None:
        times = list(range(first_ms, first_ms + len(values)))
        self._producer.send_batch(self.job.topic, values, timestamps_ms=times)

    def acknowledged(self, value: bytes) -> None:
        self._producer.send(self.job.topic, value).result()

    def finish(self) -> None:
        self._producer.flush()

    def stored(self) -> int:
        return self._log.consumer().end_offsets([self._partition])[self._partition]

    def open_reader(self) -> None:
        self._open()
        reading = {
            "max.poll.records": 10_000,
            "auto.offset.reset": "earliest",
            "poll.spin.us": SPIN_US if self.job.spin else 0,
        }
        self._consumer = self._stack.enter_context(self._log.consumer(config=reading))
        self._consumer.assign([self._partition])

    def records(self, first: int) -> Iterator[Values]:
        self._consumer.seek(self._partition, first)
        while records := self._consumer.poll():
            yield [record.value for record in records]

    def columns(self) -> Iterator[pa.Array]:
        for batch in self._log.scan(self.job.topic, columns=["value"]):
            yield batch["value"]

    def warm_columns(self) -> None:
        for _ in self._log.scan(self.job.topic, end_offset=1, columns=["value"]):
            continue

    def value_at(self, offset: int) -> bytes:
        self._consumer.seek(self._partition, offset)
        value: bytes = self._consumer.poll(max_records=1)[0].value
        return value

    def value_since(self, time_ms: int) -> bytes:
        found = self._consumer.offsets_for_times({self._partition: time_ms})[self._partition]
        assert found is not None, time_ms
        return self.value_at(found.offset)

    def follow(self) -> Iterator[Values]:
        self.open_reader()
        self.value_at(0)
        self._consumer.seek_to_end(self._partition)
        self._consumer.poll(0.3)  # the code of waits and reads is loaded
        yield []
        while True:
            yield [record.value for record in self._consumer.poll(1.0)]

    def close(self) -> None:
        self._stack.close()
