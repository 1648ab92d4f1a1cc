"""Assigned partitions, on a set of three directories."""

from tests.consumer.test_assignment import *  # noqa: F403 (its tests and fixtures run again here)
