"""Places for stores: directories of their own, or topics of one broker that is started on first
use.
"""

from __future__ import annotations

import itertools
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kafka.oracle import KAFKA_VERSION, Broker

from .peers import Peer

WAIT_S = 60
RECORD_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Place:
    """A directory, or a broker's address, with a topic."""

    where: str
    topic: str
    directory: Path  # of the files


class Stores:
    """Makes and removes places. A context manager: it stops the broker."""

    kafka_version = KAFKA_VERSION

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._stack = ExitStack()
        self._broker: Broker | None = None
        self._admin: Any = None

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _started(self) -> Broker:
        if self._broker is None:
            config = {
                "log.retention.check.interval.ms": 3_600_000,
                "message.max.bytes": RECORD_MOST_BYTES,
                "log.segment.delete.delay.ms": 0,
                "file.delete.delay.ms": 0,
            }
            self._broker = self._stack.enter_context(
                Broker(self._directory / "broker", config, heap="1g")
            )
        return self._broker

    def _topics(self) -> Any:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient(
                {"bootstrap.servers": self._started().bootstrap, "log_level": 2}
            )
        return self._admin

    def new(self, peer: type[Peer], *, durable: bool = False) -> Place:
        """A place for an empty store."""
        name = f"{peer.NAME}-{next(self._numbers)}"
        if not peer.BROKER:
            return Place(str(self._directory / name), "race", self._directory / name)
        from confluent_kafka.admin import NewTopic

        broker = self._started()
        config = {"segment.bytes": str(1 << 30), "max.message.bytes": str(RECORD_MOST_BYTES)}
        config |= {"flush.messages": "1"} if durable else {}
        topic = NewTopic(name, 1, 1, config=config)
        self._topics().create_topics([topic], operation_timeout=WAIT_S)[name].result(WAIT_S)
        return Place(broker.bootstrap, name, broker.log_dir / f"{name}-0")

    def remove(self, place: Place) -> None:
        if place.topic == "race":
            for path in self._directory.glob(f"{place.directory.name}*"):
                if path == place.directory or path.name.startswith(f"{place.directory.name}-"):
                    shutil.rmtree(path, ignore_errors=True)
        else:
            self._topics().delete_topics([place.topic], operation_timeout=WAIT_S)[
                place.topic
            ].result(WAIT_S)


def disk_bytes(directory: Path) -> int:
    """Allocated bytes of all files below a directory."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
