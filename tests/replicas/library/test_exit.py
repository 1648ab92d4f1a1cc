"""Producers at the end of an interpreter, on a set of three directories."""

from tests.producer.test_exit import *  # noqa: F403 (its tests and fixtures run again here)
