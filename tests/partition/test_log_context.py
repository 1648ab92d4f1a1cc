"""Descriptors that partitions keep: bounded however many are written, synced and read; giving them
back loses nothing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.partition import sync
from embedlog.partition.log_context import SPARE_SHARE, AppendProgress, KeptDescriptors, Shares
from tests.support.interrupts import within
from tests.support.stamped_batches import run_of

# descriptors of a log itself: locks of the directory, its pages, files that are open for a moment
OWN = 12


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def child(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )


@pytest.mark.parametrize("limit", [16, 32, 400, 5000])
def test_the_shares_of_descriptors_add_up(limit: int) -> None:
    shares = Shares.of(limit)
    assert shares.handles + 5 * shares.writers + 2 * shares.syncers <= max(limit, 22)


def test_many_partitions_are_written_synced_and_read_with_few_descriptors(tmp_path: Path) -> None:
    count = 120
    before = descriptors()
    most = before + 32 + OWN
    with embedlog.open(
        tmp_path / "log", config={"max.open.files": 32, "housekeeping": False}
    ) as log:
        log.create_topic("t", count)
        with log.producer() as producer:
            for turn in range(2):
                futures = [
                    producer.send("t", b"%d" % turn, partition=number) for number in range(count)
                ]
                assert all(future.exception(60) is None for future in futures)
                assert descriptors() <= most
                log.flush()
                assert descriptors() <= most
        assert [log.durable_offset("t", number) for number in range(count)] == [2] * count
        assert sum(1 for _ in log.scan("t").records()) == 2 * count
        assert descriptors() <= most
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            assert sum(len(records) for records in iter(lambda: consumer.poll(0), [])) == 2 * count
            assert descriptors() <= most
        log.housekeep()
        assert descriptors() <= most
    assert descriptors() == before


def test_a_closed_log_without_mappings_keeps_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    log = embedlog.open(tmp_path / "log", config={"shared": "locks", "housekeeping": False})
    log.create_topic("t", 20)
    with log.producer() as producer:
        for number in range(20):
            producer.send("t", b"x", partition=number).result()
    assert descriptors() > before + 20  # a page each: it is read and written through its file
    log.close()
    assert descriptors() == before
    assert log.path  # it is the closing that counts, not the collection of the object


def test_segments_that_fill_faster_than_they_are_synced_keep_few_descriptors(
    tmp_path: Path,
) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t", config={"segment.bytes": 200, "flush.ms": 3_600_000})
        with log.producer(linger_ms=0) as producer:
            for number in range(60):
                producer.send("t", b"%03d" % number + bytes(120)).result()
            kept = log._engine.partition("t", 0)._syncer._fds
            assert 1 <= len(kept) <= sync.SEGMENTS_MAX
            log.flush()
            assert len(kept) == 1
        assert log.durable_offset("t", 0) == 60
        assert [record.value[:3] for record in log.scan("t").records()] == [
            b"%03d" % number for number in range(60)
        ]


CHILD = """
import resource, sys, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
log = embedlog.open(sys.argv[1], config={"housekeeping": False, "max.open.files": 5000})
held = []
list(log.scan("t").records())  # imports need descriptors of their own
try:
    with log.producer() as producer:
        producer.send("t", b"x", partition=0).result(10)
    while True:
        held.append(open("/dev/null"))
except OSError:
    pass
for name, call in {"scan": lambda: list(log.scan("t").records()), "flush": log.flush, "housekeep": log.housekeep}.items():
    try:
        call()
        print(name, "done")
    except embedlog.EmbedlogError as error:
        print(name, type(error).__name__, error)
