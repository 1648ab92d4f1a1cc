"""Defines the descriptions of groups and of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from embedlog.display import tables
from embedlog.types import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The newest state of a transactional id, from `__transaction_state`.

    `state` has Kafka's name, for example "Ongoing". `started_ms` is None without a transaction, and `partitions` are those that
    it has written. `in_use`: whether the process that uses the id runs; None in a log opened read-only.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    updated_ms: int
    partitions: tuple[TopicPartition, ...]
    in_use: bool | None


class OpenTransaction(NamedTuple):
    """A transaction that is open in one partition: readers of committed records wait at `first_offset`.

    `transactional_id` is None if no id has this producer and epoch with an unfinished transaction: Kafka calls that hanging.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """One partition of a group: the committed offset, the log end, the assigned member.

    `committed` is None if no offset is committed, `log_end_offset` if the partition no longer exists or is damaged, `member_id`
    if it is not assigned. `position` is the committed offset, and `lag` the number of offsets from it to the end; each is None if
    it is unknown. `dataclasses.asdict` and data frames contain both.
    """

    topic: str
    partition: int
    committed: OffsetAndMetadata | None = None
    log_end_offset: int | None = None
    member_id: str | None = None
    position: int | None = field(init=False, repr=False, compare=False)
    lag: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        position = None if self.committed is None else self.committed.offset
        object.__setattr__(self, "position", position)
        lag = None if position is None or self.log_end_offset is None else self.log_end_offset - position
        object.__setattr__(self, "lag", lag)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group: its identity, subscription and assignment; a member with `instance_id` is static."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupDescription:
    """A consumer group at the time of the call.

    `state` has Kafka's spelling: Empty, PreparingRebalance, CompletingRebalance, Stable; `type` is "classic", or "consumer" for
    a group of Kafka's newer protocol. `assignor` is None until one is chosen. A group that never had a member has no
    `protocol_type`. `partitions` are all with a committed offset or an assignment, in order.
    """

    group_id: str
    state: str
    type: str = "classic"
    protocol_type: str = ""
    assignor: str | None = None
    generation: int = 0
    leader: str | None = None
    members: tuple[MemberDescription, ...] = ()
    partitions: tuple[GroupPartition, ...] = ()

    @property
    def lag(self) -> int:
        """The sum of the lags that are known."""
        return sum(each.lag for each in self.partitions if each.lag is not None)

    def __repr__(self) -> str:
        counts = f"{tables.counted(len(self.members), 'member')}, {tables.counted(len(self.partitions), 'partition')}"
        return f"<embedlog.GroupDescription {self.group_id!r}: {self.state}, {counts}, lag {self.lag}>"

    def _repr_html_(self) -> str:
        head = ("topic", "partition", "committed", "end", "lag", "member")
        rows = [
            (each.topic, each.partition, each.position, each.log_end_offset, each.lag, each.member_id) for each in self.partitions
        ]
        facts = f"group {self.group_id}: {self.state}, {tables.counted(len(self.members), 'member')}, lag {self.lag}"
        return tables.shortened(facts, head, rows)
