"""Transactions of producers, on a set of three directories."""

from tests.test_transaction import *  # noqa: F403 (its tests and fixtures run again here)
