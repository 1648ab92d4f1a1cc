"""The producer: records and batches of records on their way into the log.

P1  `send()` has a fast way in C for what is plain, and a careful way here for everything else; both end in the same lane
P2  what is wrong with the call raises; what is wrong with the record or the log fails the future, as Kafka's producer does
P3  serialize, partition, check, put: the order in which a user's callables are called is fixed
P4  columns are encoded on the caller's thread and written on the producer's: the two overlap
"""

from __future__ import annotations

import itertools
import logging
import os
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from embedlog import record
from embedlog.accumulator import Accumulator
from embedlog.columns import Columns
from embedlog.columns_in import Piece, bytes_like, normal_headers, pieces_of
from embedlog.config import ProducerConfig
from embedlog.delivery import Delivery, Destination
from embedlog.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    DeadlineError,
    EmbedlogError,
    ForkedError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    RecordTooLargeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from embedlog.shipping import RECORD_OVERHEAD, STICK, Leg, Share, Shipment, check_partition, check_piece, check_times, shares

if TYPE_CHECKING:
    from embedlog._native._rows import Future, Route

logger = logging.getLogger("embedlog.producer")

BATCH_BYTES_MAX = 1 << 20  # of send_batch: large batches compress well and are still small beside a segment
RUN_BYTES = 2 << 20  # encoded at once: what is handed from thread to thread, small enough to stay in the cache on its way

# What is wrong with the record or the log, not with the call: the future fails of it (Kafka's ApiException)
FAILS_THE_FUTURE = (
    UnknownTopicOrPartitionError,
    InvalidTopicError,
    RecordTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    BufferExhaustedError,
)

Item = tuple[bytes | None, bytes | None, int | None, int | None, tuple[Any, ...]]  # value, key, partition, timestamp, headers

_numbers = itertools.count(1)


