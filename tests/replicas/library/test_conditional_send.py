"""Sends with an expected offset, on a set of three directories."""

from tests.producer.test_conditional_send import *  # noqa: F403 (its tests and fixtures run again here)
