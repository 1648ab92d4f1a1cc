"""The path of a record from `send()` to its partition queue, in the order that a user can observe.

- Check the call, intercept, check the handle, find the topic, serialize key and then value,
  partition, check, append to the queue.
- An invalid call raises; an invalid record or an error of the log fails the future, as in Kafka's
  producer; interceptors receive both.
- An interceptor may change a record before it is queued, and learns its result. `on_send` runs on
  the thread that calls `send()`, and a result that `send()` would refuse is left out.
  `on_acknowledgement` runs once for every record, written or not, before the user's callbacks.
- `send_batch` takes the same steps in columns; if a user's object must see each record, it takes
  them row by row.
- Columns are encoded on the caller's thread and written on the producer's, in parallel.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from embedlog._native import system
from embedlog.columns.one_record import bytes_of, normalize_headers
from embedlog.config.conversions import by_method
from embedlog.errors import (
    BufferExhaustedError,
    ClosedError,
    EmbedlogError,
    FencedError,
    ForkedError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionStateError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from embedlog.format import record_batch
from embedlog.format.record_columns import Columns
from embedlog.hooks.interceptors import InterceptorChain
from embedlog.partitioners import Chooser, partition_of
from embedlog.producer import topic_judgement
from embedlog.producer.accumulator import Accumulator
from embedlog.producer.batch_send import (
    STICK,
    BatchSend,
    RunSend,
    Share,
    check_partition,
    check_piece,
    check_record,
    share_rows,
)
from embedlog.producer.one_record import check_call, record_size, unknown_metadata
from embedlog.producer.sender import Sender
from embedlog.producer.targets import TopicTarget
from embedlog.types import ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    from embedlog._native._rows import Future, ProducerBatch, Router
    from embedlog.columns.ingest import ColumnPiece
    from embedlog.config.client import ProducerConfig
    from embedlog.engine.engine import Engine
    from embedlog.producer.no_transaction import NoTransaction
    from embedlog.producer.transaction_manager import TransactionManager

logger = logging.getLogger("embedlog.producer")


# 1973 in seconds: a timestamp of 1970 above it may be in seconds by mistake
SECONDS_FROM = 100_000_000
# of send_batch: such batches compress well and are small compared to a segment
BATCH_BYTES_MAX = 1 << 20
# encoded at once and passed between threads; small enough to stay in the CPU cache
RUN_BYTES = 2 << 20
# unwritten bytes of one send_batch: more would only use memory that is not in the cache
AHEAD_BYTES = 3 * RUN_BYTES

# Errors of the record or the log, not of the call: they fail the future (Kafka's ApiException)
FAILS_THE_FUTURE = (
    UnknownTopicOrPartitionError,
    InvalidTopicError,
    RecordTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    BufferExhaustedError,
    FencedError,
)

Serialize: TypeAlias = Callable[[str, list[Any], Any], Any]
# value, key, partition, time, …
Item: TypeAlias = tuple[bytes | None, bytes | None, int | None, int | None, tuple[Any, ...]]


class Pipeline:
    """Processes the records of one producer; has the handle's state, but not the handle.

    Threads: any.
    """

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        delivery: Sender,
        accumulator: Accumulator,
        transaction: TransactionManager | NoTransaction,
    ) -> None:
        self._engine = engine
        self._config = config
        self._pid = os.getpid()
        self._delivery = delivery
        self._accumulator = accumulator
        self._transaction = transaction
        self._rows = accumulator.rows
        self._failures = delivery.failures
        self._serializers = {
            "key": _as_method(config.key_serializer),
            "value": _as_method(config.value_serializer),
        }
        self._partitioner = config.partitioner
        if isinstance(config.partitioner, type):
            self._partitioner = config.partitioner()
        self._choosers: dict[str, Chooser] = {}
        self.interceptors = ProducerInterceptors(config.interceptor_classes, check_call)
        has_serializer_objects = any(
            hasattr(serializer, "serialize")
            for serializer in (config.key_serializer, config.value_serializer)
        )
        self._warned_of_seconds = False
        self._row_by_row = bool(self.interceptors) or has_serializer_objects
        self.idempotent = config.enable_idempotence
        self.keys_ignored = config.partitioner_ignore_keys
        self.plain = not (
            self._row_by_row
            or config.key_serializer
            or config.value_serializer
            or config.partitioner
        )

    # ---- one record ------------------------------------------------------------------------------

    def send(self, record: ProducerRecord) -> Future:
        """The future of one record. Raises as `Producer.send` does."""
        check_call(record)
        if not self.interceptors:
            return self._send_checked(record)
        intercepted = self.interceptors.on_send(record)
        try:
            future = self._send_checked(intercepted)
        except BaseException as error:  # also after an interrupt: interceptors receive every record
            self.interceptors.on_acknowledgement(unknown_metadata(intercepted), error)
            raise
        future._observe(partial(self.acknowledge, intercepted))
        return future

    def _send_checked(self, record: ProducerRecord) -> Future:
        try:
            self.check_usable()
            topic_target = self.topic_target(record.topic)
            return self._put(topic_target, self.make_item(topic_target, record))
        except FAILS_THE_FUTURE as error:
            return self.fail_call(record, error)

    def make_item(self, topic_target: TopicTarget, record: ProducerRecord) -> Item:
        """The arguments of the route: serialized, partitioned, checked. Neither waits nor accesses
        a file.
        """
        headers = list(record.headers or ()) if self._row_by_row else record.headers
        key = self._serialize("key", record, headers, record.key)
        value = self._serialize("value", record, headers, record.value)
        pairs = normalize_headers(headers)
        partition = self._choose_partition(topic_target, record, key, value)
        self._check_limits(topic_target, value, key, pairs, record.timestamp_ms)
        return value, key, partition, record.timestamp_ms, pairs

    def _serialize(
        self, field: str, record: ProducerRecord, headers: Any, data: Any
    ) -> bytes | None:
        serialize = self._serializers[field]
        if serialize is None:
            return bytes_of(data, field)
        try:
            return bytes_of(serialize(record.topic, headers, data), field)
        except Exception as error:
            message = f"the {field}_serializer failed on a record: {error}"
            raise SerializationError(
                message, topic=record.topic, partition=record.partition, field=field
            ) from error

    def _choose_partition(
        self,
        topic_target: TopicTarget,
        record: ProducerRecord,
        key: bytes | None,
        value: bytes | None,
    ) -> int | None:
        """The given partition, or the one that the user's partitioner chose; None leaves the choice
        to the route.
        """
        partition = record.partition
        if partition is None and self._partitioner is not None:
            chooser = self._chooser_of(topic_target.name)
            partition = chooser.of_record(
                record.key, key, record.value, value, topic_target.every, topic_target.numbers
            )
        elif (
            partition is None
            and key is not None
            and topic_target.is_sparse
            and not self._config.partitioner_ignore_keys
        ):
            # may be a partition that is not local
            partition = partition_of(key, topic_target.partition_count)
        if partition is not None:
            check_partition(topic_target, partition)
        return partition

    def _chooser_of(self, topic: str) -> Chooser:
        """The user's partitioner for one topic. REQUIRES a partitioner."""
        chooser = self._choosers.get(topic)
        if chooser is None:
            # another thread may be faster: all use the first one
            chooser = self._choosers.setdefault(topic, Chooser(self._partitioner, topic))
        return chooser

    def _check_limits(
        self,
        topic_target: TopicTarget,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[Any, ...],
        timestamp_ms: int | None,
    ) -> None:
        size = record_size(value, key, headers)
        for name, limit in (
            ("max.request.size", self._config.max_request_size),
            ("buffer.memory", self._config.buffer_memory),
        ):
            if size > limit:
                raise RecordTooLargeError(
                    f"a record for {topic_target.name} is larger than {name}",
                    expected=f"at most {limit} bytes",
                    found=size,
                )
        check_record(topic_target, size)
        if key is None and topic_target.config.compacted:
            raise topic_judgement.missing_key_error(topic_target.name)
        if timestamp_ms is not None:
            topic_judgement.check_times(
                topic_target.config, topic_target.name, timestamp_ms, timestamp_ms
            )
            self._warn_of_seconds(topic_target, timestamp_ms)

    def _warn_of_seconds(self, topic_target: TopicTarget, earliest_ms: int) -> None:
        """Warn once about a timestamp of 1970 that may be a current time in seconds.

        The record is accepted: it may be correct.
        """
        if (
            topic_target.route is None
            or not SECONDS_FROM <= earliest_ms < topic_target.route.seconds_until_ms
        ):
            return
        topic_target.route.seconds_until_ms = 0
        if not self._warned_of_seconds:
            self._warned_of_seconds = True
            logger.warning(
                "a record for %s has the timestamp %d ms, which is in 1970: timestamps are in ms, "
                "not in seconds (logged once)",
                topic_target.name,
                earliest_ms,
            )

    def _put(self, topic_target: TopicTarget, item: Item) -> Future:
        route: Router = topic_target.route  # type: ignore[assignment]  # set by topic_target()
        future: Future | None = route.append(*item, False)
        if future is None:
            future = self._wait_for(lambda: route.append(*item, True))
        return future

    def _wait_for(self, attempt: Callable[[], Any]) -> Any:
        """The result of `attempt` once memory is free. Raises BufferExhaustedError, and the errors
        of `check_usable`.
        """
        timeout_s = self._config.max_block_ms / 1000

        def attempt_or_raise() -> Any:
            result = attempt()
            if result is None:
                self.check_usable()
            return result

        success = self._accumulator.wait_for_memory(attempt_or_raise, timeout_s)
        if success is None:
            raise self.buffer_exhausted_error()
        return success

    def wait_for_memory(self, size: int, has_ended: Callable[[], bool]) -> None:
        """Wait in order of arrival for `size` bytes of memory, at most max.block.ms; also returns
        when memory was freed and `ended()`.
        """
        timeout_s = self._config.max_block_ms / 1000
        self._accumulator.wait_for_memory(lambda: has_ended() or self._has_memory(size), timeout_s)

    def buffer_exhausted_error(self) -> BufferExhaustedError:
        """The error for a wait for memory that timed out."""
        return BufferExhaustedError(
            f"buffer.memory ({self._config.buffer_memory} bytes) was full for max.block.ms "
            f"({self._config.max_block_ms} ms)"
        )

    def check_usable(self) -> None:
        """Raises the errors of `check_open`, and InvalidTransactionStateError or FencedError if
        records are not accepted.
        """
        self.check_open()
        self._transaction.check_send()

    def check_open(self) -> None:
        """Raises ForkedError, ClosedError and errors of the log."""
        if os.getpid() != self._pid:
            raise ForkedError(
                "the producer belongs to the parent process: open the log again in the child"
            )
        if self._rows.closed:
            raise ClosedError(
                "the producer or its log was closed; create another one with log.producer(…)"
            )
        self._engine.check_open()

    # ---- results ---------------------------------------------------------------------------------

    def promise(self) -> tuple[Future, ProducerBatch]:
        """A future whose result `ProducerBatch.keep` or `fail` sets."""
        return self._rows.promise(False)

    def fail(
        self, promise: ProducerBatch, topic: str, partition: int, error: BaseException, count: int
    ) -> None:
        """Settle a promise with an error of `count` records that were not written."""
        self._failures.fail(promise, topic, partition, error, count)

    def fail_call(self, record: ProducerRecord, error: EmbedlogError, count: int = 1) -> Future:
        """A future that failed inside the call: its callbacks run at once, in the caller's
        thread.
        """
        self._failures.count(count)
        self._transaction.note_failure(error)
        future, promise = self._rows.promise(True)
        self._failures.fail(promise, record.topic, record.partition, error, count)
        return future

    def acknowledge(self, record: ProducerRecord, future: Future) -> None:
        error = future._failure
        if error is None:
            self.interceptors.on_acknowledgement(future.result(), None)
            return
        metadata = unknown_metadata(record)
        if future.partition >= 0:
            metadata = metadata._replace(partition=future.partition)
        self.interceptors.on_acknowledgement(metadata, error)

    # ---- columns ---------------------------------------------------------------------------------

    def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any,
        partition: int | None,
        timestamps_ms: Any,
        headers: Any,
    ) -> Future:
        """The future of many records. Raises as `Producer.send_batch` does."""
        # late: single records need no columns
        from embedlog.columns.ingest import check_lengths, pieces_of, rows_of

        self.check_open()
        check_lengths(values, keys, timestamps_ms, headers)
        single_ms = timestamps_ms if isinstance(timestamps_ms, int) else None
        record = ProducerRecord(topic, partition=partition, timestamp_ms=single_ms)
        check_call(record)
        chooser = None if self._partitioner is None else self._chooser_of(topic)
        if self._row_by_row or (chooser is not None and chooser.sees_records):
            return self._send_rows(record, rows_of(values, keys, timestamps_ms, headers))
        self._accumulator.start()
        future, promise = self._rows.promise(False)
        batch_send = BatchSend(topic, promise, self._failures)
        error: EmbedlogError | None = None
        lost_count = 0
        row_count = _row_count(values)
        try:
            self.check_usable()
            keys = self._serialize_list("key", record, keys)
            values = self._serialize_list("value", record, values)
            topic_target = self.topic_target(topic)
            read_count = 0
            for piece in pieces_of(values, keys, timestamps_ms, headers):
                read_count += piece.count
                row_count = max(row_count, read_count)
                earliest_ms = check_piece(
                    piece, topic_target, single_ms, self._config.max_request_size
                )
                if earliest_ms is not None:
                    self._warn_of_seconds(topic_target, earliest_ms)
                for share in share_rows(
                    piece, topic_target, partition, chooser, self._config.partitioner_ignore_keys
                ):
                    self._send_share(batch_send, topic_target, piece, share, single_ms)
        except FAILS_THE_FUTURE as failure:
            error = failure
            lost_count = max(1, row_count - batch_send.row_count)
            self._failures.count(lost_count)
            self._transaction.note_failure(error)
        finally:
            batch_send.finish(error, lost_count)
        return future

    def _send_share(
        self,
        batch_send: BatchSend,
        topic_target: TopicTarget,
        piece: ColumnPiece,
        share: Share,
        timestamp_ms: int | None,
    ) -> None:
        """Encode one share and append its runs to the queue."""
        now_ms = system.wall_ms() if timestamp_ms is None else timestamp_ms
        size = min(BATCH_BYTES_MAX, topic_target.batch_limit)
        run_bytes = None
        if topic_target.codec == 0:
            run_bytes = min(RUN_BYTES, max(size, self._config.buffer_memory // 4))
        runs = self.encode(
            topic_target,
            piece,
            rows=share.rows,
            now_ms=now_ms,
            batch_bytes=size,
            run_bytes=run_bytes,
        )
        for run in runs:
            self._await_memory(run.size)
            if not self._accumulator.on_thread():
                batch_send.wait_below(AHEAD_BYTES, self._config.max_block_ms / 1000)
            number = share.partition
            if number == STICK and topic_target.route is not None:
                number = topic_target.route.stick(run.size)
            batch_send.add_run(run.size)
            run_send = RunSend(batch_send, number, run, topic_target.config)
            try:
                self._push(topic_target, number, run_send)
            except BaseException:
                run_send.report_result((), None)  # not queued
                raise
            batch_send.row_count += run.record_count

    def encode(
        self,
        topic_target: TopicTarget,
        piece: ColumnPiece,
        *,
        rows: Any,
        now_ms: int,
        batch_bytes: int,
        run_bytes: int | None,
    ) -> Iterator[record_batch.EncodedRun]:
        """Some rows of a piece as runs, compressed by the codec of the topic; `now_ms` is the time
        of rows without one.
        """
        times_ms = now_ms if piece.timestamps is None else piece.timestamps
        return record_batch.encode(
            Columns(piece.count, piece.values, piece.keys, times_ms, piece.headers),
            codec=topic_target.codec,
            level=topic_target.level,
            batch_bytes=batch_bytes,
            selection=rows,
            run_bytes=run_bytes,
            compressed_max=self._engine.config.max_decompressed_batch_bytes,
        )

    def push(self, topic_target: TopicTarget, number: int, run_send: Any) -> None:
        """Wait for memory, and append a run to the queue of a partition. Raises as `send` does."""
        self._await_memory(run_send.encoded.size)
        self._push(topic_target, number, run_send)

    def _push(self, topic_target: TopicTarget, number: int, run_send: Any) -> None:
        target = topic_target.target_of(number)
        run = run_send.encoded
        if target is None or target.queue.push_run(run_send, run.record_count, run.size) is None:
            self.check_usable()
            raise InvalidTransactionStateError("the transaction ended during the call")

    def _await_memory(self, size: int) -> None:
        if not self._accumulator.has_memory(size) or self._rows.waiting:
            self._wait_for(partial(self._has_memory, size))

    def _has_memory(self, size: int) -> bool | None:
        return self._accumulator.has_memory(size) or None

    def _serialize_list(self, field: str, record: ProducerRecord, items: Any) -> Any:
        if self._serializers[field] is None or not isinstance(items, (list, tuple)):
            return items
        return [self._serialize(field, record, (), item) for item in items]

    def _send_rows(
        self, common: ProducerRecord, rows: Iterator[tuple[Any, Any, int | None, Any, int | None]]
    ) -> Future:
        """Send row by row, for objects that must see each record; the result has the same form as
        that of columns.
        """
        self._accumulator.start()  # the thread runs the callbacks of the promise
        future, promise = self._rows.promise(False)
        batch_send = BatchSend(common.topic, promise, self._failures)
        try:
            for value, key, timestamp_ms, headers, partition in rows:
                row_partition = common.partition if common.partition is not None else partition
                future_of_row = self.send(
                    ProducerRecord(common.topic, value, key, row_partition, timestamp_ms, headers)
                )
                batch_send.add_run()
                future_of_row.add_done_callback(partial(_record_row, batch_send))
        finally:
            batch_send.finish()
        return future

    # ---- topics ----------------------------------------------------------------------------------

    def known_target(self, topic: str) -> TopicTarget | None:
        """The target of a topic if it is known and, as far as the producer has noticed,
        unchanged.
        """
        return self._delivery.topic_targets.get(topic)

    def topic_target(self, topic: str, *, followed: bool = False) -> TopicTarget:
        """The target of a topic; `followed`: it is kept while its route has not moved. Raises
        UnknownTopicOrPartitionError, InvalidTopicError.
        """
        self._accumulator.start()
        return self._delivery.topic_target(
            topic, self._rows, fast=self.plain, followed=followed or self.plain
        )


class ProducerInterceptors(InterceptorChain):
    """The interceptors of one producer; false if there are none. `check` raises for a record that
    `send()` would refuse.
    """

    def __init__(
        self, interceptors: Iterable[Any], check: Callable[[ProducerRecord], None]
    ) -> None:
        super().__init__(interceptors, ("on_send", "on_acknowledgement"), logger)
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


def _as_method(serializer: Any) -> Serialize | None:
    """A user's serializer as a function of topic, headers and data: an object with such a method,
    or a callable of the data.
    """
    if serializer is None:
        return None
    return by_method(serializer, "serialize") or (lambda topic, headers, data: serializer(data))


def _record_row(batch_send: BatchSend, future: Future) -> None:
    error = future.exception()
    if error is not None:
        batch_send.record_result(future.partition, (), error, lost=1)
        return
    metadata = future.result()
    batch_send.record_result(
        metadata.partition, ((metadata.offset, metadata.offset + 1),), None, topic=metadata.topic
    )


def _row_count(values: Any) -> int:
    """The number of rows if known; 0 for a stream, which has no length before it is read."""
    try:
        return len(values)
    except TypeError:
        return 0
