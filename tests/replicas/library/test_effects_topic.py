"""Effects of topic settings, on a set of three directories."""

from tests.config.test_effects_topic import *  # noqa: F403 (its tests and fixtures run again here)
