"""Bad input of producers, on a set of three directories."""

from tests.producer.test_bad_input import *  # noqa: F403 (its tests and fixtures run again here)
