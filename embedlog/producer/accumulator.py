"""What a producer has taken and not yet written: the memory it may use, and the thread that hands on what is due.

ACCUMULATOR-1  the queues are in C (`_rows`), under the interpreter's lock; this room decides who waits and who is woken
ACCUMULATOR-2  who waits for memory is served in the order of coming: nobody overtakes, not even on the fast path
ACCUMULATOR-3  the thread sleeps until somebody rings or a linger is over: an idle producer costs nothing
ACCUMULATOR-4  callbacks run on the thread, after their future is done, in the order of the fates; the thread never waits for
    itself
ACCUMULATOR-5  the thread knows this room, never the producer: a producer that is dropped can be collected, and closes itself
ACCUMULATOR-6  at the interpreter's exit what is buffered is written, or warnings say how many records are lost and why
ACCUMULATOR-7  a forked child forgets it all: the records are the parent's
ACCUMULATOR-8  a lane is written by whoever has its turn: the thread, or in C a caller who waits for a record (`inline_append.c`)
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from embedlog import _callbacks
from embedlog._native import _rows
from embedlog.errors import ClosedError, DeadlineError, ForkedError, StateError
from embedlog.producer.awaitable import await_future
from embedlog.producer.delivery_failures import raised_of
from embedlog.types import RecordMetadata

if TYPE_CHECKING:
    from embedlog._native._rows import Future, Lane, Parcel
    from embedlog.producer.delivery_failures import Losses

logger = logging.getLogger("embedlog.producer")

FOREVER = float("inf")
EXIT_TIMEOUT_S = 30.0
INTERRUPTED_TIMEOUT_S = 1.0  # for the thread to see that it is given up; for each of the other producers once Ctrl-C ended a wait
FAILURE_PAUSE_S = 0.05  # what failed in a way that was not foreseen would fail in the same way at once

_live: set[Accumulator] = set()  # those whose thread runs
_joining: dict[threading.Thread, threading.Thread] = {}  # who waits for the end of which producer's thread
_joining_lock = threading.Lock()
_finalized_pid = 0


def run_callback(future: Future, callback: Callable[[Future], object]) -> None:
    """A callback that raises is logged and harms no other.

    In the main thread KeyboardInterrupt and SystemExit go on: there they come from a signal.
    """
    try:
        callback(future)
    except BaseException as error:  # whatever a user's callback raises: the thread must go on
        if _callbacks.interrupts(error):
            raise
        logger.exception("a callback of a sent record raised")


class Delivery(Protocol):
    """Who brings lanes into the log."""

    def announce(self, lanes: list[Lane]) -> None:
        """These are about to be delivered, one after the other."""

    def deliver(self, lane: Lane) -> None:
        """Write what is due of a lane."""

    def drop(self, error: Exception) -> None:
        """What waits for another attempt is to fail."""

    def abandon(self, parcel: Parcel, error: Exception) -> int:
        """Fail what nobody has begun to write; how many records that are."""

    def give_up(self, error: Exception) -> None:
        """The thread ends, and what waits fails now."""

    @property
    def losses(self) -> Losses:
        """What the program has not heard of."""


class Accumulator:
    """The records of one producer between `send()` and their partition's log.

    `delivery` writes what is due of a lane and settles its parcels, on the thread, which has the lane's turn.
    Threads: everything may be called from any thread.
    """

    def __init__(
        self, name: str, delivery: Delivery, *, memory_limit: int, linger_ms: float, unacknowledged: bool = False
    ) -> None:
        self._delivery = delivery
        self._name = name
        self._room = threading.Condition()
        self._queue: deque[object] = deque()
        self._start_lock = threading.RLock()  # a signal's handler may close what is being started
        self._thread: threading.Thread | None = None
        self._gone = threading.Event()  # the thread has done its work
        self._calling = False  # on the thread: inside callbacks
        self._abandoned = False
        self._left_alone = False
        self.blocked_count = 0
        self.blocked: Callable[[float], None] = lambda seconds: None  # told of each wait for memory how long it was
        self.rows = _rows.Accumulator(
            memory_limit=memory_limit,
            linger_ms=linger_ms,
            unacknowledged=unacknowledged,
            metadata=RecordMetadata,
            run_callback=run_callback,
            await_future=await_future,
            raised_of=raised_of,
            deadline_error=DeadlineError,
            forked_error=ForkedError,
            state_error=StateError,
        )

    # ---- memory ----------------------------------------------------------------------------------

    def wait_for_room(self, attempt: Callable[[], Any], timeout_s: float) -> Any:
        """The first result of `attempt()` that is not None, or None if there was none in time. Raises ClosedError.

        `attempt` is called when it is this thread's turn and whenever memory has come back.
        """
        began = time.monotonic()
        deadline = began + (0.0 if self.on_thread() else timeout_s)
        ticket = object()
        with self._room:
            self._queue.append(ticket)
            self.rows.waiting += 1
            self.blocked_count += 1
            self.rows.ring()
            try:
                while True:
                    if self.rows.closed:
                        raise ClosedError("the producer was closed while a record waited for memory")
                    result = attempt() if self._queue[0] is ticket else None
                    left = deadline - time.monotonic()
                    if result is not None or left <= 0:
                        return result
                    self._room.wait(left)
            finally:
                self._queue.remove(ticket)
                self.rows.waiting -= 1
                self.blocked(time.monotonic() - began)
                self._room.notify_all()

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes may come in. What is larger than the whole memory comes in alone."""
        return self.rows.memory_used == 0 or self.rows.memory_used + size <= self.rows.memory_limit

    def _settled(self) -> None:
        """Parcels have got their fate: runs their callbacks, and lets others have their memory."""
        on_thread = self.on_thread()
        self._calling |= on_thread
        try:
            self.rows.run_late()
        finally:
            self._calling &= not on_thread
            self._give_room()

    def _give_room(self) -> None:
        if self.rows.waiting:
            with self._room:
                self._room.notify_all()

    # ---- flush and close -------------------------------------------------------------------------

    def flush(self, timeout_s: float | None) -> bool:
        """Sends everything that is here now and waits for its fate; False if that took too long.

        Raises StateError on the producer's own thread: it would wait for itself.
        """
        if self.on_thread():
            raise StateError("flush() inside a callback of this producer would wait for itself")
        deadline = FOREVER if timeout_s is None else time.monotonic() + timeout_s
        self.rows.seal()
        for parcel in reversed(self.rows.pending()):  # the last one first: who waits is woken once, not for each
            if not parcel.wait(_left(deadline)):
                return False
        return self.rows.mark().wait(_left(deadline))  # behind the callbacks of what was settled

    def close(self, timeout_s: float | None) -> bool:
        """Accepts nothing more, sends what is here and ends the thread; False if the time did not suffice.

        Inside a callback it returns when all is written; the other callbacks, and the thread's end, follow that one's return.
        Raises StateError where two callbacks would wait for each other's producers.
        """
        with self._start_lock:
            self.rows.close()
            thread = self._thread
        with self._room:
            self._room.notify_all()
        if thread is None:
            self._settled()
            return self.rows.end()
        if self.on_thread():
            return self._drain(timeout_s)
        self.rows.ring()
        with _waiting_for(thread):
            thread.join(0)  # raises RuntimeError in a signal's handler that came before the thread's start
            if self._gone.wait(timeout_s):  # not join(): interrupted, it takes the thread for ended (before Python 3.13)
                thread.join()
                return True
        self._abandoned = True
        return False

    def _drain(self, timeout_s: float | None) -> bool:
        """On the thread: writes what is here. Inside a delivery, where a finalizer may call it, that is left to the delivery."""
        deadline = FOREVER if timeout_s is None else time.monotonic() + timeout_s
        while self._calling and self.rows.pending():
            left_s = _left(deadline)
            if left_s == 0:
                self._abandoned = True
                return False
            lanes, pause_s = self.rows.ready()
            for lane in lanes:
                self._deliver(lane)
            if not lanes:
                self.rows.wait(_first(pause_s, left_s))
        self._give_room()
        return True

    def abandon(self) -> None:
        """Fails what the thread has not taken yet, after a close() that did not suffice."""
        self.drop(ClosedError("the producer was closed before the record was written"))
        if not self.on_thread():
            self._settled()  # the thread may be held up for ever
            self.rows.end()

    def abandon_at_exit(self) -> None:
        """The same where the process ends with its threads: says how many records may be in the log or not."""
        self.abandon()
        if self.close(INTERRUPTED_TIMEOUT_S):  # it only waited for another attempt
            return
        left = sum(parcel.count for parcel in self.rows.pending())
        logger.warning("%s: %d records were being written when the process ended; are they in the log?", self._name, left)

    def leave_alone(self) -> None:
        """The producer was dropped: what is here is sent, and what fails of it is logged, as nobody else can hear of it."""
        self._left_alone = True
        self.rows.close()
        if self._thread is None:
            self._delivery.losses.log_unheard()

    def afterwards(self, call: Callable[[], object]) -> None:
        """Calls behind the callbacks of what is settled: now, if the thread has ended."""
        future, promise = self.rows.promise(False)
        promise.keep(None)
        future._observe(lambda _: call())

    def drop(self, error: Exception) -> int:
        """Fails what the thread has not taken yet; returns the number of records."""
        dropped = 0
        self._delivery.drop(error)
        for parcel in self.rows.pending():
            dropped += self._delivery.abandon(parcel, error)
        self.rows.ring()
        return dropped

    def on_thread(self) -> bool:
        """Whether the caller is the producer's own thread, that is inside a callback."""
        return threading.current_thread() is self._thread

    # ---- the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins the thread, once; to be called before anything is put in."""
        with self._start_lock:
            if self._thread is None and not self.rows.closed:
                _end_with_the_process()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                _live.add(self)
                try:
                    self._thread.start()
                except BaseException:  # the system gives no more threads
                    self._thread = None
                    _live.discard(self)
                    raise

    def _run(self) -> None:
        self.rows.wait(0)  # from here on it is known which thread must not wait for itself
        ended = False
        while not ended:
            try:
                ended = self._round()
            except BaseException:  # noqa: BLE001  (no memory, say: every future waits for this thread)
                _callbacks.report(logger, "%s: a round failed in a way that was not foreseen", self._name)
                self.rows.wait(FAILURE_PAUSE_S)
        _live.discard(self)
        self._gone.set()

    def _round(self) -> bool:
        """Delivers what is due, runs callbacks, sleeps; whether that was the last time."""
        if self._abandoned:
            error = ClosedError("the producer was closed before the record was written")
            self._delivery.give_up(error)
            self.drop(error)
            self._settled()
            self.rows.end()
            self._delivery.losses.log_unheard()  # close() has returned
            return True
        lanes, pause_s = self.rows.ready()
        if len(lanes) > 1:
            self._delivery.announce(lanes)
        for lane in lanes:
            self._deliver(lane)
            self._settled()
        self._settled()
        look_s = self._delivery.losses.look()
        if lanes:
            return False
        if self.rows.end():
            if self._left_alone:
                self._delivery.losses.log_unheard()
            return True
        self.rows.wait(_first(pause_s, look_s))
        return False

    def _deliver(self, lane: Lane) -> None:
        if not lane.enter():
            return
        try:
            self._delivery.deliver(lane)
        except BaseException:  # noqa: BLE001  (a mistake of ours must not end the thread: every future waits for it)
            _callbacks.report(logger, "%s: delivering to %s-%d failed", self._name, lane.topic, lane.partition)
            lane.rest(FAILURE_PAUSE_S)
        finally:
            lane.leave()


