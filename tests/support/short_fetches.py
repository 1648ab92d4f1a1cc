"""A log with batches of all sizes and codecs, and the comparison of short polls with a scan of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import embedlog
from embedlog import TopicPartition

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


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
