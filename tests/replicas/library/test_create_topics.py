"""Creation of topics, on a set of three directories."""

from tests.admin.test_create_topics import *  # noqa: F403 (its tests and fixtures run again here)
