"""From a producer's lanes into the partitions' logs.

D1  a destination is what the producer knows of one topic; its lanes live as long as it does, so that order survives a new route
D2  of one partition only who has its lane's turn appends for it, the producer's thread or in C a caller who waits
    (`rows_direct.c`): records lie in the order in which they were taken
D3  every parcel that was taken is settled, whatever happens
D4  a topic that grew, changed or went away is noticed when something is written to it
D5  what the log refuses costs nobody else his place: parcels that were written together are tried one by one
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from embedlog import compression, record
from embedlog._native import _rows, system
from embedlog.config import CODEC_NAMES
from embedlog.errors import (
    ClosedError,
    DeadlineError,
    EmbedlogError,
    InvalidTopicError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from embedlog.figures import Figures
from embedlog.shipping import UNKNOWN_OFFSET
from embedlog.topic import check_name, is_internal

if TYPE_CHECKING:
    from embedlog._native._rows import Lane, Parcel, Route
    from embedlog.config import ProducerConfig, TopicConfig
    from embedlog.home import Appended

logger = logging.getLogger("embedlog.producer")

RUN_BYTES = 4 << 20  # parcels of send() that go into one append: large enough that its cost is spread, small enough for the cache
FLUSH_NEVER: Final = 2**63 - 1  # flush.messages when no append waits for a sync
RATIO_BETTER, RATIO_WORSE, RATIO_MARGIN = 0.005, 0.05, 1.05  # Kafka's steps towards the compression ratio that is seen


class Stop:
    """One partition of a destination: where a lane leads, and how well its records have compressed so far."""

    def __init__(self, destination: Destination, lane: Lane) -> None:
        self.destination = destination
        self.partition: Any = None  # opened when something is written to it
        self.lane = lane
        self.direct: tuple[int, int] | None = None  # what the way past the thread was opened with
        self.ratio = 1.0

    def learn(self, before: int, after: int) -> None:
        """Let batches grow so that they fill batch.size when compressed, as Kafka's estimate does."""
        seen = after / before
        self.ratio = max(seen, self.ratio + RATIO_WORSE) if seen > self.ratio else max(seen, self.ratio - RATIO_BETTER)
        self.lane.limit = min(
            int(self.destination.batch_size / min(1.0, self.ratio * RATIO_MARGIN)), self.destination.batch_limit
        )


class Destination:
    """One topic as a producer sees it: its settings, its stops, the route that chooses among them."""

    def __init__(self, name: str, config: TopicConfig, settings: ProducerConfig, rows: _rows.Accumulator) -> None:
        self.name = name
        self.config = config
        self.batch_limit = min(config.max_message_bytes, config.segment_bytes)
        self.batch_size = max(1, settings.batch_size)
        self.codec, self.level = _codec(config, settings)
        self.stops: list[Stop] = []
        self._settings = settings
        self._rows = rows
        self.route: Route | None = None

    def grow(self, partition_count: int) -> None:
        """Stops for further partitions, and a route over all of them."""
        for number in range(len(self.stops), partition_count):
            lane = _rows.Lane(self._rows, self.name, number, min(self.batch_size, self.batch_limit))
            self.stops.append(Stop(self, lane))
        own_time = self.config.message_timestamp_type == "CreateTime"
        self.route = _rows.Route(
            self._rows,
            [stop.lane for stop in self.stops],
            batch_size=self.batch_size,
            request_limit=self._settings.max_request_size,
            past_ms=self.config.message_timestamp_before_max_ms if own_time else 2**63 - 1,
            future_ms=self.config.message_timestamp_after_max_ms if own_time else 2**63 - 1,
            keys_required="compact" in self.config.cleanup_policy,
            keys_ignored=self._settings.partitioner_ignore_keys,
            seed=int.from_bytes(os.urandom(8), "little"),
            adaptive=self._settings.partitioner_adaptive_partitioning_enable,
            availability_ms=self._settings.partitioner_availability_timeout_ms,
        )


