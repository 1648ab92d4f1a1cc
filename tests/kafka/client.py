"""A real client (librdkafka) at a real broker: its records, in the form of the golden directories'
`expected` files.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping
from typing import Any

SHOWN_BYTES_MAX = 300  # longer keys and values are shown by size and digest


def shown(data: bytes | None) -> object:
    """Bytes as JSON: null, base64, or size and SHA-256 of long ones."""
    if data is None:
        return None
    if len(data) > SHOWN_BYTES_MAX:
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return base64.b64encode(data).decode()


def told(record: Any) -> dict[str, object]:
    """One of embedlog's records in the same words, all but `committed`."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": "LogAppendTime" if record.timestamp_type else "CreateTime",
        "leader_epoch": record.leader_epoch,
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": [[name, shown(value)] for name, value in record.headers],
    }


def create_topics(
    bootstrap: str, topics: Mapping[str, int], config: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [
        NewTopic(name, count, 1, config=dict((config or {}).get(name, {})))
        for name, count in topics.items()
    ]
    for future in admin.create_topics(new, operation_timeout=30).values():
        future.result(60)
    _await_leaders(bootstrap, topics)


def _await_leaders(bootstrap: str, topics: Mapping[str, int]) -> None:
    """Until each partition answers: a broker creates a topic before it leads its partitions."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    asking = Consumer({"bootstrap.servers": bootstrap, "group.id": "asking"})
    deadline = time.monotonic() + 60
    for place in [
        TopicPartition(name, number) for name, count in topics.items() for number in range(count)
    ]:
        while True:
            try:
                asking.get_watermark_offsets(place, timeout=10)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
    asking.close()


def messages(
    bootstrap: str, topics: Mapping[str, int], isolation: str = "read_uncommitted"
) -> list[Any]:
    """All messages of these topics (name to partition count), by topic, partition and offset."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "the-judge",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "check.crcs": True,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 10_000_000,
            "fetch.wait.max.ms": 10,
        }
    )
    open_ends = {(topic, number) for topic, count in topics.items() for number in range(count)}
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in open_ends])
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while open_ends:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no end of {sorted(open_ends)}")
        for message in reader.consume(10_000, 0.05):
            if not message.error():
                found.append(message)
            elif message.error().name() == "_PARTITION_EOF":
                open_ends.discard((message.topic(), message.partition()))
            else:
                raise RuntimeError(message.error())
    reader.close()
    return sorted(
        found, key=lambda message: (message.topic(), message.partition(), message.offset())
    )


def read(
    bootstrap: str, topics: Mapping[str, int], isolation: str = "read_uncommitted"
) -> dict[str, list[dict[str, object]]]:
    """The records of each topic from its beginning, in the form of the `expected` files."""
    rows: dict[str, list[dict[str, object]]] = {topic: [] for topic in topics}
    for message in messages(bootstrap, topics, isolation):
        kind, time_ms = message.timestamp()
        rows[message.topic()].append(
            {
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp_ms": time_ms,
                # librdkafka's numbers
                "timestamp_type": "LogAppendTime" if kind == 2 else "CreateTime",
                "leader_epoch": message.leader_epoch(),
                "key": shown(message.key()),
                "value": shown(message.value()),
                "headers": [[name, shown(value)] for name, value in message.headers() or []],
            }
        )
    return rows
