"""The registry of metrics: windows, totals, maxima, counters outside of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping

import pytest

from embedlog.consumer.positions import Spread
from embedlog.telemetry.metrics import WINDOW_S, Metrics


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """A client that counts in attributes of its own."""

    def __init__(self) -> None:
        self.count = 0
        self.most = 0.0
        self.turns = 0

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        peaks = {"size": self.most} if self.most else {}
        self.most = 0.0
        return {"fetch": self.count}, peaks

    def rotate_window(self) -> None:
        self.turns += 1

    def fetch(self, size: float) -> None:
        self.count += 1
        self.most = max(self.most, size)


def test_rates_forget_what_is_older_than_a_minute_and_totals_do_not() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    assert metrics.rate("record") == 0.0
    metrics.add({"record": 100, "byte": 1000}, {"size": 70})
    clock.now += 10
    assert metrics.rate("record") == 10.0
    clock.now += 25
    metrics.add({"record": 5, "byte": 20}, {"size": 3})
    assert metrics.mean("byte", "record", None) == pytest.approx(1020 / 105)
    assert metrics.peak("size", None) == 70
    clock.now += 31
    assert metrics.rate("record") == pytest.approx(5 / 31)
    assert metrics.peak("size", None) == 3
    clock.now += 1000
    assert (
        metrics.rate("record"),
        metrics.peak("size", 0.0),
        metrics.mean("byte", "record", 1.0),
    ) == (0.0, 0.0, 1.0)
    assert (metrics.peak("size", None), metrics.mean("byte", "record", None)) == (None, None)
    assert metrics.total("record") == 105


def test_a_duration_is_a_total_in_seconds() -> None:
    metrics = Metrics()
    metrics.spent("flush", 0.5)
    metrics.spent("flush", 0.25)
    assert metrics.total("flush_s") == 0.75


def test_a_source_is_counted_in_the_window_in_which_it_counted() -> None:
    clock = Clock()
    source = Counting()
    metrics = Metrics(clock)
    metrics.source = source
    source.fetch(10)
    clock.now += WINDOW_S
    metrics.turn()  # a client calls this before it counts on
    source.fetch(2)
    clock.now += 10
    assert (metrics.total("fetch"), metrics.rate("fetch"), metrics.peak("size", None)) == (
        2,
        2 / 40,
        10,
    )
    clock.now += WINDOW_S
    assert (metrics.rate("fetch"), metrics.peak("size", None), source.turns) == (1 / 40, 2, 2)
    assert metrics.total("fetch") == 2


def test_after_an_idle_minute_nothing_of_a_source_is_recent() -> None:
    clock = Clock()
    source = Counting()
    metrics = Metrics(clock)
    metrics.source = source
    source.fetch(10)
    clock.now += 2 * WINDOW_S
    metrics.turn()
    source.fetch(3)
    assert (metrics.total("fetch"), metrics.rate("fetch"), metrics.peak("size", None)) == (
        2,
        1 / 30,
        3,
    )
    assert source.turns == 2, "both windows are over"


def test_a_window_does_not_end_before_it_is_full() -> None:
    clock = Clock()
    source = Counting()
    metrics = Metrics(clock)
    metrics.source = source
    clock.now += WINDOW_S - 0.001
    metrics.turn()
    assert source.turns == 0
    assert metrics.due > clock.now


def test_a_signal_handler_counts_inside_a_count() -> None:
    clock = Clock()
    inside = []

    def interrupted() -> float:
        """A clock that is read under the lock, where a handler closes the client."""
        if inside == ["armed"]:
            inside.append("closed")
            metrics.add({"commit": 1})
        return clock()

    metrics = Metrics(interrupted)
    inside.append("armed")
    counting = threading.Thread(target=metrics.add, args=({"commit": 1},), daemon=True)
    counting.start()
    counting.join(5)
    assert not counting.is_alive()
    assert metrics.total("commit") == 2


class KeptEvents:
    """The slow reference: it keeps every event and every begin of a window, and adds up at each
    question.
    """

    def __init__(self, clock: Clock, window_s: float, window_count: int) -> None:
        self.clock = clock
        self.window_s = window_s
        self.window_count = window_count
        self.begins = [clock.now]
        self.events: list[tuple[int, float]] = []  # the number of the window, and the value

    def touch(self) -> None:
        """Begin the windows that are due; those that no call began end at the present one."""
        missed = int((self.clock.now - self.begins[-1]) / self.window_s)
        at = len(self.begins)
        self.begins += [self.clock.now - number * self.window_s for number in range(missed)][::-1]
        assert at + missed == len(self.begins)

    def note(self, value: float) -> None:
        self.touch()
        self.events.append((len(self.begins) - 1, value))

    def recent(self) -> tuple[float, list[float]]:
        self.touch()
        first = max(0, len(self.begins) - self.window_count)
        return self.clock.now - self.begins[first], [
            value for window, value in self.events if window >= first
        ]


@pytest.mark.parametrize("window_count", [1, 2, 3])
def test_windows_agree_with_a_slow_reference(window_count: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    clock = Clock()
    metrics = Metrics(clock, window_s=4.0, window_count=window_count)
    kept = KeptEvents(clock, 4.0, window_count)
    spread = Spread(window_count)
    rotations = 0
    for _ in range(500):
        # no rounding
        clock.now += chance.choice((0.0, 0.25, 0.5, 1.0, 4.0, 9.0, 4.0 * window_count, 60.0))
        if chance.random() < 0.7:
            value = float(chance.randrange(1, 100))
            metrics.add({"byte": value, "fetch": 1}, {"size": value})
            kept.note(value)
            for _ in range(min(len(kept.begins) - 1 - rotations, window_count)):
                spread.rotate_window()
            rotations = len(kept.begins) - 1
            spread.include(int(value))
            assert spread.summarize()[1:] == (min(kept.recent()[1]), max(kept.recent()[1]))
            assert spread.summarize()[0] == pytest.approx(
                sum(kept.recent()[1]) / len(kept.recent()[1])
            )
            continue
        spent, recent = kept.recent()
        assert metrics.rate("byte") == (sum(recent) / spent if spent else 0.0)
        assert metrics.peak("size", None) == max(recent, default=None)
        assert metrics.mean("byte", "fetch", None) == (
            sum(recent) / len(recent) if recent else None
        )
        assert metrics.total("byte") == sum(value for _, value in kept.events)
