"""Failed deliveries of asynchronous producers, on a set of three directories."""

from tests.aio.test_delivery_failures import *  # noqa: F403 (its tests and fixtures run again here)
from tests.support.asyncio_logs import log as log
