"""A log, the files of its directory, and a disk that is full from a chosen change on."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import errors as e
from embedlog.storage import file_names, files

QUIET = {"housekeeping": False}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with embedlog.open(tmp_path / "log", config=QUIET) as opened:
        yield opened


def tree(path: Path) -> dict[str, bytes]:
    """Names and contents of all files that are not locks or mapped pages."""
    ours = (file_names.CONTROL, file_names.DIRECTORY_LOCK, file_names.PAGE, file_names.LOCK)
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else b"a directory"
        for each in path.rglob("*")
        if each.name not in ours
    }


def failing(monkeypatch: pytest.MonkeyPatch, step: int, *, ever_after: bool) -> Callable[[], bool]:
    """Let the `step`th change of the disk fail for want of space; returns whether that step was
    reached.
    """
    done = [0]

    def wrap(act: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*arguments: Any, **keywords: Any) -> Any:
            done[0] += 1
            if done[0] == step or (ever_after and done[0] > step):
                raise e.StorageError("cannot write", errno=errno.ENOSPC, path="full")
            return act(*arguments, **keywords)

        return maybe

    for name in ("mkdir", "write_all", "rename", "sync_directory"):
        monkeypatch.setattr(files, name, wrap(getattr(files, name)))
    return lambda: done[0] >= step
