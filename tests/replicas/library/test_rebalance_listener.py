"""Listeners of rebalances, on a set of three directories."""

from tests.consumer.test_rebalance_listener import *  # noqa: F403 (its tests and fixtures run again here)
