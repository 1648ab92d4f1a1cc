"""Truncation after a failed sync, interrupted at every call: the next process completes it, without
reopening.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.partition.partition import Partition
from embedlog.storage import file_names
from tests.support.stamped_batches import run_of

QUIET = {"housekeeping": False}
CHANGING = ["open", "pwrite", "ftruncate", "rename", "unlink", "fsync"]
BAD = 2
COUNT = 9


def value(number: int) -> bytes:
    return b"%d" % number * 60


def damaged(path: Path, segment_bytes: int) -> embedlog.Log:
    """A log whose third batch of nine is damaged, in its only segment or with later ones."""
    log = embedlog.open(path, config=QUIET)
    log.create_topic("t", config={"segment.bytes": segment_bytes})
    partition = log._engine.partition("t", 0)
    for number in range(COUNT):
        partition.append(run_of(value(number)))
    first = file_names.segment_path(partition.path, 0)
    found = partition.fetch(0, max_bytes=1 << 20).batches
    with first.open("r+b") as file:
        file.seek(int(found["position"][BAD]) + 70)
        file.write(b"!!!")
    return log


def records(partition: Partition) -> list[tuple[int, bytes]]:
    # another handle: without cached state
    with embedlog.open(partition.path.parent, config=QUIET) as log:
        return [(record.offset, record.value) for record in log.scan("t").records()]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 500], ids=["one segment", "several"])
def test_a_cut_that_fails_anywhere_is_finished_by_the_next_append(
    tmp_path: Path, segment_bytes: int
) -> None:
    nth = 0
    felt = 0
    struck = True
    while struck:
        nth += 1
        with damaged(tmp_path / str(nth), segment_bytes) as log:
            partition = log._engine.partition("t", 0)
            epoch = partition.published().epoch
            assert (
                len(file_names.bases([path.name for path in partition.path.iterdir()])) > 1
            ) == (segment_bytes == 500)
            system.fault_arm(CHANGING, nth, "fail", errno.EIO)
            try:
                assert partition._syncer.cut_lost(0) == BAD
            except EmbedlogError:
                felt += 1
            struck = bool(system.fault_counters()[1])
            system.fault_off()
            begun = (
                partition._state.page.word(system.WORD_CUT_INTENT)
                or partition.published().log_end == BAD
            )
            if begun:
                assert partition.append(run_of(b"next")).base_offset == BAD
            else:
                assert partition._syncer.cut_lost(0) == BAD
                partition.append(run_of(b"next"))
            now = partition.published()
            assert (now.generation % 2, partition._state.page.word(system.WORD_CUT_INTENT)) == (
                0,
                0,
            )
            assert now.epoch > epoch
            assert records(partition) == [(0, value(0)), (1, value(1)), (BAD, b"next")]
        with embedlog.open(tmp_path / str(nth), config=QUIET) as log:
            assert [record.offset for record in log.scan("t").records()] == [0, 1, BAD]
    assert felt >= 8, "hardly any call was hit"


def test_a_sync_of_a_removed_directory_writes_no_error_about_its_mark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A set has reported the loss of the directory; the flush in the background meets it too."""
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", config={"segment.bytes": 200})
        partition = log._engine.partition("t", 0)
        partition.append(run_of(value(0)))
        partition._syncer.sync(1, partition._state.deadline())
        partition.append(run_of(value(1)))
        (tmp_path / "log").rename(tmp_path / "away")
        with caplog.at_level(logging.INFO, "embedlog"), pytest.raises(EmbedlogError):
            partition._syncer.sync(2, partition._state.deadline())
        assert [text for text in caplog.messages if "mark" in text] == []
        (tmp_path / "away").rename(tmp_path / "log")
        partition._syncer.sync(2, partition._state.deadline())
        assert partition._state.page.word(system.WORD_DURABLE) == 2
