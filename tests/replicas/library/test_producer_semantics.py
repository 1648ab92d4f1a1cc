"""Kafka's semantics of producers, on a set of three directories."""

from tests.semantics.test_producer import *  # noqa: F403 (its tests and fixtures run again here)