def _first(*pauses_s: float | None) -> float | None:
    return min((each for each in pauses_s if each is not None), default=None)


def _left(deadline: float) -> float | None:
    return None if deadline == FOREVER else max(0.0, deadline - time.monotonic())


@contextlib.contextmanager
def _waiting_for(thread: threading.Thread) -> Iterator[None]:
    """While the caller waits for the end of a producer's thread. Raises StateError if that one waits for the caller's."""
    me = threading.current_thread()
    with _joining_lock:
        other: threading.Thread | None = thread
        while other is not None:
            if other is me:
                raise StateError("close() inside a callback would wait for a producer whose callback waits for this one's end")
            other = _joining.get(other)
        _joining[me] = thread
    try:
        yield
    finally:
        del _joining[me]


def _close_all() -> None:
    timeout_s = EXIT_TIMEOUT_S
    for accumulator in list(_live):
        try:
            try:
                closed = accumulator.close(timeout_s)
            except KeyboardInterrupt:  # the records of the others are not lost by that, and those of this one not in silence
                closed, timeout_s = False, INTERRUPTED_TIMEOUT_S
            if not closed:
                accumulator.abandon_at_exit()
            accumulator._delivery.losses.log_unheard()
        except Exception:  # noqa: BLE001  (the others are closed all the same)
            _callbacks.report(logger, "a producer could not be closed")


def _end_with_the_process() -> None:
    """In a forked worker of `multiprocessing`, which ends by finalizers of its own, without those of `atexit`."""
    global _finalized_pid
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None or _finalized_pid == os.getpid():
        return
    _finalized_pid = os.getpid()
    util.Finalize(None, _close_all, exitpriority=0)


def _forget_all() -> None:
    """In a forked child: the records are the parent's to send, and the thread stayed there."""
    global _joining_lock
    _joining_lock = threading.Lock()
    _joining.clear()
    for accumulator in list(_live):
        accumulator.rows.forget()
    _live.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
