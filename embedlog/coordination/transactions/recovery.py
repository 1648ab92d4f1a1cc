"""Aborts data of unknown transactions after a power loss (`docs/protocol.md`).

- It is due as `recovery_due` says.
- Open data without a record of its epoch is aborted, under the next epoch: no producer can continue
  it.
- An id continues with at least the highest epoch that any partition has stored for it; a
  transaction that is decided is completed first.
- All steps can be interrupted and repeated, by any number of processes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from embedlog.errors import CorruptRecordError, UnknownTopicOrPartitionError
from embedlog.format.record_columns import EPOCH_MAX
from embedlog.telemetry import log_messages
from embedlog.transaction import Transaction, covers, producer_identity_of

if TYPE_CHECKING:
    from embedlog.partition.interfaces import TransactionalLog

logger = logging.getLogger("embedlog")


def recover(
    states: Mapping[str, Transaction],
    newest: Callable[[int], Transaction | None],
    partitions: Iterable[TransactionalLog],
    deadline_ns: int,
) -> dict[str, tuple[int, int]]:
    """Abort open data that no record covers; returns the producer id and epoch to which
    transactional ids must be raised.

    `newest` returns the current state of a producer id. Data read before that call was registered
    before it, so a transaction that began after `states` was read is never aborted by mistake.
    Raises LockTimeoutError, StorageError; then repeat the call. A partition that cannot be read is
    reported and skipped.
    """
    raised_to: dict[str, tuple[int, int]] = {}
    for partition in partitions:
        try:
            for producer_id, epoch, first in partition.open_transactions():
                if not covers(newest(producer_id), (partition.topic, partition.number), epoch):
                    logger.warning(
                        "aborted transaction %d/%d from offset %d on in %s-%d: its record was "
                        "lost in a power loss",
                        producer_id,
                        epoch,
                        first,
                        partition.topic,
                        partition.number,
                    )
                    partition.append_marker(
                        producer_id,
                        min(epoch + 1, EPOCH_MAX),
                        commit=False,
                        deadline_ns=deadline_ns,
                    )
            for name, state in states.items():
                producer_id, epoch = raised_to.get(name) or producer_identity_of(state)
                stored = partition.stored_epoch(producer_id)
                if stored > epoch:
                    raised_to[name] = producer_id, stored
        except UnknownTopicOrPartitionError:
            continue
        except CorruptRecordError as problem:
            message = f"open transactions of {partition.topic}-{partition.number} are unknown"
            log_messages.report(
                logger, logging.ERROR, (partition.path, "recovery"), message, problem
            )
    return raised_to
