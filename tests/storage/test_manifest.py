"""The manifest's file: appended entries count, after any damage, and it stays small."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedlog.storage import file_names
from embedlog.storage.manifest import CLOSED, Manifest, SegmentInfo, Start

TOPIC = bytes(range(16))


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The manifest of a partition with three sealed segments that was closed in order."""
    manifest = Manifest(tmp_path, TOPIC)
    manifest.begin(Start(0))
    for base in range(0, 30, 10):
        manifest.append(Start(0), SegmentInfo(base, 100, base + 10))
        (tmp_path / file_names.file_name(base, file_names.LOG)).touch()
    manifest.append(Start(0), SegmentInfo(30, 50, 35, kind=CLOSED))
    return tmp_path


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        before = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([before[0] ^ 1 << bit]), position)


def test_a_manifest_that_is_damaged_in_the_middle_is_written_anew(closed: Path) -> None:
    """Entries after the valid part would else come before older ones, which were read after it."""
    path = closed / file_names.MANIFEST
    whole = Manifest(closed, TOPIC)
    whole.refresh()
    flip(path, 32 + 100, 3)
    damaged = Manifest(closed, TOPIC)
    damaged.refresh()
    assert not damaged.is_whole
    damaged.append(Start(5), SegmentInfo(7, 1, 8))
    again = Manifest(closed, TOPIC)
    again.refresh()
    assert again.is_whole
    assert again.start == Start(5)
    assert set(again.segments) == set(damaged.segments)
    assert again.closed is None
    assert whole.closed is not None


def test_who_goes_through_the_segments_is_not_disturbed(closed: Path) -> None:
    """Another thread of the same process reads the appended entries, or starts again."""
    manifest = Manifest(closed, TOPIC)
    manifest.refresh()
    seen = []
    for base in manifest.segments:
        seen.append(base)
        manifest.append(Start(0), SegmentInfo(100 + base, 100, 110 + base))
        manifest.rewrite([SegmentInfo(500, 1, 501)], Start(0))
    assert seen == [0, 10, 20]
    assert list(manifest.segments) == [500]


def test_a_manifest_does_not_grow_for_ever(closed: Path) -> None:
    manifest = Manifest(closed, TOPIC)
    manifest.refresh()
    known = dict(manifest.segments)
    at_end = manifest.closed
    for number in range(3000):
        manifest.append(Start(number % 5))
    assert manifest.path.stat().st_size < 90 * 1200
    again = Manifest(closed, TOPIC)
    again.refresh()
    assert (again.segments, again.closed, again.start) == (known, at_end, Start(2999 % 5))


def test_a_file_that_was_written_anew_in_the_same_inode_is_another(closed: Path) -> None:
    """A file system gives the inode of a file that is gone to the next one: two compactions later
    it is the known one again.
    """
    path = closed / file_names.MANIFEST
    known = Manifest(closed, TOPIC)
    other = Manifest(closed, TOPIC)
    known.refresh()
    other.refresh()
    other.rewrite([info._replace(size=60) for info in known.segments.values()], Start(0))
    other.append(Start(0), SegmentInfo(40, 50, 45, kind=CLOSED))
    raw = path.read_bytes()
    other.rewrite(known.segments.values(), Start(0))
    known = Manifest(closed, TOPIC)
    known.refresh()
    with path.open("r+b") as file:  # as the file system may do it
        file.write(raw)
    known.refresh()
    assert [info.size for info in known.segments.values()] == [60, 60, 60]
    known.append(Start(0), SegmentInfo(50, 100, 60))
    other.refresh()
    assert [info.size for info in other.segments.values()] == [60, 60, 60, 100]
