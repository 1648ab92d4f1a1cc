"""Batches that a reader verified are kept: a second read returns the same records as the files, or
the same error.
"""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog._native._rows import record_run
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from embedlog.format.record_batch import Chain, scan
from embedlog.partition import point_reads
from embedlog.partition.log_context import RecentBatches
from embedlog.partition.truncation import log_cut
from embedlog.storage import file_names
from tests.support.short_fetches import SMALL, T0, compare, filled, flip, opened, whole


@pytest.fixture(autouse=True)
def _small_batches_are_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_reads, "KEPT_BYTES_MIN", 0)


def reader_of(log: embedlog.Log, **options: str) -> embedlog.Consumer:
    made = log.consumer(auto_offset_reset="none", **options)
    made.assign([T0])
    return made


def at(reader: embedlog.Consumer, offset: int) -> embedlog.Record:
    reader.seek(T0, offset)
    (record,) = reader.poll(max_records=1)
    return record


def kept(log: embedlog.Log) -> int:
    return len(log._engine.partition("t", 0)._reader.points._kept)


def test_a_kept_batch_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t")
        with log.producer(compression_type="zstd") as producer:
            producer.send_batch("t", [b"%0100d" % number for number in range(5000)]).result()
        points = log._engine.partition("t", 0)._reader.points
        reads: list[int] = []
        original = points._read_verified
        monkeypatch.setattr(
            points,
            "_read_verified",
            lambda offset, *rest: reads.append(offset) or original(offset, *rest),
        )
        with reader_of(log) as reader, reader_of(log) as other:
            for offset in (7, 4999, 0, 2500, 7):
                assert at(reader, offset).value == at(other, offset).value == b"%0100d" % offset
        assert reads == [7]


def test_random_reads_of_kept_batches(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, most=30)  # at least thirty batches
        compare(log, rng, rounds=60)
        assert kept(log) > 5, "the point path was taken"
        compare(log, rng, rounds=60)
        compare(log, rng, rounds=30, isolation_level="read_committed")


def test_batches_of_transactions_are_not_returned_to_committed_readers(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer(transactional_id="x") as producer:
        log.create_topic("t")
        with log.producer() as plain:
            plain.send("t", b"before").result()
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"aborted").result()
        with reader_of(log) as reader:
            assert at(reader, 1).value == b"aborted"
        with reader_of(log, isolation_level="read_committed") as reader:
            assert at(reader, 0).value == b"before"
            reader.seek(T0, 1)
            assert reader.poll(max_records=1) == []
            producer.abort_transaction()
            reader.seek(T0, 1)
            assert reader.poll(max_records=1) == []
        with reader_of(log) as reader:
            assert at(reader, 1).value == b"aborted"


@pytest.mark.parametrize("alone", [True, False], ids=["same process", "another process"])
def test_a_cut_drops_kept_batches(tmp_path: Path, alone: bool) -> None:
    """Two open logs have nothing in common but the files, like two processes."""
    with (
        opened(tmp_path) as other,
        opened(tmp_path) as log,
        log.producer(batch_size=0, compression_type="gzip") as producer,
    ):
        log.create_topic("t")
        reader = reader_of(log if alone else other)
        for number in range(20):
            producer.send("t", b"old%d" % number).result()
        assert [at(reader, offset).value for offset in (5, 15)] == [b"old5", b"old15"]
        partition = log._engine.partition("t", 0)
        with partition.exclusive() as held:
            log_cut.begin(held, system.CUT_END, 0, 10)
        with pytest.raises(OffsetOutOfRangeError):
            at(reader, 15)
        for number in range(10, 20):
            producer.send("t", b"new%d" % number).result()
        assert [at(reader, offset).value for offset in (5, 15)] == [b"old5", b"new15"]


def test_log_start_and_deletion_hide_kept_batches(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log:
        filled(log, rng)
        known = whole(log)
        with reader_of(log) as reader:
            assert [at(reader, offset) for offset in (100, 899)] == [known[100], known[899]]
            log.delete_records({T0: 500})
            with pytest.raises(OffsetOutOfRangeError):
                at(reader, 100)
            assert at(reader, 899) == known[899]
            log.delete_topic("t")
            with pytest.raises(UnknownTopicOrPartitionError):
                at(reader, 899)
        log.create_topic("t")
        with log.producer() as producer, reader_of(log) as reader:
            producer.send("t", b"second life").result()
            assert at(reader, 0).value == b"second life"


@pytest.mark.parametrize("alone", [True, False], ids=["same process", "another process"])
def test_a_compaction_drops_kept_batches(tmp_path: Path, rng: random.Random, alone: bool) -> None:
    with opened(tmp_path) as other, opened(tmp_path) as log:
        filled(log, rng, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0})
        reader = reader_of(log if alone else other)
        known = whole(log)
        for offset in rng.sample(range(known[-1].offset), 60):
            reader.seek(T0, offset)
            reader.poll(max_records=1)
        log._engine.partition("t", 0).compact(-1, 1 << 20, 0)
        known = whole(log)
        for offset in rng.sample(range(known[-1].offset), 60):
            reader.seek(T0, offset)
            assert (
                reader.poll(max_records=1) == [each for each in known if each.offset >= offset][:1]
            )


