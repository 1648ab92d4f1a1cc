"""Kafka's semantics of groups, on a set of three directories."""

from tests.semantics.test_groups import *  # noqa: F403 (its tests and fixtures run again here)
