"""Asynchronous consumers, on a set of three directories."""

from tests.aio.conftest import *  # noqa: F403
from tests.aio.test_consumer import *  # noqa: F403 (its tests and fixtures run again here)
