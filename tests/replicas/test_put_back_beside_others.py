"""A directory is put back to an earlier copy, and several programs open the set at the same time.

One of them enters the directory first. It may be slow or killed before it registers it: no other
one takes the copy for the registered directory, and it stays away until it is replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.errors import LeaderNotAvailableError, NotEnoughDirectoriesError
from embedlog.replicas.members import member_directories
from embedlog.replicas.rules.records import LOG
from embedlog.storage import file_names
from embedlog.storage.locks import LockFile
from tests.support.put_back_directories import NODES, killed, level, logs, send, values

BEFORE = [b"before %d" % number for number in range(10)]
AFTER = [b"after %d" % number for number in range(10)]


def begin(
    root: Path,
    least: int,
    node: int,
    *,
    in_order: bool,
    assignment: Sequence[int] = NODES,
) -> None:
    """A set in which one directory was put back to a copy from before the last acknowledged
    records.
    """
    with embedlog.open(
        [root / f"d{each}" for each in NODES], config={"offsets.topic.num.partitions": 1}
    ) as log:
        log.create_topic("t", assignment={0: [*assignment]}, config={"min.insync.replicas": least})
        send(log, *BEFORE)
    shutil.copytree(root / f"d{node}", root / "copy")
    if in_order:
        with embedlog.open([root / f"d{each}" for each in NODES]) as log:
            send(log, *AFTER)
    else:
        killed(root, *AFTER)
    shutil.rmtree(root / f"d{node}")
    (root / "copy").rename(root / f"d{node}")


@contextlib.contextmanager
def waiting_inside(root: Path, node: int, patch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A process that has entered this directory first, and opens the set when a byte is written;
    its id, and the pipe.
    """
    entered, enter_done = os.pipe()
    may_continue, go = os.pipe()
    child = os.fork()
    if child == 0:
        enter = member_directories.enter

        def enter_and_wait(make: Any, path: Path, **options: Any) -> member_directories.OpenMember:
            result = enter(make, path, **options)
            if path.name == f"d{node}":
                os.write(enter_done, b"x")
                os.read(may_continue, 1)
            return result

        patch.setattr(member_directories, "enter", enter_and_wait)
        nodes = [node, *(each for each in NODES if each != node)]
        try:
            embedlog.open([root / f"d{each}" for each in nodes]).close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(entered, 1) == b"x"
    try:
        yield child, go
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        for fd in (entered, enter_done, may_continue, go):
            os.close(fd)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("in_order", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("end", ["is killed", "continues"])
def test_a_process_that_entered_the_copy_first_changes_nothing(
    tmp_path: Path, end: str, least: int, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, least, 3, in_order=in_order)
    paths = [tmp_path / f"d{node}" for node in NODES]
    with waiting_inside(tmp_path, 3, monkeypatch) as (child, go), embedlog.open(paths) as log:
        assert values(log) == BEFORE + AFTER
        assert log.replicas("t").partitions[0].leader != 3
        if end == "is killed":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # its locks are free now
        else:
            os.write(go, b"x")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        send(log, b"later")
        assert log.replicas("t").partitions[0].isr == (1, 2)
        log.replace_directory(3, tmp_path / "d3")
        level(log)
        assert values(log) == [*BEFORE, *AFTER, b"later"]
    assert len(logs(tmp_path)) == 1


@pytest.mark.parametrize("node", [2, 1], ids=["a follower", "the first one"])
def test_another_directory_may_be_the_one_that_was_put_back(
    tmp_path: Path, node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, 2, node, in_order=False)
    with (
        waiting_inside(tmp_path, node, monkeypatch),
        embedlog.open([tmp_path / f"d{each}" for each in NODES]) as log,
    ):
        assert values(log) == BEFORE + AFTER


def test_a_process_that_waits_in_a_directory_in_order_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any process registers a directory that continues, also after a kill of all that used it."""
    begin(tmp_path, 2, 3, in_order=False)
    with (
        waiting_inside(tmp_path, 1, monkeypatch),
        embedlog.open([tmp_path / f"d{node}" for node in NODES]) as log,
    ):
        assert values(log) == BEFORE + AFTER
        send(log, b"later")
        assert {1, 2} <= set(log.replicas("t").partitions[0].isr)


def open_at_once(root: Path, orders: list[list[int]]) -> None:
    """As many processes as orders open the set at one moment, see all records, and close it."""
    may_begin, go = os.pipe()
    children = []
    for order in orders:
        child = os.fork()
        if child == 0:
            os.close(go)
            try:
                os.read(may_begin, 1)
                with embedlog.open([root / f"d{node}" for node in order]) as log:
                    assert values(log) == BEFORE + AFTER
                    assert log.replicas("t").partitions[0].leader != 3
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    os.close(go)
    os.close(may_begin)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(
        children
    )


def check_round(root: Path, programs: int) -> None:
    begin(root, 2, 3, in_order=False)
    open_at_once(root, [[1, 2, 3], [3, 1, 2], [2, 3, 1], [3, 2, 1]][:programs])
    with embedlog.open([root / f"d{node}" for node in NODES]) as log:
        assert values(log) == BEFORE + AFTER
        log.replace_directory(3, root / "d3")
        level(log)
    assert len(logs(root)) == 1


@pytest.mark.parametrize("programs", [2, 4])
def test_programs_that_open_at_once_after_a_restore_have_every_record(
    tmp_path: Path, programs: int
) -> None:
    check_round(tmp_path, programs)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("programs", [1, 2, 4])
def test_one_hundred_restores_are_right(tmp_path: Path, programs: int) -> None:
    began = time.monotonic()
    for number in range(34):
        (tmp_path / str(number)).mkdir()
        check_round(tmp_path / str(number), programs)
        shutil.rmtree(tmp_path / str(number))
    print(f"{programs} programs: 34 of 34 rounds in {time.monotonic() - began:.0f} s")


# ---- no majority can be asked --------------------------------------------------------------------


@contextlib.contextmanager
def held_by_another_process(root: Path, nodes: Sequence[int]) -> Iterator[None]:
    """The locks of these copies of the decision log are not free."""
    taken, take_done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            copies = [root / f"d{node}" / f"{LOG}-0" / file_names.LOCK for node in nodes]
            held = [LockFile(path).try_lock() for path in copies]
            os.write(take_done, b"x" if all(held) else b"-")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(taken, 1) == b"x"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(taken)
        os.close(take_done)


@pytest.mark.parametrize("in_order", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_nothing_is_read_from_a_put_back_directory_without_a_majority(
    tmp_path: Path, order: tuple[int, ...], read_only: bool, in_order: bool
) -> None:
    """The put back directory was the leader, and the copies of the others are locked: a reader gets
    an error, or what an intact one has. A follower may not know yet that the last record counts.
    """
    begin(tmp_path, 2, 3, in_order=in_order, assignment=(3, 1, 2))
    paths = [tmp_path / f"d{node}" for node in order]
    every = BEFORE + AFTER
    with (
        held_by_another_process(tmp_path, (1, 2)),
        contextlib.suppress(LeaderNotAvailableError, NotEnoughDirectoriesError),
        embedlog.open(paths, read_only=read_only, config={"lock.timeout.ms": 1500}) as log,
    ):
        assert values(log) in ([every, every[:-1]] if read_only else [every])
    with embedlog.open(paths) as log:
        assert values(log) == every
