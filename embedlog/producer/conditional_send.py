"""Sends records that are appended only if the first of them gets an expected offset.

CONDITIONALSEND-1  the records are one batch of their own: all of them are in the log or none, also
    after a kill
CONDITIONALSEND-2  the partition compares the offset under its append lock (IDEMPOTENT-4). The
    producer is idempotent: the repeat of an append whose result is unknown finds its batch, and is
    no mismatch
CONDITIONALSEND-3  each record takes the steps of `send()` (PIPELINE-1); the batch then takes its
    place in the partition queue
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


def send(pipeline: Pipeline, given: ProducerRecord, expected_offset: int) -> Future[RecordMetadata]:
    """The future of one record. Raises as `Producer.send` does."""
    check_call(given)
    return _sent(pipeline, [given], expected_offset, single=True)


def send_batch(
    pipeline: Pipeline,
    given: ProducerRecord,
    columns: tuple[Any, Any, Any, Any],
    expected_offset: int,
) -> Future[list[tuple[str, int, int, int]]]:
    """The future of many records: `columns` are values, keys, timestamps and headers. Raises as
    `Producer.send_batch` does.
    """
    check_call(given)
    pipeline.check_open()
    check_lengths(*columns)
    rows = (
        ProducerRecord(
            given.topic,
            value,
            key,
            given.partition if given.partition is not None else partition,
            time_ms,
            headers,
        )
        for value, key, time_ms, headers, partition in rows_of(*columns)
    )
    return _sent(pipeline, rows, expected_offset, single=False)


def _sent(
    pipeline: Pipeline, rows: Iterable[ProducerRecord], expected_offset: int, *, single: bool
) -> Future:
    check_expected(expected_offset)
    if not pipeline.idempotent:
        message = (
            "only an idempotent producer, which knows its own records, sends with an "
            "expected_offset"
        )
        raise ConfigError(message, expected="enable.idempotence=true, acks=all")
    taken: list[ProducerRecord] = []
    try:
        topic_target, items = _items(pipeline, rows, taken)
        partition = _one_partition(topic_target, items, pipeline.keys_ignored)
        encoded = _one_batch(pipeline, topic_target, items)
        future, promise = pipeline.promise()
        place = (topic_target.name, partition)
        sent = ConditionalSend(
            pipeline, promise, place, encoded, topic_target.config, expected_offset
        )
        sent.single = single
        pipeline.push(topic_target, partition, sent)
    except FAILS_THE_FUTURE as error:
        future = pipeline.failed(taken[0], error, len(taken))
        _refused(pipeline, taken, error)
        return future
    except BaseException as error:
        _refused(pipeline, taken, error)
        raise
    if pipeline.interceptors:
        future._observe(lambda future: sent.acknowledge(taken, future))
    return future


class ConditionalSend:
    """One batch and its expected offset, as a producer batch carries them."""

    single = False  # whether the result is that of `send()`

    def __init__(
        self,
        pipeline: Pipeline,
        promise: ProducerBatch,
        place: tuple[str, int],
        encoded: EncodedRun,
        settings: TopicConfig,
        expected_offset: int,
    ) -> None:
        self.encoded = encoded
        self.settings = settings  # of the topic, by which the records were judged
        self.expected_offset = expected_offset
        self._pipeline = pipeline
        self._promise = promise
        self._place = place

    def settled(
        self,
        pieces: tuple[tuple[int, int], ...],
        error: BaseException | None,
        append_time_ms: int = -1,
    ) -> None:
        """Report the result once: the offsets of the batch, or its error."""
        count = self.encoded.record_count
        if error is not None:
            return self._pipeline.fail(self._promise, *self._place, error, count)
        base = pieces[0][0]
        time_ms = (
            int(self.encoded.batches["max_timestamp"][0]) if append_time_ms < 0 else append_time_ms
        )
        self._promise.keep(
            RecordMetadata(*self._place, base, time_ms)
            if self.single
            else [(*self._place, base, count)]
        )

    def acknowledge(self, taken: list[ProducerRecord], future: Future) -> None:
        """Report the result of each record to the interceptors."""
        error = future._failure
        if error is not None:
            return _refused(self._pipeline, taken, error)
        result = future.result()
        base = result.offset if self.single else result[0][2]
        for offset, given in enumerate(taken, base):
            place = RecordMetadata(*self._place, offset, unknown_metadata(given).timestamp_ms)
            self._pipeline.interceptors.on_acknowledgement(place, None)


def _refused(pipeline: Pipeline, taken: list[ProducerRecord], error: BaseException) -> None:
    for given in taken if pipeline.interceptors else ():
        pipeline.interceptors.on_acknowledgement(unknown_metadata(given), error)


# ---- the batch -----------------------------------------------------------------------------------


def _items(
    pipeline: Pipeline, rows: Iterable[ProducerRecord], taken: list[ProducerRecord]
) -> tuple[TopicTarget, list[Item]]:
    """The topic and the serialized records; `taken` gets the records as the interceptors changed
    them.

    Raises the errors of `Pipeline.item`, InvalidRecordError, RecordTooLargeError.
    """
    items: list[Item] = []
    topic_target: TopicTarget | None = None
    size = 0
    for row in rows:
        given = pipeline.interceptors.on_send(row) if pipeline.interceptors else row
        taken.append(given)
        if topic_target is None:
            pipeline.check_usable()
            topic_target = pipeline.topic_target(given.topic)
        elif given.topic != topic_target.name:
            raise InvalidRecordError(
                "records with one expected offset", expected=topic_target.name, found=given.topic
            )
        items.append(pipeline.item(topic_target, given))
        size += sum(len(part or b"") for part in items[-1][:2])
        if size > topic_target.batch_limit:
            raise _too_large(topic_target, size)
    if topic_target is None:
        raise TypeError("expected_offset needs at least one record")
    return topic_target, items


def _one_partition(topic_target: TopicTarget, items: list[Item], keys_ignored: bool) -> int:
    """The partition of all records. Raises TypeError if it is not certain, InvalidRecordError if
    there are several.
    """
    chosen = {
        _partition(topic_target, key, partition, keys_ignored) for _, key, partition, _, _ in items
    }
    if len(chosen) > 1:
        raise InvalidRecordError(
            "records with one expected offset", expected="one partition", found=sorted(chosen)
        )
    return chosen.pop()


def _partition(
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


def _one_batch(pipeline: Pipeline, topic_target: TopicTarget, items: list[Item]) -> EncodedRun:
    """The records as one batch. Raises RecordTooLargeError."""
    now_ms = int(time.time() * 1000)
    limit = topic_target.batch_limit
    values, keys, _, times, headers = (list(column) for column in zip(*items, strict=True))
    times_ms = [now_ms if each is None else each for each in times]
    pieces = pieces_of(values, keys, times_ms, headers)
    runs = [
        run
        for piece in pieces
        for run in pipeline.encoded(topic_target, piece, None, now_ms, limit, limit)
    ]
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