class Delivery:
    """The destinations of one producer, and the way of their parcels into the log.

    Threads: `destination` from any, `deliver` from the producer's own only.
    """

    def __init__(self, log: Any, settings: ProducerConfig) -> None:
        self._log = log
        self._settings = settings
        self._lock = threading.Lock()
        self._stops: dict[Lane, Stop] = {}
        self.destinations: dict[str, Destination] = {}
        self.routes: dict[str, Route] = {}  # what send() looks into first; without an entry it takes the careful way
        self.failed: Callable[[Exception], None] = lambda error: None  # hears of every error before the futures do
        self.figures = Figures()
        self.in_flight = 0  # batches that are being written

    # ---- destinations ----------------------------------------------------------------------------

    def destination(self, topic: str, rows: _rows.Accumulator, *, fast: bool) -> Destination:
        """What is known of a topic, looked up again if it has changed. Raises UnknownTopicOrPartitionError, InvalidTopicError."""
        if is_internal(check_name(topic)):
            raise InvalidTopicError(f"{topic} is one of the log's own topics: only the log writes to it")
        count = self._log._partition_count(topic)
        with self._lock:
            found = self.destinations.get(topic)
            if found is None:
                config = self._log._topic_config(topic)
                self.destinations[topic] = found = Destination(topic, config, self._settings, rows)
            if len(found.stops) < count:
                found.grow(count)
                self._stops.update((stop.lane, stop) for stop in found.stops)
            if fast and found.route is not None:
                self.routes[topic] = found.route
            return found

    def _look_again(self, stop: Stop) -> None:
        """Send the next `send()` the careful way if the topic is not what it was."""
        destination = stop.destination
        try:
            count = self._log._partition_count(destination.name)
            config = destination.config if stop.partition is None else stop.partition.config
            changed = config is not destination.config and config != destination.config
        except EmbedlogError:  # it is gone, or the log is closed: the next send() says so
            count, changed, config = 0, True, destination.config
        if count == len(destination.stops) and not changed:
            return
        with self._lock:
            self.routes.pop(destination.name, None)
            if count < len(destination.stops):
                self.destinations.pop(destination.name, None)
            elif changed:
                self._reconfigure(destination, config)

    def _reconfigure(self, destination: Destination, config: TopicConfig) -> None:
        """The topic's new settings for what is sent from now on, over the lanes that are there."""
        fresh = Destination(destination.name, config, self._settings, destination._rows)
        fresh.stops = destination.stops
        for stop in fresh.stops:
            stop.destination = fresh
            stop.lane.limit = min(fresh.batch_size, fresh.batch_limit)
        fresh.grow(len(fresh.stops))
        self.destinations[destination.name] = fresh

    # ---- on the producer's thread ----------------------------------------------------------------

    def deliver(self, lane: Lane) -> None:
        """Write what is due of one lane, as one run, and settle it."""
        stop = self._stops[lane]
        self.harvest(lane)
        parcels = lane.take(RUN_BYTES)
        if parcels:
            self.in_flight = len(parcels)
            try:
                self._write(stop, parcels)
            finally:
                self.in_flight = 0
        elif stop.partition is not None:
            with contextlib.suppress(EmbedlogError):  # it is gone or closed: the next write says so
                stop.partition.syncer.flush_if_late()  # what callers wrote, unless the housekeeper was faster
        self._look_again(stop)
        self._open_direct(stop)

    def _open_direct(self, stop: Stop) -> None:
        """Callers may write to this partition by themselves, unless that is work: compression, or a sync for each append."""
        partition = stop.partition
        writer = partition.writer if partition is not None else None
        if writer is None or stop.destination.codec or partition.config.flush_messages != FLUSH_NEVER:
            stop.direct = None
            stop.lane.shut_direct()
        elif stop.direct != (id(writer), id(partition.config)):
            stop.direct = (id(writer), id(partition.config))
            config, (append, raw) = partition.config, writer.addresses
            stop.lane.open_direct(partition, partition.mutex, writer, config, append, raw, config.flush_ms)

    def _write(self, stop: Stop, parcels: list[Parcel]) -> None:
        try:
            run, counts = self._run_of(stop, parcels)
            deadline_ns = self._deadline_ns(parcels[0])
            began = time.monotonic()
            try:
                appended = self._append(stop, run, deadline_ns)
                offsets = base_offsets(appended, counts)
            except RecordTooLargeError:  # before anything was written
                if len(parcels) > 1:
                    for parcel in parcels:
                        self._write(stop, [parcel])
                    return
                appended = self._append_split(stop, run, deadline_ns)
                offsets = [appended.base_offset if _contiguous(appended) else UNKNOWN_OFFSET]
        except Exception as error:  # noqa: BLE001  (the thread's edge: whatever it is, the futures must hear of it)
            self._fail(stop, parcels, error)
        else:
            self._count(parcels, run, began)
            self._settle(parcels, offsets, appended)

    def _append_split(self, stop: Stop, run: record.EncodedRun, deadline_ns: int) -> Appended:
        """Once more, in smaller batches: the limit was lowered since these were cut. Raises RecordTooLargeError."""
        limit = stop.partition.batch_limit
        codec = int(run.batches["attributes"][0]) & record.CODEC_MASK
        rows = record.decode(run.buffer, run.batches)
        if rows.timestamps is None:
            raise AssertionError("all columns were asked for")
        columns = record.Columns(rows.count, rows.values, rows.keys, rows.timestamps, rows.headers)
        runs = list(record.encode(columns, codec=codec, level=stop.destination.level, batch_bytes=limit))
        largest = max(int(each.batches["size"].max()) for each in runs)
        if largest > limit:
            raise RecordTooLargeError(
                f"a record for {stop.destination.name} is larger than max.message.bytes",
                expected=f"at most {limit} bytes",
                found=largest,
            )
        self.figures.note({"split": 1})
        parts = [self._append(stop, each, deadline_ns) for each in runs]
        pieces = tuple(piece for part in parts for piece in part.pieces)
        times = tuple(time_ms for part in parts for time_ms in part.times_ms)
        return parts[-1]._replace(base_offset=pieces[0][0], pieces=pieces, times_ms=times)

    def _append(self, stop: Stop, run: record.EncodedRun, deadline_ns: int) -> Appended:
        name, number = stop.destination.name, stop.lane.partition
        if stop.partition is None:
            stop.partition = self._log._partition(name, number)
        try:
            appended: Appended = stop.partition.append(run, deadline_ns=deadline_ns)
        except (UnknownTopicOrPartitionError, ClosedError):
            # Deleted; made again under the same name, it is the topic that the sender means
            fresh = self._log._partition(name, number)
            if fresh is stop.partition:
                raise
            stop.partition = fresh
            appended = fresh.append(run, deadline_ns=deadline_ns)
        return appended

    def _run_of(self, stop: Stop, parcels: list[Parcel]) -> tuple[record.EncodedRun, list[int]]:
        """The encoded run, and the records of its parcels."""
        if parcels[0].run is not None:
            run: record.EncodedRun = parcels[0].run.encoded
            return run, [run.record_count]
        bodies = self._compressed(stop, parcels) if stop.destination.codec else None
        buffer, table = _rows.seal(parcels, bodies, stop.destination.codec)
        counts = [parcel.count for parcel in parcels]
        batches = np.frombuffer(table, dtype=record.BATCH)
        return record.EncodedRun(memoryview(buffer), len(parcels), sum(counts), len(buffer), batches), counts

    def _compressed(self, stop: Stop, parcels: list[Parcel]) -> list[Any]:
        """Records sections, compressed where that makes them smaller; None where it does not."""
        bodies: list[Any] = []
        for parcel in parcels:
            plain = parcel.body
            body = compression.compress(stop.destination.codec, plain, stop.destination.level)
            size = memoryview(body).nbytes
            stop.learn(len(plain), size)
            bodies.append(body if size < len(plain) else None)
        return bodies

    def _deadline_ns(self, parcel: Parcel) -> int:
        age_ns = time.monotonic_ns() - int(parcel.opened * 1e9)
        left_ns = self._settings.delivery_timeout_ms * 1_000_000 - age_ns
        if left_ns <= 0:
            raise DeadlineError(
                "the batch could not be written in time",
                expected=f"{self._settings.delivery_timeout_ms} ms (delivery.timeout.ms)",
            )
        wait_ms: int = min(self._settings.request_timeout_ms, self._log.config.lock_timeout_ms)
        return system.boot_ns() + min(left_ns, wait_ms * 1_000_000)

    def harvest(self, *lanes: Lane) -> None:
        """Add what callers wrote by themselves to the figures; of these lanes, or of all."""
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

    def _count(self, parcels: list[Parcel], run: record.EncodedRun, began: float) -> None:
        """What an append that began at `began` adds to the figures."""
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

    def _settle(self, parcels: list[Parcel], offsets: list[int], appended: Appended) -> None:
        for parcel, base_offset in zip(parcels, offsets, strict=True):
            if parcel.run is not None:
                parcel.run.settled(appended.pieces, None)
            parcel.deliver(base_offset, append_time_of(appended, base_offset))

    def _fail(self, stop: Stop, parcels: list[Parcel], error: Exception) -> None:
        count = sum(parcel.count for parcel in parcels)
        self.figures.note({"error": count})
        if not isinstance(error, EmbedlogError):
            logger.exception("writing to %s-%d failed in a way that was not foreseen", stop.destination.name, stop.lane.partition)
        logger.warning("%d records for %s-%d were not written: %s", count, stop.destination.name, stop.lane.partition, error)
        self.failed(error)
        for parcel in parcels:
            if parcel.run is not None:
                parcel.run.settled((), error)
            parcel.fail(error)


