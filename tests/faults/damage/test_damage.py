"""E6 and E7: flipped bits and damaged files. The right records or a typed error; no wrong one, no
silent gap, no signal.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from functools import partial
from pathlib import Path

import pytest

import embedlog
from tests.faults.damage.damage import is_cache
from tests.faults.damage.loading import STATES, WAYS
from tests.faults.damage.loading import look as look_at
from tests.faults.harness.content import check, value_of
from tests.faults.harness.processes import Nursery, until
from tests.faults.harness.tasks import TOPIC
from tests.support.campaign_report import add_counts, pieces

BITS_PIECES = 8
FILES_PIECES = 16
DAMAGE_PIECES = 8
LOADING_PIECES = 4
COPIES = 5
Report = tuple[dict[str, int], list[str]]


def built(nursery: Nursery, path: Path, **options: object) -> Path:
    maker = nursery.spawn()
    maker.call("build", str(path), **options)
    nursery.end(maker)
    return path


def check_report(what: str, report: Report) -> None:
    counts, bad = report
    errors = sum(count for name, count in counts.items() if name.endswith("Error"))
    print(f"{what}: {counts}")
    add_counts(
        what,
        cases=sum(counts.values()),
        right=counts.get("right", 0),
        typed_errors=errors,
        wrong_or_fewer=len(bad),
    )
    assert not bad, f"{len(bad)} of {sum(counts.values())}: " + "\n".join(bad[:20])


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_e6_flipped_bits_of_segments_are_found(
    nursery: Nursery, tmp_path: Path, codec: str
) -> None:
    """Every bit of the first header of each segment, and one bit in every few bytes after it."""
    path = built(nursery, tmp_path / "log", codec=codec, batches=12)
    report = nursery.spawn().call("flip_log", str(path), 11, 61, deadline_s=100)
    check_report(f"E6, segments, {codec}", report)
    assert report[0].get("CorruptRecordError", 0) > 0.9 * sum(report[0].values()), (
        "the flips were not even read"
    )


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
@pieces(BITS_PIECES)
def test_e6_every_bit(nursery: Nursery, tmp_path: Path, codec: str, piece: int) -> None:
    path = built(nursery, tmp_path / "log", codec=codec)
    check_report(
        f"E6, every bit, {codec}",
        nursery.spawn().call(
            "flip_log", str(path), 1, 1 << 30, piece, BITS_PIECES, deadline_s=1700
        ),
    )


def small_files(path: Path) -> list[str]:
    found = (
        each.relative_to(path)
        for each in path.rglob("*")
        if each.is_file() and each.suffix != ".log"
    )
    return sorted(str(each) for each in found if (path / each).stat().st_size)


def test_e6_flipped_bits_of_everything_else(nursery: Nursery, tmp_path: Path) -> None:
    path = built(nursery, tmp_path / "log")
    names = small_files(path)
    assert any(is_cache(name) for name in names)
    check_report(
        "E6, other files",
        nursery.spawn().call(
            "flip_files", str(path), str(tmp_path / "copy"), names, 2, deadline_s=100
        ),
    )


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(FILES_PIECES)
def test_e6_every_bit_of_everything_else(nursery: Nursery, tmp_path: Path, piece: int) -> None:
    path = built(nursery, tmp_path / "log")
    where = str(path), str(tmp_path / "copy"), small_files(path)
    check_report(
        "E6, other files",
        nursery.spawn().call("flip_files", *where, 1 << 30, piece, FILES_PIECES, deadline_s=1700),
    )


HEADS = {"embedlog.control": 72, "t-0/embedlog.page": 72, "t-0/embedlog.manifest": 16}


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(("name", "head_bytes"), HEADS.items())
def test_a_flipped_bit_of_a_caches_version_is_no_newer_version(
    nursery: Nursery,
    tmp_path: Path,
    name: str,
    head_bytes: int,
) -> None:
    """It was taken for one, and the directory refused: two bits and more of each byte of the heads,
    where versions stand.
    """
    where = str(built(nursery, tmp_path / "log", batches=4)), str(tmp_path / "copy"), [name]
    check_report(
        "E6, heads of caches",
        nursery.spawn().call("flip_files", *where, 150, most_bytes=head_bytes, deadline_s=100),
    )


def test_e7_damaged_files_are_refused_or_made_good(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    path = built(nursery, tmp_path / "log")
    check_report(
        "E7",
        nursery.spawn().call("damage", str(path), str(tmp_path / "copy"), seed, 50, deadline_s=100),
    )


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(DAMAGE_PIECES)
def test_e7_every_kind_of_damage(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    """Every case, each piece with other noise and other blocks to swap."""
    path = built(nursery, tmp_path / "log")
    where = str(path), str(tmp_path / "copy")
    check_report(
        "E7",
        nursery.spawn().call("damage", *where, campaign_seed + piece, 1 << 30, deadline_s=1700),
    )


@pytest.mark.faults
@pytest.mark.parametrize("mutant", ["no_crc_on_read"])
def test_e6_kills_the_mutant(nursery: Nursery, tmp_path: Path, mutant: str) -> None:
    path = built(nursery, tmp_path / "log", batches=12)
    victim = nursery.spawn()
    victim.call("mutants", mutant)
    counts, bad = victim.call("flip_log", str(path), 11, 61)
    print(f"E6 with {mutant}: {counts}")
    assert bad, f"{mutant} survived"
    add_counts("mutants", killed=1)


def at_rest(
    nursery: Nursery, tmp_path: Path, state: str, way: str, seed: int, most: int, *pieces: int
) -> Report:
    """Damage to a log that was left in a state, opened in a way."""
    maker = nursery.spawn()
    if state == "closed":
        maker.call("build_durable", str(tmp_path / "log"), state)
        nursery.end(maker)
    else:
        maker.start("build_durable", str(tmp_path / "log"), state)
        maker.wait_dead()
    report: Report = nursery.spawn().call(
        "damage_at_rest", str(tmp_path / "log"), state, way, seed, most, *pieces, deadline_s=1700
    )
    return report


AT_REST = [
    (state, way)
    for state in STATES
    for way in WAYS
    if state == "closed" or not way.startswith("backup")
]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(("state", "way"), AT_REST)
def test_e6_what_is_loaded_is_right_or_refused(
    nursery: Nursery, tmp_path: Path, seed: int, state: str, way: str
) -> None:
    """Some bits of the fields without checksum, after the last index entry, and some files missing,
    empty or truncated.
    """
    check_report("E6, loading", at_rest(nursery, tmp_path, state, way, seed, 16))


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("state", "way"), AT_REST)
@pieces(LOADING_PIECES)
def test_e6_all_that_is_loaded_is_right_or_refused(
    nursery: Nursery, tmp_path: Path, state: str, way: str, piece: int
) -> None:
    """Every bit, every file."""
    check_report(
        "E6, loading", at_rest(nursery, tmp_path, state, way, 0, 1 << 30, piece, LOADING_PIECES)
    )


def copied_piece_by_piece(source: Path, target: Path, rng: random.Random) -> None:
    """One file after the other, in any order, as they are by then; those that are gone meanwhile
    are left out.
    """
    names = [each.relative_to(source) for each in source.rglob("*") if each.is_file()]
    rng.shuffle(names)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (target / name).write_bytes((source / name).read_bytes())


def write_until(stop: threading.Event, log: embedlog.Log, rng: random.Random) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in itertools.count():
            if stop.is_set():
                return
            producer.send(TOPIC, value_of(1, number, rng.randint(20, 200))).result(timeout=30)


def grown(log: embedlog.Log, end: int) -> bool:
    return log._engine.partition(TOPIC, 0).bounds().log_end > end


def test_e6_a_copy_of_a_live_log_is_right_or_refused(tmp_path: Path, rng: random.Random) -> None:
    """Its files are of different times: the records of one time, or a typed error, never a hole or
    a wrong one.
    """
    right = refused = 0
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic(
            TOPIC,
            config={"segment.bytes": 4000, "retention.bytes": 60_000, "index.interval.bytes": 500},
        )
        stop = threading.Event()
        writer = threading.Thread(target=write_until, args=(stop, log, random.Random(rng.random())))
        writer.start()
        try:
            for number in range(COPIES):
                copy = tmp_path / f"copy-{number}"
                until(
                    partial(grown, log, log._engine.partition(TOPIC, 0).bounds().log_end + 50),
                    "the writer to continue",
                )
                if number % 2:
                    log.flush()
                copied_piece_by_piece(tmp_path / "log", copy, rng)
                log.housekeep()
                for read_only in (True, False):
                    found = look_at(copy, read_only=read_only)
                    if isinstance(found, str):
                        refused += 1
                        continue
                    verdict = check(found, {})
                    assert not verdict.violations, verdict
                    right += 1
        finally:
            stop.set()
            writer.join()
    add_counts(
        "E6, live copies", copies=COPIES, right=right, typed_errors=refused, wrong_or_fewer=0
    )


def test_what_is_damaged_is_named_with_file_and_position(nursery: Nursery, tmp_path: Path) -> None:
    path = built(nursery, tmp_path / "log", batches=6)
    segment = next((path / f"{TOPIC}-0").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 4
    segment.write_bytes(data)
    from tests.faults.harness.processes import RemoteError

    with pytest.raises(RemoteError) as refused:
        nursery.spawn().call("read_directory", str(path))
    assert segment.name in str(refused.value)
    assert "at byte" in str(refused.value)
