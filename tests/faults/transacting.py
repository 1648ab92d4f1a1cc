"""What a victim can be told to do with transactions: by the owner of an id, so that each step can be stopped."""

from __future__ import annotations

import os
import select
from pathlib import Path

from embedlog import files
from embedlog.internal_topic import InternalTopic
from embedlog.liveness import Liveness

from .tasks import Stage, task

_lives: list[Liveness] = []


@task
def live(_: Stage, directory: str, fork: bool = False) -> tuple[int, int]:
    """Begin a life, and with `fork` leave a child behind that does nothing but inherit and outlive its parent's death."""
    found = Liveness(Path(directory))
    _lives.append(found)
    slot, nonce = found.begin()
    if fork and os.fork() == 0:
        select.select([], [], [], 20)
        os._exit(0)
    return slot, nonce


class _Counter:
    """The newest value of every key."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.values[key] = value or b""


@task
def decide(stage: Stage, number: int) -> int:
    """Count one up, by a decision in a partition of an internal topic."""
    topic = InternalTopic(stage.opened, "__transaction_state", partitions=1, config={}, view=_Counter)
    with topic.deciding(number, files.deadline_after(20)) as decision:
        count = int(decision.view.values.get(b"n", b"0")) + 1
        decision.append([(b"n", b"%d" % count)])
    return count
