"""The producers and consumers of a log, which are closed with it.

CLIENTS-1  every client is closed, even if the close of another one raises
CLIENTS-2  lost records of producers are raised after everything is closed; if another exception is raised, they are logged
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from embedlog.errors import DeliveryError, ListenerError

logger = logging.getLogger("embedlog")


class Client(Protocol):
    """A producer or a consumer."""

    def close(self) -> None: ...


class Children:
    """The producers and consumers of one log; dropped ones are forgotten. Threads: any."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Client] = weakref.WeakSet()

    def add(self, child: Client) -> None:
        self._all.add(child)

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
        for child in list(self._all):
            try:
                child.close()
            except DeliveryError as problem:
                lost.append(problem)
            except ListenerError as problem:  # the others, and the log, must still be closed
                logger.error("closing %r: %s", child, problem)
        return lost


def joined(lost: list[DeliveryError]) -> DeliveryError:
    """The losses of several producers as one error."""
    if len(lost) == 1:
        return lost[0]
    errors = [one for each in lost for one in each.errors]
    return DeliveryError("; ".join(each.message for each in lost), count=sum(each.count for each in lost), errors=errors)


def log_loss(lost: DeliveryError) -> None:
    """Log a loss where another exception is raised."""
    logger.warning("a producer was closed with its log: %s", lost)
