"""Checks and repairs of directories in which a replacement of segments was interrupted: the new
files are complete, and nothing is lost or damaged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import embedlog
from embedlog.partition.compaction import swap
from embedlog.partition.recovery import overflow
from tests.support import overflowed_segments
from tests.support.broker_directories import GENERATIONS, build
from tests.support.crash_states import (
    CONFIG,
    TOPIC,
    Row,
    Work,
    by_extent,
    look,
    rows,
    states,
    table,
)
from tests.support.killed_processes import is_killed_before

SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": 600,
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
    "file.delete.delay.ms": 60_000,
    "index.interval.bytes": 100,
}
JOINED_BYTES: Final = 2500  # of several segments that a compaction joins
KEYS: Final = 5
COUNT: Final = 40
PATIENT_S: Final = 20.0
DRAWN: Final = 3  # states of each scene in a short run


class Scene(NamedTuple):
    """A log, and the replacement of segments that is interrupted."""

    first_keys: int  # records with keys of their own come first
    group: int  # which of the replaced groups
    transactional: bool = False


SCENES: Final = {
    "first group": Scene(3, 1),
    "first group, nothing left": Scene(0, 1),
    "middle group": Scene(3, 2),
    "first group with aborted transactions": Scene(3, 1, transactional=True),
    "middle group with aborted transactions": Scene(0, 2, transactional=True),
}


def send(producer: embedlog.Producer, number: int, first_keys: int) -> None:
    key = b"own%d" % number if number < first_keys else b"k%d" % (number % KEYS)
    producer.send(TOPIC, key=key, value=b"v%d" % number * 10).result(PATIENT_S)


def write(producer: embedlog.Producer, scene: Scene) -> None:
    for number in range(COUNT):
        if scene.transactional:
            producer.begin_transaction()
        send(producer, number, scene.first_keys)
        if not scene.transactional:
            continue
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def make(path: Path, scene: Scene) -> list[Row]:
    """A log whose next compaction joins several segments; its records."""
    with embedlog.open(path, config=CONFIG) as log:
        log.create_topic(TOPIC, config=SETTINGS)
        if scene.transactional:
            with log.producer(transactional_id="x") as producer:
                producer.init_transactions()
                write(producer, scene)
        else:
            with log.producer(linger_ms=0) as producer:
                write(producer, scene)
        log.alter_topic(TOPIC, {"segment.bytes": JOINED_BYTES})
        return rows(log)


def compact(group: int) -> Work:
    """A compaction; the changes count from the begin of one of its replacements to its end."""

    def work(root: Path, begin: Callable[[], None], end: Callable[[], None]) -> None:
        swap_files = swap._swap
        count = 0

        def counted(*arguments: object) -> None:
            nonlocal count
            count += 1
            if count == group:
                begin()
            swap_files(*arguments)  # type: ignore[arg-type]
            if count == group:
                end()

        swap._swap = counted
        with embedlog.open(root, config=CONFIG) as log:
            log.housekeep()
        assert count >= group

    return work


@by_extent
@pytest.mark.parametrize("scene", SCENES)
def test_a_compaction_that_was_killed_in_a_swap_is_no_damage(
    tmp_path: Path, rng: random.Random, scene: str, extent: str
) -> None:
    written = make(tmp_path / "made", SCENES[scene])

    def is_expected(found: Sequence[Row]) -> bool:
        return set(found) <= set(written) and table(found) == table(written)

    kinds = set()
    count = 0
    drawn = rng if extent == "sample" else None
    work = compact(SCENES[scene].group)
    for number, root in states(tmp_path / "made", tmp_path / "log", work, drawn, DRAWN):
        print("killed before change", number)
        kinds |= look(root, is_expected)
        count += 1
    print(count, "states")
    assert extent == "sample" or "interrupted" in kinds


# ---- beside a process that has the log open ------------------------------------------------------


@pytest.mark.parametrize("number", [8, 20, 36])
def test_a_killed_swap_in_a_log_that_others_have_open(tmp_path: Path, number: int) -> None:
    """A check by another process waits for the end of the replacement, and tells that it has not
    compared the files. The next process that writes finishes it.
    """
    written = make(tmp_path / "log", SCENES["first group"])
    root = tmp_path / "log"
    with embedlog.open(root, config=CONFIG) as log:
        rows(log)
        assert is_killed_before(number, lambda *faults: compact(1)(root, *faults))
        with embedlog.open(root, read_only=True, lock_timeout_ms=300) as reader:
            kinds = {(finding.kind, finding.severity) for finding in reader.check().findings}
            assert kinds == {("unsettled", "cache")}
        assert log.check().good
        assert table(rows(log)) == table(written)
        assert embedlog.check(root).good


# ---- what brokers leave --------------------------------------------------------------------------

BY_NAME: Final = {generation.name: generation for generation in GENERATIONS}
ASIDE: Final = (".log", ".index", ".timeindex")


def broker_steps(partition: Path) -> list[tuple[str, str]]:
    """The renamings of a broker that replaces the segments 0 and 100."""
    logs = [(partition / f"{base:020d}.log").read_bytes() for base in (0, 100)]
    (partition / f"{0:020d}.log.cleaned").write_bytes(logs[1])
    for suffix in ASIDE[1:]:
        (partition / f"{0:020d}{suffix}.cleaned").write_bytes(b"")
    new = f"{0:020d}"
    steps = [(f"{new}{suffix}.cleaned", f"{new}{suffix}.swap") for suffix in ASIDE]
    for base in (0, 100):
        old = f"{base:020d}"
        steps += [(f"{old}{suffix}", f"{old}{suffix}.deleted") for suffix in ASIDE]
    steps += [(f"{new}{suffix}.swap", f"{new}{suffix}") for suffix in ASIDE]
    return steps


@pytest.mark.parametrize("name", ["0.11", "1.1-format-1", "2.8", "4.4"])
@pytest.mark.sample(0.3)
@pytest.mark.parametrize("count", range(13))
def test_a_broker_that_crashed_in_a_swap_has_left_no_damage(
    tmp_path: Path, name: str, count: int
) -> None:
    root = build(tmp_path / "log", BY_NAME[name], closed=False, whole=True, compacted=True)
    partition = root / f"{TOPIC}-0"
    steps = broker_steps(partition)
    assert len(steps) == 12
    for before, after in steps[:count]:
        if (partition / before).exists():
            (partition / before).rename(partition / after)
    begins_at_150 = [150, 153, 180, 200, 201, 202, 203]
    expected = begins_at_150 if count >= len(ASIDE) else [0, 2, 50, *begins_at_150]

    def is_expected(found: Sequence[Row]) -> bool:
        return [offset for offset, _, _ in found] == expected

    kinds = look(root, is_expected, caches=("index", "missing-epochs"))
    assert ("interrupted" in kinds) == (len(ASIDE) <= count < len(steps))


@by_extent
@pytest.mark.parametrize("layout", ["middle segment", "no batch fits", "three parts"])
def test_a_killed_split_of_a_segment_is_no_damage(
    tmp_path: Path, rng: random.Random, layout: str, extent: str
) -> None:
    made = overflowed_segments.write(tmp_path / "made", layout, closed=True, indexed=True)
    (made / "cleaner-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 1\n")
    offsets = overflowed_segments.offsets_of(layout)

    def work(root: Path, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        with embedlog.open(root, config=CONFIG) as log:
            rows(log)
        end()

    def is_expected(found: Sequence[Row]) -> bool:
        return [offset for offset, _, _ in found] == offsets

    drawn = rng if extent == "sample" else None
    for number, root in states(tmp_path / "made", tmp_path / "log", work, drawn, DRAWN):
        print("killed before change", number)
        look(root, is_expected, caches=("overflow", "index", "missing-epochs"))


def test_a_split_that_waits_for_its_names_shows_that_a_compaction_left_the_gaps(
    tmp_path: Path,
) -> None:
    root = overflowed_segments.write(tmp_path / "log", "three parts", closed=False, indexed=False)
    path = root / f"{TOPIC}-0" / f"{0:020d}.log"
    data = path.read_bytes()
    for part in overflow.parts_of(path, 0):
        swap_path = path.with_name(f"{part.base:020d}.log.swap")
        swap_path.write_bytes(data[part.start : part.end])
    report = embedlog.check(root)
    assert not report.damaged, str(report)
    assert "interrupted" in {finding.kind for finding in report.findings}
    assert "no record is lost" in str(report)
