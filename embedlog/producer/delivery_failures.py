"""Keeps delivery failures until the program has received them.

DELIVERYFAILURE-1  a failure counts as received when its future is read (`result`, `exception`) or
    has a callback, also later; `_rows.Tally` counts the others
DELIVERYFAILURE-2  flush() and close() raise unreceived failures once; with on_delivery_error="log"
    and with acks=0 they log them. Failures that no call can raise are logged too: once for each
    topic and reason, with a count
DELIVERYFAILURE-3  failures with the same partition and reason share one entry with a count, and
    there are at most `ENTRIES_MAX` entries: memory is bounded
DELIVERYFAILURE-4  failures inside a transaction are reported by its commit or abort, because the
    transaction is visible as a whole or not at all
DELIVERYFAILURE-5  failures unreceived after a minute are logged, for programs that neither flush
    nor close: each topic and reason at most once an hour. They stay unreceived, and the next
    flush() raises them
DELIVERYFAILURE-6  failures by fencing are received once a call of the producer has raised
    FencedError, also those that follow
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from embedlog import _logging
from embedlog._native import _rows
from embedlog.errors import DeliveryError, EmbedlogError, FencedError, TransactionAbortedError

if TYPE_CHECKING:
    from embedlog._metrics import Metrics
    from embedlog._native._rows import ProducerBatch, Tally

logger = logging.getLogger("embedlog.producer")


ENTRIES_MAX = 100
NOTICE_S = 60.0  # time for a program to read a failure before it is logged
REASONS_MAX = 3  # in the text of an error
ELSEWHERE = "other topics"

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
        self._grown: set[Key] = set()  # entries that grew since the last check
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
        written.
        """
        with self._lock:
            batch.fail(error, self._tally_locked(topic, partition, error), count)

    def abandon(self, batch: ProducerBatch, error: BaseException) -> bool:
        """As `fail`, for a batch whose write has not begun; False, with no effect, if it has
        begun.
        """
        with self._lock:
            tally = (
                None
                if batch.run is not None
                else self._tally_locked(batch.topic, batch.partition, error)
            )
            if not batch.abandon(error, tally):
                return False
        self.count(batch.count)
        return True

    def count(self, records: int) -> None:
        """Add failed records, received or not, to the metrics."""
        self._figures.note({"error": records})

    def _tally_locked(
        self, topic: str, partition: int | None, error: BaseException
    ) -> Tally | None:
        if isinstance(error, TransactionAbortedError):
            return None  # the user requested the abort
        key = (
            topic,
            partition,
            type(error),
            error.message if isinstance(error, EmbedlogError) else str(error),
        )
        found = self._entries.get(key)
        if found is None and len(self._entries) >= ENTRIES_MAX:
            topic = ELSEWHERE
            partition = None
            key = (topic, partition, type(error), "")
            found = self._entries.get(key)
        if found is None:
            # A traceback would keep the frames of a send() and so its record alive
            found = self._entries[key] = DeliveryFailure(
                topic, partition, error.with_traceback(None), _rows.Tally()
            )
        self._grown.add(key)
        if self._due_s is None:
            self._due_s = time.monotonic() + NOTICE_S
            self.on_failure()
        return found.tally

    # ---- reports -------------------------------------------------------------------------------------

    def fencing_raised(self) -> None:
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
            found = self._entries
            self._entries = {}
            self._grown.clear()
        return [each for each in found.values() if self._is_unreceived(each)]

    def raise_unreported(self) -> None:
        """Raise DeliveryError for unreceived failures, or log them, depending on the option."""
        unobserved = self.take()
        if unobserved and self._raises:
            raise _delivery_error(unobserved)
        self._log(unobserved)

    def log_unreported(self) -> None:
        """Log unreceived failures where no call can raise them."""
        self._log(self.take())

    def report_if_due(self) -> float | None:
        """Log failures that are unreceived after NOTICE_S; returns the seconds until the next
        check, None if none is due.
        """
        due_s = self._due_s
        if due_s is None or (left_s := due_s - time.monotonic()) > 0:
            return None if due_s is None else left_s
        with self._lock:
            unobserved = [
                each
                for each in map(self._entries.__getitem__, self._grown)
                if self._is_unreceived(each)
            ]
            self._grown.clear()
            self._due_s = None
        errors = {(loss.topic, _reason(loss)): loss.error for loss in unobserved}
        for (topic, reason), count in _by_reason(unobserved).items():
            what = (
                f"{self._name}: {count} records for {topic} were not written, and their futures "
                "were not asked"
            )
            _logging.report(
                logger, logging.WARNING, ("lost", topic, reason), what, errors[topic, reason]
            )
        return None

    def _log(self, unobserved: list[DeliveryFailure]) -> None:
        for (topic, reason), count in _by_reason(unobserved).items():
            logger.warning(
                "%s: %d records for %s were not written: %s", self._name, count, topic, reason
            )


def _by_reason(failures: list[DeliveryFailure]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for loss in failures:
        counts[loss.topic, _reason(loss)] += loss.tally.unobserved
    return counts


def raised_of(error: BaseException) -> BaseException:
    """A new exception for a future to raise: a shared one would collect the frames of each
    `result()` call.
    """
    if not isinstance(error, EmbedlogError):
        return error.with_traceback(None)  # it may not be copyable; its traceback must not grow
    make, arguments, facts = error.__reduce__()
    raised = make(*arguments)
    raised.__dict__.update(facts)
    raised.__cause__ = error.__cause__
    raised.__context__ = error.__context__
    raised.__suppress_context__ = error.__suppress_context__
    return raised


def _reason(loss: DeliveryFailure) -> str:
    return str(loss.error) or type(loss.error).__name__


def _delivery_error(failures: list[DeliveryFailure]) -> DeliveryError:
    reasons = _by_reason(failures)
    words = [
        f"{count} of {topic}: {reason}"
        for (topic, reason), count in list(reasons.items())[:REASONS_MAX]
    ]
    if len(reasons) > REASONS_MAX:
        words.append(f"and {len(reasons) - REASONS_MAX} more reasons")
    count = reasons.total()
    message = f"{count} record{'' if count == 1 else 's'} not written: {'; '.join(words)}"
    return DeliveryError(
        message, count=count, errors=[(each.topic, each.partition, each.error) for each in failures]
    )
