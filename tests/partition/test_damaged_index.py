"""Indexes that are damaged inside: a search finds the right record, or reads more of the log."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import embedlog
from embedlog import index
from embedlog._native import system
from embedlog.errors import CorruptRecordError
from embedlog.storage import file_names, files

COUNT = 200
START_MS = 1_000
CONFIG = {"segment.bytes": 3_000, "index.interval.bytes": 300}
QUIET = {"housekeeping": False}


def times(rng: random.Random, kind: str) -> list[int]:
    """One timestamp for each record."""
    if kind == "rising":
        return [START_MS + number for number in range(COUNT)]
    if kind == "rarely rising":
        return [START_MS + number // 40 for number in range(COUNT)]
    return [START_MS + number + rng.randrange(-30, 30) for number in range(COUNT)]


KINDS = ["rising", "rarely rising", "out of order"]


def write(root: Path, stamps: list[int]) -> None:
    with embedlog.open(root, config=QUIET) as log:
        log.create_topic("t", config=CONFIG)
        with log.producer(linger_ms=10_000, batch_size=130) as producer:
            for number, stamp in enumerate(stamps):
                producer.send("t", b"%03d" % number * 5, timestamp_ms=stamp)


def of_a_broker(root: Path) -> None:
    """Remove what only embedlog writes."""
    for own in (*root.glob("embedlog.*"), *(root / "t-0").glob("embedlog.*")):
        own.unlink()
    (root / file_names.CLEAN_MARK).write_text('{"version":0,"brokerEpoch":"1"}')


def first_at(stamps: list[int], time_ms: int) -> int | None:
    return next((offset for offset, stamp in enumerate(stamps) if stamp >= time_ms), None)


def check(log: embedlog.Log, stamps: list[int], wanted: range, context: object) -> None:
    """Compare look-ups and scans with the list of all timestamps."""
    partition = log._engine.partition("t", 0)
    for time_ms in wanted:
        found = partition.offset_for_time(time_ms)
        assert (found.offset if found else None) == first_at(stamps, time_ms), (context, time_ms)
    for time_ms in wanted[:: max(1, len(wanted) // 3)]:
        rows = [record.offset for record in log.scan("t", start_time=time_ms).records()]
        assert rows == [offset for offset, stamp in enumerate(stamps) if stamp >= time_ms], (
            context,
            time_ms,
        )
        rows = [record.offset for record in log.scan("t", end_time=time_ms).records()]
        assert rows == [offset for offset, stamp in enumerate(stamps) if stamp < time_ms], (
            context,
            time_ms,
        )


def all_times(stamps: list[int], step: int) -> range:
    return range(min(stamps) - 1, max(stamps) + 2, step)


# ---- the last entry of a time index, which gives the largest timestamp of a broker's segment -------------------------


def wrong_last_entries(
    right: list[tuple[int, int]], rng: random.Random
) -> Iterator[list[tuple[int, int]]]:
    """Time indexes with a last entry that is plausible: in the range of the segment, and later than
    the one before.
    """
    *before, (time_ms, relative) = right
    low_ms, low = before[-1] if before else (0, 0)
    yield [*before, ((time_ms + low_ms + 1) // 2, relative)]
    yield [*before, (low_ms + 1, relative)]
    yield [*before, (time_ms, max(low + 1, relative - 2))]
    yield [*before, (time_ms, relative + 1)]
    yield [*before, (time_ms + 5, relative)]
    yield [*before, (time_ms ^ 1 << rng.randrange(40), relative)]
    yield [*before, (time_ms, relative ^ 1 << rng.randrange(7))]


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
@pytest.mark.parametrize("which", [1, -1], ids=["sealed", "active"])
def test_a_wrong_last_time_entry_of_a_broker_hides_no_record(
    tmp_path: Path, rng: random.Random, kind: str, read_only: bool, which: int
) -> None:
    stamps = times(rng, kind)
    write(tmp_path / "log", stamps)
    path = sorted((tmp_path / "log" / "t-0").glob("*.timeindex"))[which]
    right = path.read_bytes()
    entries = list(index.TIME_ENTRY.iter_unpack(right))
    wanted = all_times(stamps, 7 if kind != "rarely rising" else 1)
    for wrong in wrong_last_entries(entries, rng):
        path.write_bytes(b"".join(index.TIME_ENTRY.pack(*entry) for entry in wrong))
        of_a_broker(tmp_path / "log")
        with embedlog.open(tmp_path / "log", read_only=read_only, config=QUIET) as log:
            check(log, stamps, wanted, wrong[-2:])
        if not read_only and which == 1 and wrong[-1][0] != entries[-1][0]:
            assert path.read_bytes()[-index.TIME_ENTRY.size :] == right[-index.TIME_ENTRY.size :], (
                "the index is rebuilt"
            )
        path.write_bytes(right)


@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
def test_a_time_index_of_a_broker_without_its_last_entries_hides_no_record(
    tmp_path: Path, rng: random.Random, read_only: bool
) -> None:
    stamps = times(rng, "rising")
    write(tmp_path / "log", stamps)
    path = sorted((tmp_path / "log" / "t-0").glob("*.timeindex"))[1]
    right = path.read_bytes()
    for size in range(0, len(right), index.TIME_ENTRY.size):
        path.write_bytes(right[:size])
        of_a_broker(tmp_path / "log")
        with embedlog.open(tmp_path / "log", read_only=read_only, config=QUIET) as log:
            check(log, stamps, all_times(stamps, 7), size)


def test_the_check_of_a_time_entry_opens_each_file_once(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The headers that show the end of a broker's segment also show its newest batch."""
    write(tmp_path / "log", times(rng, "rising"))
    of_a_broker(tmp_path / "log")
    real = files.open_file
    seen = Counter[str]()

    def noted(path: str | Path, flags: int, mode: int = 0o666) -> int:
        seen[Path(path).name] += 1
        return real(path, flags, mode)

    monkeypatch.setattr(files, "open_file", noted)
    with embedlog.open(tmp_path / "log", read_only=True, config=QUIET) as log:
        bases = [
            info.base
            for info in log._engine.partition("t", 0).segments(
                log._engine.partition("t", 0).published()
            )
        ]
    assert len(bases) > 2
    for base, suffix in itertools.product(
        bases[:-1], (file_names.LOG, file_names.INDEX, file_names.TIME_INDEX)
    ):
        assert seen[file_names.file_name(base, suffix)] == 1, (base, suffix)


