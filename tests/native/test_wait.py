"""Waits on pages of one and of several directories: each reason ends them, and no publication is
slept through.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system, waits
from embedlog.config.topic import LogConfig
from embedlog.replica import ReplicatedEngine
from tests.faults.harness.processes import until
from tests.support.stamped_batches import run_of

Watched = list[tuple[system.Page, int]]
MANY = 200  # tails: more than futex_waitv takes words
LONG_NS = 120_000_000_000  # of a wait that a wake-up ends: a test without that wake-up fails then


class Pages:
    """Control pages of directories, with one partition in each."""

    def __init__(self, root: Path, count: int) -> None:
        self.directories = [self._made(root / f"directory-{number}") for number in range(count)]
        self.partitions = [self._made(root / f"partition-{number}") for number in range(count)]
        self.ends = [0] * count
        identity = system.identity(bytes(16), bytes(16), 0, 0, 0)
        for directory, partition in zip(self.directories, self.partitions, strict=True):
            directory.write_directory(identity)
            partition.write(identity, system.Published(), 0, cache=0)

    @staticmethod
    def _made(path: Path) -> system.Page:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.truncate(fd, system.PAGE_BYTES)
            return system.Page(fd, True)
        finally:
            os.close(fd)

    def publish(self, number: int) -> None:
        self.ends[number] += 1
        end = self.ends[number]
        self.partitions[number].publish(
            system.Published(log_end=end, high_watermark=end), self.directories[number]
        )

    def watched(self) -> list[tuple[system.Page, int]]:
        return [(page, page.topics()) for page in self.directories]


@pytest.fixture(params=[1, 2, 3, 8], ids="{} directories".format)
def pages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pages]:
    made = Pages(tmp_path, request.param)
    yield made
    for page in made.directories + made.partitions:
        page.close()


@pytest.mark.parametrize("spinning", [False, True])
def test_a_wait_ends_as_a_check_of_every_page_says(
    pages: Pages, rng: random.Random, spinning: bool
) -> None:
    waiter = waits.Waiter()
    waiter.spin_until_ns = system.boot_ns() + 10 * LONG_NS if spinning else 0
    for _ in range(60):
        pages.publish(rng.randrange(len(pages.ends)))
        places = [rng.randrange(len(pages.ends)) for _ in range(rng.choice([0, 1, 5, MANY]))]
        behind = rng.choice([0.0, 0.0, 0.02, 0.5])
        offsets = [pages.ends[place] - (rng.random() < behind) for place in places]
        watched = [
            (page, seen if rng.random() < 0.5 else waits.NOT_FOLLOWED)
            for page, seen in pages.watched()
        ]
        notices = [
            (page, page.notice())
            for page in rng.sample(pages.partitions, min(2, len(pages.partitions)))
        ]
        changed = rng.randrange(5)
        if changed == 0:
            rng.choice(pages.directories).move_topics(rng.random() < 0.5)
        elif changed == 1:
            rng.choice(notices)[0].notify()
        elif changed == 2:
            waiter.wake()
        ready = [at for at, place in enumerate(places) if pages.ends[place] > offsets[at]]
        other = changed == 2 or any(seen not in (-1, page.topics()) for page, seen in watched)
        other = other or any(page.notice() != seen for page, seen in notices)
        expected = ready[0] if ready else len(places) if other else system.TIMED_OUT
        tails = [
            (pages.partitions[place], offset) for place, offset in zip(places, offsets, strict=True)
        ]
        deadline_ns = system.boot_ns() + (1_000_000 if expected == system.TIMED_OUT else LONG_NS)
        assert waiter.wait(tails, rng.random() < 0.5, watched, deadline_ns, notices) == expected
        waiter.reset()


def test_a_wait_takes_no_more_directories_than_it_has_words_for(tmp_path: Path) -> None:
    pages = Pages(tmp_path, waits.DIRECTORIES_MAX + 1)
    with pytest.raises(IndexError):
        waits.Waiter().wait([], False, pages.watched(), system.boot_ns())


class Sleeper:
    """A thread that waits, in one sleep without slices."""

    def __init__(
        self,
        waiter: waits.Waiter,
        tails: list[tuple[system.Page, int]],
        watched: list[tuple[system.Page, int]],
    ) -> None:
        self.result: int | None = None
        self._wait: Callable[[], int] = lambda: waiter.wait(
            tails, False, watched, system.boot_ns() + LONG_NS
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.result is not None or self._sleeps(), "it to sleep")

    def _run(self) -> None:
        self.result = self._wait()

    def _sleeps(self) -> bool:
        facts = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_text()
        return facts.rpartition(")")[2].split()[0] == "S"

    def ended(self) -> int | None:
        self._thread.join(LONG_NS / 1e9 + 60)
        return self.result


@pytest.mark.parametrize("count", [3, MANY])
def test_each_directory_wakes_a_sleeping_waiter(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Its records and its topics do, also if there are too many tails for a word of each."""
    # otherwise the next slice hides a lost wake-up
    monkeypatch.setattr(waits, "OTHER_THREAD_SLICE_NS", LONG_NS)
    waiter = waits.Waiter()
    for number in range(len(pages.ends)):
        places = [at % len(pages.ends) for at in range(max(count, len(pages.ends)))]
        tails = [(pages.partitions[place], pages.ends[place]) for place in places]
        sleeper = Sleeper(waiter, tails, pages.watched())
        pages.publish(number)
        assert sleeper.ended() == number
        tails = [(pages.partitions[place], pages.ends[place]) for place in places]
        sleeper = Sleeper(waiter, tails, pages.watched())
        pages.directories[number].move_topics(True)
        assert sleeper.ended() == len(tails)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("spin_us", [0, 20, 1_000_000])
