"""A poll for few records after a seek reads one batch: the same records and errors as a reader of
the whole log.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError
from embedlog.format.record_batch import Chain, scan
from tests.support.sparse_logs import COMPACTED, compact, transact

T0 = TopicPartition("t", 0)
CODECS = ["none", "gzip", "lz4", "zstd"]
SMALL = {"segment.bytes": 20_000, "index.interval.bytes": 500}


def opened(tmp_path: Path) -> embedlog.Log:
    return embedlog.open(tmp_path / "log", config={"housekeeping": False})


def filled(
    log: embedlog.Log, rng: random.Random, count: int = 900, most: int = 300, **config: Any
) -> None:
    """Batches of all sizes up to `most` records, codecs and header counts, over several
    segments.
    """
    log.create_topic("t", config=SMALL | config)
    left = count
    while left > 0:
        taken = min(left, most, rng.choice([1, 17, 60, 300]))
        with log.producer(
            compression_type=rng.choice(CODECS), batch_size=rng.choice([0, 500, 16_384])
        ) as producer:
            for number in range(taken):
                value = None if rng.random() < 0.05 else rng.randbytes(rng.randrange(120))
                headers = [("h", b"%d" % number)] if rng.random() < 0.1 else []
                producer.send("t", value, key=b"%d" % rng.randrange(50), headers=headers)
        left -= taken


def whole(log: embedlog.Log, **options: Any) -> list[embedlog.Record]:
    return list(log.scan("t", **options).records())


def compare(log: embedlog.Log, rng: random.Random, *, rounds: int = 60, **options: Any) -> None:
    """Random seeks and short polls, against the records of a scan."""
    known = whole(log, **({"isolation_level": options["isolation_level"]} if options else {}))
    with log.consumer(**options) as reader:
        reader.assign([T0])
        start, end = (limits([T0])[T0] for limits in (reader.beginning_offsets, reader.end_offsets))
        for _ in range(rounds):
            offset = rng.randrange(start, end)
            limit = rng.choice([1, 1, 1, 2, 16])
            expected = [each for each in known if each.offset >= offset]
            reader.seek(T0, offset)
            got = reader.poll(max_records=limit)
            assert got == expected[: len(got)], offset
            assert len(got) == 1 or limit > 1 or not expected, offset
            for _ in range(rng.randrange(3)):
                more = reader.poll(max_records=rng.choice([1, 5, 500]))
                assert more == expected[len(got) : len(got) + len(more)], offset
                assert more or len(got) == len(expected)
                got += more
                assert reader.position(T0) >= got[-1].offset + 1 if got else True


def test_random_offsets_of_all_codecs_and_segments(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log:
        filled(log, rng)
        compare(log, rng)


def test_a_compacted_log_has_gaps_between_and_inside_of_batches(
    tmp_path: Path, rng: random.Random
) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, **COMPACTED)
        compact(log)
        compare(log, rng)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_markers_and_aborted_batches_are_passed(
    tmp_path: Path, rng: random.Random, isolation: str
) -> None:
    with opened(tmp_path) as log, log.producer(transactional_id="x", batch_size=500) as producer:
        log.create_topic("t", config=SMALL)
        producer.init_transactions()
        transact(producer, rng, 12)
        compare(log, rng, isolation_level=isolation)


def test_one_batch_is_read_and_its_rest_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for first in range(0, 10_000, 1000):
                producer.send_batch(
                    "t", [b"%0100d" % number for number in range(first, first + 1000)]
                ).result()
        with log.consumer() as reader:
            reader.assign([T0])
            fetcher = reader._reading.fetcher
            for offset in (0, 5, 999, 1000, 4321, 9999):
                reader.seek(T0, offset)
                before = fetcher.size_bytes
                fetches = fetcher.fetch_count
                assert [each.value for each in reader.poll(max_records=1)] == [b"%0100d" % offset]
                assert 100_000 < fetcher.size_bytes - before < 120_000, "one batch of a thousand"
                for following in range(offset + 1, min(offset + 4, offset // 1000 * 1000 + 1000)):
                    assert [each.offset for each in reader.poll(max_records=1)] == [following]
                assert fetcher.fetch_count == fetches + 1
            reader.seek(T0, 990)
            assert reader.poll(max_records=1)[0].offset == 990
            assert [next(reader).offset for _ in range(20)] == list(range(991, 1011)), (
                "iteration continues with the rest"
            )


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("place", [5, 25, 70])
def test_a_damaged_batch_is_an_error_at_its_offset(tmp_path: Path, place: int) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", config={"index.interval.bytes": 1})
        with log.producer(batch_size=0) as producer:
            for number in range(20):
                producer.send("t", b"%0200d" % number)
        (path,) = (tmp_path / "log" / "t-0").glob("*.log")
        at = int(scan(path.read_bytes(), Chain()).batches["position"][11]) + place
        flip(path, at)
        with log.consumer() as reader:
            reader.assign([T0])
            for offset in (10, 12):
                reader.seek(T0, offset)
                assert [each.offset for each in reader.poll(max_records=1)] == [offset]
            reader.seek(T0, 11)
            for _ in range(2):
                with pytest.raises(CorruptRecordError):
                    reader.poll(max_records=1)
                assert reader.position(T0) == 11
        flip(path, at)  # or the close would report it


def test_held_records_survive_a_roll_and_end_with_the_log_start(
    tmp_path: Path, rng: random.Random
) -> None:
    with opened(tmp_path) as log, log.consumer(auto_offset_reset="none") as reader:
        filled(log, rng, 600)
        known = whole(log)
        reader.assign([T0])
        reader.seek(T0, 100)
        assert reader.poll(max_records=1) == known[100:101]
        with log.producer() as producer:  # another segment
            producer.send("t", b"x" * 19_000).result()
        got = [reader.poll(max_records=1)[0] for _ in range(50)]
        assert got == known[101:151]
        log.delete_records({T0: 500})
        reader.seek(T0, 400)
        with pytest.raises(OffsetOutOfRangeError):
            reader.poll(max_records=1)
        reader.seek(T0, 500)
        assert reader.poll(max_records=1) == known[500:501]


def test_files_that_a_compaction_replaced_are_read_again(
    tmp_path: Path, rng: random.Random
) -> None:
    with opened(tmp_path) as log, log.consumer() as reader:
        filled(log, rng, **COMPACTED)
        reader.assign([T0])
        reader.seek(T0, 3)
        assert reader.poll(max_records=1)[0].offset == 3
        log._engine.partition("t", 0).compact(-1, 1 << 20, 0)
        known = whole(log)
        for offset in rng.sample(range(known[-1].offset), 40):
            reader.seek(T0, offset)
            assert (
                reader.poll(max_records=1) == [each for each in known if each.offset >= offset][:1]
            )


@pytest.mark.parametrize("broken", ["index", "digests"])
def test_a_wrong_index_costs_time_only(tmp_path: Path, rng: random.Random, broken: str) -> None:
    with opened(tmp_path) as log:
        filled(log, rng, 800)
        known = whole(log)
        pattern = "*.index" if broken == "index" else "embedlog.digests-*"
        for path in (tmp_path / "log" / "t-0").glob(pattern):
            raw = bytearray(path.read_bytes())
            for at in range(0, len(raw), 8):
                if rng.random() < 0.3:
                    raw[at + rng.randrange(8)] ^= 1 << rng.randrange(8)
            path.write_bytes(raw)
        with log.consumer() as reader:
            reader.assign([T0])
            for offset in rng.sample(range(len(known)), 60):
                reader.seek(T0, offset)
                assert reader.poll(max_records=1) == known[offset : offset + 1]


def test_deserializers_get_the_same_records(tmp_path: Path, rng: random.Random) -> None:
    with opened(tmp_path) as log, log.consumer(value_deserializer=bytes.hex) as reader:
        filled(log, rng, 300)
        known = whole(log)
        reader.assign([T0])
        for offset in (0, 17, 299):
            reader.seek(T0, offset)
            (record,) = reader.poll(max_records=1)
            value = known[offset].value
            assert (record.offset, record.value) == (offset, None if value is None else value.hex())
