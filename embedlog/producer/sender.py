"""Writes a producer's partition queues into the partitions' logs.

- For one partition, only the thread that entered its queue appends: the producer's thread, or in C
  a caller that waits for a record (`direct_append.c`). Records are written in the order in which
  they were accepted.
- Every taken batch is settled; a batch known to be in the log never fails and never written again:
  its attempt ends first. One that must be committed, or synced, counts only after that.
- After a transient error the attempt is repeated with the same bytes, from where it stopped, until
  delivery.timeout.ms or retries are used up. No later batch of the queue overtakes it.
- A topic that grew, changed or was deleted is detected when a record is written to it, and, where
  pages are mapped, when it is accepted: a route follows the topics words (`router.c`).
- A refused batch costs other batches nothing: batches that were written together are then tried one
  by one.
- A partition of a set that waits (for a leader, a larger ISR or a slow follower) holds up no other
  queue longer than SLICE_NS.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from embedlog._native import _rows, system
from embedlog.errors import (
    ClosedError,
    DeadlineError,
    DurabilityError,
    EmbedlogError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    RecordTooLargeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.format import compression, record_batch
from embedlog.format.record_columns import HEADER_SIZE
from embedlog.partition.log_context import Appended, AppendProgress
from embedlog.producer import topic_judgement
from embedlog.producer.attempts import SLICE_NS, Attempt, delivery_timeout_error
from embedlog.producer.batch_send import UNKNOWN_OFFSET
from embedlog.producer.delivery_failures import DeliveryFailures
from embedlog.producer.idempotence import Appender, IdempotentAppender, PlainAppender
from embedlog.producer.targets import QueueTarget, TopicTarget
from embedlog.storage.call_deadline import Slice
from embedlog.telemetry.metrics import Metrics
from embedlog.topic import check_name, is_internal

if TYPE_CHECKING:
    from embedlog._native._rows import PartitionQueue, ProducerBatch, Router
    from embedlog.config.client import ProducerConfig
    from embedlog.config.topic import TopicConfig
    from embedlog.engine.engine import Engine

logger = logging.getLogger("embedlog.producer")


# batches of send() in one append: large enough to amortize its cost, small enough for the CPU cache
RUN_BYTES = 4 << 20
WATCHED_MAX = 8  # control pages that a route watches, of a larger set the first ones
JITTER = 0.2  # of the pause between attempts, as in Kafka

# Transient errors: a full disk or an I/O error, or a lack of resources of this process
TRANSIENT_ERRNOS = {
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.ETIMEDOUT,
}


class Sender:
    """The topic targets of one producer; writes their batches into the log.

    Threads: `topic_target`, `drop`, `abandon` and `collect_direct` from any, the others from the
    producer's own only.
    """

    def __init__(self, engine: Engine, settings: ProducerConfig, name: str) -> None:
        self._engine = engine
        self._settings = settings
        self._lock = threading.Lock()
        self._targets: dict[PartitionQueue, QueueTarget] = {}
        self.appender: Appender
        if settings.enable_idempotence:
            self.appender = IdempotentAppender()
        else:
            self.appender = PlainAppender(settings.acks)
        self.topic_targets: dict[str, TopicTarget] = {}
        # of topics that were not found: a topic that exists again uses the same queues
        self._removed_targets: dict[str, list[QueueTarget]] = {}
        # fast path of send(); a topic without an entry takes the checked path
        self.routes: dict[str, Router] = {}
        # receives every error before the futures
        self.note_failure: Callable[[BaseException], None] = lambda error: None
        self.figures = Metrics(
            window_s=settings.metrics_sample_window_ms / 1000,
            window_count=settings.metrics_num_samples,
        )
        self.failures = DeliveryFailures(
            name,
            self.figures,
            raises=settings.on_delivery_error == "raise" and settings.acks != "0",
        )
        self.in_flight = 0  # batches that are being written

    # ---- topic targets ---------------------------------------------------------------------------

    def topic_target(
        self, topic: str, rows: _rows.Accumulator, *, fast: bool, followed: bool
    ) -> TopicTarget:
        """The target of a topic, read again if the topic changed. Raises
        UnknownTopicOrPartitionError, InvalidTopicError.

        `fast`: the next `send()` may use its route at once. `followed`: the route shows whether
        topics change from now on.
        """
        if is_internal(check_name(topic)):
            raise InvalidTopicError(
                f"{topic} is one of the log's own topics: only the log writes to it"
            )
        pages = self._engine.topic_pages()[:WATCHED_MAX] if followed else ()
        # before the topic is read: a change meanwhile is noticed by the next call
        change_count = sum(page.topics() for page in pages)
        topic_state = self._engine.topic(topic)
        partition_count = topic_state.partitions
        with self._lock:
            topic_target = self.topic_targets.get(topic)
            if (
                topic_target is not None and partition_count < topic_target.partition_count
            ):  # it was deleted, and made anew
                self._remove(topic_target)
                topic_target = None
            if topic_target is None:
                config = self._engine.topic_config(topic)
                topic_target = TopicTarget(topic, config, self._settings, rows)
                topic_target.take_queues(self._removed_targets.pop(topic, []))
                self.topic_targets[topic] = topic_target
            elif topic_state is not topic_target.topic:
                topic_target = self._update(topic_target)
            topic_target.topic = topic_state
            if topic_target.route is None or topic_target.partition_count < partition_count:
                topic_target.grow(partition_count, list(self._engine.topic(topic).usable_numbers))
                self._targets.update((target.queue, target) for target in topic_target.targets)
                topic_target.make_route(partition_count)
            if topic_target.route is not None:
                if pages:
                    topic_target.route.follow(
                        tuple(page.address for page in pages), system.TOPICS_FUNCTION, change_count
                    )
                if fast:
                    self.routes[topic] = topic_target.route
            return topic_target

    def _remove(self, topic_target: TopicTarget) -> None:
        """Forget a topic that has changed; if it exists again, it uses the same queues. REQUIRES
        the lock.
        """
        self.routes.pop(topic_target.name, None)
        self._removed_targets[topic_target.name] = topic_target.targets
        self.topic_targets.pop(topic_target.name, None)

    def _check_topic(self, target: QueueTarget) -> None:
        """Send the next `send()` to the checked path if the topic has changed."""
        topic_target = target.topic_target
        try:
            count = self._engine.partition_count(topic_target.name)
            config = topic_target.config if target.partition is None else target.partition.config
            changed = config is not topic_target.config and config != topic_target.config
        except EmbedlogError:  # deleted, or the log is closed: the next send() reports it
            count = 0
            changed = True
            config = topic_target.config
        if count == topic_target.partition_count and not changed:
            return
        with self._lock:
            self.routes.pop(topic_target.name, None)
            if self.topic_targets.get(topic_target.name) is not topic_target:
                return  # a call was faster
            if count < topic_target.partition_count:
                self._remove(topic_target)
            elif changed:
                self._reconfigure(topic_target, config)

    def _update(self, topic_target: TopicTarget) -> TopicTarget:
        """The target with the settings that the topics of the log have now. REQUIRES the lock."""
        config = self._engine.topic_config(topic_target.name)
        if config == topic_target.config:
            return topic_target
        return self._reconfigure(topic_target, config)

    def _reconfigure(self, topic_target: TopicTarget, config: TopicConfig) -> TopicTarget:
        """Use the topic's new settings for later records, with the existing queues."""
        replacement = TopicTarget(topic_target.name, config, self._settings, topic_target.rows)
        replacement.take_queues(topic_target.targets)
        replacement.make_route(topic_target.partition_count)
        self.topic_targets[topic_target.name] = replacement
        return replacement

    # ---- on the producer's thread ----------------------------------------------------------------

    def announce(self, queues: list[PartitionQueue]) -> None:
        """These queues will be delivered next, one after the other."""
        if self.appender.direct:
            return
        targets = [self._targets[queue] for queue in queues if queue.enter()]
        try:
            # each delivery meets the error again
            with contextlib.suppress(EmbedlogError), Slice(lambda: True, SLICE_NS).begin():
                for target in targets:
                    self._locate(target)
                self.appender.announce(
                    [target for target in targets if target.attempt or self._begin(target)]
                )
        finally:
            for target in targets:
                target.queue.leave()

    def deliver(self, queue: PartitionQueue) -> None:
        """Write the due batches of one queue as one run and settle them, or repeat the attempt that
        failed before.
        """
        target = self._targets[queue]
        self.collect_direct(queue)
        attempt = target.attempt or self._begin(target)
        if attempt is not None:
            self._try(target, attempt)
        elif target.partition is not None:
            with contextlib.suppress(EmbedlogError):  # deleted or closed: the next write reports it
                # sync direct appends, unless the housekeeper was faster
                target.partition.flush_if_late()
        if target.is_check_due():
            self._check_topic(target)
        target.open_direct(
            allowed=self.appender.direct,
            repeatable=self.appender.repeatable,
            plain_max=self._engine.config.max_decompressed_batch_bytes,
        )

    def _begin(self, target: QueueTarget) -> Attempt | None:
        """The due batches of the queue, encoded and stamped; None if there are none, or if that
        failed.
        """
        batches = target.queue.take(1 if target.single_batches else RUN_BYTES)
        target.single_batches = max(0, target.single_batches - 1)
        target.dropped = None
        if not batches:
            return None
        try:
            self.appender.prepare(target)
            run, counts = self._encode_run(target, batches)
            expected_offset = None if batches[0].run is None else batches[0].run.expected_offset
            attempt = Attempt(
                batches, counts, run, self._progress_of(target, batches, run, expected_offset)
            )
            self.appender.stamp(target, attempt)
        except BaseException as error:  # noqa: BLE001  (top of the thread: any error must settle the futures)
            self._fail(target, batches, error)
            return None
        target.attempt = attempt
        return attempt

    def _encode_run(
        self, target: QueueTarget, batches: list[ProducerBatch]
    ) -> tuple[record_batch.EncodedRun, list[int]]:
        """The encoded run, and the number of records of each batch."""
        if batches[0].run is not None:
            run: record_batch.EncodedRun = batches[0].run.encoded
            return run, [run.record_count]
        bodies = self._compress(target, batches) if target.topic_target.codec else None
        buffer, table = _rows.seal(batches, bodies, target.topic_target.codec)
        counts = [batch.count for batch in batches]
        run = record_batch.EncodedRun(
            memoryview(buffer), len(batches), sum(counts), len(buffer), table
        )
        return run, counts

    def _compress(self, target: QueueTarget, batches: list[ProducerBatch]) -> list[Any]:
        """Compressed records sections; None where compression does not help, or readers would
        refuse the size.
        """
        bodies: list[Any] = []
        for batch in batches:
            plain = batch.body
            if len(plain) > self._engine.config.max_decompressed_batch_bytes:
                bodies.append(None)
                continue
            body = compression.compress(target.topic_target.codec, plain, target.topic_target.level)
            size = memoryview(body).nbytes
            target.update_ratio(len(plain), size)
            bodies.append(body if size < len(plain) else None)
        return bodies

    # ---- attempts --------------------------------------------------------------------------------

    def _try(self, target: QueueTarget, attempt: Attempt) -> None:
        attempt.begin()
        part = Slice(lambda: self._has_other_records(target), SLICE_NS)
        try:
            if target.dropped is not None:
                raise target.dropped
            self.in_flight = len(attempt.batches)
            attempt.until_ns = attempt.until_ns or self._deadline_ns(attempt.batches[0])
            with part.begin():
                appended = self._append(target, attempt, attempt.until_ns)
        except BaseException as error:  # noqa: BLE001  (as above)
            self.in_flight = 0
            may_go_on = isinstance(error, EmbedlogError) and error.retriable
            if part.ended and may_go_on and attempt.has_time():
                pause_s = 0.0
                if part.awaits_change and self._has_other_records(target):
                    pause_s = attempt.pause_s()
                target.queue.rest(pause_s)
                return
            attempt.end()
            self._handle_failure(target, attempt, error)
            return
        # before futures are settled: a program that waited for them reads the metrics
        self.in_flight = 0
        refusal = attempt.progress.refusal
        if refusal is not None and not attempt.whole_count:
            self._handle_failure(target, attempt, refusal)
            return
        try:
            target.attempt = None
            target.queue.rest(0)
            if refusal is not None:
                target.single_batches = attempt.leave_rest()
            self.appender.note_written(target, attempt)
            self._count(attempt.batches, attempt.run, attempt.began)
        finally:
            self._settle(attempt.batches, attempt.counts, appended)

    def _has_other_records(self, target: QueueTarget) -> bool:
        """Whether another queue has records."""
        return any(queue.batch_count for queue in list(self._targets) if queue is not target.queue)

    def _append(self, target: QueueTarget, attempt: Attempt, deadline_ns: int) -> Appended:
        self._locate(target)
        try:
            return self.appender.append(target, attempt, deadline_ns)
        except (UnknownTopicOrPartitionError, ClosedError):
            # Deleted: a topic created again with the same name is the intended one
            recreated = self._engine.partition(target.topic_target.name, target.queue.partition)
            if recreated is target.partition:
                raise
            target.partition = recreated
            attempt.progress = self._progress_of(
                target, attempt.batches, attempt.run, attempt.progress.expected_offset
            )
            return self.appender.append(target, attempt, deadline_ns)

    def _progress_of(
        self,
        target: QueueTarget,
        batches: list[ProducerBatch],
        run: record_batch.EncodedRun,
        expected_offset: int | None = None,
    ) -> AppendProgress:
        """The progress of a run that has not begun, with its judge."""

        def judge(config: TopicConfig) -> None:
            if self._settings.acks == "all":
                target.partition.check_in_sync()
            topic_judgement.check_batches(config, target.topic_target.name, batches)

        progress = AppendProgress(run, expected_offset)
        progress.judge = judge
        return progress

    def _locate(self, target: QueueTarget) -> None:
        if target.partition is None:
            target.partition = self._engine.partition(
                target.topic_target.name, target.queue.partition
            )

    def _deadline_ns(self, batch: ProducerBatch) -> int:
        remaining_s = self._remaining_s(batch)
        if remaining_s <= 0:
            raise DeadlineError(
                "the batch could not be written in time",
                expected=f"{self._settings.delivery_timeout_ms} ms (delivery.timeout.ms)",
            )
        wait_ms: int = min(self._settings.request_timeout_ms, self._engine.config.lock_timeout_ms)
        return system.boot_ns() + min(int(remaining_s * 1e9), wait_ms * 1_000_000)

    def _remaining_s(self, batch: ProducerBatch) -> float:
        until_s: float = batch.opened + self._settings.delivery_timeout_ms / 1000
        return until_s - time.monotonic()

    def _handle_failure(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> None:
        """Decide after a failed attempt: retry now, retry later, or fail."""
        is_new = not attempt.progress.pieces
        splits = is_new and not attempt.rebuilt and attempt.progress.expected_offset is None
        is_refused = isinstance(error, InvalidRecordError | InvalidTimestampError)
        if is_new and is_refused and len(attempt.batches) > 1:  # the other batches may be in order
            target.attempt = None
            target.single_batches = len(attempt.batches)
            return
        if isinstance(error, RecordTooLargeError) and splits:  # nothing was written yet
            if len(attempt.batches) > 1:
                target.attempt = None
                target.single_batches = len(attempt.batches)
                return
            try:
                self._split(target, attempt)
                return
            except RecordTooLargeError as larger:
                error = larger
        elif self.appender.renew(target, attempt, error):
            return
        elif (
            target.dropped is None
            and self._is_transient(error)
            and attempt.tries <= self._settings.retries
        ):
            pause_s = self._pause_s(attempt.tries)
            if self._remaining_s(attempt.batches[0]) > pause_s:
                self.figures.add({"retry": attempt.run.record_count})
                target.queue.rest(pause_s)
                if not isinstance(error, DeadlineError):
                    attempt.problem = error
                return
            error = delivery_timeout_error(
                error, attempt.problem, self._settings.delivery_timeout_ms
            )
        self._fail_attempt(target, attempt, error)

    def _is_transient(self, error: BaseException) -> bool:
        if self._settings.acks == "0" or not isinstance(error, EmbedlogError):
            return False
        return error.retriable or (
            isinstance(error, StorageError) and error.errno in TRANSIENT_ERRNOS
        )

    def _pause_s(self, tries: int) -> float:
        """The pause as in Kafka: doubled each time, up to a limit, with random jitter."""
        settings = self._settings
        pause_ms: int = min(
            settings.retry_backoff_ms << min(tries - 1, 30), settings.retry_backoff_max_ms
        )
        # a retry imports nothing: descriptors may be the reason
        jitter = int.from_bytes(os.urandom(4)) / 2**31 - 1
        return pause_ms * (1 + JITTER * jitter) / 1000

    def _split(self, target: QueueTarget, attempt: Attempt) -> None:
        """Split into smaller batches, after the topic's limit was lowered. Raises
        RecordTooLargeError.
        """
        limit = target.partition.batch_limit
        run = attempt.run
        codec = int(run.batches["attributes"][0]) & record_batch.CODEC_MASK
        rows = record_batch.decode(run.buffer, run.batches)
        if rows.timestamps is None:
            raise AssertionError("all columns were asked for")
        columns = record_batch.Columns(
            rows.count, rows.values, rows.keys, rows.timestamps, rows.headers
        )
        level = target.topic_target.level
        runs = list(record_batch.encode(columns, codec=codec, level=level, batch_bytes=limit))
        largest = max(int(run.batches["size"].max()) for run in runs)
        target.partition.config.check_batch(largest, f"a record for {target.topic_target.name}")
        self.figures.add({"split": 1})
        attempt.run = _join_runs(runs)
        attempt.rebuilt = True
        attempt.progress = self._progress_of(target, attempt.batches, attempt.run)
        self.appender.stamp(target, attempt)

    # ---- results ---------------------------------------------------------------------------------

    def _settle(self, batches: list[ProducerBatch], counts: list[int], appended: Appended) -> None:
        """Settle batches that are in the log. All of them, even if a step here fails: then their
        offsets are unknown.
        """
        try:
            if len(batches) > 1:
                offsets = appended.base_offsets(counts)
            elif appended.contiguous:
                offsets = [appended.base_offset]
            else:
                offsets = [UNKNOWN_OFFSET]
            for batch, base_offset in zip(batches, offsets, strict=True):
                if batch.run is not None:
                    batch.run.report_result(appended.pieces, None, appended.append_time_ms)
                batch.deliver(base_offset, appended.time_of(base_offset))
        finally:
            _rows.settle_open(batches, None)

    def _fail_attempt(self, target: QueueTarget, attempt: Attempt, error: BaseException) -> None:
        """Fail an attempt. Its batches in the log still succeed, unless they had to be committed,
        or on stable storage.
        """
        batches = attempt.batches
        try:
            target.attempt = None
            target.queue.rest(0)
            self.appender.note_lost(target, attempt, error)
            if isinstance(error, UnknownTopicOrPartitionError):
                # before the futures fail: who sends again then uses the current partitions
                self._check_topic(target)
            written_count = attempt.whole_count
            if isinstance(error, DurabilityError) or target.awaits_sync:
                written_count = 0
            if written_count:
                counts = attempt.counts[:written_count]
                self._settle(batches[:written_count], counts, attempt.progress.result())
            if batches[written_count:]:
                self._fail(target, batches[written_count:], error, tuple(attempt.progress.pieces))
        finally:
            _rows.settle_open(batches, error)

    def _fail(
        self,
        target: QueueTarget,
        batches: list[ProducerBatch],
        error: BaseException,
        pieces: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Fail batches that were not written. They are settled before any log message: a user's log
        handler may raise.
        """
        count = sum(batch.count for batch in batches)
        try:
            self.failures.count(count)
            self.note_failure(error)
            for batch in batches:
                if batch.run is not None:  # its batch send reports the loss
                    batch.run.report_result(pieces, error)
                    batch.fail(error)
                else:
                    self.failures.fail(
                        batch, target.topic_target.name, batch.partition, error, batch.count
                    )
        finally:
            _rows.settle_open(batches, error)
        if not isinstance(error, EmbedlogError):
            logger.error(
                "unexpected failure of a write to %s-%d",
                target.topic_target.name,
                target.queue.partition,
                exc_info=error,
            )

    def drop(self, error: Exception) -> None:
        """Attempts that wait for a retry fail instead, when the thread runs next."""
        for target in list(self._targets.values()):
            target.dropped = error
            target.queue.rest(0)

    def abandon(self, batch: ProducerBatch, error: Exception) -> int:
        """Fail a batch unless its write has begun; returns its number of records."""
        run = batch.run
        if not self.failures.abandon(batch, error):
            return 0
        if run is not None:
            run.report_result((), error)
        return batch.count

    def fail_all(self, error: Exception) -> None:
        """The thread ends: fail attempts that wait for a retry."""
        for target in self._targets.values():
            if target.attempt is not None:
                self._fail_attempt(target, target.attempt, error)

    # ---- metrics ---------------------------------------------------------------------------------

    def collect_direct(self, *queues: PartitionQueue) -> None:
        """Add direct appends of callers to the metrics, for these queues or for all."""
        for queue in queues or list(self._targets):
            counters = queue.collect_direct()
            if counters is None:
                continue
            batch_count, record_count, size, plain_size, largest_batch = counters[:5]
            largest_record, latency_ns, latency_max_ns, queue_ns, queue_max_ns = counters[5:]
            amounts = {
                "request": batch_count,
                "batch": batch_count,
                "record": record_count,
                "byte": size,
                "latency_s": latency_ns / 1e9,
                "producer_batch": batch_count,
                "queue_s": queue_ns / 1e9,
                "packed_byte": size,
                "plain_byte": plain_size,
                "sized_record": record_count,
                "record_byte": plain_size - batch_count * HEADER_SIZE,
            }
            peaks = {
                "latency_s": latency_max_ns / 1e9,
                "queue_s": queue_max_ns / 1e9,
                "batch_byte": largest_batch,
                "record_byte": largest_record,
            }
            self.figures.add(amounts, peaks)

    def _count(
        self, batches: list[ProducerBatch], run: record_batch.EncodedRun, began: float
    ) -> None:
        """Add an append that began at `began` to the metrics."""
        latency_s = time.monotonic() - began
        waits_s = [began - batch.opened for batch in batches]
        largest = run.size if run.batch_count == 1 else int(run.batches["size"].max())
        amounts = {
            "request": 1,
            "batch": run.batch_count,
            "record": run.record_count,
            "byte": run.size,
            "latency_s": latency_s,
            "producer_batch": len(batches),
            "queue_s": sum(waits_s),
        }
        peaks = {"latency_s": latency_s, "queue_s": max(waits_s), "batch_byte": largest}
        if batches[0].run is None:
            plain_size = sum(batch.size for batch in batches)
            amounts |= {"packed_byte": run.size, "plain_byte": plain_size}
            amounts |= {
                "sized_record": run.record_count,
                "record_byte": plain_size - len(batches) * HEADER_SIZE,
            }
            peaks["record_byte"] = max(batch.record_most for batch in batches)
        self.figures.add(amounts, peaks)


def _join_runs(runs: list[record_batch.EncodedRun]) -> record_batch.EncodedRun:
    """Join consecutive runs."""
    buffer = bytearray()
    position = 0
    tables = []
    for run in runs:
        table = run.batches.copy()
        table["position"] += position
        tables.append(table)
        buffer += run.buffer
        position = len(buffer)
    batches = record_batch.joined(tables)
    return record_batch.EncodedRun(
        memoryview(buffer), len(batches), sum(run.record_count for run in runs), position, batches
    )
