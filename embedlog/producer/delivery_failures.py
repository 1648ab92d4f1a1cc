"""Keeps delivery failures until the program has received them.

- A failure counts as received when its future is read (`result`, `exception`) or has a callback,
  also later; `_rows.Tally` counts the others.
- Flush() and close() raise unreceived failures once; with on_delivery_error="log" and with acks=0
  they log them. Failures that no call can raise are logged too: once for each topic and reason,
  with a count.
- Failures with the same partition and reason share one entry with a count. Beyond `ENTRIES_MAX`
  entries, those with the same type of error share one, `ELSEWHERE`: memory is bounded.
- Failures inside a transaction are reported by its commit or abort, because the transaction is
  visible as a whole or not at all.
- Failures unreceived after a minute are logged, for programs that neither flush nor close: each
  topic and reason at most once an hour. They stay unreceived, and the next flush() raises them.
- Failures by fencing are received once a call of the producer has raised FencedError, also those
  that follow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from embedlog._native import _rows
from embedlog.errors import DeliveryError, EmbedlogError, FencedError, TransactionAbortedError
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from embedlog._native._rows import ProducerBatch, Tally
    from embedlog.telemetry.metrics import Metrics

logger = logging.getLogger("embedlog.producer")


ENTRIES_MAX = 100
NOTICE_S = 60.0  # time for a program to read a failure before it is logged
REASONS_MAX = 3  # in the text of an error
ELSEWHERE = "other failures"  # in the place of a topic

Key: TypeAlias = tuple[str, int | None, type[BaseException], str]


class DeliveryFailure(NamedTuple):
    """Failed records with the same partition and reason."""

    topic: str
    partition: int | None
    error: BaseException  # the first one
    tally: Tally


class DeliveryFailures:
    """The failed records of one producer. Threads: any."""

    def __init__(self, name: str, figures: Metrics, *, raises: bool) -> None:
        self._name = name
        self._figures = figures
        self._raises = raises
        self._lock = threading.RLock()  # reentrant: a finalizer may send at any point
        self._entries: dict[Key, DeliveryFailure] = {}
        # entries that grew and were not reported since, with the time when they began to, in seconds
        self._grown: dict[Key, tuple[float, DeliveryFailure]] = {}
        self._due_s: float | None = None  # time of the next check
        self._fencing_raised = False
        self.on_failure: Callable[[], object] = lambda: None  # wakes the thread that checks

    def fail(
        self,
        batch: ProducerBatch,
        topic: str,
        partition: int | None,
        error: BaseException,
        count: int,
    ) -> None:
        """Settle a producer batch or a promise with an error: `count` of its records were not
        written. The caller counts them in the metrics.
        """
        with self._lock:
            batch.fail(error, self._tally_locked(topic, partition, error), count)

    def abandon(self, batch: ProducerBatch, error: BaseException) -> bool:
        """As `fail`, for a batch whose write has not begun, and count its records in the metrics;
        False, with no effect, if it has begun.
        """
        with self._lock:
            tally = None
            if batch.run is None:
                tally = self._tally_locked(batch.topic, batch.partition, error)
            if not batch.abandon(error, tally):
                return False
        self.count(batch.count)
        return True

    def count(self, records: int) -> None:
        """Add failed records, received or not, to the metrics."""
        self._figures.add({"error": records})

    def _tally_locked(
        self, topic: str, partition: int | None, error: BaseException
    ) -> Tally | None:
        if isinstance(error, TransactionAbortedError):
            return None  # the user requested the abort
        reason = error.message if isinstance(error, EmbedlogError) else str(error)
        key = (topic, partition, type(error), reason)
        failure = self._entries.get(key)
        if failure is None and len(self._entries) >= ENTRIES_MAX:
            topic = ELSEWHERE
            partition = None
            key = (topic, partition, type(error), "")
            failure = self._entries.get(key)
        if failure is None:
            # A traceback would keep the frames of a send() and so its record alive
            failure = self._entries[key] = DeliveryFailure(
                topic, partition, error.with_traceback(None), _rows.Tally()
            )
        now_s = time.monotonic()
        self._grown.setdefault(key, (now_s, failure))
        if self._due_s is None:
            self._due_s = now_s + NOTICE_S
            self.on_failure()
        return failure.tally

    # ---- reports -------------------------------------------------------------------------------------

    def note_fencing_raised(self) -> None:
        """A call of the producer raises FencedError, which is the reason of all failures by
        fencing.
        """
        self._fencing_raised = True

    def _is_unreceived(self, failure: DeliveryFailure) -> bool:
        return failure.tally.unobserved > 0 and not (
            self._fencing_raised and isinstance(failure.error, FencedError)
        )

    def take(self) -> list[DeliveryFailure]:
        """Remove and return the unreceived failures; they now count as received."""
        if not self._entries:
            return []
        with self._lock:
            # a finalizer may send in between: the notice of its failure is not among these
            self._due_s = None
            self._grown = {}
            entries = self._entries
            self._entries = {}
        return [failure for failure in entries.values() if self._is_unreceived(failure)]

    def raise_or_log_unreceived(self) -> None:
        """Raise DeliveryError for unreceived failures, or log them, depending on the option."""
        unobserved = self.take()
        if not self._raises:
            self._log(unobserved)
            return
        error = _delivery_error(unobserved)
        if error is not None:
            raise error

    def log_unreceived(self) -> None:
        """Log unreceived failures where no call can raise them."""
        self._log(self.take())

    def report_if_due(self) -> float | None:
        """Log failures that are unreceived after NOTICE_S; returns the seconds until the next
        check, None if none is due.
        """
        due_s = self._due_s
        if due_s is None:
            return None
        now_s = time.monotonic()
        if due_s > now_s:
            return due_s - now_s
        unobserved: list[DeliveryFailure] = []
        with self._lock:
            self._due_s = None  # first: a finalizer may send in between, and sets it again
            for key, (since_s, failure) in list(self._grown.items()):
                if since_s + NOTICE_S > now_s:
                    self._due_s = since_s + NOTICE_S  # the oldest of those that are left
                    break
                self._grown.pop(key, None)
                if self._is_unreceived(failure):
                    unobserved.append(failure)
            next_due_s = self._due_s
        errors = {(failure.topic, _reason(failure)): failure.error for failure in unobserved}
        for (topic, reason), count in _count_by_reason(unobserved).items():
            summary = (
                f"{self._name}: {count} records for {topic} were not written, and their futures "
                "were not asked"
            )
            log_messages.report(
                logger, logging.WARNING, ("lost", topic, reason), summary, errors[topic, reason]
            )
        return None if next_due_s is None else max(0.0, next_due_s - now_s)

    def _log(self, unobserved: list[DeliveryFailure]) -> None:
        for (topic, reason), count in _count_by_reason(unobserved).items():
            logger.warning(
                "%s: %d records for %s were not written: %s", self._name, count, topic, reason
            )


def _count_by_reason(failures: list[DeliveryFailure]) -> Counter[tuple[str, str]]:
    """Without failures that were received meanwhile."""
    counts: Counter[tuple[str, str]] = Counter()
    for failure in failures:
        count = failure.tally.unobserved
        if count > 0:
            counts[failure.topic, _reason(failure)] += count
    return counts


def copy_error(error: BaseException) -> BaseException:
    """A new exception for a future to raise: a shared one would collect the frames of each
    `result()` call.
    """
    if not isinstance(error, EmbedlogError):
        return error.with_traceback(None)  # it may not be copyable; its traceback must not grow
    make, arguments, facts = error.__reduce__()
    copy = make(*arguments)
    copy.__dict__.update(facts)
    copy.__cause__ = error.__cause__
    copy.__context__ = error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy


def _reason(failure: DeliveryFailure) -> str:
    return str(failure.error) or type(failure.error).__name__


def _delivery_error(failures: list[DeliveryFailure]) -> DeliveryError | None:
    """None if all of them were received meanwhile."""
    reasons = _count_by_reason(failures)
    if not reasons:
        return None
    words = [
        f"{count} of {topic}: {reason}"
        for (topic, reason), count in list(reasons.items())[:REASONS_MAX]
    ]
    if len(reasons) > REASONS_MAX:
        words.append(f"and {len(reasons) - REASONS_MAX} more reasons")
    count = reasons.total()
    message = f"{count} record{'' if count == 1 else 's'} not written: {'; '.join(words)}"
    return DeliveryError(
        message,
        count=count,
        errors=[(failure.topic, failure.partition, failure.error) for failure in failures],
    )
