"""Random histories of settlements, on a set of three directories."""

from tests.producer.test_settlement_histories import *  # noqa: F403 (its tests and fixtures run again here)
