"""E12 and E13: control files cut or replaced under living processes, and readers beside a writer
that rolls and deletes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness.content import Verdict, check, mark_of
from tests.faults.harness.processes import Nursery, RemoteError, Victim
from tests.faults.harness.stage import Play
from tests.faults.harness.tasks import TOPIC
from tests.faults.partition import compacting
from tests.support.campaign_report import add_counts, pieces


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def fill_with_noise(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(os.urandom(size))


def replace_by_noise(path: Path) -> None:
    other = path.with_name("stray")
    other.write_bytes(os.urandom(path.stat().st_size))
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


HARMS: list[Callable[[Path], None]] = [
    cut_to_nothing,
    cut_in_half,
    fill_with_noise,
    replace_by_noise,
    remove,
]
NAMES = [
    "embedlog.page",
    "embedlog.control",
    "embedlog.lock",
    "embedlog.manifest",
    "embedlog.durable",
    ".log",
    ".index",
    ".timeindex",
]
RETENTIONS = (-1, 400_000, 2_000_000, 10_000_000) * 2
CLEANED = [("compact", -1), ("compact,delete", 60_000)] * 4
CACHES = {".index", ".timeindex", "embedlog.manifest"}


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", NAMES)
def test_e12_a_file_harmed_under_living_processes_is_an_exception(
    nursery: Nursery,
    tmp_path: Path,
    name: str,
    harm: Callable[[Path], None],
) -> None:
    """Both processes continue, the other partition works in both; if only a cache was damaged,
    nothing fails.
    """
    play = Play(nursery, tmp_path / "log", partitions=2, config={"segment.bytes": 400})
    a = play.enter()
    b = play.enter()
    for partition in (0, 1):
        play.append(a, partition)
        play.append(b, partition)
        play.append(b, partition)
    a.call("flush")
    target = min(
        (play.directory if name == "embedlog.control" else play.partition).glob(f"*{name}")
    )
    harm(target)
    failed = []
    for number, victim in enumerate((a, b)):
        failed += victim.call("try_things", 50 + number, 10 * number, 2)
    assert a.alive
    assert b.alive
    others = [what for what in failed if " 1:" in what]
    assert not others, f"the other partition suffered: {others}"
    if name in CACHES:
        assert not failed, failed
    rows = a.call("read", TOPIC, 1)
    verdict = check(
        rows, {here: mark for here, mark in play.acks.items() if here[0] == 1}, ordered=False
    )
    add_counts("E12", damaged_files=1, **verdict.counts())
    assert not verdict.violations, verdict


def tail_beside(
    nursery: Nursery,
    directory: Path,
    seed: int,
    batches: int,
    retention_bytes: int,
    readers: int = 3,
    deadline_s: float = 110,
) -> tuple[Verdict, int]:
    play = Play(
        nursery,
        directory,
        config={
            "segment.bytes": 200_000,
            "retention.bytes": retention_bytes,
            "file.delete.delay.ms": 0,
            "index.interval.bytes": 1000,
        },
    )
    writer = play.enter()
    tails = [play.enter() for _ in range(readers)]
    count = 200
    size = 100
    for number, tail in enumerate(tails):
        tail.start("follow", batches * count, seed + number)
    writer.call("write_columns", 1, batches, count, size, deadline_s=deadline_s)
    verdict = Verdict()
    jumps = 0
    for tail in tails:
        found = tail.result(deadline_s=deadline_s)
        verdict.read += found["read"]
        verdict.violations += found["bad"]
        jumps += found["jumps"]
    return verdict, jumps


def test_e13_readers_beside_a_rolling_writer_see_every_record_once(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    verdict, jumps = tail_beside(nursery, tmp_path / "log", seed, batches=150, retention_bytes=-1)
    add_counts("E13", **verdict.counts())
    assert not verdict.violations, verdict
    assert verdict.read == 3 * 150 * 200
    assert jumps == 0


def test_e13_readers_survive_retention(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, jumps = tail_beside(
        nursery, tmp_path / "log", seed, batches=100, retention_bytes=400_000
    )
    add_counts("E13", jumps_to_the_start=jumps, **verdict.counts())
    assert not verdict.violations, verdict


@pytest.mark.parametrize(("policy", "retention_bytes"), CLEANED[:2])
def test_e13_readers_beside_a_cleaner_miss_only_what_was_replaced(
    nursery: Nursery,
    tmp_path: Path,
    seed: int,
    policy: str,
    retention_bytes: int,
) -> None:
    verdict, counts = compacting.experiment(
        nursery, tmp_path / "log", seed, turns=3, policy=policy, retention_bytes=retention_bytes
    )
    add_counts("E13 with compaction", **verdict.counts(), **counts)
    assert not verdict.violations, verdict
    assert counts["skipped"] > 0


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(len(CLEANED))
def test_e13_with_compaction_long(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    policy, retention_bytes = CLEANED[piece]
    verdict, counts = compacting.experiment(
        nursery,
        tmp_path / "log",
        campaign_seed + piece,
        turns=400,
        policy=policy,
        retention_bytes=retention_bytes,
        deadline_s=1700,
    )
    add_counts("E13 with compaction", **verdict.counts(), **counts)
    assert not verdict.violations, verdict


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(len(RETENTIONS))
def test_e13_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    verdict, jumps = tail_beside(
        nursery,
        tmp_path / "log",
        campaign_seed + piece,
        batches=8000,
        retention_bytes=RETENTIONS[piece],
        deadline_s=1700,
    )
    add_counts("E13", jumps_to_the_start=jumps, **verdict.counts())
    assert not verdict.violations, verdict


SLOW = {
    "publish_before_write": ("pwrite", ".log"),
    "read_by_file_size": ("point", "before-publish"),
    "torn_publish": ("point", "torn-publish"),
}


@pytest.mark.faults
@pytest.mark.parametrize("mutant", SLOW)
def test_e13_kills_the_mutant(nursery: Nursery, tmp_path: Path, mutant: str) -> None:
    """A reader gets bytes before they are written or published, as soon as the writer is a little
    slow between the two.
    """
    play = Play(nursery, tmp_path / "log", mutants=(mutant,))
    writer = play.enter()
    reader = play.enter()
    play.append(writer)
    kind, name = SLOW[mutant]
    writer.arm([kind], "delay", error=2000, name=name)
    for turn in range(100):
        play.start_append(writer, size=3000)
        while not writer.note_waiting():
            if wrong := odd_sight(reader):
                print(f"E13 with {mutant}: {turn} appends: {wrong}")
                add_counts("mutants", killed=1)
                return
        play.finish_append(writer)
    pytest.fail(f"{mutant} survived 100 appends")


def odd_sight(reader: Victim) -> str:
    """The errors of a reader at this moment: an exception, a torn value, more or fewer records than
    are published.
    """
    try:
        first = reader.call("ends")[0][1]
        rows = reader.call("poll_all")
        last = reader.call("ends")[0][1]
    except RemoteError as problem:
        return str(problem)
    if not first <= len(rows) <= last:
        return f"{len(rows)} records, published were {first} to {last}"
    return next(
        (f"offset {row.offset} is not whole" for row in rows if mark_of(row.value) is None), ""
    )
