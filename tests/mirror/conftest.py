"""The source of the mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog import Log

QUIET = {"housekeeping": False}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "here", config=QUIET) as log:
        yield log
