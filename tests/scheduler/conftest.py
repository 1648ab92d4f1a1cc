"""The zygote of the scheduler, which all of its tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.harness.processes import Nursery
from tests.scheduler.controller import new_nursery


@pytest.fixture(scope="session")
def processes() -> Iterator[Nursery]:
    with new_nursery() as nursery:
        yield nursery
