"""Commits of offsets, on a set of three directories."""

from tests.coordination.test_offset_commits import *  # noqa: F403 (its tests and fixtures run again here)
