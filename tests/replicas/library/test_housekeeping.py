"""Retention, compaction and deletion of records, on a set of three directories."""

from tests.semantics.test_housekeeping import *  # noqa: F403 (its tests and fixtures run again here)
