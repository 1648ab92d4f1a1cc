"""Fixtures of the console: a directory with known contents."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.console.support import make_log


@pytest.fixture(scope="session")
def known_log() -> Iterator[Path]:
    """The directory of `make_log`, for tests that only read it."""
    # a short path, which the width of a screen does not cut
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        make_log(Path(folder) / "data")
        yield Path(folder) / "data"


@pytest.fixture
def own_log(known_log: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(known_log, tmp_path / "data"))
