"""The administration of groups, on a set of three directories."""

from tests.admin.test_groups import *  # noqa: F403 (its tests and fixtures run again here)
