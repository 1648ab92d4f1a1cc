"""The end of the housekeeper's thread with its log: also if the thread is stuck, and after an
interrupt.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import embedlog
from embedlog.admin.housekeeper import Housekeeper
from embedlog.replicas.members import directory_workers
from embedlog.storage import file_names
from tests.support.interrupts import within

DIRECTORIES = [["one"], ["one", "two"]]


def at(tmp_path: Path, names: list[str]) -> Path | list[Path]:
    paths = [tmp_path / name for name in names]
    return paths if len(paths) > 1 else paths[0]


def open_lock_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # of the listing itself
            continue
    return [each for each in found if each.endswith(file_names.HOUSEKEEPER)]


@pytest.mark.parametrize("names", DIRECTORIES, ids=["one directory", "a set"])
def test_the_close_does_not_wait_without_limit_for_a_stuck_housekeeper(
    tmp_path: Path,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread may wait for what the closing thread holds, where a signal handler interrupted
    it.
    """
    reached = threading.Event()
    go = threading.Event()

    def stuck(housekeeper: Housekeeper) -> None:
        reached.set()
        assert go.wait(60)

    monkeypatch.setattr(Housekeeper, "_tend_transactions", lambda housekeeper: stuck(housekeeper))
    # it calls into directories after their close: those threads end soon
    monkeypatch.setattr(directory_workers, "IDLE_S", 0.2)
    log = embedlog.open(
        at(tmp_path, names), config={"log.flush.scheduler.interval.ms": 10, "lock.timeout.ms": 300}
    )
    housekeeper = log._housekeeper
    assert housekeeper is not None
    thread = housekeeper._thread
    try:
        assert thread is not None
        assert reached.wait(20)
        within(20, log.close)
        assert "still at work after 300 ms" in caplog.text
        assert thread.is_alive()
    finally:
        go.set()
    thread.join(20)
    assert not thread.is_alive()
    assert open_lock_files() == [], "the thread closes what it has used"


@pytest.mark.parametrize("names", DIRECTORIES, ids=["one directory", "a set"])
def test_an_interrupt_of_the_wait_for_the_housekeeper_leaves_the_directories(
    tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they stayed open until the process ended: nobody calls `close` again after Ctrl-C."""
    real = Housekeeper.stop

    def interrupted(housekeeper: Housekeeper) -> None:
        real(housekeeper)
        raise KeyboardInterrupt

    log = embedlog.open(at(tmp_path, names))
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"v").result(20)
    monkeypatch.setattr(Housekeeper, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.close()
    for name in names:
        assert (tmp_path / name / file_names.CLEAN_MARK).exists()
    monkeypatch.undo()
    log.close()
