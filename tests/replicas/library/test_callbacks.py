"""Callbacks, on a set of three directories."""

from tests.hooks.test_callbacks import *  # noqa: F403 (its tests and fixtures run again here)
