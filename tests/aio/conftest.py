"""The log of the tests of asyncio clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("one")
        opened.create_topic("t", partitions=3)
        yield opened
