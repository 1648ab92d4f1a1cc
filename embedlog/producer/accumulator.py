"""Buffers records that a producer has accepted but not written: the memory limit, and the thread
that passes due batches on.

- The queues are in C (`_rows`), protected by the GIL or by a section (section.h); this module
  decides which thread waits or wakes.
- Threads that wait for memory are served in order of arrival; no later record overtakes them, not
  even on the fast path.
- The thread sleeps until it is notified or a linger time ends: an idle producer uses no CPU.
- Callbacks run on the thread, after their future is done, in the order in which the results became
  known; the thread never waits for itself.
- The thread references this accumulator, never the producer: a dropped producer can be collected,
  and then closes itself.
- At interpreter exit buffered records are written, or warnings state how many are lost and why.
- A forked child discards all records: they belong to the parent.
- A partition queue is written by the thread that has entered it. This is the producer's thread, or
  in C a caller that waits for a record (`direct_append.c`).
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from embedlog._native import _rows
from embedlog._native.scope import scope
from embedlog._native.threads import start
from embedlog.errors import ClosedError, DeadlineError, ForkedError, StateError
from embedlog.hooks import callbacks
from embedlog.producer.awaitable import await_future
from embedlog.producer.delivery_failures import copy_error
from embedlog.types import RecordMetadata

if TYPE_CHECKING:
    from embedlog._native._rows import Future, PartitionQueue, ProducerBatch
    from embedlog.producer.delivery_failures import DeliveryFailures

logger = logging.getLogger("embedlog.producer")


FOREVER = float("inf")
EXIT_TIMEOUT_S = 30.0
# for the thread to notice abandonment; for each other producer after Ctrl-C ended a wait
INTERRUPTED_TIMEOUT_S = 1.0
# of a wait for memory: a signal handler may have closed the producer, or have prevented a
# notification
RECHECK_S = 0.1
# for the thread: a handler that interrupted a holder of the lock may wait for the thread's end
NOTIFY_S = 0.01
FAILURE_PAUSE_S = 0.05  # an unexpected failure would repeat at once

_live: set[Accumulator] = set()  # accumulators that may have a thread
# waiting thread → producer thread whose end it waits for
_joining: dict[threading.Thread, threading.Thread] = {}
_joining_lock = threading.RLock()  # a signal handler may close a producer inside `_wait_registered`
_finalized_pid = 0


def run_callback(future: Future, callback: Callable[[Future], object]) -> None:
    """Run a callback; log its exception, so that other callbacks still run.

    In the main thread KeyboardInterrupt and SystemExit propagate: there a signal raised them.
    """
    try:
        callback(future)
    except BaseException as error:  # a user's callback may raise anything; the thread must continue
        if callbacks.is_interrupt(error):
            raise
        logger.exception("a callback of a sent record raised")


class Delivery(Protocol):
    """Writes partition queues into the log."""

    def announce(self, queues: list[PartitionQueue]) -> None:
        """These queues will be delivered next, one after the other."""

    def deliver(self, queue: PartitionQueue) -> None:
        """Write the due batches of a queue."""

    def drop(self, error: Exception) -> None:
        """Fail batches that wait for another attempt."""

    def abandon(self, batch: ProducerBatch, error: Exception) -> int:
        """Fail a batch whose write has not begun; returns its number of records."""

    def fail_all(self, error: Exception) -> None:
        """The thread ends: fail waiting batches now."""

    @property
    def failures(self) -> DeliveryFailures:
        """Failures that the program has not received yet."""


class Accumulator:
    """The records of one producer between `send()` and their partition's log.

    `delivery` writes the due batches of a queue and settles them, on the thread, after the thread
    has entered the queue. Threads: all methods may be called from any thread.
    """

    _thread: threading.Thread | None = None  # becomes an attribute of the object in `_register`

    def __init__(
        self,
        name: str,
        delivery: Delivery,
        *,
        memory_limit: int,
        linger_ms: float,
        unacknowledged: bool = False,
    ) -> None:
        self._delivery = delivery
        self._name = name
        # not through the condition, where an interrupt would leave it taken
        self._memory_lock = threading.RLock()
        self._memory_freed = threading.Condition(self._memory_lock)
        self._tickets: deque[object] = deque()
        # a signal handler may close the accumulator during `start`
        self._start_lock = threading.RLock()
        self._calling = False  # on the thread: inside callbacks
        self._abandoned = False
        self._left_alone = False
        self.blocked_count = 0
        # receives the duration of each wait for memory
        self.note_wait: Callable[[float], None] = lambda seconds: None
        self.rows = _rows.Accumulator(
            memory_limit=memory_limit,
            linger_ms=linger_ms,
            unacknowledged=unacknowledged,
            metadata=RecordMetadata,
            run_callback=run_callback,
            await_future=await_future,
            raised_of=copy_error,
            deadline_error=DeadlineError,
            forked_error=ForkedError,
            state_error=StateError,
        )
        # kept at the end of the thread's function; a wait for it holds no lock
        self._finished = self.rows.promise(False)[1]

    # ---- memory ----------------------------------------------------------------------------------

    def wait_for_memory(self, attempt: Callable[[], Any], timeout_s: float) -> Any:
        """Wait for memory: the first result of `attempt()` that is not None, or None after the
        timeout. Raises ClosedError.

        `attempt` is called when this thread is first in the queue, and whenever memory was freed.
        """
        began = time.monotonic()
        deadline = began + (0.0 if self.on_thread() else timeout_s)
        ticket = object()
        with self._memory_lock:
            try:
                self.rows.waiting += 1
                self._tickets.append(ticket)  # an interrupt comes after both, or before
                self.blocked_count += 1
                self.rows.wake()
                while True:
                    if self.rows.closed:
                        raise ClosedError(
                            "the producer was closed while a record waited for memory"
                        )
                    result = attempt() if self._tickets[0] is ticket else None
                    remaining_s = deadline - time.monotonic()
                    if result is not None or remaining_s <= 0:
                        return result
                    self._memory_freed.wait(min(remaining_s, RECHECK_S))
            finally:
                if ticket in self._tickets:
                    self.rows.waiting -= 1
                    self._tickets.remove(ticket)
                self._memory_freed.notify_all()
                self.note_wait(time.monotonic() - began)

    def has_memory(self, size: int) -> bool:
        """Whether `size` bytes fit into the memory. A record larger than the whole memory is
        accepted if the memory is empty.
        """
        return self.rows.memory_used == 0 or self.rows.memory_used + size <= self.rows.memory_limit

    def _finish_settled(self) -> None:
        """After batches were settled: run their callbacks, and wake threads that wait for
        memory.
        """
        on_thread = self.on_thread()
        if on_thread:  # not `|=`: without the GIL another thread could store the value from before
            self._calling = True
        try:
            self.rows.run_late()
        finally:
            if on_thread:
                self._calling = False
            self._notify_waiting()

    def _notify_waiting(self) -> None:
        if not self.rows.waiting:
            return
        if not self.on_thread():
            with self._memory_lock:
                self._memory_freed.notify_all()
        elif self._memory_lock.acquire(timeout=NOTIFY_S):
            try:
                self._memory_freed.notify_all()
            finally:
                self._memory_lock.release()

    # ---- flush and close -------------------------------------------------------------------------

    def flush(self, timeout_s: float | None) -> bool:
        """Send all present records and wait until they are settled; False after the timeout.

        Raises StateError on the producer's own thread: it would wait for itself.
        """
        if self.on_thread():
            raise StateError("flush() inside a callback of this producer would wait for itself")
        deadline = FOREVER if timeout_s is None else time.monotonic() + timeout_s
        self.rows.seal()
        # the last one first: the caller wakes once, not for each batch
        for batch in reversed(self.rows.pending()):
            if not batch.wait(_seconds_until(deadline)):
                return False
        return self.rows.mark().wait(
            _seconds_until(deadline)
        )  # after the callbacks of the settled batches

    def close(self, timeout_s: float | None) -> bool:
        """Accept no more records, send the current ones and end the thread; False after the
        timeout.

        Inside a callback it returns once everything is written; the other callbacks and the end of
        the thread happen after that callback's return. Raises StateError if two callbacks would
        wait for each other's producers.
        """
        deadline = FOREVER if timeout_s is None else time.monotonic() + timeout_s
        with self._start_lock:
            self.rows.close()
            thread = self._thread
        with self._memory_lock:
            self._memory_freed.notify_all()
        if thread is None:
            _live.discard(self)
            self._finish_settled()
            return self.rows.end()
        if self.on_thread():
            return self._drain(timeout_s)
        self.rows.wake()
        with _wait_registered(thread):
            # Not join(): after an interrupt it considers the thread ended (before Python 3.13)
            if self._finished.wait(_seconds_until(deadline)):
                # The thread ends at once. A signal handler that interrupts a join() must not wait
                # for that thread's own lock
                thread.join(_shortest(_seconds_until(deadline), INTERRUPTED_TIMEOUT_S))
                return True
        self._abandoned = True
        return False

    def _drain(self, timeout_s: float | None) -> bool:
        """Write the current records on the thread itself.

        Inside a delivery, where a finalizer may call it, the delivery does that.
        """
        deadline = FOREVER if timeout_s is None else time.monotonic() + timeout_s
        while self._calling and self.rows.pending():
            left_s = _seconds_until(deadline)
            if left_s == 0:
                self._abandoned = True
                return False
            queues, pause_s = self.rows.ready()
            for queue in queues:
                self._deliver(queue)
            if not queues:
                self.rows.wait(_shortest(pause_s, left_s))
        self._notify_waiting()
        return True

    def abandon(self) -> None:
        """Fail records that the thread has not begun to write, after a close() that timed out."""
        self.drop(ClosedError("the producer was closed before the record was written"))
        if not self.on_thread():
            self._finish_settled()  # the thread may be blocked forever
            self.rows.end()

    def abandon_at_exit(self) -> None:
        """As `abandon`, at process exit; logs the number of records whose write had begun, which
        may be in the log or not.
        """
        self.abandon()
        if self.close(INTERRUPTED_TIMEOUT_S):  # it was only waiting for another attempt
            return
        unsettled_count = sum(batch.count for batch in self.rows.pending())
        if not unsettled_count:  # all records are settled, and only the end of the thread is late
            return
        logger.warning(
            "%s: the process ended during the write of %d records; they may be in the log or not",
            self._name,
            unsettled_count,
        )

    def detach(self) -> None:
        """The producer was dropped: its records are sent, and failures are logged, because no
        caller can receive them.
        """
        self.rows.close()
        self.leave_alone()
        if self._thread is None:
            _live.discard(self)
            self._delivery.failures.log_unreceived()

    def leave_alone(self) -> None:
        """No caller can receive failures any more: the thread logs them, or it has ended, and this
        call does.
        """
        self._left_alone = True
        if not self.on_thread() and self._finished.wait(0):
            self._delivery.failures.log_unreceived()

    def call_afterwards(self, call: Callable[[], object]) -> None:
        """Call after the callbacks of all settled batches: now, if the thread has ended."""
        future, promise = self.rows.promise(False)
        promise.keep(None)
        future._observe(lambda _: call())

    def drop(self, error: Exception) -> int:
        """Fail records that the thread has not begun to write; returns their number."""
        dropped = 0
        self._delivery.drop(error)
        for batch in self.rows.pending():
            dropped += self._delivery.abandon(batch, error)
        self.rows.wake()
        return dropped

    def on_thread(self) -> bool:
        """Whether the caller is the producer's own thread, that is, inside a callback."""
        return threading.current_thread() is self._thread

    # ---- the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, once; must be called before a record is added."""
        with self._start_lock:
            if self._thread is None and not self.rows.closed:
                _end_with_the_process()
                _live.add(self)
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(thread)
                self._register(thread)

    def _register(self, thread: threading.Thread) -> bool:
        """Whether this is the thread of the accumulator: the first one that is registered, by
        `start` or by itself.

        After an interrupt in `Thread.start` it may run or not. One step without a lock: a signal
        handler in `start` may wait for the thread's end.
        """
        return vars(self).setdefault("_thread", thread) is thread

    def _run(self) -> None:
        if not self._register(threading.current_thread()):
            return  # an interrupted `start` was repeated
        self.rows.wait(0)  # registers the thread that must not wait for itself
        ended = False
        while not ended:
            try:
                ended = self._run_once()
            except BaseException:  # noqa: BLE001  (for example no memory: every future waits for this thread)
                callbacks.log_exception(
                    logger, "%s: the producer thread failed unexpectedly and continues", self._name
                )
                self.rows.wait(FAILURE_PAUSE_S)
        _live.discard(self)
        self._log_if_left_alone()
        self._finished.keep(None)
        # of a close() that timed out: it has not seen the end, and does not log
        self._log_if_left_alone()

    def _log_if_left_alone(self) -> None:
        if self._left_alone:
            self._delivery.failures.log_unreceived()

    def _run_once(self) -> bool:
        """Deliver due batches, run callbacks, sleep; returns whether the thread must end."""
        if self._abandoned:
            error = ClosedError("the producer was closed before the record was written")
            self._delivery.fail_all(error)
            self.drop(error)
            self._finish_settled()
            self.rows.end()
            return True
        queues, pause_s = self.rows.ready()
        if len(queues) > 1:
            self._delivery.announce(queues)
        for queue in queues:
            self._deliver(queue)
            self._finish_settled()
        self._finish_settled()
        due_s = self._delivery.failures.report_if_due()
        if queues:
            return False
        if self.rows.end():
            return True
        self.rows.wait(_shortest(pause_s, due_s))
        return False

    def _deliver(self, queue: PartitionQueue) -> None:
        if not queue.enter():
            return
        try:
            self._delivery.deliver(queue)
        except BaseException:  # noqa: BLE001  (a bug must not end the thread: every future waits for it)
            callbacks.log_exception(
                logger, "%s: delivering to %s-%d failed", self._name, queue.topic, queue.partition
            )
            queue.rest(FAILURE_PAUSE_S)
        finally:
            queue.leave()


