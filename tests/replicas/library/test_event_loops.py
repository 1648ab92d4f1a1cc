"""Event loops, on a set of three directories."""

from tests.aio.test_event_loops import *  # noqa: F403 (its tests and fixtures run again here)
from tests.support.asyncio_logs import log as log
