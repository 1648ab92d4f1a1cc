"""What decisions about transactions are made with: this moment, fresh ids, refusals as errors, disks that must be asked.

TXNSUPPORT-1  the pure rules (`transaction`) know no clock and no chance: they get both from here
TXNSUPPORT-2  a refusal becomes an error by what a caller can do: give up its place, wait for others to finish, or mend its own
    order
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog.errors import EmbedlogError, FencedError, InvalidTransactionStateError
from embedlog.storage.control_page import boot_number
from embedlog.topic import is_internal
from embedlog.transaction import Moment, Refusal, Transaction

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition


class Concurrent(EmbedlogError):
    """The last transaction of the id is decided and not complete: it is to be finished first. Never leaves this package."""

    def __init__(self, name: str, state: Transaction) -> None:
        super().__init__(f"the last transaction of {name!r} is not complete")
        self.name, self.state = name, state


def refused(name: str, refusal: Refusal, state: Transaction | None) -> EmbedlogError:
    """The error that tells why an event was not taken."""
    found = "no record of it" if state is None else f"{state.producer_id}/{state.epoch}, {state.status.name}"
    if refusal is Refusal.CONCURRENT_TRANSACTIONS and state is not None:
        return Concurrent(name, state)
    kind = InvalidTransactionStateError if refusal is Refusal.INVALID_TXN_STATE else FencedError
    return kind(f"transactional id {name!r}: {refusal.value} ({refusal.name})", found=found)


def now() -> Moment:
    """This moment on both clocks."""
    return Moment(system.wall_ms(), time.monotonic_ns(), boot_number())


def asks_for_durability(partition: Partition) -> bool:
    """Whether what is acknowledged there must survive a power loss."""
    return partition.config.flush_messages == 1


def to_be_durable(partitions: Iterable[Partition]) -> list[Partition]:
    """Those of a transaction that must survive a power loss: if one asks for that, a group's offsets beside it must as well."""
    every = list(partitions)
    asked = any(map(asks_for_durability, every))
    return [each for each in every if asks_for_durability(each) or (asked and is_internal(each.topic))]


def put_on_disk(partition: Partition, deadline_ns: int) -> None:
    """Everything that is published there now. Raises DurabilityError."""
    end = partition.published().log_end
    if partition.durable_offset < end:
        partition.syncer.wait(end, deadline_ns)
