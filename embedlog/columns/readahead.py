"""Reads ahead: a second thread prepares the next pieces while the consumer works on this one.

READAHEAD-1  pieces come out in the order in which they were fetched, whichever thread decoded them
READAHEAD-2  at most `depth` pieces are prepared: memory does not grow with what is read
READAHEAD-3  fetching is one at a time (each fetch begins where the last ended), decoding is not: a consumer that would wait helps
    instead
READAHEAD-4  a failure comes out in its piece's place, after all pieces before it, and ends the reading
READAHEAD-5  a reading that is given up takes its thread with it; one that needs only one piece never starts it, and neither does
    one whose source says that nothing more will come: a thread costs as much as a small piece
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Fetched = TypeVar("Fetched")
Piece = TypeVar("Piece")


def read_ahead(
    fetch: Callable[[], Fetched | None],
    decode: Callable[[Fetched], Piece],
    *,
    depth: int = 3,
    more: Callable[[], bool] = lambda: True,
) -> Iterator[Piece]:
    """The decoded pieces of everything that `fetch` gives until it gives None; `more`: whether the next may give something.

    Closing the iterator, or dropping it, ends the thread at its next step.
    """
    line = _Line(fetch, decode, depth, more)
    try:
        while True:
            piece = line.take()
            if piece is None:
                return
            yield piece[0]
            del piece  # the memory of this piece goes back before the next one is asked for
    finally:
        line.stop()


class _Line(Generic[Fetched, Piece]):
    """Pieces between two threads. All fields but the callables belong to `_changed`; `_fetching` is the turn to fetch."""

    def __init__(
        self, fetch: Callable[[], Fetched | None], decode: Callable[[Fetched], Piece], depth: int, more: Callable[[], bool]
    ) -> None:
        self._fetch = fetch
        self._decode = decode
        self._depth = depth
        self._more = more
        self._changed = threading.Condition()
        self._fetching = False
        self._begun = 0  # pieces fetched, or being so: the number of the next one
        self._taken = 0  # pieces that the consumer has got: the number of the one it wants
        self._ready: dict[int, tuple[Piece] | Exception] = {}
        self._ended = False  # nothing more to fetch
        self._helper: threading.Thread | None = None
        self._pid = os.getpid()

    # ---- the consumer's thread ----

    def take(self) -> tuple[Piece] | None:
        """The next piece, made by whoever is free; None behind the last. Raises what fetching or decoding it raised."""
        while True:
            with self._changed:
                while not (turn := self._turn_locked()):
                    self._changed.wait()
                if self._taken in self._ready:
                    found = self._ready.pop(self._taken)
                    self._taken += 1
                    self._changed.notify_all()
                    if isinstance(found, Exception):
                        raise found
                    return found
                if turn == "end":
                    return None
            self._prepare()
            self._start_helper()

    def _turn_locked(self) -> str:
        """What the consumer can do now: "take", "help", see the "end", or nothing yet."""
        if self._taken in self._ready:
            return "take"
        if self._ended:
            return "end" if self._taken >= self._begun else ""
        return "" if self._fetching else "help"

    def _start_helper(self) -> None:
        if self._helper is None and not self._ended and self._more():  # before there is a helper, nobody else fetches
            self._helper = threading.Thread(target=self._help, name="embedlog-read-ahead", daemon=True)
            self._helper.start()

    def stop(self) -> None:
        """No further piece is begun. After a fork, in the child, there is no other thread, and its locks say nothing."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._ended = True
            self._ready.clear()
            self._changed.notify_all()

    # ---- both threads ----

    def _prepare(self) -> None:
        """Fetches and decodes one piece, if it is this thread's turn; what fails takes the piece's place (READAHEAD-4)."""
        with self._changed:
            if self._ended or self._fetching:
                return
            self._fetching = True
            number = self._begun
            self._begun += 1
        result: tuple[Piece] | Exception | None = None
        try:
            fetched = self._fetch()
            with self._changed:
                self._fetching = False
                self._ended = self._ended or fetched is None
                self._changed.notify_all()
            if fetched is not None:
                result = (self._decode(fetched),)
        except Exception as error:  # noqa: BLE001  (the consumer raises it, when it comes to this piece)
            result = error
        except BaseException:  # an interrupt, in the consumer's own thread: not to be kept until its turn comes
            self.stop()
            raise
        with self._changed:
            if result is None:
                self._begun -= 1  # behind the end there is no piece, and nobody began another one meanwhile
            else:
                self._ready[number] = result
            if isinstance(result, Exception):
                self._fetching, self._ended = False, True
            self._changed.notify_all()

    # ---- the helper's thread ----

    def _help(self) -> None:
        while True:
            with self._changed:
                while not self._ended and (self._fetching or self._begun - self._taken >= self._depth):
                    self._changed.wait()
                if self._ended:
                    return
            self._prepare()
