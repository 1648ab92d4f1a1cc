"""A process that is killed in the midst of a change of files leaves nothing that a check, a dump, a
repair or a backup takes for damage.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import embedlog
from embedlog.integrity.directory_check import check_closed
from tests.support.crash_states import (
    CONFIG,
    TOPIC,
    IsExpected,
    Row,
    by_extent,
    findings,
    leave_killed,
    look,
    rows,
    states,
)
from tests.support.killed_processes import is_killed_before, killed_during

SETTINGS: Final = {
    "segment.bytes": 600,
    "file.delete.delay.ms": 0,
    "index.interval.bytes": 100,
}
COUNT: Final = 40
PATIENT_S: Final = 20.0
IN_RETENTION: Final = 30  # a change while retention renames files
DRAWN: Final = 4  # states of each change in a short run
HERE: Final = embedlog.TopicPartition(TOPIC, 0)


class Change(NamedTuple):
    """A change of a log, and whether its topic is still there afterwards. `transactional`: with
    open and aborted transactions.
    """

    work: Callable[[embedlog.Log], object]
    has_topic: bool = True
    transactional: bool = False


def send(log: embedlog.Log, first: int, count: int) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in range(first, first + count):
            producer.send(TOPIC, b"v%d" % number * 20, key=b"k%d" % number).result(PATIENT_S)


def send_transactions(log: embedlog.Log, first: int, count: int) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for number in range(first, first + count):
            producer.begin_transaction()
            producer.send(TOPIC, b"v%d" % number * 20, key=b"k%d" % number).result(PATIENT_S)
            if number % 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def retain(log: embedlog.Log) -> None:
    log.alter_topic(TOPIC, {"retention.bytes": 1200})
    log.housekeep()


def recreate(log: embedlog.Log) -> None:
    log.delete_topic(TOPIC)
    log.create_topic(TOPIC)


CHANGES: Final = {
    "rolls": Change(lambda log: send(log, COUNT, 8)),
    "rolls with transactions": Change(
        lambda log: send_transactions(log, COUNT, 6), transactional=True
    ),
    "flush": Change(lambda log: (send(log, COUNT, 1), log.flush())),
    "retention": Change(retain),
    "deleted records": Change(lambda log: log.delete_records({HERE: 23})),
    "deleted topic": Change(lambda log: log.delete_topic(TOPIC), has_topic=False),
    "topic made anew": Change(recreate, has_topic=False),
    "new topic": Change(lambda log: log.create_topic("u", 3)),
    "new partitions": Change(lambda log: log.create_partitions(TOPIC, 3)),
    "settings": Change(lambda log: log.alter_topic(TOPIC, {"retention.ms": 10**9})),
    "close": Change(lambda log: (send(log, COUNT, 1), log.close())),
}


def make(path: Path, change: Change) -> list[Row]:
    """A closed log of several segments; its records."""
    with embedlog.open(path, config=CONFIG) as log:
        log.create_topic(TOPIC, config=SETTINGS)
        if change.transactional:
            send_transactions(log, 0, COUNT // 2)
        else:
            send(log, 0, COUNT)
        return rows(log)


def is_part_of(written: Sequence[Row]) -> IsExpected:
    """Whether records are those that were written, from some offset on, perhaps with later ones."""

    def is_expected(found: Sequence[Row]) -> bool:
        if not found:
            return False
        last = written[-1][0]
        old = [row for row in found if row[0] <= last]
        return list(written[len(written) - len(old) :]) == old

    return is_expected


@by_extent
@pytest.mark.parametrize("name", CHANGES)
def test_a_killed_change_is_no_damage(
    tmp_path: Path, rng: random.Random, name: str, extent: str
) -> None:
    change = CHANGES[name]
    written = make(tmp_path / "made", change)

    def work(root: Path, begin: Callable[[], None], end: Callable[[], None]) -> None:
        log = embedlog.open(root, config=CONFIG)
        begin()
        change.work(log)
        end()

    count = 0
    drawn = rng if extent == "sample" else None
    for number, root in states(tmp_path / "made", tmp_path / "log", work, drawn, DRAWN):
        print("killed before change", number)
        look(root, is_part_of(written), has_topic=change.has_topic)
        count += 1
    print(count, "states")
    assert count


@by_extent
def test_a_killed_first_load_is_no_damage(tmp_path: Path, rng: random.Random, extent: str) -> None:
    """The opening after a crash is killed, too."""
    written = make(tmp_path / "given", CHANGES["retention"])
    crashed = tmp_path / "made"

    def crash(root: Path, begin: Callable[[], None], end: Callable[[], None]) -> None:
        log = embedlog.open(root, config=CONFIG)
        send(log, COUNT, 2)
        begin()
        retain(log)
        end()

    assert leave_killed(tmp_path / "given", crashed, crash, IN_RETENTION)

    def load(root: Path, begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        with embedlog.open(root, config=CONFIG) as log:
            rows(log)
        end()

    drawn = rng if extent == "sample" else None
    for number, root in states(crashed, tmp_path / "log", load, drawn, DRAWN):
        print("killed before change", number)
        look(root, is_part_of(written))


def test_any_renamings_of_retention_may_be_on_disk_after_a_power_loss(
    tmp_path: Path, rng: random.Random
) -> None:
    """Segments below a gap that retention made belong to the same round."""
    written = make(tmp_path / "made", CHANGES["retention"])

    def work(root: Path, begin: Callable[[], None], end: Callable[[], None]) -> None:
        log = embedlog.open(root, config=CONFIG)
        log.alter_topic(TOPIC, {"file.delete.delay.ms": 10**6})
        retain(log)

    assert not leave_killed(tmp_path / "made", tmp_path / "retained", work, 1)
    renamed = sorted(path.name for path in (tmp_path / "retained" / f"{TOPIC}-0").glob("*.deleted"))
    assert len([name for name in renamed if ".log" in name]) > 3
    for number in range(DRAWN):
        root = tmp_path / f"log-{number}"
        shutil.copytree(tmp_path / "retained", root)
        partition = root / f"{TOPIC}-0"
        for name in renamed:
            if rng.random() < 0.5:
                (partition / name).rename(partition / name.removesuffix(".deleted"))
        look(root, is_part_of(written))


@pytest.mark.slow
def test_a_killed_copy_to_new_replicas_is_no_damage(tmp_path: Path, rng: random.Random) -> None:
    """No directory of the set is called damaged, alone or within the set."""
    root = tmp_path / "set"
    paths = [root / f"directory-{number}" for number in range(3)]
    with embedlog.open(paths, config=CONFIG) as log:
        log.create_topic(TOPIC, replication_factor=1, config=SETTINGS)
        send(log, 0, COUNT)
        written = rows(log)
    shutil.copytree(root, tmp_path / "made", symlinks=True)

    def work(root: Path, begin: Callable[[], None], end: Callable[[], None]) -> None:
        log = embedlog.open(paths, config=CONFIG)
        begin()
        log.replicate(3)
        send(log, COUNT, 1)
        end()

    is_expected = is_part_of(written)
    for number, _ in states(tmp_path / "made", root, work, rng, 2 * DRAWN):
        print("killed before change", number)
        for path in paths:
            report = embedlog.check(path)
            assert not findings(report), str(report)
        with embedlog.open(paths, config=CONFIG) as log:
            assert is_expected(rows(log))
            assert not findings(log.check())


NEVER: Final = 10**9
FOLLOWS: Final = {
    "cut": ("rename", "kill_after", "d1/t-0/0"),
    "cut before the snapshots": ("point", "kill_before", "cut-indexes"),
    "log that begins again": ("point", "kill_before", "cut-published"),
    "copy of several epochs": ("point", "kill_before", "follow-epochs"),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_a_follower_that_was_killed_is_no_damage(tmp_path: Path, name: str) -> None:
    """It sets segments aside that its leader does not have, begins again because its log is below
    the start of its leader, or has noted the epochs of batches that it has not copied yet.
    """
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    away = tmp_path / "away"

    def open_set() -> embedlog.Log:
        return embedlog.open(paths, config=CONFIG)

    def follow(log: embedlog.Log) -> None:
        for _ in range(3):
            log.housekeep()

    def begin_an_epoch(first: int) -> None:
        """By a process that ends without a close."""

        def write(begin: Callable[[], None], end: Callable[[], None]) -> None:
            log = open_set()
            follow(log)
            send(log, first, 2)

        assert not is_killed_before(NEVER, write)

    with open_set() as log:
        # else one segment, which is read at once
        settings = SETTINGS if name.startswith("cut") else {}
        log.create_topic(TOPIC, assignment={0: [1, 2, 3]}, config=settings)
        send(log, 0, 3)
    if name.startswith("cut"):
        (tmp_path / "others").mkdir()
        for path in paths[1:]:
            path.rename(tmp_path / "others" / path.name)
        with open_set() as log, log.producer(acks=1) as producer:
            for number in range(COUNT):
                producer.send(TOPIC, b"lost %d" % number * 20, partition=0).result(PATIENT_S)
        for path in paths[1:]:
            (tmp_path / "others" / path.name).rename(path)
    paths[0].rename(away)
    begin_an_epoch(3)
    begin_an_epoch(5)
    with open_set() as log:
        if name == "log that begins again":
            log.delete_records({HERE: 5})
        written = rows(log)
    away.rename(paths[0])
    killed_during(follow, open_set, *FOLLOWS[name])
    for path in paths:
        report = embedlog.check(path)
        assert not findings(report), str(report)
        closed = check_closed(path)
        assert not findings(closed), str(closed)
    with open_set() as log:
        follow(log)
        assert rows(log) == written
        assert log.replicas(TOPIC).partitions[0].isr == (1, 2, 3)
        assert not findings(log.check())
