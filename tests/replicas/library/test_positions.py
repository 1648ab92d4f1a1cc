"""Positions of consumers, on a set of three directories."""

from tests.semantics.test_positions import *  # noqa: F403 (its tests and fixtures run again here)
