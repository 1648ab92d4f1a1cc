"""Rows at Python speed: `send()` one by one and iteration, against a bare loop over a method that
appends to a list.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import embedlog

from .context import QUIET, Context, filled, remove, values_of
from .measure import Outcome, against

COUNT = 300_000


class Bare:
    """The upper bound: a method call that appends its argument to a list."""

    def __init__(self) -> None:
        self.items: list[bytes] = []

    def send(self, topic: str, value: bytes) -> None:
        self.items.append(value)


def bare_rate(values: list[bytes]) -> float:
    bare = Bare()
    began = time.perf_counter()
    for value in values:
        bare.send("bench", value)
    return len(values) / (time.perf_counter() - began)


def send_rate(context: Context, values: list[bytes], **config: Any) -> float:
    """Records per second of `send()`, flushed at the end inside the clock."""
    directory = context.fresh("send")
    try:
        with embedlog.open(directory) as log, log.producer(**config) as producer:
            log.create_topic("bench", 1, config=QUIET)
            producer.send("bench", values[0]).result()
            began = time.perf_counter()
            for value in values:
                producer.send("bench", value)
            producer.flush()
            return len(values) / (time.perf_counter() - began)
    finally:
        remove(directory)


def send(context: Context) -> Iterator[Outcome]:
    values = [b"%0100d" % number for number in range(COUNT)]
    yield against(
        "send/record=100B",
        lambda: bare_rate(values),
        lambda: send_rate(context, values),
        target=1 / 15,
        rounds=context.rounds,
        unit="records/s",
    )


def send_batch_rate(context: Context, values: pa.Array, **config: Any) -> float:
    """Records per second of `send_batch` of one array, repeatedly, flushed at the end inside the
    clock.
    """
    directory = context.fresh("send-batch")
    rounds = 8
    try:
        with embedlog.open(directory) as log, log.producer(**config) as producer:
            log.create_topic("bench", 1, config=QUIET)
            producer.send_batch("bench", values).result()
            began = time.perf_counter()
            for _ in range(rounds):
                producer.send_batch("bench", values)
            producer.flush()
            return rounds * len(values) / (time.perf_counter() - began)
    finally:
        remove(directory)


def idempotence(context: Context) -> Iterator[Outcome]:
    """The cost of stamping and sequences: the same sends with and without them, in alternation."""
    values = [b"%0100d" % number for number in range(COUNT)]
    columns = values_of(100, 8 << 20)
    for name, rate, given in (
        ("send", send_rate, values),
        ("send_batch", send_batch_rate, columns),
    ):
        yield against(
            f"idempotence/{name}/record=100B",
            partial(rate, context, given, enable_idempotence=False),
            partial(rate, context, given),
            target=0.95,
            rounds=8 * context.rounds + 1,
            unit="records/s",
        )


def iterate_rate(directory: Path, count: int) -> float:
    """Records per second of a consumer's iteration that touches each value."""
    with (
        embedlog.open(directory, read_only=True) as log,
        log.consumer(
            "bench",
            auto_offset_reset="earliest",
            consumer_timeout_ms=0,
        ) as consumer,
    ):
        size = found = 0
        began = time.perf_counter()
        for record in consumer:
            size += len(record.value)
            found += 1
            if found == count:
                break
        return found / (time.perf_counter() - began)


def iterate(context: Context) -> Iterator[Outcome]:
    values = [b"%0100d" % number for number in range(COUNT)]
    with filled(context, 100, COUNT * 100, keyed=True) as directory:
        yield against(
            "iterate/record=100B/keyed",
            lambda: bare_rate(values),
            lambda: iterate_rate(directory, COUNT * 9 // 10),
            target=1 / 10,
            rounds=context.rounds,
            unit="records/s",
        )
