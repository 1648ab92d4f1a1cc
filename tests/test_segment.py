"""Bytes that are truncated from a segment are kept in a file, unless there are none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from embedlog import segment
from embedlog.storage import files

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
