"""The first fetch of a short log takes all its records by a tail: the same records as a scan, and
the same errors.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import embedlog
from embedlog.consumer.fetcher import Fetcher
from embedlog.errors import CorruptRecordError
from tests.support.short_fetches import T0, flip, opened, whole


def first_poll(log: embedlog.Log, **options: object) -> list[embedlog.Record]:
    with log.consumer("t", auto_offset_reset="earliest", **options) as reader:  # type: ignore[arg-type]
        found: list[embedlog.Record] = []
        while more := reader.poll(max_records=10_000):
            found += more
        return found


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each first fetch went by a tail."""
    results: list[bool] = []
    original = Fetcher._fill_first
    monkeypatch.setattr(
        Fetcher,
        "_fill_first",
        lambda self, cursor: results.append(original(self, cursor)) or results[-1],
    )
    return results


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_same_records_as_a_scan(
    tmp_path: Path, rng: random.Random, begun: list[bool], isolation: str
) -> None:
    with opened(tmp_path) as log, log.producer(transactional_id="x", batch_size=300) as producer:
        log.create_topic("t")
        producer.init_transactions()
        for turn in range(30):
            if rng.random() < 0.5:
                with log.producer(
                    compression_type=rng.choice(["none", "none", "none", "lz4"])
                ) as plain:
                    for number in range(rng.randrange(8)):
                        plain.send(
                            "t",
                            b"%d-%d" % (turn, number),
                            headers=[("h", b"x")] if rng.random() < 0.2 else [],
                        )
            elif rng.random() < 0.3:
                producer.begin_transaction()
                for number in range(rng.randrange(1, 6)):
                    producer.send("t", b"t%d-%d" % (turn, number))
                producer.commit_transaction() if rng.random() < 0.7 else producer.abort_transaction()
            assert first_poll(log, isolation_level=isolation) == whole(
                log, isolation_level=isolation
            )
            assert (
                first_poll(log, isolation_level=isolation, max_partition_fetch_bytes=1000)[:1]
                == whole(log, isolation_level=isolation)[:1]
            )
    assert any(begun)


def test_a_rolled_log_a_moved_start_and_a_long_one_are_fetched(
    tmp_path: Path, begun: list[bool]
) -> None:
    with opened(tmp_path) as log, log.producer(batch_size=0) as producer:
        log.create_topic("t", config={"segment.bytes": 30_000})
        for number in range(10):
            producer.send("t", b"%d" % number).result()
        assert first_poll(log) == whole(log)
        assert begun[0]
        del begun[:]
        log.delete_records({T0: 3})
        assert [each.offset for each in first_poll(log)] == list(range(3, 10))
        assert not any(begun), "the position is not the start of the segment"
        for _ in range(3):
            producer.send("t", b"x" * 20_000).result()
        assert first_poll(log) == whole(log)
        producer.send("t", b"last").result()
        assert first_poll(log) == whole(log)


def test_damage_is_an_error_at_its_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer(batch_size=0) as producer:
        log.create_topic("t")
        for number in range(10):
            producer.send("t", b"%0100d" % number).result()
        (path,) = (tmp_path / "log" / "t-0").glob("*.log")
        size = path.stat().st_size
        for place in (5, size // 2, size - 3):
            flip(path, place)
            with (
                log.consumer("t", auto_offset_reset="earliest") as reader,
                pytest.raises(CorruptRecordError),
            ):
                for _ in range(12):
                    reader.poll()
            flip(path, place)
        assert first_poll(log) == whole(log)


def test_appends_after_the_first_fetch_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.producer() as producer:
        log.create_topic("t")
        producer.send("t", b"first").result()
        with log.consumer("t", auto_offset_reset="earliest") as reader:
            assert [each.value for each in reader.poll()] == [b"first"]
            for number in range(5):
                producer.send("t", b"%d" % number).result()
                assert [each.value for each in reader.poll(timeout=5)] == [b"%d" % number]
                assert reader.current_lag(T0) == 0
