"""Asynchronous consumers of groups, on a set of three directories."""

from tests.aio.test_consumer_groups import *  # noqa: F403 (its tests and fixtures run again here)
