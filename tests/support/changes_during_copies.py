"""Changes of a log during a copy of it, made by the copy's own report of its progress."""

from __future__ import annotations

from collections.abc import Callable

import embedlog


def deleting(log: embedlog.Log, topic: str) -> Callable[[int, int], None]:
    """A progress function that deletes a topic in its first call."""
    calls: list[int] = []

    def delete(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 1:
            log.delete_topic(topic)

    return delete
