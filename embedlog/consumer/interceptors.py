"""Contains the interceptors of a consumer, which may change the records that `poll` is about to
return and learn of commits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from embedlog._native._rows import Record
from embedlog.hooks.interceptors import InterceptorChain
from embedlog.types import OffsetAndMetadata, TopicPartition

consumer_logger = logging.getLogger("embedlog.consumer")


class ConsumerInterceptors(InterceptorChain):
    """The interceptors of one consumer. Threads: the consumer's own."""

    def __init__(self, interceptors: Iterable[Any]) -> None:
        super().__init__(interceptors, ("on_consume", "on_commit"), consumer_logger)

    def on_consume(self, records: list[Record]) -> list[Record]:
        """The records to return in place of these; never raises."""
        return self.transform("on_consume", records, _check_records)

    def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Reports a commit that succeeded to all; never raises."""
        self.notify("on_commit", offsets)


def _check_records(changed: Iterable[Any]) -> list[Record]:
    records = list(changed)
    if any(type(record) is not Record for record in records):
        raise TypeError("on_consume returns a list of Records")
    return records
