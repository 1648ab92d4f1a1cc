"""What producers did in batches that a repair takes over: transactions that opened and ended, entries of the transaction index.

U1  the state begins at the published end: what lies below it is in the log, whatever the dead appender had in mind
U2  the transaction index gets exactly the entries of the markers that are there: published ones, then those taken over
U3  whoever remembers a producer here looks again afterwards
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog._native.system import Published
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import ENTRY_SIZE, AbortedTransaction
from embedlog.format.producer_state import ProducerState
from embedlog.format.record_batch import Batches
from embedlog.partition import producer_recovery
from embedlog.storage import file_names, files

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition


class Adoption:
    """The producers' side of one repair. REQUIRES the append lock."""

    def __init__(self, partition: Partition, now: Published) -> None:
        self._partition, self._now = partition, now
        self._state: ProducerState | None = None
        self._aborted: list[AbortedTransaction] = []

    def take(self, data: memoryview, batches: Batches) -> None:
        """The next batches that are taken over; `data` begins at the first one."""
        if self._state is None:
            if not (batches["producer_id"] >= 0).any():
                return
            self._state = self._partition.sequencing.state_locked(self._now)
        self._aborted += self._state.replay(batches, producer_recovery.markers_in(data, batches))

    def finish(self, now: Published) -> Published:
        """The published tuple with what became of transactions."""
        partition = self._partition
        entries = aborted_transactions.encode(self._aborted)
        count = now.transaction_entries + len(self._aborted)
        now = now._replace(transaction_digest=aborted_transactions.digest(entries, now.transaction_digest))
        path = file_names.segment_path(partition.path, now.segment_base, file_names.TRANSACTION_INDEX)
        if self._aborted or files.exists(path):
            with files.opened(path, files.CREATE, partition.home.mode) as fd:
                files.write_all(fd, entries, now.transaction_entries * ENTRY_SIZE, path)
                if files.facts(fd, path).size > count * ENTRY_SIZE:
                    files.truncate(fd, count * ENTRY_SIZE, path)
        if not system.mutated("no_doubt"):
            partition.page.doubt()
            partition.sequencing.forget()
        if self._state is None or system.mutated("unstable_forgotten"):
            return now._replace(transaction_entries=count)
        partition.page.set(system.WORD_PRODUCED, self._state.offset)
        return now._replace(transaction_entries=count, first_unstable=self._state.first_unstable(self._state.offset))
