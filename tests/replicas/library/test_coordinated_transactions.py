"""The coordination of transactions, on a set of three directories."""

from tests.coordination.test_transactions import *  # noqa: F403 (its tests and fixtures run again here)
