"""An internal topic, and a view of it that keeps the last values."""

from __future__ import annotations

import embedlog
from embedlog.coordination.internal_topic import InternalTopic

NAME = "__transaction_state"


class Newest:
    """The last value of every key."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.applied = 0

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.applied += 1
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


def topic_of(log: embedlog.Log, partitions: int = 3, **config: str) -> InternalTopic[Newest]:
    own = {name.replace("_", "."): value for name, value in config.items()}
    settings = {"cleanup.policy": "compact", "compression.type": "uncompressed"} | own
    return InternalTopic(log._engine, NAME, partitions=partitions, config=settings, view=Newest)
