"""Contains the interceptors of a producer, which may change each record before it is queued and
learn its result.

- `on_send` runs on the thread that calls `send()`, and a result that `send()` would refuse is left
  out.
- `on_acknowledgement` runs once for every record, written or not, before the user's callbacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from embedlog.hooks.interceptors import InterceptorChain
from embedlog.types import ProducerRecord, RecordMetadata

producer_logger = logging.getLogger("embedlog.producer")


class ProducerInterceptors(InterceptorChain):
    """The interceptors of one producer; false if there are none. `check` raises for a record that
    `send()` would refuse.
    """

    def __init__(
        self, interceptors: Iterable[Any], check: Callable[[ProducerRecord], None]
    ) -> None:
        super().__init__(interceptors, ("on_send", "on_acknowledgement"), producer_logger)
        self._check = check

    def __bool__(self) -> bool:
        return bool(self.all)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record after the last interceptor; never raises."""
        return self.transform(
            "on_send", record, self._check_record, f" on a record for {record.topic}"
        )

    def on_acknowledgement(self, metadata: RecordMetadata, error: BaseException | None) -> None:
        """Reports the result of one record to all; never raises."""
        self.notify("on_acknowledgement", metadata, error)

    def _check_record(self, changed: object) -> ProducerRecord:
        if not isinstance(changed, ProducerRecord):
            raise TypeError(f"on_send returns a ProducerRecord, not {type(changed).__name__}")
        self._check(changed)
        return changed
