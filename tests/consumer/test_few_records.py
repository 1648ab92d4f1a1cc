"""A poll for few records after a seek reads one batch: the same records and errors as a reader of
the whole log.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError
from embedlog.format.record_batch import Chain, scan
from tests.support.short_fetches import SMALL, T0, compare, filled, flip, opened, whole
from tests.support.sparse_logs import COMPACTED, compact, transact


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
