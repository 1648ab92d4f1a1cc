"""Defines the events of the decision log, the observations that come with them, and the refusals.

- An event has all that a decision needs beside the state: observations of directories, drawn ids,
  offsets.
- A node that is absent from the observations is away. So is one that was observed with another
  registration id than the registered one: it crashed since then, or has not yet registered.
- `partition_epoch` is that of the state from which the event was derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from embedlog.replicas.rules.records import TOPIC

PartitionId: TypeAlias = tuple[UUID, int]  # topic id and number of a partition


class Refusal(Enum):
    """Reasons to refuse an event. Names are Kafka's where Kafka has one."""

    UNKNOWN_TOPIC_OR_PARTITION = "The topic or the partition does not exist."
    FENCED_LEADER_EPOCH = "The leader epoch is not the present one."
    INVALID_UPDATE_VERSION = "Another decision about the partition was made since the event."
    INVALID_REQUEST = "The request contradicts itself, or the state of the partition."
    INELIGIBLE_REPLICA = (
        "A new member of the ISR is away, leaves the set, or has another registration id."
    )
    ELECTION_NOT_NEEDED = "The wanted leader leads already."
    PREFERRED_LEADER_NOT_AVAILABLE = (
        "The first replica of the assignment is not complete, or not in the ISR."
    )
    ELIGIBLE_LEADERS_NOT_AVAILABLE = "No replica is available that may lead."
    WAIT_FOR_REPLICAS = (
        "After a crash, all members of ISR and ELR must be present before the longest log can be "
        "selected."
    )
    TOPIC_ALREADY_EXISTS = (
        "A topic with this name or id exists, or with a name that differs only in '.' and '_'."
    )
    TOPIC_DELETED = "A topic was deleted since the offsets of the name were deleted."
    INVALID_PARTITIONS = "The number of partitions is not positive, or not above the present one."
    INVALID_REPLICATION_FACTOR = (
        "The replication factor is not positive, or above the number of usable directories."
    )
    INVALID_REPLICA_ASSIGNMENT = (
        "The assignment is empty, uneven, or names a directory twice or one that cannot take "
        "replicas."
    )
    LEADER_NOT_AVAILABLE = (
        "A partition has an ELR that the setting would end, and no complete leader."
    )
    INVALID_CONFIG = "A setting is unknown, or its value is not allowed."
    NO_REASSIGNMENT_IN_PROGRESS = "No reassignment of the partition is in progress."
    REASSIGNMENT_IN_PROGRESS = (
        "A reassignment is in progress: replicas of its target are not in sync, or a directory is "
        "in use."
    )
    INCONSISTENT_CLUSTER_ID = "The directory belongs to another cluster."
    STALE_CLUSTER_GENERATION = "The directory belongs to another generation of the set."
    INVALID_REGISTRATION = (
        "Number, directory id, path or registration id differ from the registered ones."
    )
    DUPLICATE_BROKER_REGISTRATION = (
        "The node is alive with another registration id, or its number was used before."
    )
    BROKER_ID_NOT_REGISTERED = "No directory is registered with this number."
    TOO_MANY_DIRECTORIES = "The set has as many directories as it can have."
    VOTERS_CHANGING = "An earlier change of the voters is not yet settled."
    LAST_VOTER = "No voter would be left."


class Condition(Enum):
    """The condition in which a replica was found, or all replicas of a directory."""

    AWAY = "away"  # not observed, or observed with another registration id
    COMPLETE = "complete"  # its directory has its registered id, and its page was not lost
    CRASHED = "crashed"  # the id is another one, or the page was lost: records may be missing
    STRANGER = "stranger"  # another directory, or an earlier copy of it, is in its place


@dataclass(frozen=True, slots=True)
class Seen:
    """Observation of a replica: its condition, the registration id of its directory, and the end of its
    log.
    """

    condition: Condition
    registration_id: UUID
    last_epoch: int = -1
    log_end: int = 0


Observed: TypeAlias = Mapping[int, Seen]  # by node


class Election(Enum):
    """Kinds of an election."""

    OFFLINE = "offline"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