def test_retention_by_time_deletes_nothing_for_a_wrong_time_entry(tmp_path: Path) -> None:
    now_ms = system.wall_ms()
    stamps = [now_ms - 10_000 + number for number in range(COUNT)]
    write(tmp_path / "log", stamps)
    path = min((tmp_path / "log" / "t-0").glob("*.timeindex"))
    *before, (_, relative) = index.TIME_ENTRY.iter_unpack(path.read_bytes())
    for entries in (
        [(1, relative)],
        [(number + 1, entry[1]) for number, entry in enumerate([*before, (0, relative)])],
    ):
        path.write_bytes(b"".join(index.TIME_ENTRY.pack(*entry) for entry in entries))
        of_a_broker(tmp_path / "log")
        with embedlog.open(tmp_path / "log", config=QUIET) as log:
            log.alter_topic("t", {"retention.ms": 3_600_000})
            log.housekeep()
            assert log._engine.partition("t", 0).bounds().log_start == 0


def test_retention_by_time_deletes_nothing_that_a_shortened_time_index_omits(
    tmp_path: Path,
) -> None:
    """The newest batch is in the middle of the first segment, and all batches after it are old."""
    now_ms = system.wall_ms()
    write(
        tmp_path / "log",
        [now_ms if number == 30 else now_ms - 80_000_000 for number in range(COUNT)],
    )
    path = min((tmp_path / "log" / "t-0").glob("*.timeindex"))
    path.write_bytes(path.read_bytes()[: -index.TIME_ENTRY.size])
    of_a_broker(tmp_path / "log")
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.alter_topic("t", {"retention.ms": 3_600_000})
        log.housekeep()
        assert log._engine.partition("t", 0).bounds().log_start == 0


# ---- entries inside of an index, which are searched -----------------------------------------------------------------


