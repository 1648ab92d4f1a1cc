"""The description of one turn, which the parent process writes as JSON and the turn's process
reads.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

# the time of the first record of a filled store; each later record is one ms later
BASE_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Job:
    """One turn of a peer."""

    where: str  # a directory, or the address of a broker
    values: str  # the file with the values (see `data`)
    topic: str = "race"
    count: int = 10_000  # records at most
    seconds: float = 1.0  # and no longer than this
    batch: int = 1000  # records of one batch
    codec: str = "none"
    durable: bool = False
    threads: int = 1
    samples: int = 0  # of a latency
    record_bytes: int = 100
    spin: bool = False  # a reader that waits takes a processor
    jars: str = ""  # of Java peers

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
