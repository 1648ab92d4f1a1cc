"""A watch over described topics: each change of another handle or process ends it, and without one
nothing is described again.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.admin.topic_watch import KEPT_S, LIVE_CHECK_S, QUIET_S, TopicWatch
from tests.faults.harness.processes import Nursery, until

QUIET = {"housekeeping": False}
PARTITIONS = 40
WITH_A_PAGE = 0  # the partition that has records, and a page


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Reader:
    """A read-only handle that describes topics, and watches them."""

    def __init__(self, directories: Path | list[Path]) -> None:
        self.log = embedlog.open(directories, read_only=True)
        self.clock = Clock()
        self.watch = TopicWatch(self.log._engine, self.clock)
        self.ends: dict[tuple[str, int], tuple[int, int]] = {}

    def look(self) -> None:
        self.watch.begin()
        topics = [self.log.describe_topic(name) for name in self.log.topics()]
        self.watch.keep(topics)
        self.ends = {
            (topic.name, each.partition): (each.log_start_offset, each.last_stable_offset)
            for topic in topics
            for each in topic.partitions
        }

    def is_unchanged(self) -> bool:
        """After the time that a reader may be behind its directory."""
        self.clock.now_s += LIVE_CHECK_S
        return self.watch.is_unchanged()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", PARTITIONS, config={"segment.bytes": "1000"})
        log.create_topic("gone")
        send(log, WITH_A_PAGE, 30)
    return tmp_path / "log"


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    made = Reader(path)
    yield made
    made.log.close()


def send(log: embedlog.Log, partition: int, count: int = 1) -> None:
    with log.producer() as producer:
        for _ in range(count):
            producer.send("t", b"x" * 50, partition=partition)


def commit(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"x", partition=WITH_A_PAGE)


CHANGES: dict[str, Callable[[embedlog.Log], object]] = {
    "a record in a partition with a page": lambda log: send(log, WITH_A_PAGE),
    "the first record of a partition without a page": lambda log: send(log, PARTITIONS - 1),
    "a transaction": commit,
    "deleted records": lambda log: log.delete_records({TopicPartition("t", WITH_A_PAGE): 20}),
    "a new topic": lambda log: log.create_topic("new"),
    "a deleted topic": lambda log: log.delete_topic("gone"),
    "more partitions": lambda log: log.create_partitions("t", PARTITIONS + 1),
    "settings": lambda log: log.alter_topic("t", {"retention.ms": "1000"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_another_handle_ends_the_watch(path: Path, reader: Reader, change: str) -> None:
    with embedlog.open(path, config=QUIET) as writer:
        send(writer, WITH_A_PAGE)  # which has a page now
        reader.look()
        reader.clock.now_s += QUIET_S
        reader.look()
        assert all(reader.is_unchanged() for _ in range(3))
        CHANGES[change](writer)
        assert not reader.is_unchanged()
        assert not reader.is_unchanged(), "until the next look"


def test_a_writer_that_comes_or_leaves_ends_the_watch(path: Path, reader: Reader) -> None:
    reader.look()
    assert reader.is_unchanged(), "nothing was open before the watch: the first look counts"
    writer = embedlog.open(path, config=QUIET)
    assert not reader.is_unchanged()
    reader.look()
    assert not reader.is_unchanged(), "partitions follow their directory at intervals"
    reader.clock.now_s += QUIET_S
    reader.look()
    assert reader.is_unchanged()
    writer.close()
    assert not reader.is_unchanged()


def test_a_look_is_not_kept_for_ever(path: Path, reader: Reader) -> None:
    reader.look()
    assert reader.watch.is_unchanged()
    reader.clock.now_s += KEPT_S
    assert not reader.watch.is_unchanged()


def test_a_record_that_comes_during_the_look_is_not_taken_for_seen(
    path: Path, reader: Reader
) -> None:
    """The ends are read before the pages are kept."""
    with embedlog.open(path, config=QUIET) as writer:
        send(writer, WITH_A_PAGE)
        reader.look()
        reader.clock.now_s += QUIET_S
        reader.watch.begin()
        described = reader.log.describe_topic("t")
        send(writer, WITH_A_PAGE)
        reader.watch.keep([described])
        assert not reader.watch.is_unchanged()


def test_no_record_of_other_processes_is_missed(
    path: Path, rng: random.Random, nursery: Nursery
) -> None:
    """A reader that looks only if its watch says so sees each record, whoever opens the log, in
    whichever partition.
    """
    with embedlog.open(path, read_only=True) as log:
        watch = TopicWatch(log._engine)
        looks = 0
        ends: dict[int, int] = {}

        def count() -> int:
            nonlocal looks
            if not watch.is_unchanged():
                looks += 1
                watch.begin()
                described = log.describe_topic("t")
                watch.keep([described])
                ends.update((each.partition, each.high_watermark) for each in described.partitions)
            return sum(ends.values())

        total = count()
        asked = 0
        for _ in range(12):
            victim = nursery.spawn()
            victim.call("open", str(path), config=QUIET)
            for _ in range(rng.randrange(4)):
                victim.call("append", [b"x"] * 2, rng.randrange(PARTITIONS))
                total += 2
                wanted = total
                until(lambda wanted=wanted: count() == wanted, "the records are seen", 5)  # type: ignore[misc]
                for _ in range(20):
                    asked += 1
                    assert count() == total
            if rng.random() < 0.3:
                nursery.end(victim)  # without a close
            else:
                victim.call("close")
            assert count() == total

        def needs_no_look() -> bool:
            """For a tenth of a second. It is noticed a while later that the last process was
            killed: then it looks again.
            """
            before = looks
            for _ in range(100):
                idle.wait(0.001)
                assert count() == total
            return looks == before

        idle = threading.Event()
        until(needs_no_look, "the last look is kept")


@pytest.mark.parametrize("lost", [False, True], ids=["three directories", "one of three lost"])
def test_a_set_is_watched_with_its_leaders(tmp_path: Path, lost: bool) -> None:
    paths = [tmp_path / f"d{number}" for number in range(3)]
    with embedlog.open(paths, config=QUIET) as writer:
        writer.create_topic("t", 6, replication_factor=3, min_insync_replicas=1)
        for number in range(6):
            send(writer, number)
        if lost:
            paths[0].rename(tmp_path / "away")
            writer.housekeep()
        reader = Reader(paths)
        reader.look()
        reader.clock.now_s += QUIET_S
        reader.look()
        until(lambda: settled(reader), "a look is kept")
        assert all(reader.is_unchanged() for _ in range(3))
        for number in range(6):
            send(writer, number)
            assert not reader.is_unchanged()
            reader.look()
            assert reader.ends["t", number] == (0, 2)
            until(lambda: settled(reader), "a look is kept")
        paths[1].rename(tmp_path / "gone")
        writer.housekeep()  # which elects other leaders
        assert not reader.is_unchanged()
        reader.log.close()


def settled(reader: Reader) -> bool:
    """Whether a look is kept: a set decides a little after it was opened."""
    if reader.is_unchanged():
        return True
    reader.clock.now_s += QUIET_S
    reader.look()
    return False


def test_an_idle_look_costs_the_same_for_many_partitions(tmp_path: Path) -> None:
    """Processor time of one question, the least of several turns."""
    costs = {}
    for count in (1, 300):
        with embedlog.open(tmp_path / str(count), config=QUIET) as writer:
            writer.create_topic("t", count)
            for number in range(count):
                send(writer, number)
            reader = Reader(tmp_path / str(count))
            reader.look()
            assert reader.watch.is_unchanged()
            costs[count] = min(_cost_ns(reader) for _ in range(5))
            reader.log.close()
    assert costs[300] < 10 * costs[1], costs


def _cost_ns(reader: Reader) -> int:
    began = time.process_time_ns()
    for _ in range(100):
        reader.watch.is_unchanged()
    return time.process_time_ns() - began
