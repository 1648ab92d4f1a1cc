"""The filter of read_committed, against a reference implementation that follows Kafka's
description.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from embedlog.format.record_batch import CONTROL, TRANSACTIONAL, batch_dtype
from embedlog.format.visibility import filter_visible


class Item(NamedTuple):
    """A batch in short: its producer, and its kind."""

    producer: int
    kind: str  # plain, data, commit, abort
    offset: int
    count: int = 1


def rows(items: list[Item]) -> np.ndarray:
    made = np.zeros(len(items), batch_dtype())
    for row, item in zip(made, items, strict=True):
        row["producer_id"] = item.producer
        row["base_offset"] = item.offset
        row["last_offset_delta"] = item.count - 1
        attributes = {"plain": 0, "data": TRANSACTIONAL}.get(item.kind, TRANSACTIONAL | CONTROL)
        row["attributes"] = attributes
    return made


def read(items: list[Item], aborted: list[tuple[int, int]]) -> list[int]:
    aborts = np.array([item.kind == "abort" for item in items], np.bool_)
    return filter_visible(rows(items), aborted, aborts)["base_offset"].tolist()  # type: ignore[no-any-return]


def slow_read(items: list[Item], aborted: list[tuple[int, int]]) -> list[int]:
    """One batch after the other: is it inside one of the aborted transactions of its producer?"""
    out = []
    for item in items:
        if item.kind in ("commit", "abort"):
            continue
        last = item.offset + item.count - 1
        inside = False
        for producer, first in aborted:
            ends = [
                each.offset
                for each in items
                if each.producer == producer and each.kind == "abort" and each.offset > first
            ]
            end = min(ends, default=1 << 60)
            inside |= (
                item.kind == "data"
                and item.producer == producer
                and first <= last
                and item.offset < end
            )
        if not inside:
            out.append(item.offset)
    return out


def history(rng: random.Random, size: int) -> tuple[list[Item], list[tuple[int, int]]]:
    """Interleaved transactions of a few producers, each committed, aborted or still open; and the
    aborted ones.
    """
    items: list[Item] = []
    open_since: dict[int, int] = {}
    aborted = []
    offset = rng.randrange(100)
    for _ in range(size):
        producer = rng.randrange(4)
        count = rng.randrange(1, 5)
        kind = rng.choice(["plain", "data", "data", "data", "end"])
        if kind == "end" and producer in open_since:
            kind = rng.choice(["commit", "abort"])
            first = open_since.pop(producer)
            if kind == "abort":
                aborted.append((producer, first))
            count = 1
        elif kind == "data":
            open_since.setdefault(producer, offset)
        else:
            kind = "plain"
            producer = rng.choice([-1, 7])
        items.append(Item(producer, kind, offset, count))
        offset += count + rng.choice([0, 0, 3])
    return items, aborted


def abort_marker(items: list[Item], producer: int, first: int) -> int:
    """Offset of the marker that ended this aborted transaction."""
    return next(
        item.offset
        for item in items
        if (item.producer, item.kind) == (producer, "abort") and item.offset > first
    )


def test_markers_are_never_seen() -> None:
    items = [Item(1, "data", 0), Item(1, "commit", 1), Item(-1, "plain", 2)]
    assert read(items, []) == [0, 2]


def test_only_the_aborting_producers_batches_go() -> None:
    items = [
        Item(1, "data", 0),
        Item(2, "data", 1),
        Item(1, "plain", 2),
        Item(1, "abort", 3),
        Item(1, "data", 4),
    ]
    assert read(items, [(1, 0)]) == [1, 2, 4]


def test_a_transaction_that_began_before_the_fetch_is_dropped_too() -> None:
    assert read([Item(1, "data", 50), Item(1, "abort", 51)], [(1, 3)]) == []


def test_nothing_dropped_is_no_copy() -> None:
    batches = rows([Item(-1, "plain", 0)])
    assert filter_visible(batches, []) is batches


def test_random_histories_as_the_slow_twin(rng: random.Random) -> None:
    for _ in range(300):
        items, aborted = history(rng, rng.randrange(1, 40))
        # a fetch begins anywhere; the list has the overlapping entries
        begin = rng.randrange(len(items))
        part = items[begin:]
        overlapping = [each for each in aborted if abort_marker(items, *each) >= part[0].offset]
        rng.shuffle(overlapping)
        assert read(part, overlapping) == slow_read(part, overlapping), (part, overlapping)
