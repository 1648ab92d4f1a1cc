"""The log, on a set of three directories."""

from tests.test_log import *  # noqa: F403 (its tests and fixtures run again here)
