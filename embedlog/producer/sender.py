"""Writes a producer's partition queues into the partitions' logs.

SENDER-1  for one partition, only the thread that entered its queue appends: the producer's thread, or in C a caller that waits
    for a record (`inline_append.c`). Records are written in the order in which they were accepted
SENDER-2  every batch that was taken is settled, whatever happens; a batch known to be in the log never fails and is never written
    again: the attempt ends before any other step
SENDER-3  after a transient error the attempt is repeated with the same bytes, from where it stopped, until delivery.timeout.ms or
    retries are used up; no later batch of the queue overtakes it
SENDER-4  a topic that grew, changed or was deleted is detected when a record is written to it
SENDER-5  a refused batch costs other batches nothing: batches that were written together are then tried one by one
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from embedlog._metrics import Metrics
from embedlog._native import _rows, system
from embedlog.errors import (
    ClosedError,
    DeadlineError,
    DurabilityError,
    EmbedlogError,
    InvalidTopicError,
    RecordTooLargeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from embedlog.format import compression, record_batch
from embedlog.partition.context import Appended, AppendProgress
from embedlog.producer.batch_send import UNKNOWN_OFFSET
from embedlog.producer.delivery_failures import Losses
from embedlog.producer.destinations import Attempt, Destination, Stop
from embedlog.producer.idempotence import Appender, Idempotent, Plain, in_sync
from embedlog.topic import check_name, is_internal

if TYPE_CHECKING:
    from embedlog._native._rows import PartitionQueue, ProducerBatch, Router
    from embedlog.config.topic import ProducerConfig, TopicConfig
    from embedlog.engine import Engine

logger = logging.getLogger("embedlog.producer")

RUN_BYTES = 4 << 20  # batches of send() in one append: large enough to amortize its cost, small enough for the CPU cache
FLUSH_NEVER: Final = 2**63 - 1  # flush.messages when no append waits for a sync
JITTER = 0.2  # of the pause between attempts, as in Kafka

# Transient errors: a full disk or an I/O error, or a lack of resources of this process
PASSING = {
    errno.EAGAIN, errno.EDQUOT, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC,
    errno.ETIMEDOUT,
}  # fmt: skip


class Delivery:
    """The destinations of one producer; writes their batches into the log.

    Threads: `destination`, `drop` and `harvest` from any, the others from the producer's own only.
    """

    def __init__(self, engine: Engine, settings: ProducerConfig, name: str) -> None:
        self._engine = engine
        self._settings = settings
        self._lock = threading.Lock()
        self._stops: dict[PartitionQueue, Stop] = {}
        self.appender: Appender = Idempotent() if settings.enable_idempotence else Plain(settings.acks)
        self.destinations: dict[str, Destination] = {}
        self._gone: dict[str, list[Stop]] = {}  # of topics that were not found: a topic that exists again uses the same queues
        self.routes: dict[str, Router] = {}  # fast path of send(); a topic without an entry takes the checked path
        self.failed: Callable[[BaseException], None] = lambda error: None  # receives every error before the futures
        self.figures = Metrics()
        self.losses = Losses(name, self.figures, raises=settings.on_delivery_error == "raise" and settings.acks != "0")
        self.in_flight = 0  # batches that are being written

    # ---- destinations ----------------------------------------------------------------------------

    def destination(self, topic: str, rows: _rows.Accumulator, *, fast: bool) -> Destination:
        """The topic's destination, read again if the topic changed. Raises UnknownTopicOrPartitionError, InvalidTopicError."""
        if is_internal(check_name(topic)):
            raise InvalidTopicError(f"{topic} is one of the log's own topics: only the log writes to it")
        count = self._engine.partition_count(topic)
        with self._lock:
            found = self.destinations.get(topic)
            if found is None:
                config = self._engine.topic_config(topic)
                found = Destination(topic, config, self._settings, rows)
                found.take_over(self._gone.pop(topic, []))
                self.destinations[topic] = found
            if found.route is None or found.partition_count < count:
                found.grow(count, list(self._engine.topic(topic).here))
                self._stops.update((stop.lane, stop) for stop in found.stops)
            if fast and found.route is not None:
                self.routes[topic] = found.route
            return found

    def _look_again(self, stop: Stop) -> None:
        """Send the next `send()` to the checked path if the topic has changed."""
        destination = stop.destination
        try:
            count = self._engine.partition_count(destination.name)
            config = destination.config if stop.partition is None else stop.partition.config
            changed = config is not destination.config and config != destination.config
        except EmbedlogError:  # deleted, or the log is closed: the next send() reports it
            count, changed, config = 0, True, destination.config
        if count == destination.partition_count and not changed:
            return
        with self._lock:
            self.routes.pop(destination.name, None)
            if count < destination.partition_count:
                self._gone[destination.name] = destination.stops
                self.destinations.pop(destination.name, None)
            elif changed:
                self._reconfigure(destination, config)

    def _reconfigure(self, destination: Destination, config: TopicConfig) -> None:
        """Use the topic's new settings for later records, with the existing queues."""
        fresh = Destination(destination.name, config, self._settings, destination.rows)
        fresh.take_over(destination.stops)
        fresh.grow(destination.partition_count)
        self.destinations[destination.name] = fresh

    # ---- on the producer's thread ----------------------------------------------------------------

    def announce(self, lanes: list[PartitionQueue]) -> None:
        """These queues will be delivered next, one after the other."""
        if self.appender.direct:
            return
        stops = [self._stops[lane] for lane in lanes if lane.enter()]
        try:
            with contextlib.suppress(EmbedlogError):  # each delivery meets the error again
                for stop in stops:
                    self._locate(stop)
                self.appender.announce([stop for stop in stops if stop.attempt or self._begin(stop)])
        finally:
            for stop in stops:
                stop.lane.leave()

    def deliver(self, lane: PartitionQueue) -> None:
        """Write the due batches of one queue as one run and settle them, or repeat the attempt that failed before."""
        stop = self._stops[lane]
        self.harvest(lane)
        attempt = stop.attempt or self._begin(stop)
        if attempt is not None:
            self.in_flight = len(attempt.parcels)
            self._try(stop, attempt)
            self.in_flight = 0
        elif stop.partition is not None:
            with contextlib.suppress(EmbedlogError):  # deleted or closed: the next write reports it
                stop.partition.flush_if_late()  # sync direct appends, unless the housekeeper was faster
        self._look_again(stop)
        self._open_direct(stop)

    def _open_direct(self, stop: Stop) -> None:
        """Enable direct appends by callers, unless each append needs more work: compression, or a sync."""
        partition = stop.partition
        target = partition.direct_target if partition is not None and self.appender.direct else None
        writer, config = (None, stop.destination.config) if target is None else (target.writer, target.config)
        usual = not stop.destination.codec and config.flush_messages == FLUSH_NEVER and in_sync(config)
        if target is None or writer is None or not usual:
            stop.direct = None
            stop.lane.shut_direct()
        elif stop.direct != (id(writer), id(config)):
            stop.direct = (id(writer), id(config))
            append, raw = writer.addresses
            stop.lane.open_direct(target, target.mutex, writer, config, append, raw, config.flush_ms, config.batch_limit)

    def _begin(self, stop: Stop) -> Attempt | None:
        """The due batches of the queue, encoded and stamped; None if there are none, or if that failed."""
        parcels = stop.lane.take(1 if stop.alone else RUN_BYTES)
        stop.alone = max(0, stop.alone - 1)
        stop.dropped = None
        if not parcels:
            return None
        try:
            self.appender.prepare(stop)
            run, counts = self._run_of(stop, parcels)
            attempt = Attempt(parcels, counts, run, AppendProgress(run))
            self.appender.stamp(stop, attempt)
        except BaseException as error:  # noqa: BLE001  (top of the thread: any error must settle the futures)
            self._fail(stop, parcels, error)
            return None
        stop.attempt = attempt
        return attempt

    def _run_of(self, stop: Stop, parcels: list[ProducerBatch]) -> tuple[record_batch.EncodedRun, list[int]]:
        """The encoded run, and the number of records of each batch."""
        if parcels[0].run is not None:
            run: record_batch.EncodedRun = parcels[0].run.encoded
            return run, [run.record_count]
        bodies = self._compressed(stop, parcels) if stop.destination.codec else None
        buffer, table = _rows.seal(parcels, bodies, stop.destination.codec)
        counts = [parcel.count for parcel in parcels]
        batches = np.frombuffer(table, dtype=record_batch.BATCH)
        return record_batch.EncodedRun(memoryview(buffer), len(parcels), sum(counts), len(buffer), batches), counts

    def _compressed(self, stop: Stop, parcels: list[ProducerBatch]) -> list[Any]:
        """Compressed records sections; None where compression does not help, or readers would refuse the size."""
        bodies: list[Any] = []
        for parcel in parcels:
            plain = parcel.body
            if len(plain) > self._engine.config.max_decompressed_batch_bytes:
                bodies.append(None)
                continue
            body = compression.compress(stop.destination.codec, plain, stop.destination.level)
            size = memoryview(body).nbytes
            stop.learn(len(plain), size)
            bodies.append(body if size < len(plain) else None)
        return bodies

    # ---- attempts --------------------------------------------------------------------------------

    def _try(self, stop: Stop, attempt: Attempt) -> None:
        began = time.monotonic()
        attempt.tries += 1
        try:
            if stop.dropped is not None:
                raise stop.dropped
            appended = self._append(stop, attempt, self._deadline_ns(attempt.parcels[0]))
        except BaseException as error:  # noqa: BLE001  (as above)
            self._not_written(stop, attempt, error)
            return
        try:
            stop.attempt = None
            stop.lane.rest(0)
            self.appender.written(stop, attempt)
            self._count(attempt.parcels, attempt.run, began)
        finally:
            self._settle(attempt.parcels, attempt.counts, appended)

    def _append(self, stop: Stop, attempt: Attempt, deadline_ns: int) -> Appended:
        self._locate(stop)
        try:
            return self.appender.append(stop, attempt, deadline_ns)
        except (UnknownTopicOrPartitionError, ClosedError):
            # Deleted: a topic created again with the same name is the intended one
            fresh = self._engine.partition(stop.destination.name, stop.lane.partition)
            if fresh is stop.partition:
                raise
            stop.partition, attempt.going = fresh, AppendProgress(attempt.run)
            return self.appender.append(stop, attempt, deadline_ns)

    def _locate(self, stop: Stop) -> None:
        if stop.partition is None:
            stop.partition = self._engine.partition(stop.destination.name, stop.lane.partition)

    def _deadline_ns(self, parcel: ProducerBatch) -> int:
        left_s = self._left_s(parcel)
        if left_s <= 0:
            raise DeadlineError(
                "the batch could not be written in time",
                expected=f"{self._settings.delivery_timeout_ms} ms (delivery.timeout.ms)",
            )
        wait_ms: int = min(self._settings.request_timeout_ms, self._engine.config.lock_timeout_ms)
        return system.boot_ns() + min(int(left_s * 1e9), wait_ms * 1_000_000)

    def _left_s(self, parcel: ProducerBatch) -> float:
        until_s: float = parcel.opened + self._settings.delivery_timeout_ms / 1000
        return until_s - time.monotonic()

    def _not_written(self, stop: Stop, attempt: Attempt, error: BaseException) -> None:
        """Decide after a failed attempt: retry now, retry later, or fail."""
        if isinstance(error, RecordTooLargeError) and not attempt.mended:  # nothing was written yet
            if len(attempt.parcels) > 1:
                stop.attempt, stop.alone = None, len(attempt.parcels)
                return
            try:
                return self._split(stop, attempt)
            except RecordTooLargeError as larger:
                error = larger
        elif self.appender.mend(stop, attempt, error):
            return
        elif stop.dropped is None and self._may_pass(error) and attempt.tries <= self._settings.retries:
            pause_s = self._pause_s(attempt.tries)
            if self._left_s(attempt.parcels[0]) > pause_s:
                self.figures.note({"retry": attempt.run.record_count})
                stop.lane.rest(pause_s)
                return
            error = _too_late(error, self._settings.delivery_timeout_ms)
        self._give_up(stop, attempt, error)

    def _may_pass(self, error: BaseException) -> bool:
        if self._settings.acks == "0" or not isinstance(error, EmbedlogError):
            return False
        return error.retriable or (isinstance(error, StorageError) and error.errno in PASSING)

    def _pause_s(self, tries: int) -> float:
        """The pause as in Kafka: doubled each time, up to a limit, with random jitter."""
        settings = self._settings
        pause_ms: int = min(settings.retry_backoff_ms << min(tries - 1, 30), settings.retry_backoff_max_ms)
        return pause_ms * random.uniform(1 - JITTER, 1 + JITTER) / 1000

    def _split(self, stop: Stop, attempt: Attempt) -> None:
        """Split into smaller batches, after the topic's limit was lowered. Raises RecordTooLargeError."""
        limit, run = stop.partition.batch_limit, attempt.run
        codec = int(run.batches["attributes"][0]) & record_batch.CODEC_MASK
        rows = record_batch.decode(run.buffer, run.batches)
        if rows.timestamps is None:
            raise AssertionError("all columns were asked for")
        columns = record_batch.Columns(rows.count, rows.values, rows.keys, rows.timestamps, rows.headers)
        runs = list(record_batch.encode(columns, codec=codec, level=stop.destination.level, batch_bytes=limit))
        largest = max(int(each.batches["size"].max()) for each in runs)
        stop.partition.config.check_batch(largest, f"a record for {stop.destination.name}")
        self.figures.note({"split": 1})
        attempt.run, attempt.mended = _joined(runs), True
        attempt.going = AppendProgress(attempt.run)
        self.appender.stamp(stop, attempt)

    # ---- results ---------------------------------------------------------------------------------

    def _settle(self, parcels: list[ProducerBatch], counts: list[int], appended: Appended) -> None:
        """Settle batches that are in the log. All of them, even if a step here fails: then their offsets are unknown."""
        try:
            offsets = [appended.base_offset if appended.contiguous else UNKNOWN_OFFSET]
            if len(parcels) > 1:
                offsets = appended.base_offsets(counts)
            for parcel, base_offset in zip(parcels, offsets, strict=True):
                if parcel.run is not None:
                    parcel.run.settled(appended.pieces, None)
                parcel.deliver(base_offset, appended.time_of(base_offset))
        finally:
            _rows.settle_open(parcels, None)

    def _give_up(self, stop: Stop, attempt: Attempt, error: BaseException) -> None:
        """Fail an attempt. Its batches in the log still succeed, unless they had to be on stable storage."""
        parcels = attempt.parcels
        try:
            stop.attempt = None
            stop.lane.rest(0)
            self.appender.lost(stop, attempt)
            there = 0 if isinstance(error, DurabilityError) else _whole(attempt)
            if there:
                self._settle(parcels[:there], attempt.counts[:there], attempt.going.appended())
            if parcels[there:]:
                self._fail(stop, parcels[there:], error, tuple(attempt.going.pieces))
        finally:
            _rows.settle_open(parcels, error)

    def _fail(
        self, stop: Stop, parcels: list[ProducerBatch], error: BaseException, pieces: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """Fail batches that were not written. They are settled before any log message: a user's log handler may raise."""
        count = sum(parcel.count for parcel in parcels)
        try:
            self.losses.count(count)
            self.failed(error)
            for parcel in parcels:
                if parcel.run is not None:  # its shipment reports the loss
                    parcel.run.settled(pieces, error)
                    parcel.fail(error)
                else:
                    self.losses.fail(parcel, stop.destination.name, parcel.partition, error, parcel.count)
        finally:
            _rows.settle_open(parcels, error)
        if not isinstance(error, EmbedlogError):
            place = stop.destination.name, stop.lane.partition
            logger.error("unexpected failure of a write to %s-%d", *place, exc_info=error)

    def drop(self, error: Exception) -> None:
        """Attempts that wait for a retry fail instead, when the thread runs next."""
        for stop in list(self._stops.values()):
            stop.dropped = error
            stop.lane.rest(0)

    def abandon(self, parcel: ProducerBatch, error: Exception) -> int:
        """Fail a batch unless its write has begun; returns its number of records."""
        run = parcel.run
        if not self.losses.abandon(parcel, error):
            return 0
        if run is not None:
            run.settled((), error)
        return parcel.count

    def give_up(self, error: Exception) -> None:
        """The thread ends: fail attempts that wait for a retry."""
        for stop in self._stops.values():
            if stop.attempt is not None:
                self._give_up(stop, stop.attempt, error)

    # ---- metrics ---------------------------------------------------------------------------------

    def harvest(self, *lanes: PartitionQueue) -> None:
        """Add direct appends of callers to the metrics, for these queues or for all."""
        for lane in lanes or list(self._stops):
            found = lane.harvest()
            if found is not None:
                batches, records, size, largest, latency_ns, latest_ns, queue_ns, longest_ns = found
                amounts = {
                    "request": batches, "batch": batches, "record": records, "byte": size, "latency_s": latency_ns / 1e9,
                    "parcel": batches, "queue_s": queue_ns / 1e9, "packed_byte": size, "plain_byte": size,
                }  # fmt: skip
                peaks = {"latency_s": latest_ns / 1e9, "queue_s": longest_ns / 1e9, "batch_byte": largest}
                self.figures.note(amounts, peaks)

    def _count(self, parcels: list[ProducerBatch], run: record_batch.EncodedRun, began: float) -> None:
        """Add an append that began at `began` to the metrics."""
        latency_s = time.monotonic() - began
        waited = [began - parcel.opened for parcel in parcels]
        largest = run.size if run.batch_count == 1 else int(run.batches["size"].max())
        amounts = {
            "request": 1, "batch": run.batch_count, "record": run.record_count, "byte": run.size,
            "latency_s": latency_s, "parcel": len(parcels), "queue_s": sum(waited),
        }  # fmt: skip
        if parcels[0].run is None:
            amounts |= {"packed_byte": run.size, "plain_byte": sum(parcel.size for parcel in parcels)}
        self.figures.note(amounts, {"latency_s": latency_s, "queue_s": max(waited), "batch_byte": largest})


def _whole(attempt: Attempt) -> int:
    """The number of leading batches that are completely in the log."""
    left, whole = sum(end - base for base, end in attempt.going.pieces), 0
    for count in attempt.counts:
        left -= count
        if left < 0:
            break
        whole += 1
    return whole


def _joined(runs: list[record_batch.EncodedRun]) -> record_batch.EncodedRun:
    """Join consecutive runs."""
    buffer, position, tables = bytearray(), 0, []
    for run in runs:
        table = run.batches.copy()
        table["position"] += position
        tables.append(table)
        buffer += run.buffer
        position = len(buffer)
    batches = record_batch.joined(tables)
    return record_batch.EncodedRun(memoryview(buffer), len(batches), sum(run.record_count for run in runs), position, batches)


def _too_late(error: BaseException, timeout_ms: int) -> Exception:
    if isinstance(error, DeadlineError):
        return error
    expected = f"{timeout_ms} ms (delivery.timeout.ms)"
    late = DeadlineError(f"not written in time, and the last attempt failed: {error}", expected=expected)
    late.__cause__ = error
    return late
