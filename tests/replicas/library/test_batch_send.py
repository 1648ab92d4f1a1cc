"""Sent batches, on a set of three directories."""

from tests.producer.test_batch_send import *  # noqa: F403 (its tests and fixtures run again here)
