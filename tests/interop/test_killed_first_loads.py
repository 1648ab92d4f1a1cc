"""The first opening for writing of a directory that a broker left is killed before a write: the
next one has all records.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from tests.support.broker_directories import GENERATIONS, TORN_BYTES, Generation, build
from tests.support.kafka_log_reader import ReadRecord, read_partition
from tests.support.replica_directories import CHANGES

CONFIG: dict[str, Any] = {"housekeeping": False}
by_generation = pytest.mark.parametrize(
    "generation", GENERATIONS, ids=lambda generation: generation.name
)
by_shape = pytest.mark.parametrize("compacted", [False, True], ids=["dense", "compacted"])
by_close = pytest.mark.parametrize("closed", [True, False], ids=["closed", "crashed"])
by_files = pytest.mark.parametrize("whole", [True, False], ids=["all-files", "logs-only"])


def records(path: Path, *, read_only: bool = False) -> list[ReadRecord]:
    with embedlog.open(path, read_only=read_only, config=CONFIG) as log:
        return [ReadRecord(each.offset, each.key, each.value) for each in log.scan("t").records()]


def killed(path: Path, nth: int) -> bool:
    """Open the directory in another process, which is killed before its nth write; whether it
    was.
    """
    child = os.fork()
    if child == 0:
        try:
            system.fault_arm(CHANGES, nth, "kill_before")
            records(path)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def check_each(
    tmp_path: Path, make: Callable[[Path], Path], torn: int, stride: Callable[[], int]
) -> None:
    expected = read_partition(make(tmp_path / "untouched") / "t-0", torn)
    nth = stride()
    count = 0
    while killed(path := make(tmp_path / str(nth)), nth):
        count += 1
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        try:
            assert records(copy, read_only=True) == expected, (
                f"read-only, after a kill before write {nth}"
            )
        except embedlog.UnknownTopicOrPartitionError as refused:
            # a reader cannot finish what was begun, and says so
            unfinished = str(refused)
            assert "is being created" in unfinished
        for _ in range(2):
            assert records(path) == expected, f"after a kill before write {nth}"
        cut = [each.stat().st_size for each in (path / "t-0").glob("embedlog.cut-*")]
        assert cut in ([], [torn]), f"after a kill before write {nth}"
        assert not embedlog.check(path).damaged
        with embedlog.open(path, config=CONFIG) as log, log.producer() as producer:
            assert producer.send("t", b"new", key=b"n").result(20).offset == expected[-1].offset + 1
        shutil.rmtree(path)
        shutil.rmtree(copy)
        nth += stride()
    assert count > 2
    assert records(path) == expected


@by_generation
@by_shape
@by_close
@by_files
@pytest.mark.sample(0.01)
def test_the_next_opening_has_all_records_after_some_kills(
    tmp_path: Path,
    rng: random.Random,
    generation: Generation,
    compacted: bool,
    closed: bool,
    whole: bool,
) -> None:
    def make(root: Path) -> Path:
        return build(root, generation, closed=closed, whole=whole, compacted=compacted)

    check_each(tmp_path, make, 0 if closed else TORN_BYTES, lambda: rng.randint(1, 12))


@by_generation
@by_shape
@by_close
@by_files
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_next_opening_has_all_records_after_a_kill_before_every_write(
    tmp_path: Path, generation: Generation, compacted: bool, closed: bool, whole: bool
) -> None:
    def make(root: Path) -> Path:
        return build(root, generation, closed=closed, whole=whole, compacted=compacted)

    check_each(tmp_path, make, 0 if closed else TORN_BYTES, lambda: 1)