def flipped(
    raw: bytes, rng: random.Random, entry_bytes: int, every: int
) -> Iterator[tuple[object, bytes]]:
    """The index with one flipped bit, for a part of the bits; and with several damaged entries."""
    for bit in range(rng.randrange(every), 8 * len(raw), every):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(damaged)
    for round_ in range(10):
        damaged = bytearray(raw)
        for at in range(0, len(raw), entry_bytes):
            if rng.random() < 0.4:
                damaged[at + rng.randrange(entry_bytes)] ^= 1 << rng.randrange(8)
        yield f"round {round_}", bytes(damaged)


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("owner", [pytest.param("embedlog", marks=pytest.mark.slow), "a broker"])
def test_damage_inside_of_a_time_index_hides_no_record(
    tmp_path: Path, rng: random.Random, kind: str, owner: str
) -> None:
    stamps = times(rng, kind)
    write(tmp_path / "log", stamps)
    if owner != "embedlog":
        of_a_broker(tmp_path / "log")
    path = sorted((tmp_path / "log" / "t-0").glob("*.timeindex"))[1]
    right = path.read_bytes()
    with embedlog.open(tmp_path / "log", read_only=True, config=QUIET) as log:
        infos = log._engine.partition("t", 0).segments(log._engine.partition("t", 0).published())
        own = [stamps[offset] for offset in range(infos[1].base, infos[1].next_offset)]
        for context, damaged in flipped(right, rng, index.TIME_ENTRY.size, 7):
            path.write_bytes(damaged)
            check(log, stamps, range(min(own) - 1, max(own) + 2, 3), context)


@pytest.mark.parametrize("owner", ["embedlog", "a broker"])
def test_damage_inside_of_an_offset_index_hides_no_record(
    tmp_path: Path, rng: random.Random, owner: str
) -> None:
    stamps = times(rng, "rising")
    write(tmp_path / "log", stamps)
    if owner != "embedlog":
        of_a_broker(tmp_path / "log")
    path = sorted((tmp_path / "log" / "t-0").glob("*.index"))[1]
    right = path.read_bytes()
    with embedlog.open(tmp_path / "log", read_only=True, config=QUIET) as log:
        partition = log._engine.partition("t", 0)
        info = partition.segments(partition.published())[1]
        for context, damaged in flipped(right, rng, index.OFFSET_ENTRY.size, 3):
            path.write_bytes(damaged)
            for offset in range(info.base, info.next_offset, 4):
                rows = partition.fetch(offset, max_bytes=1).batches
                assert (
                    rows["base_offset"][0]
                    <= offset
                    <= rows["base_offset"][0] + rows["last_offset_delta"][0]
                ), context


# ---- an index of an impossible size ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [file_names.INDEX, file_names.TIME_INDEX])
@pytest.mark.parametrize("broker", [False, True])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_sparse_index_of_any_size_is_made_again(
    tmp_path: Path, suffix: str, broker: bool, read_only: bool
) -> None:
    stamps = [START_MS + number for number in range(COUNT)]
    write(tmp_path, stamps)
    (tmp_path / "t-0" / file_names.MANIFEST).unlink()
    if broker:
        of_a_broker(tmp_path)
    path = file_names.segment_path(
        tmp_path / "t-0", file_names.bases(files.listing(tmp_path / "t-0"))[1], suffix
    )
    entry = 8 if suffix == file_names.INDEX else 12
    with path.open("r+b") as file:
        file.truncate((1 << 32) * 8 * entry)  # more entries than a control page can count
    with embedlog.open(tmp_path, read_only=read_only, config=QUIET) as log:
        check(log, stamps, all_times(stamps, 7), suffix)
        assert [record.offset for record in log.scan("t").records()] == list(range(COUNT))
    if not read_only:
        assert path.stat().st_size < 1 << 20


def test_an_index_has_at_most_as_many_bytes_as_its_setting_allows(tmp_path: Path) -> None:
    path = tmp_path / "index"
    for size in (index.INDEX_BYTES_MAX, index.INDEX_BYTES_MAX + 1):
        path.touch()
        os.truncate(path, size)
        problem = (
            pytest.raises(CorruptRecordError, match="too large")
            if size > index.INDEX_BYTES_MAX
            else nullcontext()
        )
        with problem:
            assert index.count_entries(path, 34) == size // 34
    with pytest.raises(CorruptRecordError, match="too large"):
        index.read_end(path, index.OFFSET_ENTRY)
