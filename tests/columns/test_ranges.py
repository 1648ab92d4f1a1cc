"""Scans that are divided by the index, compared with scans that are read in order: the same
records, and the same errors.

The rule of the reader is at the top of `reader`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Record
from embedlog.columns.arrow_export import ALL_COLUMNS
from embedlog.columns.batch import records_of
from embedlog.columns.chunks import ChunkSource, EncodedRange
from embedlog.errors import EmbedlogError
from embedlog.format.record_columns import Window
from embedlog.partition.partition import Partition
from tests.support.transactional_producers import begun

LOG_NAME = f"{0:020d}.log"
INDEX_NAME = f"{0:020d}.index"
READ_BYTES = 3_000
FIRST_MS = 1_700_000_000_000
EPOCH_AT = 15  # the last byte of the epoch in a batch header, which the checksum does not cover


@pytest.fixture(autouse=True)
def several_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


def opened(tmp_path: Path, **config: Any) -> embedlog.Log:
    log = embedlog.open(tmp_path / "log", config={"housekeeping": False})
    log.create_topic("t", 1, config={"flush.ms": 3_600_000, **config})
    return log


def append(
    log: embedlog.Log, rng: random.Random, count: int, *, rising: bool = False, **options: Any
) -> None:
    """Batches of one to twenty records; `rising`: each record has a larger timestamp than the one
    before.
    """
    stamp_ms = FIRST_MS
    with log.producer(linger_ms=0, **options) as producer:
        while count > 0:
            size = min(count, rng.randint(1, 20))
            values = [rng.randbytes(rng.randint(0, 300)) for _ in range(size)]
            stamps = list(range(stamp_ms, stamp_ms + size)) if rising else None
            producer.send_batch(
                "t", values, keys=[b"%d" % rng.randrange(50) for _ in values], timestamps_ms=stamps
            ).result()
            count = count - size
            stamp_ms = stamp_ms + size


def source(
    log: embedlog.Log, window: Window, max_bytes: int, isolation: str = "read_uncommitted"
) -> ChunkSource:
    partition = log._engine.partition("t", 0)
    return ChunkSource(
        {0: partition}, {0: window}, isolation=isolation, columns=ALL_COLUMNS, max_bytes=max_bytes
    )


def taken(made: ChunkSource, pieces: Iterator[Any]) -> Iterator[list[Record[bytes, bytes]]]:
    for number, decoded, rest in pieces:
        while True:
            if decoded is not None and decoded.count:
                yield records_of("t", number, decoded)
            if rest is None:
                break
            number, decoded, rest = made.decode_rest(rest)


def outcome(made: ChunkSource, pieces: Iterator[Any]) -> tuple[list[Record[bytes, bytes]], str]:
    """All records, and the error that ended the scan."""
    found: list[Record[bytes, bytes]] = []
    try:
        for part in taken(made, pieces):
            found += part
    except EmbedlogError as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


def compare(
    log: embedlog.Log, window: Window, max_bytes: int, isolation: str = "read_uncommitted"
) -> int:
    """Check that three ways have the same outcome; the number of ranges of the divided one."""
    ordered = source(log, window, max_bytes, isolation)
    expected = outcome(ordered, ordered.pieces())
    divided = source(log, window, max_bytes, isolation)
    ranges = list[EncodedRange]()
    assert outcome(divided, decodings(divided, ranges)) == expected
    threads = source(log, window, max_bytes, isolation)
    assert outcome(threads, threads.decode_ahead()) == expected
    return len(ranges)


def decodings(made: ChunkSource, ranges: list[EncodedRange]) -> Iterator[Any]:
    """The decoded parts of a divided scan, in one thread; `ranges` gets its ranges."""
    for part in iter(made.fetch_apart, None):
        if isinstance(part, EncodedRange):
            ranges.append(part)
        yield made.decode(part)


def windows(rng: random.Random, log: embedlog.Log) -> Iterator[Window]:
    bounds = log._engine.partition("t", 0).bounds()
    start = bounds.log_start
    end = bounds.high_watermark
    yield Window(start, end)
    for _ in range(5):
        first = rng.randint(start, end)
        yield Window(first, rng.randint(first, end))


@pytest.mark.parametrize("interval_bytes", [0, 1000, 100_000])
def test_a_divided_scan_has_the_records_of_an_ordered_one(
    tmp_path: Path, rng: random.Random, interval_bytes: int
) -> None:
    """Also over several segments, and with an index that has few entries or none."""
    with opened(
        tmp_path, **{"index.interval.bytes": interval_bytes, "segment.bytes": 40_000}
    ) as log:
        append(log, rng, 1000)
        whole, *others = windows(rng, log)
        assert compare(log, whole, 500) > 1, "each segment is a range at least"
        for window in others:
            compare(log, window, rng.choice([500, 5_000, 30_000]))


def test_a_range_of_a_whole_segment_is_read_in_pieces(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index without entries makes it as long as its segment, which may be a gigabyte."""
    asked_bytes = []
    fetch = Partition.fetch

    def note_and_fetch(partition: Partition, offset: int, **arguments: Any) -> Any:
        asked_bytes.append(arguments["max_bytes"])
        return fetch(partition, offset, **arguments)

    with opened(tmp_path, **{"index.interval.bytes": 1 << 30, "segment.bytes": 40_000}) as log:
        append(log, rng, 1000)
        monkeypatch.setattr(Partition, "fetch", note_and_fetch)
        assert compare(log, Window(0, 1000), 500) > 1, "each closed segment is a range"
        assert max(asked_bytes) <= 2_000


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip"])
def test_compressed_batches_between_plain_ones_are_in_a_divided_scan(
    tmp_path: Path, rng: random.Random, codec: str
) -> None:
    with opened(tmp_path, **{"index.interval.bytes": 500}) as log:
        for _ in range(6):
            append(log, rng, 60)
            append(log, rng, 60, compression_type=codec)
        assert sum(compare(log, window, 2_000) for window in windows(rng, log)) > 0


