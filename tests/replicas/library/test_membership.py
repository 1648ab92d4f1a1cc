"""Members of groups, on a set of three directories."""

from tests.consumer.test_membership import *  # noqa: F403 (its tests and fixtures run again here)
