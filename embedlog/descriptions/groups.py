"""Defines the descriptions of groups and of transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from embedlog.descriptions.display import tables
from embedlog.types import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The newest state of a transactional id, from `__transaction_state`.

    `state` has Kafka's name, for example "Ongoing". `started_ms` is None without a transaction, and
    `partitions` are those that it has written. `in_use`: whether the process that uses the id runs;
    None in a log opened read-only.
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
    """A transaction that is open in one partition: readers of committed records wait at
    `first_offset`.

    `transactional_id` is None if no id has this producer and epoch with an unfinished transaction:
    Kafka calls that hanging.
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

    `committed` is None if no offset is committed, `log_end_offset` if the partition no longer
    exists or is damaged, `member_id` if it is not assigned. `position` is the committed offset, and
    `lag` the number of offsets from it to the end; each is None if it is unknown. The lag of a
    position behind the end is unknown, too: `auto.offset.reset` decides where its reader goes on.
    `dataclasses.asdict` and data frames contain both.
    """

    topic: str
    partition: int
    committed: OffsetAndMetadata | None = None
    log_end_offset: int | None = None
    member_id: str | None = None
    position: int | None = field(init=False, repr=False, compare=False)
    lag: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        position: int | None = None
        lag: int | None = None
        if self.committed is not None:
            position = self.committed.offset
            if self.log_end_offset is not None and self.log_end_offset >= position:
                lag = self.log_end_offset - position
        object.__setattr__(self, "position", position)
        object.__setattr__(self, "lag", lag)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group: its identity, subscription and assignment; a member with `instance_id`
    is static.
    """

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class GroupDescription:
    """A consumer group at the time of the call.

    `state` has Kafka's spelling: Empty, PreparingRebalance, CompletingRebalance, Stable; `type` is
    "classic", or "consumer", "share" or "streams" for a group of Kafka's newer protocols.
    `assignor` is None until one is chosen. A group that never had a member has no `protocol_type`.
    `partitions` are all that have a committed offset or are assigned, and those of the topics that
    its members subscribe to, in order. What a share group has delivered is in
    `__share_group_state`: it has no committed offsets.
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
    def lag(self) -> int | None:
        """The sum of the lags of all partitions; None while the lag of one is not known, or while
        there is no partition.

        Before the first commit in a partition its lag is not known: what its reader has done is not
        in the log.
        """
        if not self.partitions:
            return None
        lag = 0
        for partition in self.partitions:
            if partition.lag is None:
                return None
            lag += partition.lag
        return lag

    def __repr__(self) -> str:
        counts = (
            f"{tables.count_text(len(self.members), 'member')}, "
            f"{tables.count_text(len(self.partitions), 'partition')}"
        )
        return (
            f"<embedlog.GroupDescription {self.group_id!r}: {self.state}, {counts}, "
            f"{_lag_in_words(self.lag)}>"
        )

    def _repr_html_(self) -> str:
        head = ("topic", "partition", "committed", "end", "lag", "member")
        rows = [
            (
                partition.topic,
                partition.partition,
                partition.position,
                partition.log_end_offset,
                partition.lag,
                partition.member_id,
            )
            for partition in self.partitions
        ]
        facts = (
            f"group {self.group_id}: {self.state}, {tables.count_text(len(self.members), 'member')}, "
            f"{_lag_in_words(self.lag)}"
        )
        return tables.make_short_table(facts, head, rows)


def _lag_in_words(lag: int | None) -> str:
    return "lag not known" if lag is None else f"lag {lag}"
