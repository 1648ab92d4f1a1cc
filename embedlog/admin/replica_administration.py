"""Defines the administration of the replicas of an open log, a part of the public `Log`.

REPLICAADMIN-1  a method calls one part; the work is done in the modules of the parts
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from embedlog.admin import replica_metrics
from embedlog.admin.replica_descriptions import ReplicaDescriber, describe_one
from embedlog.config import keywords
from embedlog.engine import Engine
from embedlog.replica import ReplicatedEngine
from embedlog.replica_description import ReplicasDescription
from embedlog.replica_set.observation.replica_events import ReplicaEvents


@keywords.part_of("Log")
class ReplicaAdministration:
    """Replicas of an open log: description, elections, assignments, directories. Threads: any."""

    _engine: Engine

    def replicas(self, topic: str | None = None) -> ReplicasDescription:
        """The directories, the leaders, ISRs and lags of all partitions or of one topic, and the recent decisions.

        It takes no lock, needs no majority, and works read-only and with one directory. A directory that fails or hangs is
        described as failed; one that hangs delays the first call by 5 seconds. Raises UnknownTopicOrPartitionError, ClosedError.
        """
        self._engine.check_open()
        return describe_one(self._engine, topic) if self._describer is None else self._describer.describe(topic)

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges with the names of Kafka's brokers, of all directories, and of each of the `directories` and
        `partitions`.

        A meter is a dict with `Count` and `OneMinuteRate`, and counts the events of this process. Raises ClosedError.
        """
        engine = self._engine
        events = engine.set.events if isinstance(engine, ReplicatedEngine) else ReplicaEvents()
        return replica_metrics.report(self.replicas(), events)

    @cached_property
    def _describer(self) -> ReplicaDescriber | None:
        return ReplicaDescriber(self._engine) if isinstance(self._engine, ReplicatedEngine) else None
