"""A log and its registry of schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.schemas import SchemaRegistry


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("orders")
        yield opened


@pytest.fixture
def registry(log: embedlog.Log) -> SchemaRegistry:
    return SchemaRegistry(log)
