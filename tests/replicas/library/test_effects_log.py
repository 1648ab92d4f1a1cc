"""Effects of log settings, on a set of three directories."""

from tests.config.test_effects_log import *  # noqa: F403 (its tests and fixtures run again here)
