"""The leader-epoch-checkpoint that a process keeps in memory: each change of the file is
noticed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import EmbedlogError
from embedlog.partition import epoch_file
from embedlog.partition.epoch_file import EpochFile
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.checkpoints import EpochCache

ENTRIES = [(0, 0), (2, 60), (4, 67)]


@pytest.fixture
def file(tmp_path: Path) -> EpochFile:
    found = EpochFile(tmp_path / file_names.EPOCHS, 0o666)
    checkpoints.write_epochs(found.path, EpochCache(ENTRIES))
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The names that were read."""
    found = list[object]()
    read = checkpoints.read_epochs
    monkeypatch.setattr(
        checkpoints, "read_epochs", lambda path: (found.append(path), read(path))[1]
    )
    return found


def outcome(read: Callable[[], EpochCache]) -> object:
    """The entries, or the text of the error."""
    try:
        return read().entries
    except EmbedlogError as problem:
        return str(problem)


def by_replacement(path: Path, data: bytes) -> None:
    files.write_atomically(path, data)


def in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def later(path: Path, change: Callable[[], object]) -> None:
    """Change a file until its times show it: a change in one tick of the kernel's clock leaves
    them.
    """
    before = files.facts_of(path)
    change()
    while files.facts_of(path) == before:
        change()


def test_an_old_file_is_read_once(
    file: EpochFile, reads: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_file, "SETTLED_MS", -1)  # each file counts as old
    for _ in range(3):
        found = file.read()
        assert found.entries == ENTRIES
        found.assign(9, 99)  # the caller's own copy
    assert len(reads) == 1


def test_without_mappings_it_is_read_each_time(
    file: EpochFile, reads: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(epoch_file, "SETTLED_MS", -1)
    unmapped = EpochFile(file.path, 0o666, mapped=False)
    for _ in range(3):
        assert unmapped.read().entries == ENTRIES
    assert len(reads) == 3
    for shared, mapped in (("no", True), ("locks", False)):
        with embedlog.open(tmp_path / shared, shared=shared, housekeeping=False) as log:
            log.create_topic("t")
            assert log._engine.partition("t", 0)._state.epoch_file._mapped is mapped


@pytest.mark.parametrize("change", [by_replacement, in_place])
def test_each_change_of_an_old_file_is_noticed(
    file: EpochFile, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, bytes], None]
) -> None:
    monkeypatch.setattr(epoch_file, "SETTLED_MS", -1)
    data = file.path.read_bytes()
    changed = [
        data.replace(b"67", b"77"),
        data[:-1],
        data[: len(data) // 2],
        b"",
        b"\xff" * 20,
        data + b"5 80\n",
        data,
    ]
    for each in changed:
        later(file.path, lambda each=each: change(file.path, each))  # type: ignore[misc]
        for _ in range(2):
            assert outcome(file.read) == outcome(lambda: checkpoints.read_epochs(file.path))
    file.path.unlink()
    assert file.read().entries == []
    file.write(EpochCache([(7, 3)]))
    assert file.read().entries == [(7, 3)]
    file.path.unlink()
    os.symlink(os.devnull, file.path)
    assert "a symbolic link" in str(outcome(file.read))


@pytest.mark.parametrize("change", [by_replacement, in_place])
def test_a_young_file_is_read_each_time(
    file: EpochFile, reads: list[object], change: Callable[[Path, bytes], None]
) -> None:
    """Its times need not show a change."""
    for start in range(10, 99):
        change(file.path, b"0\n1\n3 %d\n" % start)
        assert file.read().entries == file.read().entries == [(3, start)]
    assert len(reads) == 2 * 89


def test_what_was_written_is_read(file: EpochFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two objects, as of two processes."""
    monkeypatch.setattr(epoch_file, "SETTLED_MS", -1)
    other = EpochFile(file.path, 0o666)
    for start in range(100):
        epochs, writer, reader = (
            EpochCache([(1, start)]),
            *((file, other) if start % 2 else (other, file)),
        )
        later(file.path, lambda epochs=epochs, writer=writer: writer.write(epochs))  # type: ignore[misc]
        assert reader.read().entries == writer.read().entries == [(1, start)]
