"""The producers and consumers of a log, which are closed with it.

- Every client is closed, even if the close of another one raises an error. The first such error is
  raised then, and the log stays open for another close. An interrupt leaves the rest to that close.
- Lost records of producers are raised after everything is closed; if another exception is raised,
  they are logged.
- The records of a producer that was dropped without a close are written first, too; their losses
  are logged.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

from embedlog.errors import DeliveryError, ListenerError

logger = logging.getLogger("embedlog")


T = TypeVar("T")


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
    def close_first(self) -> Iterator[None]:
        """Close them before the block. Raises DeliveryError after it."""
        losses = self._close()
        try:
            yield
        except BaseException:
            for loss in losses:
                log_loss(loss)
            raise
        if losses:
            raise join_losses(losses)

    @staticmethod
    @contextmanager
    def log_if_leaving(leaving: type[BaseException] | None) -> Iterator[None]:
        """If another exception leaves `with`, that one is raised and losses are logged."""
        try:
            yield
        except DeliveryError as loss:
            if leaving is None:
                raise
            log_loss(loss)

    def _close(self) -> list[DeliveryError]:
        """The losses of the clients. If an exception is raised, they are logged."""
        losses: list[DeliveryError] = []
        try:
            self._close_all(losses)
        except BaseException:
            for loss in losses:
                log_loss(loss)
            raise
        return losses

    def _close_all(self, losses: list[DeliveryError]) -> None:
        """Add the losses of the clients. Raises the first other error, after the last close."""
        first_problem: Exception | None = None
        closes: list[tuple[object, Callable[[], object]]] = [
            (dropped, partial(dropped.close, None)) for dropped in _live(self._dropped)
        ]
        closes.extend((child, child.close) for child in _live(self._all))
        for client, close in closes:
            try:
                close()
            except DeliveryError as problem:
                losses.append(problem)
            except ListenerError as problem:  # the others, and the log, must still be closed
                logger.error("closing %r: %s", client, problem)
            except Exception as problem:  # noqa: BLE001  (raised after the other closes)
                if first_problem is None:
                    first_problem = problem
                else:
                    logger.error("closing %r: %s", client, problem)
        if first_problem is not None:
            raise first_problem


def _live(children: weakref.WeakValueDictionary[int, T]) -> list[T]:
    """The children that still exist, referenced so that they stay."""
    references = [reference() for reference in children.valuerefs()]
    return [child for child in references if child is not None]


def join_losses(losses: list[DeliveryError]) -> DeliveryError:
    """The losses of several producers as one error."""
    if len(losses) == 1:
        return losses[0]
    return DeliveryError(
        "; ".join(loss.message for loss in losses),
        count=sum(loss.count for loss in losses),
        errors=[error for loss in losses for error in loss.errors],
    )


def log_loss(loss: DeliveryError) -> None:
    """Log a loss where another exception is raised."""
    logger.warning("a producer was closed with its log: %s", loss)
