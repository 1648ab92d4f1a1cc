"""Internal topics, on a set of three directories."""

from tests.coordination.test_internal_topic import *  # noqa: F403 (its tests and fixtures run again here)
