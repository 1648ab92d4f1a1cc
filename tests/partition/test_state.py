"""A reader without the right to write, while others come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.partition import state as state_module
from embedlog.partition.partition import Partition
from embedlog.partition.state import PartitionState
from embedlog.storage import file_names
from embedlog.storage.control_page import PageFile
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


def zero_page(partition: Partition) -> None:
    """Destroy a control page of which no process has a writer any more."""
    path = partition.path / file_names.PAGE
    path.write_bytes(bytes(path.stat().st_size))


def test_a_reader_whose_page_is_destroyed_after_the_last_writer_has_left_reads_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "LIVE_CHECK_INTERVAL_NS", 1 << 62)  # no look meanwhile
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as writer:
        writer.create_topic("t")
        with writer.producer() as producer:
            producer.send("t", b"a").result()
        reader = embedlog.open(tmp_path / "log", read_only=True)
        partition = reader._engine.partition("t", 0)
        assert partition.published().log_end == 1
        assert partition._state.page_file is not None
    with reader:
        zero_page(partition)
        assert partition.published().log_end == 1
        assert partition._state.page_file is None
        assert partition.durable_offset == 1
        assert seen(reader) == 1


class Fading:
    """A descriptor of a class: the value is there for the first read, as if another thread had
    closed the partition after it.
    """

    def __init__(self, value: PageFile | None) -> None:
        self.values = [value]

    def __get__(self, instance: object, owner: type) -> PageFile | None:
        return self.values.pop() if self.values else None

    def __set__(self, instance: object, value: object) -> None:
        raise AssertionError("nothing is set")


@pytest.mark.parametrize(
    "use",
    [
        lambda state: state.is_kept(),
        lambda state: state.lock_timeout(),
        lambda state: state.durable_offset,
    ],
    ids=["is_kept", "lock_timeout", "durable_offset"],
)
def test_a_close_beside_a_use_is_no_error_of_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[PartitionState], object]
) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        state = log._engine.partition("t", 0)._state
        state.ensure_open()
        mapped = state.page_file
        assert mapped is not None
        monkeypatch.setattr(PartitionState, "ensure_open", lambda state, deadline_ns=0: None)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionState, "page_file", Fading(mapped), raising=False)
            use(state)
