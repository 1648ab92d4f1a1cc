"""The leak fixture finds each kind of leak, names it, and costs little where there is none."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

import embedlog
from tests.support import leaks
from tests.support.child_pytest import run_pytest


def left(before: leaks.Snapshot) -> list[str]:
    return leaks.left_since(before, grace_s=0.01)


def test_a_descriptor_is_named_by_its_target(tmp_path: Path) -> None:
    before = leaks.Snapshot()
    with (tmp_path / "file").open("wb") as file:
        assert left(before) == [f"descriptor {file.fileno()}: {tmp_path / 'file'}"]
    assert left(before) == []


def test_a_descriptor_that_replaces_another_is_a_leak(tmp_path: Path) -> None:
    with (tmp_path / "one").open("wb") as one, (tmp_path / "two").open("wb") as two:
        before = leaks.Snapshot()
        os.dup2(two.fileno(), one.fileno())
        assert left(before) == [f"descriptor {one.fileno()}: {tmp_path / 'two'}"]


def test_the_reports_and_pipes_of_a_sanitizer_belong_to_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSAN_OPTIONS", f"history_size=4 log_path={tmp_path}/tsan exitcode=0")
    before = leaks.Snapshot()
    with (tmp_path / "tsan.7").open("wb"):
        symbolizer = os.pipe()
        assert left(before) == []
        for end in symbolizer:
            os.close(end)


def test_a_mapping_outlives_its_descriptor(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    before = leaks.Snapshot()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    mapped = system_mapping(descriptor)
    os.close(descriptor)
    assert f"mapping: {tmp_path / 'file'}" in left(before)
    assert leaks.mappings() == set(leaks._parsed()), "both ways of asking the kernel agree"
    mapped.close()
    assert left(before) == []


def system_mapping(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 4096, mmap.MAP_SHARED, mmap.PROT_READ)


def test_a_thread_is_named_and_one_that_ends_soon_is_none() -> None:
    before = leaks.Snapshot()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    assert left(before) == ["thread: forgotten"]
    end.set()
    assert leaks.left_since(before) == []
    thread.join()


def test_a_file_in_the_systems_temporary_directory_is_a_leak() -> None:
    before = leaks.Snapshot()
    path = tempfile.mkdtemp()
    assert left(before) == [f"file: {path}"]
    os.rmdir(path)
    assert left(before) == []


def test_garbage_is_no_leak(tmp_path: Path) -> None:
    class Circle:
        def __init__(self) -> None:
            self.descriptor = os.open(tmp_path, os.O_RDONLY)
            self.myself = self

        def __del__(self) -> None:
            os.close(self.descriptor)

    before = leaks.Snapshot()
    Circle()
    assert left(before) == []


def test_an_open_log_is_a_leak_unless_it_was_open_before(tmp_path: Path) -> None:
    before = leaks.Snapshot()
    with embedlog.open(tmp_path / "log") as log:
        kinds = {line.partition(":")[0].partition(" ")[0] for line in left(before)}
        assert kinds == {"descriptor", "mapping", "thread"}
        during = leaks.Snapshot()
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"v").result()
        assert left(during) == [], "files below its own directory do not count"
    assert left(before) == []


def test_what_a_wider_fixture_opens_is_granted(tmp_path: Path) -> None:
    baseline = leaks.Snapshot()
    before = leaks.Snapshot()
    with (tmp_path / "of the fixture").open("wb"):
        baseline.granted(before, leaks.Snapshot())
        with (tmp_path / "of the test").open("wb") as file:
            assert left(baseline) == [f"descriptor {file.fileno()}: {tmp_path / 'of the test'}"]


def test_a_clean_test_pays_less_than_a_millisecond() -> None:
    def cost_s() -> float:
        began = time.perf_counter()
        assert leaks.left_since(leaks.Snapshot()) == []
        return time.perf_counter() - began

    assert min(cost_s() for _ in range(50)) < 0.001


def test_a_test_that_leaks_fails(tmp_path: Path) -> None:
    """The fixture of `tests.conftest` itself: two leaks, one clean test, and one leak of a test
    that fails anyway.
    """
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        """
import threading
kept = []
def test_file(tmp_path): kept.append((tmp_path / "forgotten").open("wb"))
def test_clean(tmp_path): (tmp_path / "closed").write_bytes(b"")
def test_thread(): threading.Thread(target=threading.Event().wait, name="waits for ever", daemon=True).start()
def test_failed(tmp_path): kept.append((tmp_path / "unseen").open("wb")); assert False
"""
    )
    grace = "0.5"  # three tests leak for ever, so no longer wait finds less
    tests = f"{tmp_path}/tests"
    done = run_pytest(
        "tests.conftest",
        tmp_path / "base",
        f"--rootdir={tests}",
        tests,
        timeout_s=120,
        EMBEDLOG_LEAK_GRACE_S=grace,
    )
    assert "1 failed, 3 passed, 2 errors" in done.stdout, done.stdout
    assert "thread: waits for ever" in done.stdout
    assert "forgotten" in done.stdout
    assert "unseen (deleted)" not in done.stdout
