"""Copies topics between logs, and between a log and a Kafka cluster (extra `kafka`), exactly once:
`Mirror`.
"""

from embedlog.mirror.mirror import Mirror, MirroredOffset, MirroredTopic, MirrorReport

__all__ = ["Mirror", "MirrorReport", "MirroredOffset", "MirroredTopic"]
