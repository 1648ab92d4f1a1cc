"""Keys with the partitions that Kafka selects for them, and the router of a producer alone."""

from __future__ import annotations

from typing import Any

from embedlog._native import _rows


def route(
    count: int, shared: _rows.Accumulator, batch_size: int = 16384, **facts: Any
) -> _rows.Router:
    queues = [_rows.PartitionQueue(shared, "t", number, batch_size) for number in range(count)]
    given = {
        "request_limit": 1 << 20,
        "past_ms": 2**62,
        "future_ms": 1000,
        "keys_required": False,
        "keys_ignored": False,
        "seed": 7,
    }
    return _rows.Router(shared, queues, batch_size=batch_size, **(given | facts))


# Kafka's own vectors: key, murmur2 as a signed number
VECTORS = {
    b"": 275646681,
    b"a": -1563381124,
    b"21": -973932308,
    b"abc": 479470107,
    b"foobar": -790332482,
    b"key-0": 29210041,
    b"user-42": 1459644460,
}