@pytest.mark.parametrize("by_time", [False, True], ids=["offset", "time"])
def test_after_a_compaction_by_another_process_no_file_of_before_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_time: bool
) -> None:
    """A replaced segment keeps its name. The first read after the compaction is a point
    read.
    """
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
        "segment.bytes": "2000",
    }
    with opened(tmp_path) as other, opened(tmp_path) as log:
        log.create_topic("t", config=config)
        with log.producer() as producer:
            for number in range(60):
                key = b"%d" % (number or 30)  # only the first record is superseded
                producer.send("t", b"%050d" % number, key, timestamp_ms=1000 + number).result()
        reader = reader_of(other)
        partition = other._engine.partition("t", 0)
        points = partition._reader.points
        acquired = points._acquire
        read = list[str]()

        def checked(place: Any, files: Any) -> Any:
            found = acquired(place, files)
            assert found is not None
            if place.generation != partition.published().generation:
                return found  # such a read is refused
            for handle, suffix in zip(found[0], files.names, strict=True):
                path = file_names.segment_path(tmp_path / "log" / "t-0", place.info.base, suffix)
                assert os.fstat(handle.fd).st_ino == path.stat().st_ino
                read.append(suffix)
            return found

        monkeypatch.setattr(points, "_acquire", checked)
        assert at(reader, 3).offset == 3
        assert reader.offsets_for_times({T0: 1000})[T0].offset == 0  # type: ignore[union-attr]
        read.clear()
        log._engine.partition("t", 0).compact(-1, 1 << 20, 0)
        assert [record.offset for record in whole(log)][:2] == [1, 2]
        if by_time:
            assert reader.offsets_for_times({T0: 1000})[T0].offset == 1  # type: ignore[union-attr]
        else:
            assert at(reader, 0).offset == 1
        assert read


def test_reads_beside_appends_rolls_and_a_moving_log_start(
    tmp_path: Path, rng: random.Random
) -> None:
    """Every record is the one of its offset, whatever happens meanwhile."""
    with opened(tmp_path) as log:
        log.create_topic("t", config=SMALL)
        stop = threading.Event()

        def write() -> None:
            try:
                with log.producer(batch_size=400) as producer:
                    for number in range(6000):
                        producer.send("t", b"%020d" % number)
                        if number % 1000 == 999:
                            producer.flush()
                            log.delete_records({T0: number - 800})
            finally:
                stop.set()

        with reader_of(log) as reader, ThreadPoolExecutor(1) as pool:
            written = pool.submit(write)
            count = 0
            while not stop.is_set() or count < 200:
                start = reader.beginning_offsets([T0])[T0]
                end = reader.end_offsets([T0])[T0]
                if start == end:
                    continue
                offset = rng.randrange(start, end)
                try:
                    record = at(reader, offset)
                except OffsetOutOfRangeError:
                    assert reader.beginning_offsets([T0])[T0] > offset
                    continue
                assert (record.offset, record.value) == (offset, b"%020d" % offset)
                count += 1
            written.result()


def test_damage_is_found_when_a_batch_is_read_and_never_returned(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer(batch_size=0, compression_type="lz4") as producer:
        log.create_topic("t", config={"index.interval.bytes": 1})
        for number in range(20):
            producer.send("t", b"%0200d" % number).result()
        (path,) = (tmp_path / "log" / "t-0").glob("*.log")
        place = int(scan(path.read_bytes(), Chain()).batches["position"][11]) + 70
        with reader_of(log) as reader:
            assert at(reader, 11).value == b"%0200d" % 11
            flip(path, place)
            assert at(reader, 11).value == b"%0200d" % 11, (
                "the verified bytes, not those of the file"
            )
            log._engine.partition("t", 0)._state.forget_files()
            with pytest.raises(CorruptRecordError):
                at(reader, 11)
        flip(path, place)


def test_the_memory_of_kept_batches_is_bounded(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log:
        filled(log, rng)
        known = whole(log)
        points = log._engine.partition("t", 0)._reader.points
        points._recent = recent = RecentBatches(20_000)
        with reader_of(log) as reader:
            for offset in rng.sample(range(900), 300):
                assert at(reader, offset) == known[offset]
                assert recent.size_bytes <= 20_000
                assert sorted(points._kept) == points._firsts
                assert {first for _, first in recent._order} == set(points._kept)
            points.forget()
            assert (recent.size_bytes, points._kept, points._firsts) == (0, {}, [])


def test_a_closed_partition_keeps_nothing(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, 300)
        points = log._engine.partition("t", 0)._reader.points
        recent = log._engine.home.context.recent_batches
        with reader_of(log) as reader:
            at(reader, 3)
        assert recent.size_bytes > 0
    assert (recent.size_bytes, points._kept) == (0, {})


def test_a_run_begins_at_any_record(tmp_path: Path, rng: random.Random) -> None:
    """Marks lead to the same records as a walk from the start, also with gaps inside of a batch."""
    with opened(tmp_path) as log:
        filled(
            log,
            rng,
            **{
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": 0.0,
                "segment.bytes": 100_000,
            },
        )
        with log.producer() as producer:
            producer.send("t", b"x" * 99_000, key=b"last")
        log._engine.partition("t", 0).compact(-1, 1 << 20, 0)
        compared = 0
        for path in (tmp_path / "log" / "t-0").glob("*.log"):
            data = path.read_bytes()
            batches = scan(data, Chain(gaps_allowed=True)).batches
            for row in range(len(batches)):
                place = int(batches["position"][row])
                size = int(batches["size"][row])
                if batches["attributes"][row] & 7:
                    continue
                base = int(batches["base_offset"][row])
                body = data[place + 61 : place + size]
                first = record_run("t", 0, batches[row : row + 1], body, base)
                assert first is not None
                for start in range(base, first.end + 1):
                    slow = record_run("t", 0, batches[row : row + 1], body, start)
                    fast = first.at(start)
                    assert slow is not None
                    assert (fast.count, fast.offset, fast.end) == (
                        slow.count,
                        slow.offset,
                        slow.end,
                    )
                    assert fast.take(3) == slow.take(3)
                    compared += 1
        assert compared > 20  # the seed decides how many are left
        with pytest.raises(ValueError):
            first.at(-1)
