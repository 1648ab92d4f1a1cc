"""Clock, error mapping and durability checks for transactions.

- The pure rules (`transaction`) have no clock and no random numbers: both are arguments.
- A refusal becomes an error by the caller's remedy: give up the id, wait for other processes, or
  correct the order of its calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from embedlog._native import system
from embedlog.errors import EmbedlogError, FencedError, InvalidTransactionStateError
from embedlog.storage.control_page import boot_number
from embedlog.topic import is_internal
from embedlog.transaction import Moment, Refusal, Transaction

if TYPE_CHECKING:
    from embedlog.partition.interfaces import DurableLog

D = TypeVar("D", bound="DurableLog")


class Concurrent(EmbedlogError):
    """The last transaction of the id is decided and not complete: it must be finished first. Never
    leaves this package.
    """

    def __init__(self, name: str, state: Transaction) -> None:
        super().__init__(f"the last transaction of {name!r} is not complete")
        self.name = name
        self.state = state


def refusal_error(name: str, refusal: Refusal, state: Transaction | None) -> EmbedlogError:
    """The error for a refused event."""
    record = "no record of it"
    if state is not None:
        record = f"{state.producer_id}/{state.epoch}, {state.status.name}"
    if refusal is Refusal.CONCURRENT_TRANSACTIONS and state is not None:
        return Concurrent(name, state)
    kind = InvalidTransactionStateError if refusal is Refusal.INVALID_TXN_STATE else FencedError
    return kind(f"transactional id {name!r}: {refusal.value} ({refusal.name})", found=record)


def current_moment() -> Moment:
    """The current time on both clocks."""
    return Moment(system.wall_ms(), time.monotonic_ns() + system.advanced_ns(), boot_number())


def select_durable(partitions: Iterable[D]) -> list[D]:
    """The partitions of a transaction that must survive a power loss: if one must, a group's
    offsets must as well.
    """
    all_partitions = list(partitions)
    is_any_durable = any(partition.config.durable for partition in all_partitions)
    if not is_any_durable:
        return []
    return [
        partition
        for partition in all_partitions
        if partition.config.durable or is_internal(partition.topic)
    ]


def select_unsynced(ends: Iterable[tuple[D, int]]) -> list[tuple[D, int]]:
    """The partitions whose records below the given end are not all on stable storage."""
    return [(partition, end) for partition, end in ends if partition.durable_offset < end]
