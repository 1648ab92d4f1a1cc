"""Kafka's semantics of sends, on a set of three directories."""

from tests.semantics.test_sending import *  # noqa: F403 (its tests and fixtures run again here)