@pytest.mark.parametrize("count", [3, MANY])
def test_no_publication_in_any_directory_is_slept_through(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, rng: random.Random, count: int, spin_us: int
) -> None:
    """The next publication comes after the wake-up of the one before, so that none can hide a lost
    one.

    With a short spin the publication often comes between spin and sleep.
    """
    monkeypatch.setattr(waits, "OTHER_THREAD_SLICE_NS", LONG_NS)
    rounds = [rng.randrange(len(pages.ends)) for _ in range(200)]
    seen = [0] * len(pages.ends)
    step = threading.Semaphore(0)
    lost = []

    def follow() -> None:
        waiter = waits.Waiter()
        places = [at % len(seen) for at in range(max(count, len(seen)))]
        for _ in rounds:
            tails = [(pages.partitions[place], seen[place]) for place in places]
            waiter.spin_until_ns = system.boot_ns() + spin_us * 1000
            ready = waiter.wait(tails, False, pages.watched(), system.boot_ns() + LONG_NS)
            if ready < 0:
                lost.append(list(seen))
            else:
                seen[places[ready]] += 1
            step.release()

    thread = threading.Thread(target=follow)
    thread.start()
    for number in rounds:
        pages.publish(number)
        assert step.acquire(timeout=LONG_NS / 1e9 + 60)
        assert not lost
    thread.join()
    assert seen == pages.ends


# ---- the engine --------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ReplicatedEngine]:
    """An open log of three directories, each with a topic of its own."""
    config = LogConfig(housekeeping=False)
    engine = ReplicatedEngine(
        [tmp_path / name for name in "abc"], read_only=False, create=True, config=config
    )
    try:
        yield engine
    finally:
        engine.close()


def test_the_topics_of_several_directories_have_one_version(
    three: ReplicatedEngine, rng: random.Random
) -> None:
    pages = [directory.context.directory_page for directory in three.directories]
    for _ in range(100):
        before = three.topics_version()
        page = pages[rng.randrange(3)]
        assert page is not None
        page.move_topics(rng.random() < 0.5)
        now = three.topics_version()
        assert now != before
        assert now & 1 == any(each.topics() & 1 for each in pages if each is not None)
        assert three.set.members.followed_pages(now) == [
            (each, each.topics()) for each in pages if each is not None
        ]
        assert three.topics_version() == now
        page.touch_topics()
        assert three.topics_version() != now
        assert (three.topics_version() ^ now) & 1 == 0, (
            "a decision neither begins nor ends a change of topics"
        )
    assert [seen for _, seen in three.set.members.followed_pages(waits.NOT_FOLLOWED)] == [
        waits.NOT_FOLLOWED
    ] * 3


@pytest.mark.parametrize("number", range(3))
def test_an_engine_waits_for_records_and_topics_of_all_its_directories(
    tmp_path: Path, number: int
) -> None:
    with embedlog.open([tmp_path / name for name in "abc"], housekeeping=False) as log:
        log.create_topic("t", assignment={0: [1], 1: [2], 2: [3]})
        engine = log._engine
        partitions = [engine.partition("t", each) for each in range(3)]
        tails = [(each, 0) for each in partitions]
        version = engine.topics_version()
        found = []

        def wait() -> None:
            found.append(engine.wait(tails, LONG_NS / 1e9, wait, topics=version))

        thread = threading.Thread(target=wait)
        thread.start()
        partitions[number].append(run_of(b"value"))
        thread.join()
        assert found == [True]
        log.create_topic("another", assignment={0: [number + 1]})
        ends = [(each, each.bounds().log_end) for each in partitions]
        assert not engine.wait(ends, LONG_NS / 1e9, wait, topics=version), (
            "a decision ends the wait"
        )


def test_a_look_at_many_pages_shows_a_publication_of_any(pages: Pages) -> None:
    looks = waits.Looks(pages.partitions)
    assert looks.are_current()
    assert waits.Looks([]).are_current()
    for number in range(len(pages.partitions)):
        looks = waits.Looks(pages.partitions)
        pages.publish(number)
        assert not looks.are_current()
        assert waits.Looks(pages.partitions).are_current()
    looks = waits.Looks(pages.partitions)
    pages.partitions[-1].close()
    assert not looks.are_current(), "a page that is not mapped any more"