def _contiguous(appended: Appended) -> bool:
    """Whether nobody else appended between the pieces."""
    return all(before[1] == after[0] for before, after in pairwise(appended.pieces))


def base_offsets(appended: Appended, counts: list[int]) -> list[int]:
    """Where each of consecutive batches came to lie, given the pieces in which they were appended."""
    pieces = iter(appended.pieces)
    offsets: list[int] = []
    base, end = next(pieces)
    for count in counts:
        if base >= end:
            base, end = next(pieces)
        offsets.append(base)
        base += count
    return offsets


def append_time_of(appended: Appended, offset: int) -> int:
    """When the batch at `offset` was appended: a run that goes over into the next segment has several times."""
    if appended.append_time_ms >= 0:
        for (base, end), time_ms in zip(appended.pieces, appended.times_ms, strict=False):
            if base <= offset < end:
                return time_ms
    return appended.append_time_ms


def _codec(config: TopicConfig, settings: ProducerConfig) -> tuple[int, int | None]:
    """Number of the codec and its level: the topic's, unless it leaves that to the producer."""
    source: Any = settings if config.compression_type == "producer" else config
    name: str = source.compression_type
    if name in ("none", "uncompressed"):
        return 0, None
    return CODEC_NAMES.index(name), getattr(source, f"compression_{name}_level", None)
