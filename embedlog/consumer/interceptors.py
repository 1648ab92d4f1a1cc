"""Interceptors of a consumer: objects of the user's that see, and may change, what `poll` is about to return.

CONSUMERINTERCEPTOR-1  one after the other, each gets what the one before gave
CONSUMERINTERCEPTOR-2  one that raises, or returns what is no list of records, is logged and left out: records are never lost by
    it
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from embedlog import _callbacks
from embedlog._native._rows import Record
from embedlog.errors import ConfigError
from embedlog.types import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("embedlog.consumer")

METHODS = ("on_consume", "on_commit")


class ConsumerInterceptors:
    """The `interceptor.classes` of one consumer; without one that looks at records it is false. Threads: the consumer's own."""

    def __init__(self, given: Iterable[Any]) -> None:
        self._all = [_made(each) for each in given]
        self._consuming = [each for each in self._all if hasattr(each, "on_consume")]
        self._committing = [each for each in self._all if hasattr(each, "on_commit")]

    def __bool__(self) -> bool:
        return bool(self._consuming)

    def on_consume(self, records: list[Record]) -> list[Record]:
        """What is to be handed out for these records; never raises."""
        for each in self._consuming:
            try:
                changed = list(each.on_consume(records))
                if any(type(record) is not Record for record in changed):
                    raise TypeError("on_consume returns a list of Records")
                records = changed
            except BaseException as problem:  # whatever a user's interceptor raises: the records must go on
                if _callbacks.interrupts(problem):
                    raise
                logger.exception("on_consume of the interceptor %r failed", each)
        return records

    def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Told behind every commit that counts; never raises."""
        for each in self._committing:
            try:
                each.on_commit(offsets)
            except BaseException as problem:  # the commit stands
                if _callbacks.interrupts(problem):
                    raise
                logger.exception("on_commit of the interceptor %r failed", each)

    def close(self) -> None:
        for each in self._all:
            if hasattr(each, "close"):
                try:
                    each.close()
                except BaseException as problem:  # the others are closed all the same
                    if _callbacks.interrupts(problem):
                        raise
                    logger.exception("close of the interceptor %r failed", each)


def _made(given: Any) -> Any:
    made = given() if isinstance(given, type) else given
    if not any(hasattr(made, name) for name in METHODS):
        raise ConfigError("interceptor.classes", expected="objects with on_consume or on_commit", found=repr(given))
    return made
