"""Kafka's semantics of listeners, on a set of three directories."""

from tests.semantics.test_listeners import *  # noqa: F403 (its tests and fixtures run again here)
