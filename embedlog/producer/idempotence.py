"""Appends a run of batches to its partition: plainly, with idempotence, or inside a transaction.

- A partition queue has the producer id that stamps its batches, and the sequence of the next record
  that is not in the log. Sequences are assigned when a run is sent, in the order of the queue, and
  advance only when its result is known.
- Producer ids are 2^62 and 61 random bits: no authority assigns them, and collisions are
  practically impossible (`docs/protocol.md`, SEQ-4).
- After a run failed with an unknown result, the epoch rises and sequences start at 0. No later
  record can be mistaken for its repeat, and no part of it can be appended later. After the last
  epoch a new id follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from embedlog.coordination.producer_ids import new_producer_id
from embedlog.errors import FencedError, OffsetMismatchError, OutOfOrderSequenceError
from embedlog.format.producer_state import NO_PRODUCER
from embedlog.format.record_batch import Stamp, stamp
from embedlog.format.record_columns import EPOCH_MAX

if TYPE_CHECKING:
    from embedlog.partition.log_context import Appended
    from embedlog.producer.attempts import Attempt
    from embedlog.producer.targets import QueueTarget


class Appender(Protocol):
    """Appends runs for the sender. All methods run on the producer's thread, after it entered the
    queue.
    """

    direct: bool  # callers may append without the thread
    # a run whose result is unknown may be appended again: the log shows whether it is there
    repeatable: bool

    def announce(self, targets: Iterable[QueueTarget]) -> None:
        """Each of these targets has an attempt that is about to be appended: do common work for all
        at once.

        Not called for a `direct` appender.
        """

    def prepare(self, target: QueueTarget) -> None:
        """Set the producer id and epoch of the queue before its batches are sealed."""

    def stamp(self, target: QueueTarget, attempt: Attempt) -> None:
        """Stamp a run that was encoded before. A run that was sealed here is stamped already."""

    def append(self, target: QueueTarget, attempt: Attempt, deadline_ns: int) -> Appended: ...

    def note_written(self, target: QueueTarget, attempt: Attempt) -> None:
        """The whole run is in the log."""

    def renew(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> bool:
        """Renew the epoch or id after `error`; True if the same records can be retried at once."""

    def note_lost(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> None:
        """The attempt has failed with `error`; its records may be in the log or not."""


class PlainAppender:
    """Appends without a producer id: a retry may write records twice."""

    direct = True
    repeatable = False

    def __init__(self, acks: str) -> None:
        self._acks = acks

    def announce(self, targets: Iterable[QueueTarget]) -> None:
        """No common work."""

    def prepare(self, target: QueueTarget) -> None:
        """No stamp."""

    def stamp(self, target: QueueTarget, attempt: Attempt) -> None:
        """No stamp."""

    def append(self, target: QueueTarget, attempt: Attempt, deadline_ns: int) -> Appended:
        all_in_sync = self._acks == "all"
        if all_in_sync:
            target.partition.check_in_sync()
        appended: Appended = target.partition.append(
            attempt.run, deadline_ns=deadline_ns, progress=attempt.progress, all_in_sync=all_in_sync
        )
        return appended

    def note_written(self, target: QueueTarget, attempt: Attempt) -> None:
        """No state."""

    def renew(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> bool:
        return False

    def note_lost(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> None:
        """No state."""


class IdempotentAppender:
    """Appends with one producer id for all queues; a queue that needed another epoch or id keeps
    its own.
    """

    direct = True
    repeatable = True

    def __init__(self) -> None:
        self._producer_id = new_producer_id()

    def announce(self, targets: Iterable[QueueTarget]) -> None:
        """No common work."""

    def prepare(self, target: QueueTarget) -> None:
        if target.queue.producer_id == NO_PRODUCER:
            _set_producer(target, self._producer_id, 0)

    def stamp(self, target: QueueTarget, attempt: Attempt) -> None:
        queue = target.queue
        if queue.producer_id == NO_PRODUCER:
            return
        attempt.stamp = Stamp(queue.producer_id, queue.producer_epoch)
        if attempt.batches[0].run is not None or attempt.rebuilt:
            attempt.end_sequence = stamp(attempt.run, attempt.stamp, queue.next_sequence)
        else:
            attempt.end_sequence = (queue.next_sequence + attempt.run.record_count) & 0x7FFFFFFF

    def append(self, target: QueueTarget, attempt: Attempt, deadline_ns: int) -> Appended:
        partition = target.partition
        queue = target.queue
        stamp = attempt.stamp
        partition.check_in_sync()
        has_direct_appends = (
            queue.seen >= 0 and queue.seen != target.seen
        )  # callers have appended directly
        if stamp is not None and has_direct_appends and target.direct is not None:
            direct = partition.direct_target
            if direct is not None and target.direct[0] == id(direct.writer):
                partition.note_direct(stamp, queue.next_sequence, queue.seen)
        appended: Appended = partition.append(
            attempt.run, deadline_ns=deadline_ns, stamp=stamp, progress=attempt.progress
        )
        return appended

    def note_written(self, target: QueueTarget, attempt: Attempt) -> None:
        if attempt.stamp is not None:
            target.queue.next_sequence = attempt.end_sequence
            target.queue.seen = target.seen = target.partition.seen_plain(attempt.stamp)

    def renew(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> bool:
        if (
            attempt.rebuilt
            or attempt.progress.start
            or not isinstance(error, (OutOfOrderSequenceError, FencedError))
        ):
            return False
        _renew_epoch(target)
        attempt.rebuilt = True
        self.stamp(target, attempt)
        return True

    def note_lost(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> None:
        if attempt.stamp is None or isinstance(error, OffsetMismatchError):
            # a mismatch is decided after a search for the run: its sequences are free for the next
            # one
            return
        if attempt.progress.start == len(attempt.run.buffer):
            self.note_written(target, attempt)
        else:
            _renew_epoch(target)


class TransactionalAppender:
    """Appends inside the owner's present transaction; each transaction has a new epoch, so
    sequences begin at 0.
    """

    direct = False
    repeatable = True

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def announce(self, targets: Iterable[QueueTarget]) -> None:
        """Register partitions that are written for the first time in one record, under one lock."""
        attempts = [
            (target.partition, target.attempt)
            for target in targets
            if target.partition.config.min_insync_replicas <= 1
        ]
        if len(attempts) > 1:
            self._owner.begin_in(
                [
                    (partition, attempt.run, attempt.progress)
                    for partition, attempt in attempts
                    if attempt
                ]
            )

    def prepare(self, target: QueueTarget) -> None:
        stamp = self._owner.stamp
        queue = target.queue
        if (queue.producer_id, queue.producer_epoch) != stamp[:2]:
            _set_producer(target, stamp.producer_id, stamp.epoch)

    def stamp(self, target: QueueTarget, attempt: Attempt) -> None:
        attempt.stamp = self._owner.stamp
        attempt.end_sequence = stamp(attempt.run, attempt.stamp, target.queue.next_sequence)

    def append(self, target: QueueTarget, attempt: Attempt, deadline_ns: int) -> Appended:
        target.partition.check_in_sync()
        appended: Appended = self._owner.append(
            target.partition, attempt.run, deadline_ns, attempt.progress
        )
        return appended

    def note_written(self, target: QueueTarget, attempt: Attempt) -> None:
        target.queue.next_sequence = attempt.end_sequence

    def renew(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> bool:
        return False

    def note_lost(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> None:
        """No state: the transaction can only be aborted, and the next one has another epoch."""


def _set_producer(target: QueueTarget, producer_id: int, epoch: int) -> None:
    queue = target.queue
    queue.producer_id = producer_id
    queue.producer_epoch = epoch
    queue.next_sequence = 0
    queue.seen = -1


def _renew_epoch(target: QueueTarget) -> None:
    """Use the next epoch, or a new id after the last epoch."""
    queue = target.queue
    if queue.producer_epoch == EPOCH_MAX:
        _set_producer(target, new_producer_id(), 0)
    else:
        _set_producer(target, queue.producer_id, queue.producer_epoch + 1)
