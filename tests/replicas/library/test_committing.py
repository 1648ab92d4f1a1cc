"""Kafka's semantics of commits, on a set of three directories."""

from tests.semantics.test_committing import *  # noqa: F403 (its tests and fixtures run again here)
