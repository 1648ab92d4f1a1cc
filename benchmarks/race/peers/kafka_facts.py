"""Facts that the clients of Kafka share."""

from __future__ import annotations

from ..job import Job

BROKER_SETTINGS = "one broker of Kafka on the same cores, its files on the same disk"
DURABLE = "`acks=all`, `flush.messages=1` at the topic: the broker syncs before it answers"
LACKS = {"spin": "its reader waits for an answer of the broker"}


def fetch_bytes(job: Job) -> int:
    """The size of a fetch: small for latencies, where a broker returns at least one batch."""
    return 64 << 10 if job.samples else 8 << 20
