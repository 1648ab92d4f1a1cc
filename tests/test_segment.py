"""What is cut off a segment is kept aside, unless there is nothing in it."""

from __future__ import annotations

from pathlib import Path

from embedlog import segment

LARGE = 300 << 20  # as a preallocated file's tail, and more than one would hold in memory for this


def test_a_tail_of_zeros_is_not_kept_however_long(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.write(b"data")
        file.truncate(LARGE)
    segment.copy_aside(source, 4, LARGE, target, 0o666)
    assert not target.exists()


def test_what_is_kept_is_kept_whole_and_nothing_of_an_older_copy(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    tail = b"\0" * (2 << 20) + b"torn" + b"\0" * 100
    source.write_bytes(b"data" + tail)
    target.write_bytes(b"x" * (3 << 20))
    segment.copy_aside(source, 4, 4 + len(tail), target, 0o666)
    assert target.read_bytes() == tail
