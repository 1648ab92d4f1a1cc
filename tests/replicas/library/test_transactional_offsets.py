"""Offsets in transactions, on a set of three directories."""

from tests.coordination.test_transactional_offsets import *  # noqa: F403 (its tests and fixtures run again here)
