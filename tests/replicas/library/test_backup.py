"""Backups, on a set of three directories."""

from tests.admin.test_backup import *  # noqa: F403 (its tests and fixtures run again here)
