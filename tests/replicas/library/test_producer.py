"""Producers, on a set of three directories."""

from tests.producer.test_producer import *  # noqa: F403 (its tests and fixtures run again here)
