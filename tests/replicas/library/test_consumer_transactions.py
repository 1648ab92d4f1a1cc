"""Consumers in transactions, on a set of three directories."""

from tests.consumer.test_transactions import *  # noqa: F403 (its tests and fixtures run again here)