class Producer:
    """Sends records into one log; made by `log.producer()`, best used in a `with` statement.

    Threads: one producer may be shared by any number of threads; records of one thread to one partition keep their order.
    """

    def __init__(self, log: Any, config: ProducerConfig) -> None:
        _refuse_unknown_features(config)
        self._log = log
        self._config = config
        self._pid = os.getpid()
        self._name = config.client_id or f"producer-{next(_numbers)}"
        self._delivery = Delivery(log, config)
        self._accumulator = Accumulator(
            f"embedlog-{self._name}",
            self._delivery.deliver,
            memory_limit=config.buffer_memory,
            linger_ms=config.linger_ms,
            unacknowledged=config.acks == "0",
        )
        self._delivery.settled = self._accumulator.settled
        self._rows = self._accumulator.rows
        self._routes = self._delivery.routes
        self._plain = config.key_serializer is None and config.value_serializer is None and config.partitioner is None

    # ---- records ---------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Any = (),
    ) -> Future:
        """Put one record on its way and return what tells of its fate.

        `value` and `key` are bytes or None, unless the producer has serializers; `headers` are pairs of (str, bytes or None).
        Raises TypeError for wrong types, SerializationError, InvalidTimestampError and UnknownTopicOrPartitionError for negative
        numbers, ClosedError and ForkedError. Everything else fails the future: unknown topics and partitions, records that are
        too large, `buffer.memory` full for `max.block.ms`, and what happens when it is written.
        """
        route = self._routes.get(topic)
        if route is not None:
            future = route.append(value, key, partition, timestamp_ms, headers)
            if future is not None:
                return future
        return self._send_carefully(topic, value, key, partition, timestamp_ms, headers)

    def _send_carefully(
        self, topic: str, value: Any, key: Any, partition: int | None, timestamp_ms: int | None, headers: Any
    ) -> Future:
        self._check_usable()
        _check_arguments(topic, partition, timestamp_ms)
        try:
            destination = self._destination(topic)
            return self._put(destination, self._item(destination, value, key, partition, timestamp_ms, headers))
        except FAILS_THE_FUTURE as error:
            return self._failed(error)

    def _item(
        self, destination: Destination, value: Any, key: Any, partition: int | None, timestamp_ms: int | None, headers: Any
    ) -> Item:
        """What the route takes: serialized, partitioned, checked. Neither waits nor reads a file."""
        key_bytes = self._serialized(self._config.key_serializer, key, "key", destination.name)
        value_bytes = self._serialized(self._config.value_serializer, value, "value", destination.name)
        pairs = normal_headers(headers)
        chosen = self._chosen_partition(destination, key_bytes, partition)
        self._check_record(destination, value_bytes, key_bytes, pairs, chosen, timestamp_ms)
        return value_bytes, key_bytes, chosen, timestamp_ms, pairs

    def _put(self, destination: Destination, item: Item) -> Future:
        route: Route = destination.route  # type: ignore[assignment]  # destination() made it
        future: Future | None = route.append(*item)
        if future is None:
            timeout_s = self._config.max_block_ms / 1000
            future = self._accumulator.wait_for_room(lambda: route.append(*item, True), timeout_s)
        if future is None:
            raise self._exhausted()
        return future

    def _chosen_partition(self, destination: Destination, key: bytes | None, partition: int | None) -> int | None:
        """The given partition, or the user's partitioner's; None leaves the choice to the route."""
        if partition is None and self._config.partitioner is not None:
            numbers = list(range(len(destination.stops)))
            partition = self._config.partitioner(key, numbers, numbers)
            if not isinstance(partition, int):
                raise TypeError(f"the partitioner returned {partition!r}, which is no partition")
        if partition is not None:
            check_partition(destination, partition)
        return partition

    def _check_record(
        self,
        destination: Destination,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[Any, ...],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        size = RECORD_OVERHEAD + len(value or b"") + len(key or b"") + _headers_size(headers)
        for name, limit in (("max.request.size", self._config.max_request_size), ("buffer.memory", self._config.buffer_memory)):
            if size > limit:
                raise RecordTooLargeError(
                    f"a record for {destination.name} is larger than {name}", expected=f"at most {limit} bytes", found=size
                )
        if key is None and "compact" in destination.config.cleanup_policy:
            raise InvalidRecordError(f"{destination.name} is compacted: every record needs a key")
        if timestamp_ms is not None:
            check_times(destination, timestamp_ms, timestamp_ms)

    def _serialized(self, serializer: Callable[[Any], Any] | None, value: Any, what: str, topic: str) -> bytes | None:
        if serializer is None:
            return bytes_like(value, what)
        try:
            return bytes_like(serializer(value), what)
        except Exception as error:
            raise SerializationError(f"the {what}_serializer failed on a record for {topic}: {error}") from error

    def _failed(self, error: EmbedlogError) -> Future:
        """A future that failed inside the call: its callbacks run at once, in the caller's thread."""
        self._delivery.totals["error"] += 1
        future, promise = self._rows.promise(True)
        promise.fail(error)
        return future

    def _exhausted(self) -> BufferExhaustedError:
        return BufferExhaustedError(
            f"buffer.memory ({self._config.buffer_memory} bytes) was full for max.block.ms ({self._config.max_block_ms} ms)"
        )

    # ---- columns ---------------------------------------------------------------------------------

    def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        partition: int | None = None,
        timestamps_ms: Any = None,
        headers: Any = None,
    ) -> Future:
        """Put many records on their way, at the speed of memory.

        `values` and `keys`: lists of bytes and None, numpy arrays (objects, bytes, rows of uint8), or anything with
        `__arrow_c_array__` or `__arrow_c_stream__`; an Arrow table has the columns value, key, headers, timestamp, partition.
        `timestamps_ms` is one int, or one a row; `headers` a list of pairs a row. Serializers are applied to lists only.
        The future's result is a list of (topic, partition, base_offset, count), in input order per partition.
        Raises and fails as `send()` does; what was handed on before an error in a later part of the input stays.
        """
        self._check_usable()
        single_ms = timestamps_ms if isinstance(timestamps_ms, int) else None
        _check_arguments(topic, partition, single_ms)
        values = self._serialized_list(self._config.value_serializer, values, "value", topic)
        keys = self._serialized_list(self._config.key_serializer, keys, "key", topic)
        future, promise = self._rows.promise(False)
        shipment = Shipment(topic, promise, self._accumulator.settled)
        error: Exception | None = None
        try:
            destination = self._destination(topic)
            for piece in pieces_of(values, keys, timestamps_ms, headers):
                check_piece(piece, destination, single_ms, self._config.max_request_size)
                for share in shares(
                    piece, destination, partition, self._config.partitioner, self._config.partitioner_ignore_keys
                ):
                    self._ship(shipment, destination, piece, share, single_ms)
        except FAILS_THE_FUTURE as failure:
            error = failure
        finally:
            shipment.finish(error)
        return future

    def _ship(self, shipment: Shipment, destination: Destination, piece: Piece, share: Share, timestamp_ms: int | None) -> None:
        """Encode one share and queue it, run by run."""
        now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        columns = Columns(
            piece.count, piece.values, piece.keys, now_ms if piece.timestamps is None else piece.timestamps, piece.headers
        )
        size = min(BATCH_BYTES_MAX, destination.batch_limit)
        run_bytes = min(RUN_BYTES, max(size, self._config.buffer_memory // 4)) if destination.codec == 0 else None
        for run in record.encode(
            columns,
            codec=destination.codec,
            level=destination.level,
            batch_bytes=size,
            selection=share.rows,
            run_bytes=run_bytes,
        ):
            if not self._accumulator.has_room(run.size) or self._rows.waiting:
                self._wait_for_run(run.size)
            number = destination.route.stick(run.size) if share.partition == STICK and destination.route else share.partition
            shipment.leave()
            leg = Leg(shipment, number, run)
            destination.stops[number].lane.push_run(leg, run.record_count, run.size)

    def _wait_for_run(self, size: int) -> None:
        timeout_s = self._config.max_block_ms / 1000
        if not self._accumulator.wait_for_room(lambda: self._accumulator.has_room(size) or None, timeout_s):
            raise self._exhausted()

    def _serialized_list(self, serializer: Callable[[Any], Any] | None, items: Any, what: str, topic: str) -> Any:
        if serializer is None or not isinstance(items, (list, tuple)):
            return items
        return [self._serialized(serializer, item, what, topic) for item in items]

    # ---- life ------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send everything at once and wait until the fate of each record is known; failures are in the futures.

        Raises DeadlineError after `timeout` seconds, StateError inside a callback.
        """
        self._check_usable()
        if not self._accumulator.flush(timeout):
            raise DeadlineError("not everything could be written in time", expected=f"{timeout} s")

    def close(self, timeout: float | None = None) -> None:
        """Send what is buffered and end; what is not written after `timeout` seconds fails with ClosedError. Idempotent."""
        if os.getpid() != self._pid:
            return
        self._routes.clear()
        if not self._accumulator.close(timeout):
            self._accumulator.abandon()

    def partitions_for(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions. Raises UnknownTopicOrPartitionError."""
        self._check_usable()
        return set(range(self._log._partition_count(topic)))

    def metrics(self) -> dict[str, float]:
        """Kafka's key figures, by Kafka's names, since the producer was made."""
        totals, rows = self._delivery.totals, self._rows
        return {
            "record-send-total": totals["record"],
            "record-error-total": totals["error"],
            "batch-total": totals["batch"],
            "byte-total": totals["byte"],
            "batch-size-avg": totals["byte"] / max(1, totals["batch"]),
            "records-per-request-avg": totals["record"] / max(1, totals["batch"]),
            "compression-rate-avg": totals["byte"] / totals["uncompressed_byte"] if totals["uncompressed_byte"] else 1.0,
            "buffer-total-bytes": rows.memory_limit,
            "buffer-available-bytes": max(0, rows.memory_limit - rows.memory_used),
            "buffer-exhausted-waits-total": self._accumulator.blocked_count,
            "waiting-threads": rows.waiting,
        }

    def _destination(self, topic: str) -> Destination:
        self._accumulator.start()
        return self._delivery.destination(topic, self._rows, fast=self._plain)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError("the producer belongs to the parent process: open the log again in the child")
        if self._rows.closed:
            raise ClosedError("the producer is closed")
        self._log._check_open()

    def __enter__(self) -> Producer:
        self._check_usable()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        rows = getattr(self, "_rows", None)
        if rows is None or rows.closed or os.getpid() != self._pid:
            return
        warnings.warn(f"{self._name} was dropped without close()", ResourceWarning, source=self, stacklevel=2)
        rows.close()  # the thread sends what is there, and ends

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Producer cannot be pickled: open the log in the process that sends, and make a producer there")

    def __repr__(self) -> str:
        return f"<embedlog.Producer {self._name}{' closed' if self._rows.closed else ''}>"


def _refuse_unknown_features(config: ProducerConfig) -> None:
    if config.transactional_id is not None:
        raise ConfigError(
            "transactional.id", expected="None: this version has no transactions", found=repr(config.transactional_id)
        )
    if config.interceptor_classes:
        raise ConfigError(
            "interceptor.classes", expected="none: this version has no interceptors", found=repr(config.interceptor_classes)
        )


def _check_arguments(topic: object, partition: object, timestamp_ms: object) -> None:
    """What is wrong with the call itself."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    for name, number in (("partition", partition), ("timestamp_ms", timestamp_ms)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise TypeError(f"{name} is an int or None, not {type(number).__name__}")
    if isinstance(partition, int) and partition < 0:
        raise UnknownTopicOrPartitionError("a partition's number is not negative", found=partition)
    if isinstance(timestamp_ms, int) and not 0 <= timestamp_ms < 2**63:
        raise InvalidTimestampError("a timestamp is not negative and fits in 64 bits", found=timestamp_ms)


def _headers_size(headers: tuple[tuple[str, bytes | None], ...]) -> int:
    return 5 + sum(len(name.encode("utf-8")) + len(value or b"") + 10 for name, value in headers)
