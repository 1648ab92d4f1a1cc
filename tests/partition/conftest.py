"""Fixtures of partitions."""

from tests.support.segmented_logs import closed

__all__ = ["closed"]
