"""Facts that the clients of Kafka share."""

from __future__ import annotations

BROKER_SETTINGS = "one broker of Kafka on the same cores, its files on the same disk"
DURABLE = "`acks=all`, `flush.messages=1` at the topic: the broker syncs before it answers"
LACKS = {"spin": "its reader waits for an answer of the broker"}
