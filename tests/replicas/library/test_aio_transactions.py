"""Transactions in asyncio, on a set of three directories."""

from tests.aio.test_transactions import *  # noqa: F403 (its tests and fixtures run again here)
from tests.support.asyncio_logs import log as log
