"""Bytes that are truncated from a segment are kept in a file, unless there are none. A batch is
found wherever it begins, and holes are not read.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embedlog import segment
from embedlog.storage import files
from tests.support import batches

LARGE = 300 << 20  # as a preallocated file's tail, and more than one would hold in memory for this


def test_a_tail_of_zeros_is_not_kept_however_long(tmp_path: Path) -> None:
    source = tmp_path / "source"
    target = tmp_path / "target"
    with source.open("wb") as file:
        file.write(b"data")
        file.truncate(LARGE)
    segment.copy_aside(source, 4, LARGE, target, 0o666)
    assert not target.exists()


def test_what_is_kept_is_kept_whole_and_nothing_of_an_older_copy(tmp_path: Path) -> None:
    source = tmp_path / "source"
    target = tmp_path / "target"
    tail = b"\0" * (2 << 20) + b"torn" + b"\0" * 100
    source.write_bytes(b"data" + tail)
    target.write_bytes(b"x" * (3 << 20))
    segment.copy_aside(source, 4, 4 + len(tail), target, 0o666)
    assert target.read_bytes() == tail


def test_a_hole_is_a_hole_in_what_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    target = tmp_path / "target"
    with source.open("wb") as file:
        file.write(b"data")
        file.seek(LARGE // 2)
        file.write(b"middle")
        file.seek(LARGE)
        file.write(b"x")
    segment.copy_aside(source, 4, LARGE + 1, target, 0o666)
    found = target.stat()
    assert found.st_size == LARGE + 1 - 4
    assert found.st_blocks * 512 <= 4 << 20
    with target.open("rb") as file:
        assert file.read(10) == bytes(10)
        file.seek(LARGE // 2 - 4)
        assert file.read(6) == b"middle"
        file.seek(LARGE - 4)
        assert file.read() == b"x"


def test_holes_are_passed_over_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    target = tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.delattr(files, "pread")
    segment.copy_aside(source, 0, 1 << 40, target, 0o666)
    assert not target.exists()


def test_where_holes_cannot_be_told_everything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    target = tmp_path / "target"
    source.write_bytes(b"data" + bytes(3 << 20) + b"torn")

    def cannot(fd: int, position: int, how: int) -> int:
        raise OSError(errno.EINVAL, "not known here")

    monkeypatch.setattr(os, "lseek", cannot)
    segment.copy_aside(source, 4, 8 + (3 << 20), target, 0o666)
    assert target.read_bytes() == bytes(3 << 20) + b"torn"


def offsets_found(path: Path, start: int, size: int) -> int | None:
    """Base offset of the batch that a search finds."""
    with files.opened(path) as fd:
        batch = segment.search_batch(fd, path, start, size)
    return None if batch is None else int(batch["base_offset"][0])


def test_a_batch_is_found_after_zeros_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = batches.batch(7, [batches.Row(value=b"value")])
    chunk = segment.CHUNK_BYTES
    for before in (*range(40), 4096, chunk - 20, *range(chunk - 17, chunk + 2), 3 * chunk + 5):
        path.write_bytes(bytes(before) + data + bytes(100))
        assert offsets_found(path, 0, path.stat().st_size) == 7, f"after {before} zeros"


def test_a_batch_is_found_at_the_end_of_a_hole(tmp_path: Path) -> None:
    """The first bytes of its base offset are zeros, and may belong to the hole."""
    data = batches.batch(7, [batches.Row(value=b"value")])
    page = 4096
    for inside in range(12):
        path = tmp_path / f"log{inside}"
        with path.open("wb") as file:
            file.truncate(64 * page)
            file.seek(64 * page - inside)
            file.write(data)
            file.truncate(1 << 30)
        assert offsets_found(path, 0, 1 << 30) == 7, f"{inside} bytes before a page"


def test_a_search_reads_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.delattr(files, "pread")
    assert not segment.has_batch(path, 0, 1 << 40)
