"""Consumers that follow the log end, on a set of three directories."""

from tests.consumer.test_live import *  # noqa: F403 (its tests and fixtures run again here)
