"""Losses of the files of a replica, and the wait until it is in sync again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import embedlog
from tests.support.verified_sets import isr, segment_of

NODES = (1, 2, 3)


def without_directory(root: Path, node: int) -> None:
    shutil.rmtree(segment_of(root, node).parent)


def without_segment(root: Path, node: int) -> None:
    segment_of(root, node).unlink()


def truncated(root: Path, node: int) -> None:
    os.truncate(segment_of(root, node), segment_of(root, node).stat().st_size // 3)


def until_in_sync(log: embedlog.Log, members: tuple[int, ...] = NODES) -> None:
    """Housekeeping by hand until the ISR is complete, at most ten times."""
    for _ in range(10):
        if isr(log) == [*members]:
            return
        log.housekeep()
    assert isr(log) == [*members]