def _shortest(*pauses_s: float | None) -> float | None:
    """The shortest of the pauses that have an end; None if none has."""
    return min((pause_s for pause_s in pauses_s if pause_s is not None), default=None)


def _seconds_until(deadline: float) -> float | None:
    return None if deadline == FOREVER else max(0.0, deadline - time.monotonic())


@scope
def _wait_registered(thread: threading.Thread) -> Iterator[None]:
    """Record that the caller waits for a producer's thread. Raises StateError if that thread waits
    for the caller's.
    """
    current = threading.current_thread()
    # of a close() that a signal handler interrupted, and which continues after this one
    previous = _joining.get(current)
    try:
        with _joining_lock:
            waited_for: threading.Thread | None = thread
            while waited_for is not None:
                if waited_for is current:
                    raise StateError(
                        "close() inside a callback would deadlock: a callback of that producer "
                        "waits for this one's end"
                    )
                waited_for = _joining.get(waited_for)
            _joining[current] = thread
        yield
    finally:
        if previous is None:
            _joining.pop(current, None)
        else:
            _joining[current] = previous


def _close_all() -> None:
    timeout_s = EXIT_TIMEOUT_S
    for accumulator in list(_live):
        try:
            try:
                closed = accumulator.close(timeout_s)
            except KeyboardInterrupt:
                # other producers still write their records; this one logs its losses
                closed = False
                timeout_s = INTERRUPTED_TIMEOUT_S
            if not closed:
                accumulator.abandon_at_exit()
            accumulator._delivery.failures.log_unreceived()
        except Exception:  # noqa: BLE001  (the others must still be closed)
            callbacks.log_exception(logger, "a producer could not be closed")


def _end_with_the_process() -> None:
    """Register the exit handler in a forked worker of `multiprocessing`, which runs its own
    finalizers, not those of `atexit`.
    """
    global _finalized_pid
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if (
        process is None
        or util is None
        or process.parent_process() is None
        or _finalized_pid == os.getpid()
    ):
        return
    util.Finalize(None, _close_all, exitpriority=0)
    # after an interrupt the next call registers it once more: it is harmless to close twice
    _finalized_pid = os.getpid()


def _forget_all() -> None:
    """Discard all records in a forked child: the parent sends them, and its thread does not exist
    here.
    """
    global _joining_lock
    _joining_lock = threading.RLock()
    _joining.clear()
    for accumulator in list(_live):
        accumulator.rows.forget()
    _live.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
