"""Expired offsets, on a set of three directories."""

from tests.coordination.test_offset_expiry import *  # noqa: F403 (its tests and fixtures run again here)
