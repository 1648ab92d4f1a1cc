"""Mapped pages: truncated while mapped, closed during reads, and a SIGBUS of another mapping, with
other handlers installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.storage import file_names
from tests.faults.harness.processes import SANITIZED

PRELUDE = """
import ctypes, faulthandler, mmap, os, signal, sys, embedlog
faulthandler.disable()

def opened():
    log = embedlog.open(sys.argv[1], config={"housekeeping": False})
    log.create_topic("t", exist_ok=True)
    return log

def cut_under(log):
    with log.producer() as producer:
        producer.send("t", b"x").result()
        os.truncate(sys.argv[1] + "/t-0/embedlog.page", 0)
        producer.send("t", b"y").result()
    return sum(1 for _ in log.scan("t").records())

def a_fault_of_somebody_else():
    with open(sys.argv[1] + "-other", "w+b") as file:
        file.truncate(4096)
        found = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        found[0]
"""


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + code, path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "log = opened(); print(cut_under(log))",
        "faulthandler.enable(); log = opened(); print(cut_under(log))",
        "log = opened(); log.scan('t'); faulthandler.enable(); print(cut_under(log))",
        "log = opened(); faulthandler.enable(); log.close(); log = opened(); print(cut_under(log))",
        "log = opened(); faulthandler.enable(); faulthandler.disable(); print(cut_under(log))",
    ],
    ids=["alone", "before", "after", "between", "off"],
)
def test_a_page_that_is_cut_ends_no_process_whoever_handles_the_signal(
    tmp_path: Path, code: str
) -> None:
    ended = run(code, tmp_path / "log")
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


@pytest.mark.sample(0.3)
@pytest.mark.skipif(SANITIZED, reason="ASan handles SIGBUS itself")
@pytest.mark.parametrize(
    "code",
    [
        "log = opened(); a_fault_of_somebody_else()",
        "faulthandler.enable(); log = opened(); a_fault_of_somebody_else()",
        "log = opened(); faulthandler.enable(); a_fault_of_somebody_else()",
        "log = opened(); faulthandler.enable(); log.close(); log = opened(); "
        "a_fault_of_somebody_else()",
        "log = opened(); faulthandler.enable(); cut_under(log); a_fault_of_somebody_else()",
        "log = opened(); os.kill(os.getpid(), signal.SIGBUS)",
    ],
    ids=["alone", "before", "after", "each other's", "twice", "sent"],
)
def test_a_fault_of_somebody_else_ends_the_process_as_without_us(tmp_path: Path, code: str) -> None:
    assert run(code, tmp_path / "log").returncode == -signal.SIGBUS


# ---- closing -------------------------------------------------------------------------------------


def mapped(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]


@pytest.mark.parametrize("read_only", [False, True])
def test_no_file_is_mapped_behind_close_whoever_keeps_the_log(
    tmp_path: Path, read_only: bool
) -> None:
    path = tmp_path / "log"
    with embedlog.open(path) as log:
        log.create_topic("t", 3)
        other = embedlog.open(path, read_only=read_only, config={"housekeeping": False})
        with log.producer() as producer:
            producer.send("t", b"x").result()
        consumer = other.consumer("t", auto_offset_reset="earliest")
        assert len(consumer.poll(1)) == 1
        assert mapped(path)
    other.close()
    assert mapped(path) == []


def test_a_page_that_was_closed_under_a_reader_is_no_page(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        assert partition.published().log_end == 0
        page = partition._state.page
        lost = system.lost_pages()
    assert page.read() is None
    assert not page.is_alive()
    assert system.lost_pages() == lost


def test_what_is_written_to_a_held_page_reaches_its_file_though_it_is_closed(
    tmp_path: Path,
) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        partition.open()
        page = partition._state.page
        assert page.pin()
        page.close()
        assert not page.pin()
        before = (tmp_path / "log" / "t-0" / file_names.PAGE).read_bytes()
        page.set(system.WORD_SYNC_FROM, 1234)
        after = (tmp_path / "log" / "t-0" / file_names.PAGE).read_bytes()
        assert before != after
        page.unpin()
        page.set(system.WORD_SYNC_FROM, 99)
        assert (tmp_path / "log" / "t-0" / file_names.PAGE).read_bytes() == after
        assert partition.published().log_end == 0  # it is mapped again


def test_a_sync_beside_a_close_leaves_no_intent(tmp_path: Path) -> None:
    """Its words reach the page, or the next process would take it for a sync that failed."""
    path = tmp_path / "log"
    log = embedlog.open(path, config={"housekeeping": False})
    log.create_topic("t", config={"flush.ms": 3_600_000})
    with log.producer() as producer:
        producer.send("t", b"x").result()
    other = embedlog.open(path, config={"housekeeping": False})
    partition = log._engine.partition("t", 0)
    watched = other._engine.partition("t", 0)
    watched.open()
    system.fault_arm(["point"], 1, "delay", 300_000, name="sync-segment")

    def sync() -> None:
        # as of a deleted topic: the log is open
        with contextlib.suppress(embedlog.UnknownTopicOrPartitionError):
            partition.sync()

    thread = threading.Thread(target=sync)
    thread.start()
    while not watched._state.page.word(system.WORD_SYNC_OWNER):
        os.sched_yield()
    partition.close()
    thread.join()
    system.fault_off()
    assert watched._state.page.word(system.WORD_SYNC_OWNER) == 0
    other.flush()
    assert not list((path / "t-0").glob(file_names.POISON + "*"))
    assert other.durable_offset("t", 0) == 1
    log.close()
    other.close()


def test_who_sleeps_on_a_page_is_woken_by_others_though_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with (
        embedlog.open(path, config={"housekeeping": False}) as log,
        embedlog.open(path, config={"housekeeping": False}) as other,
    ):
        log.create_topic("t")
        consumer = other.consumer("t", auto_offset_reset="latest")
        found: list[embedlog.Record] = []
        thread = threading.Thread(target=lambda: found.extend(consumer.poll(60)))
        thread.start()
        with log.producer() as producer:
            producer.send("t", b"x").result()
        thread.join()
        assert [record.value for record in found] == [b"x"]
