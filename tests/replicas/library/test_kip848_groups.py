"""Groups of KIP-848, on a set of three directories."""

from tests.coordination.test_kip848_groups import *  # noqa: F403 (its tests and fixtures run again here)
