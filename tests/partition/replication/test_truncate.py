"""Cuts of a replica's log, complete and interrupted: the result is the log of the remaining
batches.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.partition.partition import Partition
from embedlog.storage import file_names
from tests.support.replica_logs import Content, boundaries, content, copy, fill, lead, replica
from tests.support.stamped_batches import run_of

CHANGING = ["open", "pwrite", "ftruncate", "rename", "unlink", "fsync", "fdatasync"]
POINTS = [
    "cut-intent",
    "cut-begun",
    "cut-durable",
    "cut-manifest",
    "cut-segment",
    "cut-indexes",
    "cut-done",
    "cut-published",
]
SEED = 20261122


def source(path: Path, seed: int = SEED) -> None:
    with replica(path) as partition:
        fill(partition, random.Random(seed))
        partition.sync()


def reference(path: Path, kept: Path, end: int) -> Content:
    """The same batches up to `end`, written into another directory."""
    with replica(path) as old, replica(kept) as new:
        copy(old, new, end, old.published().epoch)
        return content(new)


def cut(partition: Partition, offset: int) -> None:
    with partition.replica.exclusive() as held:
        held.truncate(offset)


def agree(found: Content, expected: Content) -> None:
    assert found.bounds[:4] == expected.bounds[:4]
    assert found.log == expected.log
    assert found.aborted == expected.aborted
    assert found.epochs == expected.epochs
    assert found.producers[6:] == expected.producers[6:] or sorted(found.producers) == sorted(
        expected.producers
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_leaves_the_log_of_the_remaining_batches(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    source(tmp_path / "first", seed)
    with replica(tmp_path / "first") as partition:
        ends = boundaries(partition)
    for number in range(4):
        end = rng.choice(ends)
        shutil.copytree(tmp_path / "first", tmp_path / f"cut{number}")
        with replica(tmp_path / f"cut{number}") as partition:
            inside = rng.random() < 0.3 and end + 1 not in ends and end < ends[-1]
            cut(partition, end + inside)
            found = content(partition)
            now = partition.published()
            agree(found, reference(tmp_path / "first", tmp_path / f"kept{number}", end))
            assert (now.log_end, now.generation % 2) == (end, 0)
            assert partition.durable_offset <= end
            lead(partition, now.epoch + 1)
            assert partition.append(run_of(b"next")).base_offset == end
            later = content(partition)
        with replica(tmp_path / f"cut{number}") as partition:
            assert content(partition).log == later.log
            assert partition.published().epoch == later.epochs[-1][0], (
                "a load in a set begins no epoch"
            )


def test_a_cut_that_fails_at_any_call_is_completed_by_the_next_use(tmp_path: Path) -> None:
    source(tmp_path / "first")
    with replica(tmp_path / "first") as partition:
        ends = boundaries(partition)
        end = ends[len(ends) // 3]
        assert partition.published().segment_base > end, "the cut removes segments"
    expected = reference(tmp_path / "first", tmp_path / "kept", end)
    nth = 0
    struck = True
    begun = 0
    while struck:
        nth += 1
        path = tmp_path / "cut"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "first", path)
        with replica(path) as partition:
            partition.open()
            system.fault_arm(CHANGING, nth, "fail", errno.EIO)
            try:
                cut(partition, end)
            except EmbedlogError:
                begun += bool(partition._state.page.word(system.WORD_CUT_INTENT))
            struck = bool(system.fault_counters()[1])
            system.fault_off()
            if (
                struck
                and not partition._state.page.word(system.WORD_CUT_INTENT)
                and partition.published().log_end != end
            ):
                continue  # it was not begun
            with partition.replica.exclusive() as held:
                assert held.published.log_end == end
            agree(content(partition), expected)
            assert partition._state.page.word(system.WORD_CUT_INTENT) == 0
    assert begun >= 15, "hardly any call was hit"


def killed(path: Path, point: str, end: int, restart: bool) -> None:
    """A process that is killed at a point of a cut."""
    pid = os.fork()
    if pid == 0:
        try:
            with replica(path) as partition:
                partition.open()
                system.fault_arm(["point"], 1, "kill_before", name=point)
                with partition.replica.exclusive() as held:
                    held.restart(end) if restart else held.truncate(end)
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 9, "it was killed"


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("lost", [False, True], ids=["page kept", "page lost"])
@pytest.mark.parametrize("point", POINTS)
def test_a_load_after_a_kill_in_a_cut_finds_a_prefix_that_has_the_remaining_log(
    tmp_path: Path, point: str, lost: bool
) -> None:
    source(tmp_path / "log")
    with replica(tmp_path / "log") as partition:
        ends = boundaries(partition)
        whole = content(partition)
    end = ends[len(ends) // 3]
    expected = reference(tmp_path / "log", tmp_path / "kept", end)
    killed(tmp_path / "log", point, end, restart=False)
    if lost:
        (tmp_path / "log" / "t-0" / file_names.PAGE).unlink()
    with replica(tmp_path / "log") as partition:
        found = content(partition)
        assert whole.log.startswith(found.log)
        assert found.log.startswith(expected.log)
        cut(partition, end)
        agree(content(partition), expected._replace(epochs=content(partition).epochs))


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("point", POINTS)
def test_a_load_after_a_kill_in_a_restart_finds_a_prefix_or_the_new_start(
    tmp_path: Path, point: str
) -> None:
    source(tmp_path / "log")
    with replica(tmp_path / "log") as partition:
        whole = content(partition)
    killed(tmp_path / "log", point, 500, restart=True)
    with replica(tmp_path / "log") as partition:
        found = content(partition)
        assert whole.log.startswith(found.log)
        with partition.replica.exclusive() as held:
            held.restart(500)
        now = partition.published()
        assert (now.log_start, now.log_end, now.high_watermark, now.first_unstable) == (
            500,
            500,
            500,
            -1,
        )


def test_a_log_that_begins_again_is_empty_for_each_reader_and_appender(tmp_path: Path) -> None:
    source(tmp_path / "log")
    for start in (500, 40):
        with replica(tmp_path / "log") as partition:
            with partition.replica.exclusive() as held:
                held.restart(start)
                assert held.epochs().entries == []
            assert content(partition).bounds[:3] == (start, start, -1)
            assert partition.open_transactions() == []
            lead(partition, partition.published().epoch + 1)
            assert partition.append(run_of(b"a", b"b")).base_offset == start
            partition.sync()
        with replica(tmp_path / "log") as partition:
            assert (partition.published().log_start, partition.published().log_end) == (
                start,
                start + 2,
            )


def test_descriptors_of_replaced_files_are_not_used_again(tmp_path: Path) -> None:
    """Another handle has the active segment open; after a cut a new segment gets the same name."""
    source(tmp_path / "log")
    with replica(tmp_path / "log") as one:
        epoch = one.published().epoch + 1
        lead(one, epoch)
        one.append(run_of(b"x" * 1400))
        one.append(run_of(b"y"))
        base = one.published().segment_base
        end = one.published().log_end
        with replica(tmp_path / "log") as other:
            other.replica.require(epoch, all_in_sync=False)
            assert other.append(run_of(b"other")).base_offset == end
            cut(one, base - 1)
            lead(one, epoch + 1)
            other.replica.require(epoch + 1, all_in_sync=False)
            one.append(run_of(b"z" * 1400))
            one.append(run_of(b"z"))
            assert one.published().segment_base == base
            other.append(run_of(b"last"))
            assert content(other).log == content(one).log
            other.sync()
            assert other.durable_offset == one.published().log_end
