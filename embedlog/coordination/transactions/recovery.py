"""Aborts data of unknown transactions after a power loss (`docs/protocol.md`).

TXNRECOVERY-1  due after the page cache was lost while the directory was open, until it was done once; the directory's control
    page contains that state
TXNRECOVERY-2  open data without a record of its epoch is aborted, under the next epoch: no producer can continue it
TXNRECOVERY-3  an id continues with at least the highest epoch that any partition has stored for it; a transaction that is decided
    is completed first
TXNRECOVERY-4  all steps can be interrupted and repeated, by any number of processes at once
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from embedlog import _logging
from embedlog._native import system
from embedlog.errors import CorruptRecordError, UnknownTopicOrPartitionError
from embedlog.transaction import EPOCH_MAX, Transaction, covers, following

if TYPE_CHECKING:
    from embedlog.partition.api import TransactionalLog

logger = logging.getLogger("embedlog")

# Words of the directory's control page.
LAST_CACHE, RECOVERY_DUE = 8, 9
UNKNOWN_CACHE: Final = 0


def note_opening(page: system.Page, clean: bool, foreign: bool, cache: int) -> None:
    """Record at the first open whether the page cache was lost; `cache` is its present number. REQUIRES the open lock."""
    if foreign:
        page.set(RECOVERY_DUE, 0)  # a broker has its own records of open transactions
    elif not clean and (cache == UNKNOWN_CACHE or page.word(LAST_CACHE) != cache):
        page.set(RECOVERY_DUE, 1)
    page.set(LAST_CACHE, cache)


def is_due(page: system.Page | None) -> bool:
    """Whether open data without a record may exist."""
    return page is not None and bool(page.word(RECOVERY_DUE))


def done(page: system.Page | None) -> None:
    if page is not None:
        page.set(RECOVERY_DUE, 0)


def recover(
    known: Mapping[str, Transaction],
    newest: Callable[[int], Transaction | None],
    partitions: Iterable[TransactionalLog],
    deadline_ns: int,
) -> dict[str, tuple[int, int]]:
    """Abort open data that no record covers; returns the producer id and epoch to which transactional ids must be raised_to.

    `newest` returns the present state of a producer id. Data read before that call was registered before it, so a transaction
    that began after `known` was read is never aborted by mistake. Raises LockTimeoutError, StorageError; then repeat the call. A
    partition that cannot be read is reported and skipped.
    """
    raised_to: dict[str, tuple[int, int]] = {}
    for partition in partitions:
        try:
            for producer_id, epoch, first in partition.open_transactions():
                if not covers(newest(producer_id), (partition.topic, partition.number), epoch):
                    logger.warning(
                        "aborted transaction %d/%d from offset %d on in %s-%d: its record was lost in a power loss",
                        producer_id, epoch, first, partition.topic, partition.number,
                    )  # fmt: skip
                    partition.append_marker(producer_id, min(epoch + 1, EPOCH_MAX), commit=False, deadline_ns=deadline_ns)
            for name, state in known.items():
                producer_id, epoch = raised_to.get(name) or following(state)
                stored = partition.stored_epoch(producer_id)
                if stored > epoch:
                    raised_to[name] = producer_id, stored
        except UnknownTopicOrPartitionError:
            continue
        except CorruptRecordError as problem:
            what = f"open transactions of {partition.topic}-{partition.number} are unknown"
            _logging.report(logger, logging.ERROR, (partition.path, "recovery"), what, problem)
    return raised_to
