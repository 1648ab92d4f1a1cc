"""The error for each refusal of a decision.

A refusal that concerns a caller has a public error. The others are a `DecisionRefused`, which the
set handles itself.
"""

from __future__ import annotations

from typing import Final

from embedlog.errors import (
    ConfigError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    EmbedlogError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    ReplicaSetError,
    StateError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from embedlog.replicas.rules.events import Refusal


class DecisionRefused(StateError):
    """The decision log refuses an event, because the state has changed or the event contradicts
    it.
    """


class TopicDeleted(DecisionRefused):
    """A topic was deleted since the offsets of a new name were deleted. Never leaves the
    package.
    """


_ERRORS: Final[dict[Refusal, type[EmbedlogError]]] = {
    Refusal.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartitionError,
    Refusal.ELECTION_NOT_NEEDED: ElectionNotNeededError,
    Refusal.PREFERRED_LEADER_NOT_AVAILABLE: PreferredLeaderNotAvailableError,
    Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE: EligibleLeadersNotAvailableError,
    Refusal.WAIT_FOR_REPLICAS: LeaderNotAvailableError,
    Refusal.TOPIC_ALREADY_EXISTS: TopicExistsError,
    Refusal.TOPIC_DELETED: TopicDeleted,
    Refusal.INVALID_PARTITIONS: InvalidPartitionsError,
    Refusal.INVALID_REPLICATION_FACTOR: InvalidReplicationFactorError,
    Refusal.INVALID_REPLICA_ASSIGNMENT: InvalidReplicaAssignmentError,
    Refusal.LEADER_NOT_AVAILABLE: LeaderNotAvailableError,
    Refusal.INVALID_CONFIG: ConfigError,
    Refusal.NO_REASSIGNMENT_IN_PROGRESS: NoReassignmentInProgressError,
    Refusal.INCONSISTENT_CLUSTER_ID: ReplicaSetError,
    Refusal.STALE_CLUSTER_GENERATION: ReplicaSetError,
    Refusal.INVALID_REGISTRATION: ReplicaSetError,
    Refusal.DUPLICATE_BROKER_REGISTRATION: ReplicaSetError,
    Refusal.BROKER_ID_NOT_REGISTERED: ReplicaSetError,
    Refusal.TOO_MANY_DIRECTORIES: ReplicaSetError,
    Refusal.LAST_VOTER: ReplicaSetError,
}


def error_of(refusal: Refusal) -> EmbedlogError:
    """The error for a refusal; its message begins with the refusal's name."""
    return _ERRORS.get(refusal, DecisionRefused)(f"{refusal.name}: {refusal.value}")
