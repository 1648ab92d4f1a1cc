"""E13 during compaction: a writer of keys, a housekeeper that compacts and deletes without a pause,
and readers.

The content of a record follows from its offset, because one writer alone assigns the offsets: key,
value or tombstone. So a reader can check each missing offset: a later record must have its key, or
the log must begin after it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embedlog import OffsetOutOfRangeError, TopicPartition
from tests.faults.harness.content import Verdict, mark_of, value_of
from tests.faults.harness.processes import Nursery
from tests.faults.harness.stage import Play
from tests.faults.harness.tasks import TOPIC, Stage, task

HERE = TopicPartition(TOPIC, 0)
KEYS = 500
WRITER = 1
# records of a batch, batches of a turn
COUNT = 200
TURN = 10
TOMBSTONES = 7  # one record of so many
CONFIG = {
    "min.cleanable.dirty.ratio": 0.0,
    "segment.bytes": 60_000,
    "file.delete.delay.ms": 0,
    "index.interval.bytes": 1000,
}


def key_of(number: int) -> bytes:
    return b"%d" % (zlib.crc32(b"%d" % number) % KEYS)


def is_tombstone(number: int) -> bool:
    return zlib.crc32(b"value %d" % number) % TOMBSTONES == 0


def replaced_by(end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of each offset below `end` the next one with its key; `end` if there is none."""
    found = np.full(end, end, np.int64)
    latest = dict[bytes, int]()
    for number in range(end - 1, -1, -1):
        key = key_of(number)
        found[number] = latest.get(key, end)
        latest[key] = number
    return found


@task
def write_keys(stage: Stage, first: int, batches: int) -> None:
    """Batches of records that follow from their numbers."""
    for base in range(first, first + batches * COUNT, COUNT):
        numbers = range(base, base + COUNT)
        keys = [key_of(number) for number in numbers]
        values = [
            None if is_tombstone(number) else value_of(WRITER, number, 100) for number in numbers
        ]
        ((_, _, found, _),) = stage.producer.send_batch(TOPIC, values, keys, partition=0).result(60)
        assert found == base, f"a batch is at {found}, the log ended at {base}"


@task
def leave_open(stage: Stage, key: bytes) -> None:
    """A transaction with one record, and no end."""
    producer = stage.opened.producer(transactional_id="left open")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(TOPIC, b"undecided", key=key).result(30)
    producer.flush()


class Lap:
    """One pass through the topic: its records, and its errors."""

    def __init__(self, end: int) -> None:
        self.seen = np.zeros(end, bool)
        self.following = 0
        self.bad: list[str] = []

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        if offset < self.following:
            self.bad.append(f"offset {offset} where {self.following} or later was due")
        self.seen[offset] = True
        self.following = offset + 1
        if key != key_of(offset):
            self.bad.append(f"offset {offset} has the key {key!r}, not {key_of(offset)!r}")
        mark = None if value is None else mark_of(value)
        if (
            (value is None) != is_tombstone(offset)
            or (mark is not None and mark != (WRITER, offset))
            or (value and mark is None)
        ):
            self.bad.append(f"offset {offset} holds {value if value is None else value[:40]!r}")

    def end(
        self, replaced: np.ndarray[Any, np.dtype[np.int64]], log_start: int, log_end: int
    ) -> list[str]:
        """The offsets that were missing without a reason."""
        missing = ~self.seen[: self.following]
        offsets = np.flatnonzero(missing)
        wrong = offsets[(offsets >= log_start) & (replaced[offsets] >= log_end)]
        return self.bad + [
            f"offset {offset} was skipped: nothing replaces it" for offset in wrong.tolist()
        ]


@task
def read_beside_cleaner(stage: Stage, end: int, seed: int, again: bool) -> dict[str, Any]:
    """From the beginning to `end`; with `again` from the beginning whenever a reader is through,
    until the log has ended.
    """
    rng = random.Random(seed)
    replaced = replaced_by(end)
    bad: list[str] = []
    laps = read = skipped = 0
    following = 0
    while following < end and not bad:
        lap = Lap(end)
        fetches = {
            "auto_offset_reset": "none",
            "max_partition_fetch_bytes": rng.choice((1000, 20_000, 1 << 20)),
        }
        with stage.opened.consumer(**fetches) as consumer:
            consumer.assign([HERE])
            consumer.seek_to_beginning(HERE)
            for record in polled(consumer, end, rng, tails=not again):
                lap.take(record.offset, record.key, record.value)
                read += 1
            following = consumer.position(HERE)
            bounds = consumer.beginning_offsets([HERE])[HERE], consumer.end_offsets([HERE])[HERE]
        bad += lap.end(replaced, *bounds)
        skipped += lap.following - int(lap.seen.sum())
        laps += 1
    return {"laps": laps, "read": read, "skipped": skipped, "bad": bad[:20]}


def polled(consumer: Any, end: int, rng: random.Random, tails: bool) -> Iterator[Any]:
    """Records until `end`, or until there is none without `end`; after retention it continues at
    the start.
    """
    while consumer.position(HERE) < end:
        try:
            records = consumer.poll(
                timeout=10.0 if tails else 0.0, max_records=rng.choice((7, 300, 5000))
            )
        except OffsetOutOfRangeError:
            consumer.seek_to_beginning(HERE)
            continue
        if not records and not tails:
            return
        yield from records


def experiment(
    nursery: Nursery,
    directory: Path,
    seed: int,
    *,
    turns: int,
    policy: str,
    retention_bytes: int = -1,
    mutants: tuple[str, ...] = (),
    deadline_s: float = 110,
) -> tuple[Verdict, dict[str, int]]:
    """A writer and a housekeeper at the same time, turn after turn; a reader that follows and two
    that begin again and again.
    """
    end = turns * TURN * COUNT
    play = Play(
        nursery,
        directory,
        mutants=mutants,
        config=CONFIG | {"cleanup.policy": policy, "retention.bytes": retention_bytes},
    )
    writer = play.enter()
    keeper = play.enter()
    readers = [play.enter() for _ in range(3)]
    for number, reader in enumerate(readers):
        reader.start("read_beside_cleaner", end, seed + number, number > 0)
    for turn in range(turns):
        keeper.start("on_log", "housekeep")
        writer.call("write_keys", turn * TURN * COUNT, TURN, deadline_s=deadline_s)
        keeper.result(deadline_s=deadline_s)
    results = [reader.result(deadline_s=deadline_s) for reader in readers]
    keeper.call("on_log", "housekeep", deadline_s=deadline_s)
    results.append(keeper.call("read_beside_cleaner", end, seed, True))
    violations = [each for found in results for each in found["bad"]]
    verdict = Verdict(read=sum(found["read"] for found in results), violations=violations)
    return verdict, {
        "laps": sum(found["laps"] for found in results),
        "skipped": sum(found["skipped"] for found in results),
    }
