"""Sends whose caller writes, on a set of three directories."""

from tests.producer.test_direct_append import *  # noqa: F403 (its tests and fixtures run again here)