# ---- partitions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """The leader has a new ISR. `registration_ids`: of the new members. `lost`: leaving members
    that are not complete.

    `renewed`: decide also if the ISR stays as it is. A member that was never decided is removed so
    (REPLICA-6).
    """

    partition_id: PartitionId
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    registration_ids: Mapping[int, UUID] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    renewed: bool = False


@dataclass(frozen=True, slots=True)
class Elect:
    """A leader is needed. `node` selects the leader of an unclean election.

    `allowed`: the settings allow an unclean election, and no eligible replica has answered for some
    time.
    """

    partition_id: PartitionId
    kind: Election
    partition_epoch: int
    seen: Observed
    node: int | None = None
    allowed: bool = False


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """A replica has a page that was made from files, in this epoch: no decision of the set has
    begun it.
    """

    partition_id: PartitionId
    epoch: int


@dataclass(frozen=True, slots=True)
class Reassign:
    """The partition shall have other replicas. `throttle`: bytes per second of the copies; None:
    without a limit.
    """

    partition_id: PartitionId
    partition_epoch: int
    target: tuple[int, ...]
    throttle: int | None = None


@dataclass(frozen=True, slots=True)
class CancelReassignment:
    """The partition shall keep its original replicas."""

    partition_id: PartitionId
    partition_epoch: int
    seen: Observed


@dataclass(frozen=True, slots=True)
class FinishReassignment:
    """All replicas of the target are in the ISR."""

    partition_id: PartitionId
    partition_epoch: int
    seen: Observed


# ---- topics --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A new topic. Without an assignment its partitions are placed on `live`, the nodes that
    answer.

    If these are too few for the replication factor, others take replicas too. `start` and `shift`:
    the random numbers of the placement (`placement`).

    `removed`: the topic of the last deletion in the state that was read before the caller deleted
    the committed offsets of the name. A deletion after that refuses the event (TOPIC_DELETED).
    """

    name: str
    topic_uuid: UUID
    live: frozenset[int]
    partitions: int = 1
    factor: int = 1
    start: int = 0
    shift: int = 0
    assignment: tuple[tuple[int, ...], ...] | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    removed: UUID | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """An existing topic shall have `total` partitions. `assignment` is that of the new ones."""

    topic_uuid: UUID
    total: int
    live: frozenset[int]
    assignment: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """A topic is deleted."""

    topic_uuid: UUID


@dataclass(frozen=True, slots=True)
class SetConfig:
    """Settings change; None returns one to its default. The resource "" of kind NODE is the default
    of all topics.

    `seen` has the replicas of each partition with an ELR.
    """

    resource: str
    changes: Mapping[str, str | None]
    kind: int = TOPIC
    seen: Mapping[PartitionId, Observed] = field(default_factory=dict)


# ---- directories ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """A directory as its own files describe it.

    `openings`: the ids of its openings since the one whose registration it has recorded, which is
    the first; the last one is the current one. Empty in a directory of an earlier version.
    """

    node: int
    cluster_id: str
    directory: UUID
    registration_id: UUID
    path: str
    rack: str | None = None
    generation: int = 0
    openings: tuple[UUID, ...] = ()

    @property
    def opening(self) -> UUID | None:
        return self.openings[-1] if self.openings else None


@dataclass(frozen=True, slots=True)
class Register:
    """A registered directory was opened. `condition`: complete after an orderly close.

    `alive`: another process answers for this node with the registered id, so an identity with
    another id is refused. `fresh`: no process had the directory open, so it gets a new broker
    epoch. So does one whose current opening is not registered.

    `offset` is that of the first record of this decision. `seen` has all replicas of each partition
    with this node. With a complete one of this node the partition is not changed: an earlier
    registration of this opening has removed the node, and it has joined again since then.
    """

    identity: Identity
    condition: Condition
    offset: int
    alive: bool = False
    fresh: bool = False
    seen: Mapping[PartitionId, Observed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """A topic that the first directory of a set has. `epochs`: the leader epoch of each
    partition.
    """

    name: str
    topic_uuid: UUID
    epochs: tuple[int, ...]
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Add:
    """A new directory. `settled`: a majority has the previous change of the voters. `held`: the
    topics of the first directory.
    """

    identity: Identity
    offset: int
    voter: bool = True
    replicas: bool = True
    settled: bool = True
    held: tuple[HeldTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class Retire:
    """A directory shall leave the set. While partitions name it, it only takes no further ones."""

    node: int
    settled: bool = True


@dataclass(frozen=True, slots=True)
class ForceRetire:
    """A directory shall leave the set at once, with all its replicas; another generation of the set
    begins.
    """

    node: int
    seen: Mapping[PartitionId, Observed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetVoter:
    """A directory becomes a voter, or is one no longer."""

    node: int
    voter: bool
    settled: bool = True


Event: TypeAlias = (
    AlterIsr
    | Elect
    | RaiseEpoch
    | Reassign
    | CancelReassignment
    | FinishReassignment
    | CreateTopic
    | CreatePartitions
    | DeleteTopic
    | SetConfig
    | Register
    | Add
    | Retire
    | ForceRetire
    | SetVoter
)
