"""Effects of producer settings, on a set of three directories."""

from tests.config.test_effects_producer import *  # noqa: F403 (its tests and fixtures run again here)
