"""A reader without the right to write, while others come and go."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import embedlog
from tests.faults.harness.processes import Nursery
from tests.faults.harness.stage import FakeBroker, Play

PATIENCE_S = 5


def seen(reader: embedlog.Log) -> int:
    return sum(1 for _ in reader.scan("t").records())


def until(reader: embedlog.Log, count: int) -> None:
    for _ in range(PATIENCE_S * 20):
        if seen(reader) == count:
            return
        threading.Event().wait(0.05)
    assert seen(reader) == count


def test_a_reader_sees_what_a_writer_left_that_came_and_went_between_its_looks(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    with embedlog.open(tmp_path / "log", read_only=True) as reader:
        assert seen(reader) == 0
        for count in (1, 2):
            writer = play.enter()
            play.append(writer)
            play.leave(writer)
            until(reader, count)


def test_a_reader_follows_writers_that_come_and_go_under_its_eyes(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log")
    with embedlog.open(tmp_path / "log", read_only=True) as reader:
        for count in (1, 3, 5):
            writer = play.enter()
            play.append(writer)
            until(reader, count)
            play.append(writer)
            until(reader, count + 1)
            play.leave(writer)
            until(reader, count + 1)


def test_a_reader_that_followed_a_writer_refuses_the_broker_behind_it(
    nursery: Nursery, tmp_path: Path
) -> None:
    """A page that no process has open does not show the changes of a broker to the files."""
    play = Play(nursery, tmp_path / "log")
    writer = play.enter()
    play.append(writer)
    with embedlog.open(tmp_path / "log", read_only=True) as reader:
        until(reader, 1)
        play.leave(writer)
        broker = FakeBroker(tmp_path / "log")
        assert broker.start()
        threading.Event().wait(0.2)
        with pytest.raises(embedlog.DirectoryInUseError):
            seen(reader)
        broker.append(b"from the broker")
        broker.mark_and_unlock()
        broker.unlink()
        until(reader, 2)
