"""Commits of consumers, on a set of three directories."""

from tests.consumer.test_offset_committer import *  # noqa: F403 (its tests and fixtures run again here)
