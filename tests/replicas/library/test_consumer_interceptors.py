"""Interceptors of consumers, on a set of three directories."""

from tests.consumer.test_interceptors import *  # noqa: F403 (its tests and fixtures run again here)
