"""Judges keys and times of records by the settings of their topic.

A record is judged twice. The call that sends it judges it by the settings that the producer knows,
so that most mistakes are reported at once. The append judges it by the topic's settings of that
moment: they may have changed since the call, by this process or by another one, and the topic may
have been deleted and created anew. The partition knows under its append lock whether the settings
by which a batch was judged are the current ones; if not, it reads them and asks again (APPEND-8). The
direct append in C judges batches of single records by the same facts: their keys and their times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog._native import system
from embedlog.errors import InvalidRecordError, InvalidTimestampError
from embedlog.format import record_batch

if TYPE_CHECKING:
    from embedlog._native._rows import ProducerBatch
    from embedlog.config.topic import TopicConfig
    from embedlog.format.record_batch import EncodedRun


def missing_key_error(topic: str) -> InvalidRecordError:
    """The error for a record without a key in a compacted topic."""
    return InvalidRecordError(f"{topic} is compacted: every record needs a key")


def check_times(config: TopicConfig, topic: str, earliest_ms: int, latest_ms: int) -> None:
    """Raises InvalidTimestampError for times outside the topic's window around now."""
    if config.message_timestamp_type != "CreateTime":
        return
    now_ms = system.wall_ms()
    window_begin_ms = max(0, now_ms - config.message_timestamp_before_max_ms)
    window_end_ms = now_ms + config.message_timestamp_after_max_ms
    for time_ms in (earliest_ms, latest_ms):
        if not window_begin_ms <= time_ms <= window_end_ms:
            raise InvalidTimestampError(
                f"the timestamp is too far from now for {topic}",
                expected=f"{window_begin_ms} to {window_end_ms}",
                found=time_ms,
            )


def check_batches(config: TopicConfig, topic: str, batches: list[ProducerBatch]) -> None:
    """Judge the batches of an append by the current settings of the topic.

    A batch of single records knows whether one of them has no key, and their times. The rows of a
    `send_batch` were judged by the settings that they name: they are decoded and judged again
    only if the settings are others now.

    Raises InvalidRecordError, InvalidTimestampError.
    """
    for batch in batches:
        sent_rows = batch.run  # of a `send_batch`; None: single records
        if sent_rows is None:
            if batch.keyless and config.compacted:
                raise missing_key_error(topic)
            check_times(config, topic, batch.min_timestamp, batch.max_timestamp)
        elif sent_rows.settings is not config and sent_rows.settings != config:
            _check_rows(config, topic, sent_rows.encoded)


def _check_rows(config: TopicConfig, topic: str, encoded: EncodedRun) -> None:
    for rows in record_batch.decode_parts(
        encoded.buffer, encoded.batches, columns=("key", "timestamp")
    ):
        if config.compacted and rows.keys is not None and any(key is None for key in rows.keys):
            raise missing_key_error(topic)
        if rows.count and rows.timestamps is not None:
            check_times(config, topic, int(rows.timestamps.min()), int(rows.timestamps.max()))
