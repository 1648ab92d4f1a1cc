"""Reset offsets of groups, on a set of three directories."""

from tests.coordination.test_group_offset_reset import *  # noqa: F403 (its tests and fixtures run again here)
