"""Scans, on a set of three directories."""

from tests.columns.test_scan import *  # noqa: F403 (its tests and fixtures run again here)
