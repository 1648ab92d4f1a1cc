"""Behind a power loss: what was written for transactions of which nothing is known any more (`docs/protocol.md`).

TXNRECOVERY-1  due when the page cache was lost under an open directory, until it was done once; the directory's control page
    remembers
TXNRECOVERY-2  open data that no record of its own epoch speaks of is aborted, under the epoch above its own: nobody can go on
    with it
TXNRECOVERY-3  an id goes on no lower than the highest epoch that any partition has stored for it; a transaction in whose middle
    it stands is taken to its end first
TXNRECOVERY-4  all of it can be broken off and repeated, by any number of processes at once
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
    from embedlog.partition.partition import Partition

logger = logging.getLogger("embedlog")

# Words of the directory's control page.
LAST_CACHE, SWEEP_DUE = 8, 9
UNKNOWN_CACHE: Final = 0


def note_opening(page: system.Page, clean: bool, foreign: bool, cache: int) -> None:
    """The first one in: was the page cache lost while the directory was open? `cache` is its number now. REQUIRES the door."""
    if foreign:
        page.set(SWEEP_DUE, 0)  # whoever wrote it has his own records of what is open
    elif not clean and (cache == UNKNOWN_CACHE or page.word(LAST_CACHE) != cache):
        page.set(SWEEP_DUE, 1)
    page.set(LAST_CACHE, cache)


def is_due(page: system.Page | None) -> bool:
    """Whether open data may be there that no record speaks of."""
    return page is not None and bool(page.word(SWEEP_DUE))


def done(page: system.Page | None) -> None:
    if page is not None:
        page.set(SWEEP_DUE, 0)


def sweep(
    known: Mapping[str, Transaction],
    newest: Callable[[int], Transaction | None],
    partitions: Iterable[Partition],
    deadline_ns: int,
) -> dict[str, tuple[int, int]]:
    """Abort open data that no record covers; returns the transactional ids to be lifted: producer id and epoch.

    `newest` looks a producer id up as it is now: what was written before that look was registered before it, so that nobody's
    transaction is taken for debris that began since `known` was read. Raises LockTimeoutError, StorageError; then it is to be
    repeated. A partition that cannot be read is reported and left.
    """
    lifted: dict[str, tuple[int, int]] = {}
    for partition in partitions:
        try:
            for producer_id, epoch, first in partition.open_transactions():
                if not covers(newest(producer_id), (partition.topic, partition.number), epoch):
                    logger.warning(
                        "aborted what transaction %d/%d left from offset %d on in %s-%d: its record was lost with the power",
                        producer_id, epoch, first, partition.topic, partition.number,
                    )  # fmt: skip
                    partition.append_marker(producer_id, min(epoch + 1, EPOCH_MAX), commit=False, deadline_ns=deadline_ns)
            for name, state in known.items():
                producer_id, epoch = lifted.get(name) or following(state)
                stored = partition.stored_epoch(producer_id)
                if stored > epoch:
                    lifted[name] = producer_id, stored
        except UnknownTopicOrPartitionError:
            continue
        except CorruptRecordError as problem:
            what = f"open transactions of {partition.topic}-{partition.number} are not known"
            _logging.report(logger, logging.ERROR, (partition.path, "sweep"), what, problem)
    return lifted
