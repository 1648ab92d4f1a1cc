"""The producers and consumers of a log, which are closed with it.

CLIENTS-1  every client is closed, even if the close of another one raises
CLIENTS-2  lost records of producers are raised after everything is closed; if another exception is
    raised, they are logged
CLIENTS-3  the records of a producer that was dropped without a close are written first, too; their
    losses are logged
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from embedlog.errors import DeliveryError, ListenerError

logger = logging.getLogger("embedlog")


Member = TypeVar("Member")


class Client(Protocol):
    """A producer or a consumer."""

    def close(self) -> None: ...


class Dropped(Protocol):
    """What is left of a producer that was dropped: records, and the thread that writes them."""

    def close(self, timeout_s: float | None) -> bool: ...


class Children:
    """The producers and consumers of one log; dropped consumers are forgotten. Threads: any, also
    in the midst of `add`.
    """

    def __init__(self) -> None:
        # Not weak sets: to iterate them fails if another thread adds a member meanwhile
        self._all: weakref.WeakValueDictionary[int, Client] = weakref.WeakValueDictionary()
        self._dropped: weakref.WeakValueDictionary[int, Dropped] = weakref.WeakValueDictionary()

    def add(self, child: Client) -> None:
        self._all[id(child)] = child

    def add_dropped(self, dropped: Dropped) -> None:
        self._dropped[id(dropped)] = dropped

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close them before the block. Raises DeliveryError after it."""
        lost = self._close()
        try:
            yield
        except BaseException:
            for each in lost:
                log_loss(each)
            raise
        if lost:
            raise joined(lost)

    @staticmethod
    @contextmanager
    def reported(leaving: type[BaseException] | None) -> Iterator[None]:
        """If another exception leaves `with`, that one is raised and losses are logged."""
        try:
            yield
        except DeliveryError as lost:
            if leaving is None:
                raise
            log_loss(lost)

    def _close(self) -> list[DeliveryError]:
        lost: list[DeliveryError] = []
        for dropped in _live(self._dropped):
            dropped.close(None)
        for child in _live(self._all):
            try:
                child.close()
            except DeliveryError as problem:
                lost.append(problem)
            except ListenerError as problem:  # the others, and the log, must still be closed
                logger.error("closing %r: %s", child, problem)
        return lost


def _live(members: weakref.WeakValueDictionary[int, Member]) -> list[Member]:
    return [member for each in members.valuerefs() if (member := each()) is not None]


def joined(lost: list[DeliveryError]) -> DeliveryError:
    """The losses of several producers as one error."""
    if len(lost) == 1:
        return lost[0]
    errors = [one for each in lost for one in each.errors]
    return DeliveryError(
        "; ".join(each.message for each in lost),
        count=sum(each.count for each in lost),
        errors=errors,
    )


def log_loss(lost: DeliveryError) -> None:
    """Log a loss where another exception is raised."""
    logger.warning("a producer was closed with its log: %s", lost)
