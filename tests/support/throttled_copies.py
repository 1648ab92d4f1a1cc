"""A set of two directories in which a replica is added, with throttles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import embedlog
from embedlog import TopicPartition
from embedlog.replicas.partition import copying


def joined_in_a_round(
    root: Path, log_config: Mapping[str, Any], topic_config: Mapping[str, Any]
) -> int:
    """The size of the ISR one round after a replica was added that lacks several chunks."""
    config = {"housekeeping": False, **log_config}
    with (
        embedlog.open([root / "d1", root / "d2"], config=config) as log,
        mock.patch.object(copying, "CHUNK_BYTES", 1),
    ):
        log.create_topic("t", assignment={0: [1]}, config=topic_config)
        with log.producer(linger_ms=0, batch_size=0) as producer:
            for _ in range(5):
                producer.send("t", b"x" * 5000).result()
        log.reassign({TopicPartition("t", 0): [1, 2]})
        log.housekeep()
        return len(log.replicas("t").partitions[0].isr)
