"""Messages that recur: one, then one an hour, whatever fails how often."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import embedlog
from embedlog.telemetry import log_messages
from embedlog.telemetry.log_messages import (
    CHANGE_PAUSE_S,
    KEYS_MAX,
    PAUSE_S,
    QUIET_S,
    Frequent,
    Recurring,
)
from tests.faults.harness.processes import Nursery
from tests.faults.harness.stage import Play
from tests.support.interrupts import within

logger = logging.getLogger("embedlog")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recurring(clock: Clock) -> Recurring:
    return Recurring(clock)


def fail(recurring: Recurring, key: object = "t-0", problem: Exception | None = None) -> None:
    recurring.report(logger, logging.WARNING, key, "flush of t-0", problem or OSError("disk"))


def test_the_same_failure_is_logged_once_and_then_once_a_pause(
    recurring: Recurring, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(int(2 * PAUSE_S)):
        clock.now_s = float(second)
        fail(recurring)
    assert lines(caplog) == [
        "flush of t-0: disk",
        f"flush of t-0: disk ({int(PAUSE_S) - 1} more since the last such message)",
    ]


def test_another_key_and_another_kind_of_failure_are_logged_at_once(
    recurring: Recurring, caplog: pytest.LogCaptureFixture
) -> None:
    fail(recurring)
    fail(recurring, "t-1")
    fail(recurring, problem=ValueError("bytes"))
    fail(recurring, problem=ValueError("bytes"))
    assert lines(caplog) == ["flush of t-0: disk", "flush of t-0: disk", "flush of t-0: bytes"]


def test_a_failure_after_a_quiet_time_is_a_first_one(
    recurring: Recurring, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(recurring)
    clock.now_s = QUIET_S + 1
    fail(recurring)
    assert lines(caplog) == ["flush of t-0: disk"] * 2


def test_what_is_remembered_is_bounded(
    recurring: Recurring, caplog: pytest.LogCaptureFixture
) -> None:
    for key in range(KEYS_MAX + 1):
        fail(recurring, key)
    assert len(recurring._series) == KEYS_MAX
    caplog.clear()
    fail(recurring, KEYS_MAX)
    fail(recurring, 0)
    assert len(lines(caplog)) == 1, "the oldest key was forgotten, the newest was not"


def test_one_damaged_partition_does_not_flood_the_log(
    nursery: Nursery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The housekeeper meets it four times a second, for as long as the log is open."""
    play = Play(nursery, tmp_path / "log", config={"flush.ms": 1})
    victim = play.enter()
    play.append(victim)
    nursery.end(victim)
    file = next((tmp_path / "log" / "t-0").glob("*.log"))
    content = bytearray(file.read_bytes())
    content[70] ^= 1
    file.write_bytes(content)
    log = embedlog.open(tmp_path / "log", config={"housekeeping": False})
    for _ in range(5):
        log._housekeeper.tick()
    for _ in range(5):
        log.housekeep()
    found = lines(caplog)
    assert len(found) == len(set(found)) > 0, found
    with pytest.raises(embedlog.CorruptRecordError):
        log.close()


def test_frequent_changes_are_one_line_in_ten_seconds_with_a_count(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    caplog.set_level(logging.INFO, logger="embedlog")
    frequent = Frequent(clock)

    def told(key: str) -> list[str]:
        caplog.clear()
        frequent.change(logger, key, f"{key} changed")
        return [record.message for record in caplog.records]

    assert told("a") == ["a changed"]
    clock.now_s = CHANGE_PAUSE_S - 0.001
    assert (told("a"), told("a"), told("b")) == ([], [], ["b changed"])
    clock.now_s = CHANGE_PAUSE_S
    assert told("a") == ["a changed (2 more since the last such message)"]
    clock.now_s *= 2
    assert told("a") == ["a changed"]
    for number in range(KEYS_MAX):
        frequent.change(logger, number, "c")
    assert len(frequent._series) == KEYS_MAX


def test_a_forked_child_logs_although_a_thread_held_the_locks() -> None:
    read, write = os.pipe()
    with log_messages._recurring._mutex, log_messages._frequent._mutex:
        child = os.fork()
        if child == 0:
            os.set_blocking(write, False)
            free = log_messages._recurring._mutex.acquire(blocking=False)
            os.write(write, b"free" if free else b"held")
            os._exit(0)
    os.close(write)
    try:
        assert os.read(read, 4) == b"free"
    finally:
        os.close(read)
        os.waitpid(child, 0)


@pytest.mark.parametrize("kind", [Recurring, Frequent])
def test_a_message_inside_of_a_message_of_the_same_thread_does_not_wait(
    kind: type[Recurring | Frequent], caplog: pytest.LogCaptureFixture
) -> None:
    """A signal handler or a finalizer may report at any instruction: the thread waited for itself
    without a deadline.
    """
    limits = kind()

    def report(key: object) -> None:
        if isinstance(limits, Recurring):
            fail(limits, key)
        else:
            limits.change(logger, key, "a change")

    class Key:
        """Reports while it is looked up."""

        def __init__(self) -> None:
            self._is_first = True

        def __hash__(self) -> int:
            if self._is_first:
                self._is_first = False
                report("inner")
            return 1

    caplog.set_level(logging.INFO)
    within(20, lambda: report(Key()))
    assert len(caplog.records) == 2
