"""Reading ahead: order, bound, errors in their place, and no thread that remains."""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from embedlog.columns.readahead import read_ahead


class Numbers:
    """A source that gives 0, 1, 2 …, refuses two fetches at a time, and counts."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.fetched = 0
        self.overlapping = False
        self._turn = threading.Lock()

    def fetch(self) -> int | None:
        if not self._turn.acquire(blocking=False):
            self.overlapping = True
            return None
        try:
            if self.fetched >= self.stop:
                return None
            self.fetched += 1
            return self.fetched - 1
        finally:
            self._turn.release()


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "embedlog-read-ahead"]


def wait_for_helpers_to_end() -> None:
    deadline = time.monotonic() + 10
    while helpers() and time.monotonic() < deadline:
        threading.Event().wait(0.0005)
    assert not helpers()


def test_pieces_come_in_the_order_of_their_fetches(rng: random.Random) -> None:
    source = Numbers(500)
    waits = [rng.random() < 0.1 for _ in range(500)]
    never = threading.Event()

    def decode(number: int) -> int:
        if waits[number]:
            never.wait(0.001)  # this piece takes long, the next one overtakes it
        return number

    assert list(read_ahead(source.fetch, decode)) == list(range(500))
    assert not source.overlapping
    wait_for_helpers_to_end()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_few_pieces(count: int) -> None:
    assert list(read_ahead(Numbers(count).fetch, str)) == [str(number) for number in range(count)]


def test_one_piece_starts_no_thread() -> None:
    wait_for_helpers_to_end()  # those of other tests
    pieces = read_ahead(Numbers(1).fetch, str)
    before = len(helpers())
    assert next(pieces) == "0"
    pieces.close()  # type: ignore[attr-defined]
    wait_for_helpers_to_end()
    assert before == 0


def test_what_is_known_to_be_the_last_piece_starts_no_thread() -> None:
    wait_for_helpers_to_end()
    source = Numbers(2)
    assert [
        len(helpers()) for _ in read_ahead(source.fetch, str, has_more=lambda: source.fetched == 0)
    ] == [0, 0]


def test_no_more_than_the_depth_is_prepared() -> None:
    source = Numbers(10_000)
    reached = threading.Event()

    def decode(number: int) -> int:
        if number == 3:
            reached.set()
        return number

    pieces = read_ahead(source.fetch, decode, depth=3)
    assert next(pieces) == 0
    assert reached.wait(10)
    for _ in range(50):
        threading.Event().wait(0.0005)
    assert source.fetched <= 1 + 3
    pieces.close()  # type: ignore[attr-defined]
    wait_for_helpers_to_end()


@pytest.mark.parametrize("where", ["fetch", "decode"])
@pytest.mark.parametrize("bad", [0, 1, 5])
def test_a_failure_comes_in_its_place_and_ends_the_reading(where: str, bad: int) -> None:
    source = Numbers(100)

    def fetch() -> int | None:
        number = source.fetch()
        if where == "fetch" and number == bad:
            raise OSError("broken")
        return number

    def decode(number: int) -> int:
        if where == "decode" and number == bad:
            raise OSError("broken")
        return number

    pieces = read_ahead(fetch, decode)
    got = list(itertools.islice(pieces, bad))
    assert got == list(range(bad))
    with pytest.raises(OSError, match="broken"):
        next(pieces)
    assert next(pieces, None) is None
    wait_for_helpers_to_end()


def test_an_interrupt_is_raised_at_once() -> None:
    def fetch() -> int | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(read_ahead(fetch, str))
    wait_for_helpers_to_end()


def test_a_dropped_reading_takes_its_thread_along() -> None:
    pieces = read_ahead(Numbers(10_000).fetch, str)
    assert [next(pieces) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    del pieces
    wait_for_helpers_to_end()


# ---- interrupts -----------------------------------------------------------------------------------


def read_whole() -> None:
    assert list(read_ahead(Numbers(12).fetch, str)) == [str(number) for number in range(12)]


@pytest.fixture
def finalizers_may_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)


def storm(rng: random.Random, count: int, call: Callable[[], Any]) -> list[BaseException]:
    """`count` real signals at random times, each in a call of its own; the exceptions are kept."""
    kept: list[BaseException] = []

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while len(kept) < count:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.004))
                for _ in range(20):  # a finalizer can take the signal
                    call()
            except KeyboardInterrupt as problem:
                kept.append(problem)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return kept


@pytest.mark.usefixtures("finalizers_may_be_interrupted")
def test_a_storm_of_interrupts_leaves_no_thread(rng: random.Random) -> None:
    kept = storm(rng, 300, read_whole)
    wait_for_helpers_to_end()
    assert len(kept) == 300
    read_whole()
