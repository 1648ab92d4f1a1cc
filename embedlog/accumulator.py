"""What a producer has taken and not yet written: the memory it may use, and the thread that hands on what is due.

A1  the queues are in C (`_rows`), under the interpreter's lock; this room decides who waits and who is woken
A2  who waits for memory is served in the order of coming: nobody overtakes, not even on the fast path
A3  the thread sleeps until somebody rings or a linger is over: an idle producer costs nothing
A4  callbacks run on the thread, after their future is done, in the order of the fates; the thread never waits for itself
A5  the thread knows this room, never the producer: a producer that is dropped can be collected, and closes itself
A6  at the interpreter's exit what is buffered is written, or a warning says how many records were dropped
A7  a forked child forgets it all: the records are the parent's
A8  a lane is written by whoever has its turn: the thread, or in C a caller who waits for a record (`rows_direct.c`)
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from embedlog._native import _rows
from embedlog.awaiting import await_future
from embedlog.errors import ClosedError, DeadlineError, ForkedError, StateError
from embedlog.values import RecordMetadata

if TYPE_CHECKING:
    from embedlog._native._rows import Callbacks, Future, Lane, Parcel

    Late = Callbacks | tuple[Future, Callable[[Future], object]]

logger = logging.getLogger("embedlog.producer")

FOREVER = float("inf")
EXIT_TIMEOUT_S = 30.0

_live: set[Accumulator] = set()  # those whose thread runs
_finalized_pid = 0


def run_callback(future: Future, callback: Callable[[Future], object]) -> None:
    """A callback that raises is logged and harms nobody."""
    try:
        callback(future)
    except Exception:  # whatever a user's callback raises: the thread must go on
        logger.exception("a callback of a sent record raised")


class Delivery(Protocol):
    """Who brings lanes into the log."""

    def announce(self, lanes: list[Lane]) -> None:
        """These are about to be delivered, one after the other."""

    def deliver(self, lane: Lane) -> None:
        """Write what is due of a lane."""

    def drop(self, error: Exception) -> None:
        """What waits for another attempt is to fail."""

    def give_up(self, error: Exception) -> None:
        """The thread ends, and what waits fails now."""


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
        self._late: deque[Late] = deque()  # callbacks whose futures are done
        self._marks: deque[Parcel] = deque()  # of those who wait for callbacks
        self._room = threading.Condition()
        self._queue: deque[object] = deque()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._calling = False
        self._abandoned = False
        self.blocked_count = 0
        self.blocked: Callable[[float], None] = lambda seconds: None  # told of each wait for memory how long it was
        self.rows = _rows.Accumulator(
            memory_limit=memory_limit,
            linger_ms=linger_ms,
            unacknowledged=unacknowledged,
            metadata=RecordMetadata,
            run_callback=run_callback,
            await_future=await_future,
            enqueue=self._late.append,
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
        self._run_late()
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
        if not self._calling and not self._late:
            return True
        _, mark = self.rows.promise(False)
        self._marks.append(mark)  # behind the callbacks that are running
        self.rows.ring()
        return mark.wait(_left(deadline))

    def close(self, timeout_s: float | None) -> bool:
        """Accepts nothing more, sends what is here and ends the thread; False if the time did not suffice."""
        self.rows.close()
        with self._room:
            self._room.notify_all()
        thread = self._thread
        if thread is None or self.on_thread():
            self._abandoned = True
            return not self.rows.pending()
        self.rows.ring()
        thread.join(timeout_s)
        self._abandoned = thread.is_alive()
        return not self._abandoned

    def abandon(self) -> int:
        """Fails what the thread has not taken yet, after a close() that did not suffice; returns the number of records."""
        dropped = self.drop(ClosedError("the producer was closed before the record was written"))
        if dropped:
            self._settled()  # the thread may be held up for ever
            logger.warning("%s was closed with %d records that were not written: they are dropped", self._name, dropped)
        return dropped

    def drop(self, error: Exception) -> int:
        """Fails what the thread has not taken yet; returns the number of records."""
        dropped = 0
        self._delivery.drop(error)
        for parcel in self.rows.pending():
            run = parcel.run
            if not parcel.abandon(error):
                continue
            dropped += parcel.count
            if run is not None:
                run.settled((), error)
        self.rows.ring()
        return dropped

    def on_thread(self) -> bool:
        """Whether the caller is the producer's own thread, that is inside a callback."""
        return threading.current_thread() is self._thread

    # ---- the thread ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins the thread, once; to be called before anything is put in."""
        with self._start_lock:
            if self._thread is None:
                _end_with_the_process()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                _live.add(self)
                self._thread.start()

    def _run(self) -> None:
        rows = self.rows
        rows.wait(0)  # from here on it is known which thread must not wait for itself
        while not self._abandoned:
            lanes, pause_s = rows.ready()
            # Seen before the parcels' fates are, so that flush() cannot miss callbacks that are about to run
            self._calling = True
            if len(lanes) > 1:
                self._delivery.announce(lanes)
            for lane in lanes:
                if lane.enter():
                    try:
                        self._delivery.deliver(lane)
                    except Exception:  # a mistake of ours must not end the thread: every future waits for it
                        logger.exception("%s: delivering to %s-%d failed", self._name, lane.topic, lane.partition)
                    finally:
                        lane.leave()
                    self._settled()
            self._settled()
            while self._marks:
                self._marks.popleft().keep(None)
            self._calling = False
            if lanes:
                continue
            if rows.closed and not rows.pending() and not self._late and not self._marks:
                break
            rows.wait(pause_s)
        if self._abandoned:
            self._delivery.give_up(ClosedError("the producer was closed before the record was written"))
            self._settled()
        _live.discard(self)

    def _run_late(self) -> None:
        while self._late:
            try:
                each = self._late.popleft()
            except IndexError:  # a forced close runs them, too
                return
            if isinstance(each, tuple):
                run_callback(*each)
                continue
            each.sort(key=lambda entry: entry[0])
            for _, future, callback in each:
                run_callback(future, callback)


def _left(deadline: float) -> float | None:
    return None if deadline == FOREVER else max(0.0, deadline - time.monotonic())


def _close_all() -> None:
    for accumulator in list(_live):
        if not accumulator.close(EXIT_TIMEOUT_S):
            accumulator.abandon()


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
    for accumulator in list(_live):
        accumulator.rows.close()
    _live.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
