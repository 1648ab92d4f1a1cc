"""A search by time reads one batch after the place that the time index shows: the same answers as
the general reader.

There are two slow reference implementations: a list of all records, and the general reader. It
searches from an index entry, or from the start of a segment.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import index
from embedlog._native import system
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import Chain, scan
from embedlog.partition.partition import Partition
from embedlog.partition.truncation import log_cut
from tests.support.short_fetches import CODECS, SMALL, T0, flip, opened, whole
from tests.support.sparse_logs import COMPACTED, compact

START_MS = 1_700_000_000_000
KINDS = ["rising", "equal", "late", "far"]


def stamp(rng: random.Random, kind: str, number: int) -> int:
    if kind == "equal":
        return START_MS + number // 45
    if kind == "late":
        return START_MS + number + rng.randrange(-40, 40)
    return START_MS + number * (100_000 if kind == "far" else 1)


def filled(
    log: embedlog.Log, rng: random.Random, kind: str, count: int = 900, **config: Any
) -> None:
    """Batches of all sizes and codecs, over several segments."""
    log.create_topic("t", config=SMALL | config)
    number = 0
    while number < count:
        with log.producer(
            compression_type=rng.choice(CODECS), batch_size=rng.choice([0, 500, 16_384])
        ) as producer:
            for _ in range(rng.choice([1, 17, 60, 300])):
                value = rng.randbytes(rng.randrange(120))
                key = b"%d" % rng.randrange(50)
                producer.send("t", value, key=key, timestamp_ms=stamp(rng, kind, number))
                number += 1


def slowly(partition: Partition, time_ms: int, isolation: str) -> object:
    """The answer of the general reader."""
    reader = partition._reader
    # type: ignore[assignment]
    points = reader.points
    reader.points = _Without()
    try:
        return partition.offset_for_time(time_ms, isolation)
    finally:
        reader.points = points


class _Without:
    """Point reads that serve no case."""

    def find_since(self, timestamp_ms: int, committed: bool) -> None:
        return None

    def forget(self) -> None:
        return None


def compare(
    log: embedlog.Log, rng: random.Random, *, rounds: int = 150, isolation: str = "read_uncommitted"
) -> float:
    """Random times, against both references; returns the share of the found ones for which the
    search was short.
    """
    partition = log._engine.partition("t", 0)
    known = whole(log, isolation_level=isolation)
    first = min(each.timestamp for each in known)
    last = max(each.timestamp for each in known)
    short = answered = 0
    for _ in range(rounds):
        time_ms = rng.choice(
            [rng.choice(known).timestamp + rng.randrange(-1, 2), rng.randrange(first - 5, last + 5)]
        )
        found = partition.offset_for_time(time_ms, isolation)
        assert found == slowly(partition, time_ms, isolation), time_ms
        expected = next((each for each in known if each.timestamp >= time_ms), None)
        if isolation == "read_uncommitted":
            wanted = expected and (expected.offset, expected.timestamp, expected.leader_epoch)
            assert (found and (found.offset, found.timestamp, found.leader_epoch)) == wanted, (
                time_ms
            )
        answered += found is not None
        short += (
            partition._reader.points.find_since(time_ms, isolation == "read_committed") is not None
        )
    return short / max(1, answered)


@contextmanager
def reading(directory: Path, how: str) -> Iterator[embedlog.Log]:
    """A log that is open for writing, read beside a writer, or read while no process has it
    open.
    """
    if how == "beside a writer":
        with opened(directory), embedlog.open(directory / "log", read_only=True) as log:
            yield log
    else:
        with embedlog.open(
            directory / "log", read_only=how == "closed", config={"housekeeping": False}
        ) as log:
            yield log


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["writing", "beside a writer", "closed"])
def test_random_times_of_all_codecs_and_segments(
    tmp_path: Path, rng: random.Random, kind: str, how: str
) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, kind)
    with reading(tmp_path, how) as log:
        # The share depends on the drawn times and segments: from 0.5 to 1 in 144 runs, and 0
        # without the short way.
        assert compare(log, rng) > 0.3, "the short way was taken"
        with log.consumer() as reader:
            reader.assign([T0])
            short = 0
            for record in rng.sample(whole(log), 30):
                reader.seek(T0, record.offset)
                assert reader.poll(1, max_records=1) == [record]
                short += log._engine.partition("t", 0).point(record.offset, False) is not None
            assert short > 15, "the short way was taken"


def test_log_append_time_log_starts_and_new_records(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", config=SMALL | {"message.timestamp.type": "LogAppendTime"})
        for _ in range(6):
            with log.producer(batch_size=500) as producer:
                for _ in range(100):
                    producer.send("t", rng.randbytes(50))
            compare(log, rng, rounds=30)
            log.delete_records({T0: log.consumer().end_offsets([T0])[T0] - rng.randrange(1, 100)})
            compare(log, rng, rounds=30)


def test_a_compacted_log(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, "late", **COMPACTED)
        compare(log, rng, rounds=30)
        compact(log, timestamp_ms=START_MS + 2000)
        compare(log, rng)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_markers_and_one_that_is_open(
    tmp_path: Path, rng: random.Random, isolation: str
) -> None:
    with opened(tmp_path) as log, log.producer(transactional_id="x", batch_size=500) as producer:
        log.create_topic("t", config=SMALL)
        producer.init_transactions()
        number = 0
        for last in [False] * 12 + [True]:
            producer.begin_transaction()
            for _ in range(rng.randrange(1, 20)):
                producer.send(
                    "t", b"%d" % number * rng.randrange(1, 60), timestamp_ms=START_MS + 10 * number
                )
                number += 1
            if last:
                producer.flush()
            else:
                producer.commit_transaction() if rng.random() < 0.5 else producer.abort_transaction()
        compare(log, rng, isolation=isolation)
        producer.abort_transaction()
        compare(log, rng, isolation=isolation)


@pytest.mark.parametrize("suffix", [".timeindex", ".index"])
@pytest.mark.parametrize("kind", ["rising", "equal"])
def test_damaged_index_entries_hide_no_record(
    tmp_path: Path, rng: random.Random, suffix: str, kind: str
) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, kind)
        paths = sorted((tmp_path / "log" / "t-0").glob("*" + suffix))
        for _ in range(40):
            path = rng.choice(paths)
            size = path.stat().st_size
            if size:
                place = rng.randrange(size)
                flip(path, place)
                compare(log, rng, rounds=4)
                flip(path, place)


def test_a_damaged_batch_is_an_error_and_no_other_record_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer(batch_size=0, compression_type="lz4") as producer:
        log.create_topic("t", config={"index.interval.bytes": 1})
        for number in range(20):
            producer.send("t", b"%0200d" % number, timestamp_ms=START_MS + number).result()
        (path,) = (tmp_path / "log" / "t-0").glob("*.log")
        partition = log._engine.partition("t", 0)
        place = int(scan(path.read_bytes(), Chain()).batches["position"][11])
        # largest timestamp, a field after it, the records
        for damaged in (place + 36, place + 50, place + 70):
            flip(path, damaged)
            partition._state.forget_files()
            with pytest.raises(CorruptRecordError):
                partition.offset_for_time(START_MS + 11)
            flip(path, damaged)
        partition._state.forget_files()
        assert partition.offset_for_time(START_MS + 11).offset == 11


def test_a_cut_hides_what_was_found(tmp_path: Path) -> None:
    with (
        opened(tmp_path) as other,
        opened(tmp_path) as log,
        log.producer(batch_size=0, compression_type="gzip") as producer,
    ):
        log.create_topic("t", config={"index.interval.bytes": 1})
        for number in range(20):
            producer.send("t", b"old", timestamp_ms=START_MS + number).result()
        near = log._engine.partition("t", 0)
        far = other._engine.partition("t", 0)
        assert [each.offset_for_time(START_MS + 15).offset for each in (near, far)] == [15, 15]
        with near.exclusive() as held:
            log_cut.begin(held, system.CUT_END, 0, 10)
        assert [each.offset_for_time(START_MS + 15) for each in (near, far)] == [None, None]
        for number in range(10):
            producer.send("t", b"new", timestamp_ms=START_MS + 20 + number).result()
        assert [each.offset_for_time(START_MS + 15).offset for each in (near, far)] == [10, 10]


def test_a_reader_of_a_closed_log_follows_a_writer(tmp_path: Path, rng: random.Random) -> None:
    """What was loaded without a page is not used any more as soon as a writer was found."""
    with opened(tmp_path) as log:
        filled(log, rng, "rising", 100)
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        state = log._engine.partition("t", 0)._state
        partition = log._engine.partition("t", 0)
        before = len(whole(log))
        assert partition.offset_for_time(START_MS + 50).offset == 50
        assert state.page_file is None
        with opened(tmp_path) as writer, writer.producer() as producer:
            producer.send("t", b"new", timestamp_ms=START_MS + 9_000).result()
            state._checked_ns = 0
            assert partition.offset_for_time(START_MS + 8_000).offset == before
            assert state.page_file is not None
            assert partition.point(before, False) is not None
        state._checked_ns = 0
        state.follow_writer()
        assert partition.offset_for_time(START_MS + 8_000).offset == before


def test_thousands_of_segments_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", config={"segment.bytes": 200})
        with log.producer(batch_size=0) as producer:
            for number in range(300):
                producer.send("t", b"%0100d" % number, timestamp_ms=START_MS + number).result()
        partition = log._engine.partition("t", 0)
        now = partition._state.published()
        seen = [info.base for info in partition._segments.reaching(START_MS + 200, now)]
        every = [
            info.base
            for info in partition._segments.all(now)
            if info.max_timestamp >= START_MS + 200
        ]
        assert seen == every
        assert len(seen) > 50
        looked: list[int] = []
        original = index.time_floor
        monkeypatch.setattr(
            index, "time_floor", lambda fd, *rest: looked.append(fd) or original(fd, *rest)
        )
        assert partition.offset_for_time(START_MS + 200).offset == 200
        assert len(looked) <= 1
