"""The producer: sends records and batches of records into the log.

- `send()` has a fast path in C for plain records, and a checked path here for all others; both end
  in the same partition queue.
- The checked path is `pipeline`; accepted records are written by `sender`, on the thread of
  `accumulator`.
- No lower module references the handle: a dropped producer can be collected, and then closes
  itself.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self

from embedlog._native import system
from embedlog._native.scope import scope
from embedlog.config import keywords, other_clients
from embedlog.config.client import K, ProducerConfig, V
from embedlog.config.timeouts import seconds
from embedlog.errors import DeadlineError, EmbedlogError, printable
from embedlog.producer.accumulator import Accumulator
from embedlog.producer.idempotence import TransactionalAppender
from embedlog.producer.metrics import producer_metrics
from embedlog.producer.no_transaction import NoTransaction
from embedlog.producer.one_record import OMITTED, check_tombstone
from embedlog.producer.pipeline import Pipeline
from embedlog.producer.sender import Sender
from embedlog.types import (
    GroupMetadata,
    Headers,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from embedlog._native._rows import Future
    from embedlog.engine.engine import Engine
    from embedlog.producer.transaction_manager import TransactionManager
    from embedlog.transaction import Outcome

logger = logging.getLogger("embedlog.producer")


_numbers = itertools.count(1)


@keywords.checked
class Producer(Generic[K, V], metaclass=other_clients.Hinting):
    """Sends records into one log; made by `log.producer()`, best used in a `with` statement.

    `Producer[K, V]` takes keys K and values V: the types that its serializers accept, bytes without
    serializers.

    Threads: one producer may be shared by any number of threads; records of one thread to one
    partition keep their order.
    """

    def __init__(self, engine: Engine, config: ProducerConfig) -> None:
        self._engine = engine
        self._config = config
        self._pid = os.getpid()
        self._closed = False
        self._name = _client_name(config)
        _notify_changes(config, self._name)
        self._delivery = Sender(engine, config, self._name)
        self._failures = self._delivery.failures
        self._accumulator = Accumulator(
            f"embedlog-{self._name}",
            self._delivery,
            memory_limit=config.buffer_memory,
            linger_ms=config.linger_ms,
            unacknowledged=config.acks == "0",
        )
        self._accumulator.note_wait = partial(self._delivery.figures.spent, "blocked")
        self._failures.on_failure = self._accumulator.rows.wake
        self._routes = self._delivery.routes
        self._transaction = _make_transaction(engine, config, self._accumulator, self._delivery)
        self._pipeline = Pipeline(
            engine, config, self._delivery, self._accumulator, self._transaction
        )
        self._rows = self._accumulator.rows  # last: until here nothing needs to be closed

    # ---- records ---------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: V | None = OMITTED,
        key: K | None = None,
        headers: Headers | None = (),
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        expected_offset: int | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record and return the future of its result.

        `value` and `key` are bytes or None, unless the producer has serializers; `headers` are
        pairs of (str, bytes or None). A call without a value sends a tombstone, and needs a key;
        `value=None` may be without one. Raises TypeError for wrong types or neither value nor key,
        InvalidTimestampError and UnknownTopicOrPartitionError for negative numbers, ConfigError for
        a partitioner's, SerializationError, ClosedError and ForkedError. Raises
        InvalidTransactionStateError outside of a transaction if there is a transactional.id.
        Everything else fails the future: unknown topics and partitions, too large records,
        `buffer.memory` full for `max.block.ms`, a fenced producer, and errors of the write. With
        `expected_offset` the record is appended only if it gets that offset: otherwise
        OffsetMismatchError fails the future, and nothing is written. ConfigError is raised without
        idempotence, TypeError if neither partition nor key is given.
        """
        if value is OMITTED:
            self._pipeline.check_open()
            check_tombstone(key)
            value = None
        try:
            route = self._routes.get(topic)
        except TypeError:  # not the name of a topic, which the pipeline says
            route = None
        if expected_offset is not None:
            from embedlog.producer import conditional_send  # late: few programs use it

            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
            return conditional_send.send(self._pipeline, record, expected_offset)
        if route is not None:
            future = route.append(value, key, partition, timestamp_ms, headers)
            if future is not None:
                return future
        return self._pipeline.send(
            ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
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
        expected_offset: int | None = None,
    ) -> Future[list[tuple[str, int, int, int]]]:
        """Send many records in columns, at memory speed.

        `values` and `keys`: lists of bytes and None, numpy arrays (objects, bytes, rows of uint8),
        or anything with `__arrow_c_array__` or `__arrow_c_stream__`. An Arrow table has the columns
        value, key, headers, timestamp, partition. `timestamps_ms` is one int, or one per row;
        `headers` a list of pairs per row. Serializers are applied to lists only. The future's
        result is a list of (topic, partition, base_offset, count), in input order per partition.
        Raises and fails as `send()` does; rows before an error in a later part of the input remain
        sent. With `expected_offset`, that of the first record, all rows are one batch of one
        partition, and all or none are appended. RecordTooLargeError fails the future if they are
        more than `max.message.bytes`.
        """
        if expected_offset is not None:
            from embedlog.producer import conditional_send

            columns = values, keys, timestamps_ms, headers
            return conditional_send.send_batch(
                self._pipeline, ProducerRecord(topic, partition=partition), columns, expected_offset
            )
        return self._pipeline.send_batch(topic, values, keys, partition, timestamps_ms, headers)

    # ---- flush and close -------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send everything at once and wait until every record is written or has failed.

        Raises DeliveryError if records failed since the last call whose futures were not asked and
        have no callbacks (logged with on_delivery_error="log" and with acks=0). Raises
        DeadlineError after `timeout` seconds, and StateError inside a callback.
        """
        self._flush(seconds(timeout, "flush()"))
        self._failures.raise_or_log_unreceived()

    def _flush(self, timeout: float | None) -> None:
        self._pipeline.check_open()
        began = time.monotonic()
        flushed = self._accumulator.flush(timeout)
        self._delivery.figures.spent("flush", time.monotonic() - began)
        if not flushed:
            raise DeadlineError("not all records were written in time", expected=f"{timeout} s")

    def close(self, timeout: float | None = None) -> None:
        """Send buffered records and end; records not written after `timeout` seconds fail with
        ClosedError. Idempotent.

        Raises DeliveryError as flush() does, once the producer is closed. Leaving `with` does the
        same, but logs such failures if an exception leaves it.
        """
        if os.getpid() != self._pid:
            return
        self._end(seconds(timeout, "close()"))
        self._raise_last()

    def _raise_last(self) -> None:
        """After `_end`: raise the failures that no call has raised. Those that come later are
        logged.
        """
        try:
            self._failures.raise_or_log_unreceived()
        finally:
            self._accumulator.leave_alone()

    def _log_last(self) -> None:
        """As `_raise_last`, where no call can raise them."""
        self._failures.log_unreceived()
        self._accumulator.leave_alone()

    def _end(self, timeout: float | None) -> None:
        began = time.monotonic()
        if not self._closed:
            self._end_transaction(timeout)
        self._routes.clear()
        remaining_s = None if timeout is None else max(0.0, began + timeout - time.monotonic())
        if self._accumulator.close(remaining_s):
            self._end_interceptors()
            return
        try:
            self._accumulator.abandon()
        finally:  # an exception of a callback in the main thread propagates
            self._end_interceptors()

    def _end_interceptors(self) -> None:
        if not self._closed:
            self._accumulator.call_afterwards(self._pipeline.interceptors.close)
            self._closed = True  # last: after an interrupt the next close does the steps again

    def _end_transaction(self, timeout: float | None) -> None:
        try:
            if self._accumulator.on_thread():
                # A callback cannot wait for its own thread: other processes abort the open
                # transaction
                self._transaction.leave()
            else:
                self._transaction.close(timeout)
        except EmbedlogError as error:  # the producer must still end
            logger.warning(
                "%s was closed with a transaction that could not be ended: %s", self._name, error
            )

    # ---- transactions ----------------------------------------------------------------------------

    def init_transactions(self) -> Outcome | None:
        """Take over the transactional id: earlier producers with this id are fenced, their open
        transactions completed or aborted.

        Call it once, before any other call; returns the outcome of the last transaction of this id,
        or None if there was none. All calls of this section raise InvalidTransactionStateError in a
        wrong state, and FencedError if another producer took over the id. DeadlineError, and in a
        set NotEnoughReplicasError and LeaderNotAvailableError, are raised after `max.block.ms`,
        LockTimeoutError and StorageError (a full disk) at once. Then repeat the same call: before
        it has succeeded, only `close()` is allowed besides.
        """
        self._pipeline.check_open()
        return self._transaction.init()

    def begin_transaction(self) -> None:
        """Begin a transaction: `read_committed` readers see its records all together or not at
        all.
        """
        self._begin()

    def commit_transaction(self) -> None:
        """Send buffered records and commit. Raises a record's error: then nothing is committed, and
        the transaction can only be aborted. After FencedError the producer can only be closed,
        which aborts it.

        DeadlineError, LockTimeoutError, StorageError (a full disk), DurabilityError,
        NotEnoughReplicasError and LeaderNotAvailableError leave the outcome open: repeat the call.
        The state is COMMITTING until it succeeds, also after a `with producer.transaction()`.
        """
        self._pipeline.check_open()
        try:
            self._transaction.commit()
        finally:
            if self._transaction.has_failed:
                self._failures.take()  # the exception of this call reports them

    def abort_transaction(self) -> None:
        """Abort: buffered records fail with TransactionAbortedError, written ones are never visible
        as committed.

        Raises as `commit_transaction`, except for errors of records that do not fence the producer:
        then repeat the call.
        """
        self._pipeline.check_open()
        try:
            self._transaction.abort()
        except EmbedlogError:
            if self._transaction.has_failed:
                self._failures.take()  # the exception of this call reports them
            raise
        self._failures.take()  # an aborted transaction needs no report of single records

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: GroupMetadata,
    ) -> None:
        """Commit a group's offsets with the transaction: {TopicPartition: OffsetAndMetadata or
        int}.

        Raises CommitFailedError for a member that left the group, and StorageError (a full disk) at
        once: then repeat the call, or abort. The offsets are in the log afterwards, and count with
        the commit of the transaction.
        """
        self._pipeline.check_open()
        self._transaction.send_offsets(offsets, group_metadata)

    @scope
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction(): …` begins, and commits at the end, or aborts if anything
        was raised.

        The exception that leaves the block is the error of the first record that failed, also if a
        later call was refused for it. Such an error is for example OffsetMismatchError of
        `send(expected_offset=…)`. A commit that has begun cannot be aborted: after an error of it
        that names `commit_transaction()` call that one again.
        """
        opener = object()
        try:
            self._begin(opener)  # inside, since an interrupt may come after it
            yield self
            self.commit_transaction()
        except BaseException as problem:
            error = self._abort_after_failure(opener, problem)
            if error is not problem:
                raise error from None
            raise

    def _begin(self, opener: object = None) -> None:
        self._pipeline.check_open()
        self._transaction.begin(opener)

    def _abort_after_failure(self, opener: object, problem: BaseException) -> BaseException:
        if self._transaction.opener is not opener:
            return problem  # refused: an open transaction is another's
        error = self._transaction.abort_after_failure(problem)
        self._failures.take()
        return error

    def partitions_for(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions. Raises UnknownTopicOrPartitionError."""
        self._pipeline.check_open()
        return set(self._engine.topic(topic).usable_numbers)

    def metrics(self) -> dict[str, float]:
        """Kafka's metrics, by Kafka's names and in its units: totals since the producer was made,
        `-rate` per second, `-avg` and `-max` of the recent windows.
        """
        rows = self._rows
        figures = self._delivery.figures
        self._delivery.collect_direct()
        return producer_metrics(figures) | {
            "requests-in-flight": self._delivery.in_flight,
            "buffer-total-bytes": rows.memory_limit,
            "buffer-available-bytes": max(0, rows.memory_limit - rows.memory_used),
            "buffer-exhausted-waits-total": self._accumulator.blocked_count,
            "waiting-threads": rows.waiting,
        }

    def __enter__(self) -> Self:
        self._pipeline.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            return self.close()
        if os.getpid() == self._pid:
            self._end(None)
            self._log_last()

    def __del__(self) -> None:
        rows = getattr(self, "_rows", None)
        if rows is None or rows.closed or os.getpid() != self._pid:
            return
        warnings.warn(
            f"{self._name} was dropped without close()", ResourceWarning, source=self, stacklevel=2
        )
        self._accumulator.detach()  # the thread sends the buffered records, and ends
        self._engine.children.add_dropped(self._accumulator)  # its thread keeps it until then

    if not TYPE_CHECKING:  # type checkers report this mistake; this reports it at run time

        def __new__(cls, *arguments: Any, **options: Any) -> Self:
            other_clients.check_maker("log.producer(…)", arguments or (options.get("engine", ""),))
            return super().__new__(cls)

        def __aenter__(self) -> NoReturn:
            raise TypeError(
                "a Producer supports `with`; use log.async_producer(…) for `async with`"
            )

        __aexit__ = __aenter__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Producer cannot be pickled: open the log in the process that sends, and create a "
            "producer there"
        )

    def __repr__(self) -> str:
        return f"<embedlog.Producer {self._name}{' closed' if self._rows.closed else ''}>"


def _client_name(config: ProducerConfig) -> str:
    """Kafka's default: derived from the transactional id, or a counter of this process."""
    # it occurs in log messages
    return printable(config.client_id or f"producer-{config.transactional_id or next(_numbers)}")


def _notify_changes(config: ProducerConfig, name: str) -> None:
    """Log options that changed because they contradict others that the user set, as Kafka's clients
    do.
    """
    if not config.enable_idempotence and "enable_idempotence" not in config.given:
        logger.info(
            "%s is not idempotent, because of acks, retries or "
            "max.in.flight.requests.per.connection",
            name,
        )
        if config.max_in_flight_requests_per_connection > 5:
            logger.warning(
                "%s: more than 5 max.in.flight.requests.per.connection will be an error later", name
            )
    timeout_ms = config.delivery_timeout_ms
    if (
        "delivery_timeout_ms" not in config.given
        and timeout_ms != ProducerConfig.delivery_timeout_ms
    ):
        logger.warning(
            "%s: delivery.timeout.ms is raised to linger.ms + request.timeout.ms: %d",
            name,
            timeout_ms,
        )


def _make_transaction(
    engine: Engine, config: ProducerConfig, accumulator: Accumulator, delivery: Sender
) -> TransactionManager | NoTransaction:
    """The transaction manager, which receives the errors of the sender."""
    if config.transactional_id is None:
        return NoTransaction()
    # late: its imports are those of groups
    from embedlog.producer.transaction_manager import TransactionManager

    owner = engine.transactions.owner(config.transactional_id, config.transaction_timeout_ms)
    transaction = TransactionManager(
        owner,
        accumulator,
        delivery.figures,
        timeout_s=config.max_block_ms / 1000,
        clock_ns=system.boot_ns,
    )
    delivery.note_failure = transaction.note_failure
    transaction.on_fenced = delivery.failures.note_fencing_raised
    delivery.appender = TransactionalAppender(owner)
    return transaction