held.clear()
print(len(list(log.scan("t").records())), log.flush())
log.close()
"""


def test_without_a_free_descriptor_the_error_names_the_setting(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", 3)
    ended = child(CHILD, tmp_path / "log")
    assert ended.returncode == 0, ended.stderr
    assert (
        "(EMFILE); raise the process's limit (ulimit -n), or lower max.open.files"
        in ended.stdout.splitlines()[0]
    )
    assert "max.open.files" in ended.stdout.splitlines()[1]
    assert ended.stdout.splitlines()[-1] == "1 None"
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_two_thousand_partitions_work_with_a_thousand_descriptors(tmp_path: Path) -> None:
    """The figure of the README, with the limit that most systems set."""
    ended = child(MANY.replace("COUNT", "2000"), tmp_path / "log")
    assert ended.stdout.split() == ["2000", "2000", "2000"], ended.stderr


MANY = """
import os, resource, sys, embedlog
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
with embedlog.open(sys.argv[1], config={"log.flush.interval.ms": 3_600_000}) as log:
    log.create_topic("t", COUNT)
    with log.producer(delivery_timeout_ms=600_000) as producer:
        futures = [producer.send("t", b"x", partition=number) for number in range(COUNT)]
        print(sum(future.exception(600) is None for future in futures))
    print(sum(1 for _ in log.scan("t").records()))
    log.flush()
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        print(sum(len(records) for records in iter(lambda: consumer.poll(0), [])))
"""


# ---- which holders are released ----------------------------------------------------------------------


class Used:
    """A holder that counts how often its uses are read."""

    def __init__(self) -> None:
        self.uses = self.reads = 0
        self.open = self.busy = False

    def release(self, wait_s: float = 0.0) -> bool:
        self.open = self.open and self.busy
        return not self.open

    def use_count(self) -> int:
        self.reads += 1
        return self.uses


@pytest.mark.parametrize("limit", [2, 7, 8, 20, 64])
def test_the_longest_idle_holders_are_released(limit: int, rng: random.Random) -> None:
    """Compared with a list in the order of the uses."""
    kept = KeptDescriptors(limit)
    holders = [Used() for _ in range(3 * limit)]
    order = list[Used]()
    for _ in range(600):
        each = rng.choice(holders)
        if each.open:
            kept.note_use(each)
            order.remove(each)
        order.append(each)
        if each.open:
            continue
        each.open = True
        kept.add(each)
        assert each.open
        gone = 0 if len(order) <= limit else len(order) - limit + limit // SPARE_SHARE
        assert [other.open for other in order] == [False] * gone + [True] * (len(order) - gone)
        del order[:gone]


def test_a_holder_that_appends_without_a_notice_is_not_the_idle_one() -> None:
    kept = KeptDescriptors(8)
    holders = [Used() for _ in range(9)]
    for each in holders:
        holders[0].uses += 1
        each.open = True
        kept.add(each)
    gone = 1 + 8 // SPARE_SHARE
    assert [each.open for each in holders] == [True, *[False] * gone, *[True] * (8 - gone)]


def test_busy_holders_stay_open_until_a_later_search() -> None:
    kept = KeptDescriptors(8)
    holders = [Used() for _ in range(30)]
    for each in holders:
        each.open = each.busy = True
        kept.add(each)
    assert all(each.open for each in holders)
    for each in holders:
        each.busy = False
    last = Used()
    last.open = True
    kept.add(last)
    assert sum(each.open for each in [*holders, last]) == 8 - 8 // SPARE_SHARE
    assert last.open


def test_a_search_for_idle_holders_is_not_made_for_each_that_opens() -> None:
    limit = 64
    count = 2000
    kept = KeptDescriptors(limit)
    holders = [Used() for _ in range(count)]
    for each in holders:
        each.open = True
        kept.add(each)
        assert sum(other.open for other in holders) <= limit
    assert sum(each.reads for each in holders) < 10 * count, "without the spare ones: 65 for each"


@pytest.mark.parametrize(
    "call", [KeptDescriptors.note_use, KeptDescriptors.add, KeptDescriptors.remove]
)
def test_a_signal_handler_closes_what_its_thread_is_about_to_use(
    call: Callable[[KeptDescriptors, Any], None],
) -> None:
    """It waited for the mutex of its own thread, and other threads for both."""
    kept = KeptDescriptors(4)
    holders = [Used() for _ in range(3)]
    handlers = list[Callable[[], object]]()

    class Interrupted(OrderedDict[int, Any]):
        def interrupt(self) -> None:
            if handlers:
                handlers.pop()()

        def move_to_end(self, key: int, last: bool = True) -> None:
            self.interrupt()
            super().move_to_end(key, last)

        def __setitem__(self, key: int, value: Any) -> None:
            self.interrupt()
            super().__setitem__(key, value)

        def pop(self, key: int, *default: Any) -> Any:
            self.interrupt()
            return super().pop(key, *default)

    kept._open = Interrupted()
    for each in holders:
        kept.add(each)
    handlers.append(lambda: [kept.remove(each) for each in holders])
    within(20, lambda: call(kept, holders[0]))
    assert not handlers
    assert kept.release_all(0)
    assert not kept._open


@pytest.mark.parametrize("name", ["pieces", "times_ms", "epochs"])
def test_the_progress_of_an_append_that_still_runs_is_of_one_moment(name: str) -> None:
    """The thread of a directory that hangs may append another piece while its caller gives up.
    Before, the caller could have a piece without its bytes, or the bytes without the piece.
    """
    progress = AppendProgress(run_of(b"first"))
    attempt = progress.copy()
    seen = list[tuple[int, int, int, int]]()

    class Watched(list[Any]):
        def append(self, value: Any) -> None:
            observe()
            super().append(value)
            observe()

    def observe() -> None:
        progress.take_over(attempt)
        lists = (progress.pieces, progress.times_ms, progress.epochs)
        seen.append((progress.start, *map(len, lists)))

    setattr(attempt, name, Watched())
    attempt.take(0, 1, 70, 1)
    attempt.take(1, 2, 30, 2)
    observe()
    assert set(seen) == {(0, 0, 0, 0), (70, 1, 1, 1), (100, 2, 2, 2)}
