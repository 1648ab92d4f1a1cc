"""Producers that are closed with records pending, on a set of three directories."""

from tests.producer.test_close import *  # noqa: F403 (its tests and fixtures run again here)
