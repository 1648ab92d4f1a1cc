"""Pieces of a scan: together they are the whole, they end between batches, and a lying index costs
only evenness.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import embedlog
from tests.support import random_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `big`: batches of ten records of 100 bytes, an index entry every few of them, several
    segments.
    """
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("big", config={"segment.bytes": "60000"})
        with made.producer() as producer:
            for number in range(2000):
                producer.send("big", b"v" * 100)
                if number % 10 == 9:
                    producer.flush()
        yield made


def check(scan: embedlog.Scan, max_bytes: int) -> list[embedlog.Split]:
    """The pieces follow on each other and cover the scan."""
    pieces = scan.splits(max_bytes)
    for number, (start, end) in scan.bounds.items():
        own = [piece for piece in pieces if piece.partition == number]
        assert bool(own) == (start < end)
        assert all(piece.start_offset < piece.end_offset for piece in own)
        if own:
            assert (own[0].start_offset, own[-1].end_offset) == (start, end)
            assert all(one.end_offset == two.start_offset for one, two in pairwise(own))
    return pieces


def test_pieces_are_of_about_the_size_asked_for_and_end_between_batches(log: embedlog.Log) -> None:
    scan = log.scan("big")
    total = sum(piece.size_bytes for piece in check(scan, 1 << 30))
    assert total == sum(path.stat().st_size for path in (log.path / "big-0").glob("*.log"))
    for max_bytes in (10_000, 50_000, 100_000):
        pieces = check(scan, max_bytes)
        assert all(piece.start_offset % 10 == 0 for piece in pieces)
        assert sum(piece.size_bytes for piece in pieces) == pytest.approx(total, rel=0.2)
        assert all(piece.size_bytes <= 1.5 * max_bytes for piece in pieces)
        assert len(pieces) >= total / max_bytes / 1.5
    assert len(check(scan, 1)) > 20
    assert check(log.scan("big", start_offset=995, end_offset=1005), 1 << 20) != []


def test_pieces_of_random_scans_of_random_logs_are_the_whole(
    tmp_path: Path, rng: random.Random
) -> None:
    topics = random_log.write(tmp_path / "log", rng)
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        for topic in topics:
            for _ in range(6):
                first, last = sorted(rng.randrange(200) for _ in range(2))
                start = rng.choice([None, first])
                end = rng.choice([None, last])
                scan = log.scan(topic, start_offset=start, end_offset=end)
                found = []
                for piece in check(scan, rng.choice([1, 500, 3000, 20_000])):
                    part = log.scan(
                        topic,
                        partitions=piece.partition,
                        start_offset=piece.start_offset,
                        end_offset=piece.end_offset,
                    )
                    found += [(record.partition, record.offset) for record in part.records()]
                assert found == [(record.partition, record.offset) for record in scan.records()]


@pytest.mark.parametrize("damage", ["gone", "short", "zeros", "noise", "backwards"])
def test_a_lying_index_costs_no_row(
    log: embedlog.Log, tmp_path: Path, rng: random.Random, damage: str
) -> None:
    log.backup(tmp_path / "copy")
    for path in (tmp_path / "copy" / "big-0").glob("*.index"):
        raw = path.read_bytes()
        entries = [raw[at : at + 8] for at in range(0, len(raw), 8)]
        noise = rng.randbytes(len(raw))
        backwards = b"".join(entries[::-1])
        damages = {
            "short": raw[:-13],
            "zeros": bytes(len(raw)),
            "noise": noise,
            "backwards": backwards,
        }
        path.unlink() if damage == "gone" else path.write_bytes(damages[damage])
    with embedlog.open(tmp_path / "copy", read_only=True) as reader:
        pieces = check(reader.scan("big"), 20_000)
        rows = [
            record.offset
            for piece in pieces
            for record in reader.scan(
                "big", start_offset=piece.start_offset, end_offset=piece.end_offset
            ).records()
        ]
    assert rows == list(range(2000))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "64MB"])
def test_a_size_that_is_none_is_refused(log: embedlog.Log, wrong: object) -> None:
    with pytest.raises(embedlog.ConfigError, match="max_bytes"):
        log.scan("big").splits(wrong)  # type: ignore[arg-type]
