"""A producer's interceptors: objects that see, and may change, every record on its way out, and hear of its fate.

PRODUCERINTERCEPTOR-1  `on_send` runs in the order of the list, each on what the one before returned
PRODUCERINTERCEPTOR-2  one that raises, or returns what is no record, is logged and left out: the last good record goes on
PRODUCERINTERCEPTOR-3  `on_acknowledgement` runs once for every record, before the user's callbacks, whether it was written or not
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from embedlog import _callbacks
from embedlog.errors import ConfigError
from embedlog.types import ProducerRecord, RecordMetadata

logger = logging.getLogger("embedlog.producer")

METHODS = ("on_send", "on_acknowledgement")


class ProducerInterceptors:
    """The interceptors of one producer; without any it is false.

    `check` raises for a record that `send()` would refuse.
    """

    def __init__(self, given: Iterable[Any], check: Callable[[ProducerRecord], None]) -> None:
        self._all = [_made(each) for each in given]
        self._check = check

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record as the last interceptor leaves it; never raises."""
        for each in self._all:
            if not hasattr(each, "on_send"):
                continue
            try:
                changed = each.on_send(record)
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(f"on_send returns a ProducerRecord, not {type(changed).__name__}")
                self._check(changed)
                record = changed
            except BaseException as error:  # whatever a user's interceptor raises: the record must go on
                if _callbacks.interrupts(error):
                    raise
                logger.exception("on_send of the interceptor %r failed on a record for %s", each, record.topic)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Tells all of a record's fate; never raises."""
        for each in self._all:
            if not hasattr(each, "on_acknowledgement"):
                continue
            try:
                each.on_acknowledgement(metadata, error)
            except BaseException as raised:  # whatever a user's interceptor raises: the others must hear of it too
                if _callbacks.interrupts(raised):
                    raise
                logger.exception("on_acknowledgement of the interceptor %r failed", each)

    def close(self) -> None:
        """Closes those that can be closed; never raises."""
        for each in self._all:
            try:
                getattr(each, "close", _nothing)()
            except BaseException as error:  # whatever a user's interceptor raises: the others must be closed too
                if _callbacks.interrupts(error):
                    raise
                logger.exception("close of the interceptor %r failed", each)


def _made(given: Any) -> Any:
    """The interceptor itself; a class is called without arguments."""
    made = given() if isinstance(given, type) else given
    if not any(callable(getattr(made, name, None)) for name in METHODS):
        raise ConfigError("interceptor.classes", expected=f"objects or classes with {' or '.join(METHODS)}", found=repr(given))
    return made


def _nothing() -> None:
    """What closes an interceptor that has no close()."""
