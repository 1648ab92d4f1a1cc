"""Groups, on a set of three directories."""

from tests.test_group import *  # noqa: F403 (its tests and fixtures run again here)
