"""Contains the read-ahead: a second thread prepares the next pieces while the consumer processes
the current one.

- Pieces are returned in the order of their fetch, whichever thread decoded them.
- At most `depth` pieces are prepared: memory does not grow with the amount of data.
- One thread fetches at a time, because a fetch begins at the end of the last; a consumer that would
  wait decodes.
- A failure is raised in place of its piece, after all earlier pieces, and ends the iteration.
- The thread ends with the iteration, whatever interrupts that. It is not started for a single
  piece, or if the source has no more, because a thread costs as much as a small piece.
- The mutex and the two sleeps are locks in C: a `threading.Condition` is entered by Python code,
  where an interrupt would leave it taken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from embedlog._native.scope import Guard
from embedlog._native.threads import Bell, start

Fetched = TypeVar("Fetched")
Piece = TypeVar("Piece")


def read_ahead(
    fetch: Callable[[], Fetched | None],
    decode: Callable[[Fetched], Piece],
    *,
    depth: int = 3,
    has_more: Callable[[], bool] = lambda: True,
) -> Iterator[Piece]:
    """The decoded pieces of all that `fetch` returns until None; `more`: whether the next fetch may
    return a piece.

    The thread ends at its next step after the iterator is closed or freed.
    """
    queue = _ReadAhead(fetch, decode, depth, has_more)
    with Guard(queue.stop):
        while True:
            piece = queue.take()
            if piece is None:
                return
            yield piece[0]
            del piece  # free the memory of this piece before the next one is requested


class _ReadAhead(Generic[Fetched, Piece]):
    """The queue between two threads. `_mutex` guards all fields but the callables; `_fetching` is
    the right to fetch.
    """

    def __init__(
        self,
        fetch: Callable[[], Fetched | None],
        decode: Callable[[Fetched], Piece],
        depth: int,
        has_more: Callable[[], bool],
    ) -> None:
        self._fetch = fetch
        self._decode = decode
        self._depth = depth
        self._has_more = has_more
        # reentrant: a garbage collection in this thread may free the iterator
        self._mutex = threading.RLock()
        self._consumer_bell = Bell()
        self._thread_bell = Bell()
        self._fetching = False
        self._begun_count = 0  # fetches that began: the number of the next piece
        self._taken_count = 0  # pieces that the consumer has: the number of the next one
        self._ready: dict[int, tuple[Piece] | Exception] = {}
        self._ended = False  # the last fetch returned None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    # ---- the consumer's thread ----

    def take(self) -> tuple[Piece] | None:
        """The next piece; None after the last. Raises the error of its fetch or decoding."""
        while True:
            with self._mutex:
                action = self._action_locked()
                if self._taken_count in self._ready:
                    result = self._ready.pop(self._taken_count)
                    self._taken_count += 1
                    self._wake_both()
                    if isinstance(result, Exception):
                        raise result
                    return result
                if action == "end":
                    return None
            if action == "prepare":
                self._prepare()
                self._start_thread()
            else:
                self._consumer_bell.wait()

    def _action_locked(self) -> str:
        """The next action of the consumer: "take", "prepare", "end", or "wait"."""
        if self._taken_count in self._ready:
            return "take"
        if self._ended:
            return "end" if self._taken_count >= self._begun_count else "wait"
        return "wait" if self._fetching else "prepare"

    def _start_thread(self) -> None:
        # without it no other thread fetches
        if self._thread is None and not self._ended and self._has_more():
            self._thread = threading.Thread(
                target=self._run_thread, name="embedlog-read-ahead", daemon=True
            )
            start(self._thread)

    def stop(self) -> None:
        """Begins no further piece. In a forked child the other thread does not exist, and its locks
        are undefined.
        """
        if os.getpid() != self._pid:
            return
        with self._mutex:
            self._ended = True
            self._ready.clear()
            self._wake_both()

    # ---- both threads ----

    def _wake_both(self) -> None:
        self._consumer_bell.ring()
        self._thread_bell.ring()

    def _prepare(self) -> None:
        """Fetches and decodes one piece, if this thread may fetch; an error takes the place of the
        piece.
        """
        with self._mutex:
            if self._ended or self._fetching:
                return
            self._fetching = True
            number = self._begun_count
            self._begun_count += 1
        result: tuple[Piece] | Exception | None = None
        try:
            fetched = self._fetch()
            with self._mutex:
                self._fetching = False
                self._ended = self._ended or fetched is None
                self._wake_both()
            if fetched is not None:
                result = (self._decode(fetched),)
        except Exception as error:  # noqa: BLE001  (the consumer raises it, when it comes to this piece)
            result = error
        except BaseException:  # an interrupt in the thread of the consumer is raised at once
            self.stop()
            raise
        with self._mutex:
            if result is None:
                self._begun_count -= (
                    1  # at the end there is no piece, and no other thread began one
                )
            else:
                self._ready[number] = result
            if isinstance(result, Exception):
                self._fetching = False
                self._ended = True
            self._wake_both()

    # ---- the second thread ----

    def _run_thread(self) -> None:
        while True:
            with self._mutex:
                if self._ended:
                    return
                is_full = self._fetching or self._begun_count - self._taken_count >= self._depth
            if is_full:
                self._thread_bell.wait()
            else:
                self._prepare()
