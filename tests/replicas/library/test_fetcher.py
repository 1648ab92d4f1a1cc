"""Fetches, on a set of three directories."""

from tests.consumer.test_fetcher import *  # noqa: F403 (its tests and fixtures run again here)
