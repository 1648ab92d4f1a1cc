"""Failed deliveries, on a set of three directories."""

from tests.producer.test_delivery_failures import *  # noqa: F403 (its tests and fixtures run again here)
