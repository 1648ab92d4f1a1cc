"""Fixtures of partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.segmented_logs import write


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    with write(tmp_path / "log") as log:
        log.backup(tmp_path / "backup")
    return tmp_path / "log"
