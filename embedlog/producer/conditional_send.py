"""Sends records that are appended only if the first of them gets an expected offset.

- The records are one batch of their own: all of them are in the log or none, also after a kill.
- The partition compares the offset under its append lock (`idempotent_append`). The producer is
  idempotent: the repeat of an append whose result is unknown finds its batch, and is no mismatch.
- Each record takes the steps of `send()` (`Pipeline`); the batch then takes its place in the
  partition queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from embedlog.columns.ingest import check_lengths, pieces_of, rows_of
from embedlog.errors import ConfigError, InvalidRecordError, RecordTooLargeError
from embedlog.partitioners import partition_of
from embedlog.producer.one_record import check_call, check_expected, unknown_metadata
from embedlog.producer.pipeline import FAILS_THE_FUTURE, Item, Pipeline
from embedlog.types import ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    from embedlog._native._rows import Future, ProducerBatch
    from embedlog.config.topic import TopicConfig
    from embedlog.format.record_batch import EncodedRun
    from embedlog.producer.targets import TopicTarget


def send(
    pipeline: Pipeline, record: ProducerRecord, expected_offset: int
) -> Future[RecordMetadata]:
    """The future of one record. Raises as `Producer.send` does."""
    check_call(record)
    return _send_all(pipeline, [record], expected_offset, single=True)


def send_batch(
    pipeline: Pipeline,
    record: ProducerRecord,
    columns: tuple[Any, Any, Any, Any],
    expected_offset: int,
) -> Future[list[tuple[str, int, int, int]]]:
    """The future of many records: `columns` are values, keys, timestamps and headers. Raises as
    `Producer.send_batch` does.
    """
    check_call(record)
    pipeline.check_open()
    check_lengths(*columns)
    rows = (
        ProducerRecord(
            record.topic,
            value,
            key,
            record.partition if record.partition is not None else partition,
            time_ms,
            headers,
        )
        for value, key, time_ms, headers, partition in rows_of(*columns)
    )
    return _send_all(pipeline, rows, expected_offset, single=False)


def _send_all(
    pipeline: Pipeline, rows: Iterable[ProducerRecord], expected_offset: int, *, single: bool
) -> Future:
    check_expected(expected_offset)
    if not pipeline.idempotent:
        message = (
            "only an idempotent producer, which knows its own records, sends with an "
            "expected_offset"
        )
        raise ConfigError(message, expected="enable.idempotence=true, acks=all")
    records: list[ProducerRecord] = []
    try:
        topic_target, items = _make_items(pipeline, rows, records)
        partition = _find_partition(topic_target, items, pipeline.keys_ignored)
        encoded = _encode_batch(pipeline, topic_target, items)
        future, promise = pipeline.promise()
        conditional_send = ConditionalSend(
            pipeline,
            promise,
            topic_partition=(topic_target.name, partition),
            encoded=encoded,
            settings=topic_target.config,
            expected_offset=expected_offset,
            single=single,
        )
        pipeline.push(topic_target, partition, conditional_send)
    except FAILS_THE_FUTURE as error:
        future = pipeline.fail_call(records[0], error, len(records))
        _report_failure(pipeline, records, error)
        return future
    except BaseException as error:
        _report_failure(pipeline, records, error)
        raise
    if pipeline.interceptors:
        future._observe(lambda future: conditional_send.acknowledge(records, future))
    return future


class ConditionalSend:
    """One batch and its expected offset, as a producer batch carries them."""

    def __init__(
        self,
        pipeline: Pipeline,
        promise: ProducerBatch,
        *,
        topic_partition: tuple[str, int],
        encoded: EncodedRun,
        settings: TopicConfig,
        expected_offset: int,
        single: bool,
    ) -> None:
        self.encoded = encoded
        self.settings = settings  # of the topic, by which the records were judged
        self.expected_offset = expected_offset
        self.single = single  # whether the result is that of `send()`
        self._pipeline = pipeline
        self._promise = promise
        self._topic_partition = topic_partition

    def report_result(
        self,
        pieces: tuple[tuple[int, int], ...],
        error: BaseException | None,
        append_time_ms: int = -1,
    ) -> None:
        """Report the result once: the offsets of the batch, or its error."""
        count = self.encoded.record_count
        if error is not None:
            return self._pipeline.fail(self._promise, *self._topic_partition, error, count)
        base = pieces[0][0]
        if not self.single:
            self._promise.keep([(*self._topic_partition, base, count)])
            return
        time_ms = append_time_ms
        if append_time_ms < 0:
            time_ms = int(self.encoded.batches["max_timestamp"][0])
        self._promise.keep(RecordMetadata(*self._topic_partition, base, time_ms))

    def acknowledge(self, records: list[ProducerRecord], future: Future) -> None:
        """Report the result of each record to the interceptors."""
        error = future._failure
        if error is not None:
            return _report_failure(self._pipeline, records, error)
        result = future.result()
        base = result.offset if self.single else result[0][2]
        for offset, record in enumerate(records, base):
            metadata = RecordMetadata(
                *self._topic_partition, offset, unknown_metadata(record).timestamp_ms
            )
            self._pipeline.interceptors.on_acknowledgement(metadata, None)


def _report_failure(
    pipeline: Pipeline, records: list[ProducerRecord], error: BaseException
) -> None:
    if not pipeline.interceptors:
        return
    for record in records:
        pipeline.interceptors.on_acknowledgement(unknown_metadata(record), error)


# ---- the batch -----------------------------------------------------------------------------------


def _make_items(
    pipeline: Pipeline, rows: Iterable[ProducerRecord], records: list[ProducerRecord]
) -> tuple[TopicTarget, list[Item]]:
    """The topic and the serialized records; `records` gets them as the interceptors changed them.

    Raises the errors of `Pipeline.make_item`, InvalidRecordError, RecordTooLargeError.
    """
    items: list[Item] = []
    topic_target: TopicTarget | None = None
    size = 0
    for row in rows:
        record = pipeline.interceptors.on_send(row) if pipeline.interceptors else row
        records.append(record)
        if topic_target is None:
            pipeline.check_usable()
            topic_target = pipeline.topic_target(record.topic)
        elif record.topic != topic_target.name:
            raise InvalidRecordError(
                "records with one expected offset", expected=topic_target.name, found=record.topic
            )
        items.append(pipeline.make_item(topic_target, record))
        size += sum(len(part or b"") for part in items[-1][:2])
        if size > topic_target.batch_limit:
            raise _too_large(topic_target, size)
    if topic_target is None:
        raise TypeError("expected_offset needs at least one record")
    return topic_target, items


def _find_partition(topic_target: TopicTarget, items: list[Item], keys_ignored: bool) -> int:
    """The partition of all records. Raises TypeError if it is not certain, InvalidRecordError if
    there are several.
    """
    partitions = {
        _partition_of(topic_target, key, partition, keys_ignored)
        for _, key, partition, _, _ in items
    }
    if len(partitions) > 1:
        raise InvalidRecordError(
            "records with one expected offset", expected="one partition", found=sorted(partitions)
        )
    return partitions.pop()


def _partition_of(
    topic_target: TopicTarget, key: bytes | None, partition: int | None, keys_ignored: bool
) -> int:
    if partition is not None:
        return partition
    if topic_target.partition_count == 1:
        return topic_target.numbers[0]
    if key is not None and not keys_ignored:
        return partition_of(key, topic_target.partition_count)
    raise TypeError(
        f"{topic_target.name} has several partitions: expected_offset needs partition=… or a key"
    )


def _encode_batch(pipeline: Pipeline, topic_target: TopicTarget, items: list[Item]) -> EncodedRun:
    """The records as one batch. Raises RecordTooLargeError."""
    now_ms = int(time.time() * 1000)
    limit = topic_target.batch_limit
    values, keys, _, times, headers = (list(column) for column in zip(*items, strict=True))
    times_ms = [now_ms if time_ms is None else time_ms for time_ms in times]
    pieces = pieces_of(values, keys, times_ms, headers)
    runs: list[EncodedRun] = []
    for piece in pieces:
        runs += pipeline.encode(
            topic_target, piece, rows=None, now_ms=now_ms, batch_bytes=limit, run_bytes=limit
        )
    if len(runs) != 1 or runs[0].batch_count != 1:
        raise _too_large(topic_target, sum(run.size for run in runs))
    return runs[0]


def _too_large(topic_target: TopicTarget, size: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"records for {topic_target.name} with an expected offset are one batch; it is larger "
        "than max.message.bytes",
        expected=f"at most {topic_target.batch_limit} bytes before compression",
        found=size,
    )
