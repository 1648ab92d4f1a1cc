"""Delivery failures that are raised, on a set of three directories."""

from tests.producer.test_delivery_failures_raised import *  # noqa: F403 (its tests and fixtures run again here)
