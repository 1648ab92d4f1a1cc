"""A probe says whether a disk takes a write now, and never waits for one that hangs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from embedlog._native import probe, system
from tests.support.producer_helpers import wait_until

POSITION = 96
ANSWER_NS = 10_000_000_000  # for an answer on a loaded machine
SHORT_NS = 50_000_000
WRITES = ("open", "pwrite")
# three threads ask while the first one of them waits for a thread that is refused
WITHOUT_MEMORY = """
import json, pathlib, resource, sys, threading
from embedlog._native import probe, system

disk = probe.Probe(sys.argv[1], 96)
answers = []
begin = threading.Event()

def ask():
    begin.wait()
    answers.extend(probe.ask([disk], 10_000_000_000))

askers = [threading.Thread(target=ask) for _ in range(3)]
for asker in askers:
    asker.start()
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
system.fault_arm(["point"], 1, "delay", 200_000, name="probe-thread")
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), -1))
begin.set()
for asker in askers:
    asker.join()
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
system.fault_off()
print(json.dumps([answers, probe.ask([disk], 10_000_000_000)]))
"""


def make_disk(path: Path) -> probe.Probe:
    path.write_bytes(b"a note of the holder")
    return probe.Probe(str(path), POSITION)


def threads() -> int:
    """The number of threads of probes in this process."""
    names = []
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            names.append(Path(f"/proc/self/task/{number}/comm").read_text().strip())
    return names.count("embedlog-probe")


def test_an_answer_is_a_byte_behind_the_note(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "lock")
    assert probe.ask([disk], ANSWER_NS) == [0]
    data = (tmp_path / "lock").read_bytes()
    assert data == b"a note of the holder".ljust(POSITION, b"\0") + b"\n"
    assert probe.ask([disk, disk], ANSWER_NS) == [0, 0]
    assert probe.ask([], ANSWER_NS) == []


def test_an_error_of_the_disk_is_its_answer(tmp_path: Path) -> None:
    absent = probe.Probe(str(tmp_path / "absent"), POSITION)
    disk = make_disk(tmp_path / "lock")
    assert probe.ask([absent, disk], ANSWER_NS) == [-1000 - errno.ENOENT, 0]
    assert not (tmp_path / "absent").exists()
    system.fault_arm(["pwrite"], 1, "fail", errno.EIO, name="lock")
    assert probe.ask([disk], ANSWER_NS) == [-1000 - errno.EIO]
    assert probe.ask([disk], ANSWER_NS) == [0]


@pytest.mark.parametrize("kind", WRITES)
def test_a_disk_that_hangs_is_silent_and_the_others_answer(tmp_path: Path, kind: str) -> None:
    hanging = make_disk(tmp_path / "hanging")
    healthy = make_disk(tmp_path / "healthy")
    system.fault_arm([kind], 1, "hang", name="hanging")
    for _ in range(3):
        assert probe.ask([hanging], SHORT_NS) == [probe.SILENT]
    assert probe.ask([healthy], ANSWER_NS) == [0]
    system.fault_off()
    assert probe.ask([hanging, healthy], ANSWER_NS) == [0, 0]


def test_a_probe_ends_although_its_disk_hangs(tmp_path: Path) -> None:
    wait_until(lambda: threads() == 0, 30)  # of earlier tests
    disk = make_disk(tmp_path / "lock")
    system.fault_arm(["pwrite"], 1, "hang", name="lock")
    assert probe.ask([disk], SHORT_NS) == [probe.SILENT]
    del disk
    wait_until(lambda: threads() == 1)
    system.fault_off()
    wait_until(lambda: threads() == 0)


def test_the_thread_ends_with_the_probe(tmp_path: Path) -> None:
    wait_until(lambda: threads() == 0, 30)  # of earlier tests
    disks = [make_disk(tmp_path / str(number)) for number in range(5)]
    assert probe.ask(disks, ANSWER_NS) == [0] * 5
    wait_until(lambda: threads() == 5)
    del disks
    wait_until(lambda: threads() == 0)


def test_the_thread_leaves_when_the_owner_rests_and_returns_with_a_question(tmp_path: Path) -> None:
    wait_until(lambda: threads() == 0, 30)  # of earlier tests
    disk = make_disk(tmp_path / "lock")
    for _ in range(20):
        assert probe.ask([disk], ANSWER_NS) == [0]
        disk.rest()
        wait_until(lambda: threads() == 0)
    disk.rest()  # also without a thread
    assert probe.ask([disk], ANSWER_NS) == [0]


def test_a_thread_that_hangs_leaves_after_its_answer(tmp_path: Path) -> None:
    wait_until(lambda: threads() == 0, 30)  # of earlier tests
    disk = make_disk(tmp_path / "lock")
    system.fault_arm(["pwrite"], 1, "hang", name="lock")
    assert probe.ask([disk], SHORT_NS) == [probe.SILENT]
    disk.rest()
    wait_until(lambda: threads() == 1)
    system.fault_off()
    wait_until(lambda: threads() == 0)
    assert probe.ask([disk], ANSWER_NS) == [0]


def test_the_thread_of_a_directory_that_is_not_used_any_more_ends(tmp_path: Path) -> None:
    wait_until(lambda: threads() == 0, 30)  # of earlier tests
    disk = make_disk(tmp_path / "lock")
    assert probe.ask([disk], ANSWER_NS) == [0]
    wait_until(lambda: threads() == 0, 30)
    assert probe.ask([disk], ANSWER_NS) == [0]


def test_many_threads_ask_while_the_owner_rests(tmp_path: Path) -> None:
    """No question is lost between a thread that leaves and the next one."""
    wait_until(lambda: threads() == 0, 30)  # of earlier tests
    disk = make_disk(tmp_path / "lock")
    answers: list[int] = []

    def ask() -> None:
        for _ in range(200):
            answers.extend(probe.ask([disk], ANSWER_NS))
            disk.rest()

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert answers == [0] * 800
    wait_until(lambda: threads() == 0)


def test_many_threads_ask_the_same_disk(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "lock")
    answers: list[int] = []

    def ask() -> None:
        for _ in range(200):
            answers.extend(probe.ask([disk], ANSWER_NS))

    askers = [threading.Thread(target=ask) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert answers == [0] * 1600


def test_a_thread_that_cannot_be_started_is_an_answer_for_all_who_ask(tmp_path: Path) -> None:
    """In another process: here the memory of an ended thread would be used again."""
    make_disk(tmp_path / "lock")
    arguments = [sys.executable, "-c", WITHOUT_MEMORY, str(tmp_path / "lock")]
    child = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(child.stdout) == [[-1000 - errno.EAGAIN] * 3, [0]]


def test_a_forked_child_has_no_answers(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "lock")
    assert probe.ask([disk], ANSWER_NS) == [0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if probe.ask([disk], ANSWER_NS) == [probe.SILENT] else 2
            del disk
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert probe.ask([disk], ANSWER_NS) == [0]


def test_a_signal_ends_no_question(tmp_path: Path) -> None:
    """The thread takes no signals: the program's handler runs in its own thread."""
    disk = make_disk(tmp_path / "lock")
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while len(seen) < 20:
            assert probe.ask([disk], ANSWER_NS) == [0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_more_probes_than_one_question_has_are_refused(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "lock")
    assert probe.ask([disk] * probe.COUNT_MAX, ANSWER_NS) == [0] * probe.COUNT_MAX
    codes = probe.ask([disk] * (probe.COUNT_MAX + 1), ANSWER_NS)
    assert all(code < 0 for code in codes)
