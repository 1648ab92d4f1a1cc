"""The queue of one partition of a producer, without its producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embedlog._native import _rows
from embedlog._native._rows import Future
from embedlog.errors import DeadlineError, ForkedError, StateError
from embedlog.producer import awaitable
from embedlog.producer.delivery_failures import copy_error
from embedlog.types import RecordMetadata

NEVER_MS = 1e12


def accumulator(
    memory: int = 1 << 30,
    linger_ms: float = NEVER_MS,
    unacknowledged: bool = False,
    calls: list[Any] | None = None,
) -> _rows.Accumulator:
    def call(future: Future, callback: Callable[[Future], object]) -> None:
        if calls is not None:
            calls.append((future, callback))
        callback(future)

    return _rows.Accumulator(
        memory,
        linger_ms,
        unacknowledged,
        RecordMetadata,
        call,
        awaitable.await_future,
        copy_error,
        DeadlineError,
        ForkedError,
        StateError,
    )


def queue(limit: int = 1 << 20, **facts: Any) -> tuple[_rows.Accumulator, _rows.PartitionQueue]:
    shared = accumulator(**facts)
    return shared, _rows.PartitionQueue(shared, "t", 3, limit)


def put(target: _rows.PartitionQueue, *values: bytes, timestamp_ms: int = 1000) -> list[Future]:
    futures = [target.append(value, None, timestamp_ms, ()) for value in values]
    assert None not in futures
    return futures  # type: ignore[return-value]


def taken(target: _rows.PartitionQueue) -> list[_rows.ProducerBatch]:
    target.seal()
    return target.take(1 << 30)
