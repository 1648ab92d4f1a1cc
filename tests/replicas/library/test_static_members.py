"""Static members of groups, on a set of three directories."""

from tests.test_group_static_members import *  # noqa: F403 (its tests and fixtures run again here)
