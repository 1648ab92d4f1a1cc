"""Fixtures of tests that shift the clock or start processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
from collections.abc import Iterator

import pytest

from embedlog._native import system


@pytest.fixture(autouse=True)
def _true_clock() -> Iterator[None]:
    yield
    system.shift_wall(0)


@pytest.fixture(scope="module", autouse=True)
def _forkserver() -> None:
    """The server process of multiprocessing, which keeps a pipe to this process, is started before
    a test counts descriptors.
    """
    multiprocessing.forkserver.ensure_running()