def test_a_divided_scan_of_committed_records_leaves_out_the_aborted_ones(
    tmp_path: Path, rng: random.Random
) -> None:
    with opened(tmp_path, **{"index.interval.bytes": 200}) as log:
        for number in range(40):
            writer = begun(log)
            for _ in range(rng.randint(1, 5)):
                writer.write(b"%d" % number * rng.randint(1, 50))
            writer.commit() if rng.random() < 0.5 else writer.abort()
            append(log, rng, rng.randint(0, 10))
        for isolation in ("read_committed", "read_uncommitted"):
            assert sum(compare(log, window, 600, isolation) for window in windows(rng, log)) > 0


def test_a_divided_scan_passes_over_removed_records(tmp_path: Path, rng: random.Random) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": 5_000,
        "index.interval.bytes": 100,
        "min.cleanable.dirty.ratio": 0.0,
    }
    with opened(tmp_path, **config) as log:
        append(log, rng, 600)
        log._engine.partition("t", 0).compact(-1, 1 << 20, 0)
        append(log, rng, 100)
        assert sum(compare(log, window, 700) for window in windows(rng, log)) > 0


def batches_of(data: bytes) -> dict[int, int]:
    """The base offset of each batch of a log file, by position."""
    found = {}
    position = 0
    while position < len(data):
        base, size = struct.unpack_from(">qi", data, position)
        found[position] = base
        position += 12 + size
    return found


@pytest.mark.parametrize("what", ["log", "epochs", "index"])
def test_damage_ends_a_divided_scan_at_the_same_record(
    tmp_path: Path, rng: random.Random, what: str
) -> None:
    """A damaged index costs time only. Of a damaged log each scan returns all records before the
    damage that a digest proves.

    Digests are at the entries of the index. A header that only the digest contradicts, such as an
    epoch, fails the read that ends at the digest, with all of its records. The reads before that
    one are complete; a range is one or more of them. A log that is damaged after the last entry
    cannot be loaded. A load reads the header of the batch with the largest timestamp, too, which is
    the last one here. By the clock, it would be any batch of the last millisecond.
    """
    with opened(tmp_path, **{"index.interval.bytes": 300}) as log:
        append(log, rng, 400, rising=True)
        every = list(log.scan("t").records())
    partition = tmp_path / "log" / "t-0"
    path = partition / (INDEX_NAME if what == "index" else LOG_NAME)
    failures = 0
    good = path.read_bytes()
    batches = batches_of((partition / LOG_NAME).read_bytes())
    points = [
        0,
        *(
            position
            for _, position in struct.iter_unpack(">ii", (partition / INDEX_NAME).read_bytes())
        ),
    ]
    largest = max(after - before for before, after in pairwise(batches))
    for _ in range(25):
        data = bytearray(good)
        at = rng.choice(list(batches)) + EPOCH_AT if what == "epochs" else rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with embedlog.open(tmp_path / "log", read_only=True) as log:
            window = Window(0, 400)
            ordered = source(log, window, READ_BYTES)
            expected, error = outcome(ordered, ordered.pieces())
            divided = source(log, window, READ_BYTES)
            ranges = list[EncodedRange]()
            found, other = outcome(divided, decodings(divided, ranges))
        failures += bool(error)
        assert bool(other) == bool(error)
        assert (expected, found) == (every[: len(expected)], every[: len(found)])
        proven = (
            max(each for each in points if each <= max(each for each in batches if each <= at))
            if error
            else 0
        )
        most = 0 if proven == points[-1] else batches[proven] if error else len(every)
        if "batch headers" in error:
            earlier = [
                base
                for position, base in batches.items()
                if position <= proven - READ_BYTES - largest
            ]
            assert max(earlier, default=0) <= len(expected) <= most
            assert (ranges[-1].window.start_offset if ranges else 0) <= len(found) <= most
        else:
            assert len(expected) == len(found) == most
    path.write_bytes(good)
    assert (failures > 0) == (what != "index")


def test_a_read_from_the_offset_after_an_index_entry_begins_at_the_next_entry(
    tmp_path: Path, rng: random.Random
) -> None:
    """Not at the batch before, which is of no use to it."""
    with opened(tmp_path, **{"index.interval.bytes": 0}) as log:
        append(log, rng, 300)
        partition = log._engine.partition("t", 0)
        whole = partition.fetch(0, max_bytes=1 << 20, isolation="read_uncommitted")
        positions = dict(
            zip(
                whole.batches["base_offset"].tolist(),
                whole.batches["position"].tolist(),
                strict=True,
            )
        )
        # the first batch has no entry, and so none is before the second one
        for offset in list(positions)[2:]:
            partition._reader.forget()
            fetched = partition.fetch(offset, max_bytes=1, isolation="read_uncommitted")
            assert fetched.position == positions[offset], offset
            assert int(fetched.batches["base_offset"][0]) == offset
