"""The consumer: returns records of its partitions, as objects or in columns, and keeps the
positions.

- One thread at a time; only `wakeup` and `close` may be called from another. A second thread is
  refused at once with ConcurrentUseError and never waits: a wait would hide a bug of the
  application. The thread inside may enter again (a listener that calls back). An interrupt at any
  point leaves the guard usable, for each thread.
- A position moves when records are returned; an interrupt before that restores it, so no record is
  lost.
- A wait sleeps in the kernel until an append, a wakeup or a close: an idle consumer uses no CPU.
- Partitions alternate: the fetched records of one are returned before those of the next, then it
  moves to the end of the queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, count
from threading import get_ident
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self

from embedlog._native import system
from embedlog._native._rows import Record
from embedlog._native.scope import Claim, Guard, Setting, scope
from embedlog.columns.batch import Batch
from embedlog.config import keywords, other_clients
from embedlog.config.client import ConsumerConfig, K, V
from embedlog.config.options import parse
from embedlog.config.timeouts import CLOSE_S, seconds
from embedlog.config.times import milliseconds
from embedlog.consumer.collector import Collector, Moved, take_until_due
from embedlog.consumer.coordinator import ConsumerCoordinator
from embedlog.consumer.metrics import ConsumerMetrics
from embedlog.consumer.offset_committer import Callback
from embedlog.consumer.positions import EARLIEST, LATEST, Cursor
from embedlog.consumer.rebalance_listener import Listener, listeners_of
from embedlog.consumer.subscription import Subscription
from embedlog.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    InvalidGroupIdError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    StateError,
    printable,
)
from embedlog.format.visibility import end_offset
from embedlog.storage import files
from embedlog.storage.call_deadline import bound_waits
from embedlog.types import (
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    by_partition,
    topic_partition,
    topic_partitions,
)

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine

_numbers = count(1)
RETRY_S = 0.001  # between two looks whether another thread has left


@keywords.checked
class Consumer(Generic[K, V], metaclass=other_clients.Hinting):
    """Reads partitions from its positions to their end, and then waits for more records.

    Made by `log.consumer(*topics, **options)`; `Consumer[K, V]` returns `Record[K, V]`: the results
    of its deserializers, bytes without deserializers. Without a group id it reads all partitions of
    the topics, or those given to `assign`, and cannot commit. With one it shares the topics'
    partitions with the other members of its group, and starts at the committed offsets. Its calls
    do the group's work: a member that does not poll is removed. A context manager.

    **Threads:** one at a time; `wakeup` and `close` from any.

    Examples:
        >>> with log.consumer("events") as consumer:                         # doctest: +SKIP
        ...     for record in consumer.poll(timeout=1.0):
        ...         print(record.offset, record.value)
    """

    def __init__(
        self,
        engine: Engine,
        topics: Iterable[str] = (),
        config: ConsumerConfig | Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        self._config = (
            config
            if isinstance(config, ConsumerConfig)
            else parse(ConsumerConfig, config, **keywords)
        )
        self._engine = engine
        self._closed = False  # a close has begun
        self._ended = False  # a close has done all of its steps
        self._closer: int | None = None
        self._name = self._config.client_id or _default_client_id(self._config)
        self._thread_guard = Claim(partial(_refuse_thread, self._name))
        self._subscription = Subscription(
            engine, exclude_internal=self._config.exclude_internal_topics
        )
        self._reading = Collector(engine, self._config)
        self._waiter = self._reading.waiter
        self._metrics = ConsumerMetrics(engine, self._reading, self._config.isolation_level)
        self._group: ConsumerCoordinator | None = None
        if self._config.group_id is not None:
            self._group = ConsumerCoordinator(
                engine, self._config, self._name, self._reading, self._subscription
            )
        topics = list(topics)
        if topics:
            self.subscribe(topics)

    # ---- subscription ----

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; an empty list is `unsubscribe`. Partitions assigned
        already keep their position.

        Raises UnknownTopicOrPartitionError, and StateError if topics are subscribed.
        """
        with self._using():
            tps = topic_partitions(partitions)
            cursors = {tp: self._reading.open_cursor(tp) for tp in tps}
            if not tps:
                return self._unsubscribe()
            if self._group is not None and self._subscription.kind == "assigned":
                self._group.begin_commit()
            self._subscription.assign()
            self._reading.replace(cursors.values())

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        listener: object = None,
    ) -> None:
        """Read all partitions of these topics, or of topics whose whole name matches; replaces the
        previous subscription.

        `on_assigned`, `on_revoked` and `on_lost` are callables of a list of TopicPartition, called
        inside `poll` and other calls of this consumer. `listener` is one object with methods
        instead, as in other clients: `on_partitions_assigned`, `on_partitions_revoked`,
        `on_partitions_lost`. Raises UnknownTopicOrPartitionError, StateError if partitions are
        assigned, InvalidGroupIdError for listeners.
        """
        with self._using():
            listeners = listeners_of(listener, (on_assigned, on_revoked, on_lost))
            if listeners != (None, None, None):
                self._require_group("subscribe() with listeners")
            if topics is not None and not isinstance(topics, str):
                topics = list(topics)
                if not topics:
                    return self._unsubscribe()
            if self._group is not None:
                return self._group.subscribe(topics, pattern, listeners)
            self._subscription.subscribe(topics, pattern)
            try:
                self._reading.follow(self._subscription, first=True)
            except BaseException:
                self._unsubscribe()
                raise

    def unsubscribe(self) -> None:
        """Stop reading and discard all positions. In a group: commit what is due, and leave the
        group.
        """
        with self._using():
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        try:
            if self._group is not None:
                self._group.stop_reading(
                    files.deadline_after(self._config.default_api_timeout_ms / 1000)
                )
        finally:
            self._subscription.clear()
            self._reading.replace(())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned now."""
        return {cursor.tp for cursor in self._reading.rotation}

    def subscription(self) -> set[str]:
        """The subscribed topics; empty with assigned partitions."""
        return set(self._subscription.topics)

    # ---- records ----

    def poll(
        self, timeout: float | None = 0.0, max_records: int | None = None, **unknown: Never
    ) -> list[Record[K, V]]:
        """The next records, at most `max_records` (or `max.poll.records`).

        Waits up to `timeout` seconds (None: forever) for the first.

        Raises WakeupError after `wakeup`, OffsetOutOfRangeError and NoOffsetForPartitionError
        depending on `auto.offset.reset`, CorruptRecordError and SerializationError if the record at
        the position cannot be returned (`seek` past it). Raises StorageError if the group cannot be
        joined (a full disk: poll again).
        """
        if unknown:
            raise keywords.unknown_keyword(
                "Consumer.poll()", next(iter(unknown)), ("timeout", "max_records")
            )
        limit = self._config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise ConfigError("max_records", expected="at least 1", found=max_records)
        if timeout != 0.0:
            timeout = seconds(timeout, "poll()")
        moved: Sequence[Moved] = ()
        try:
            with self._reading_now():
                moved = self._reading.begin()
                records = self._waiter.wait_for(
                    lambda: self._reading.collect(limit), timeout, self._subscription
                )
                return records or []
        except BaseException:  # an interrupt after the collection: no record is lost
            self._reading.put_back(moved)
            raise

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Iterate over records forever, or until none arrives for `consumer.timeout.ms`."""
        with self._using():
            pass
        return chain.from_iterable(iter(self._next_run, None))

    def __next__(self) -> Record[K, V]:
        """The next record; the next call of any kind returns the record after it. StopIteration as
        iteration ends.
        """
        return next(iter(self))

    def _next_run(self) -> Iterator[Record[K, V]] | None:
        """The next records of an iteration: the remaining fetched records of one partition. None at
        the end.
        """
        if self._closed:
            return None
        with self._reading_now():
            self._reading.begin()
            run = self._waiter.wait_for(
                self._reading.open_iterator, self._api_timeout_s(None), self._subscription
            )
            if run is None or self._group is None:
                return run
            return take_until_due(run, self._group.until_ns)

    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """The same records in columns, one Batch per fetch, with the same positions; ends when none
        arrives for `timeout` seconds.

        Deserializers and interceptors are for objects: columns contain the bytes that were sent.
        """
        timeout = seconds(timeout, "batches()")
        with self._using():
            pass
        return self._iterate_batches(timeout)

    def _iterate_batches(self, timeout: float | None) -> Iterator[Batch]:
        while not self._closed:
            moved: Sequence[Moved] = ()
            try:
                with self._reading_now():
                    moved = self._reading.begin()
                    batch = self._waiter.wait_for(
                        self._reading.take_next_batch,
                        self._api_timeout_s(timeout),
                        self._subscription,
                    )
            except BaseException:  # as in `poll`
                self._reading.put_back(moved)
                raise
            if batch is None:
                return
            yield batch

    def _api_timeout_s(self, timeout: float | None) -> float | None:
        """The timeout of a call, or else `consumer.timeout.ms`."""
        timeout_ms = self._config.consumer_timeout_ms
        if timeout is not None or timeout_ms is None:
            return timeout
        return timeout_ms / 1000

    # ---- positions ----

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position of `partition`; the next read shows whether a record exists there.

        An `OffsetAndMetadata` contains the leader epoch of the record before it. If the log was
        truncated below that position since, the next read raises LogTruncationError. With an
        `auto.offset.reset` it continues where the log and the read records diverge.
        """
        position: object = offset
        epoch: object = -1
        if isinstance(offset, OffsetAndMetadata):
            position = offset.offset
            epoch = offset.leader_epoch
        if type(position) is not int or type(epoch) is not int:
            raise TypeError(f"offset: an int or an OffsetAndMetadata, not {offset!r}")
        if position < 0:
            raise OffsetOutOfRangeError("an offset is not negative", found=position)
        with self._using():
            self._cursor(partition).seek(position, epoch)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the position of these partitions, or of all, to the first record; determined by the
        next read.
        """
        with self._using():
            for cursor in self._reading.rotation.pick(topic_partitions(partitions)):
                cursor.seek_later(EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the position of these partitions, or of all, to the end; determined by the next
        read.
        """
        with self._using():
            for cursor in self._reading.rotation.pick(topic_partitions(partitions)):
                cursor.seek_later(LATEST)

    def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be returned."""
        with self._using():
            return self._reading.locate(self._cursor(partition)).position

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`; fetched records are kept."""
        with self._using():
            for cursor in [self._cursor(tp) for tp in partitions]:
                cursor.close_iterator()
                cursor.paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        with self._using():
            for cursor in [self._cursor(tp) for tp in partitions]:
                cursor.paused = False

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {cursor.tp for cursor in self._reading.rotation if cursor.paused}

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Offsets between the position and the end for this isolation level; None before there is a
        position.

        In a log opened read-only it counts to the end of all records: a reader blocked by an open
        transaction shows a lag there.
        """
        with self._using():
            return self._metrics.lag_of(self._cursor(partition))

    def _cursor(self, partition: TopicPartition) -> Cursor:
        try:
            return self._reading.rotation.get(topic_partition(partition))
        except StateError as problem:
            if self._group is None:
                raise
            self._group.raise_unassigned(problem)

    # ---- offsets of any partition ----

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition, assigned or not."""
        with self._using():
            return {
                tp: self._engine.partition(*tp).bounds().log_start
                for tp in topic_partitions(partitions)
            }

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end offset of each partition for this isolation level, assigned or not."""
        with self._using():
            isolation = self._config.isolation_level
            return {
                tp: end_offset(self._engine.partition(*tp).bounds(), isolation)
                for tp in topic_partitions(partitions)
            }

    def offsets_for_times(
        self, times: Mapping[TopicPartition, Any]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time (ms, or an aware datetime); None if
        there is none.
        """
        with self._using():
            times_ms = {tp: milliseconds(time) for tp, time in by_partition("times", times).items()}
            for tp, time_ms in times_ms.items():  # before any search
                if time_ms < 0:
                    raise InvalidTimestampError(
                        f"{tp.topic}-{tp.partition}: a time is not negative", found=time_ms
                    )
            return {tp: self._find_offset(tp, time_ms) for tp, time_ms in times_ms.items()}

    def _find_offset(self, tp: TopicPartition, time_ms: int) -> OffsetAndTimestamp | None:
        """The first record at or after a time, of those that this consumer can see."""
        partition = self._engine.partition(*tp)
        isolation = self._config.isolation_level
        record = partition.offset_for_time(time_ms, isolation)
        if record is None or record.offset >= end_offset(partition.bounds(), isolation):
            return None
        return record

    # ---- group ----

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit these offsets, or the positions of all partitions, after all commits that were
        requested before.

        An offset is that of the next record to read; before the first poll there is none, so
        nothing is committed. Raises CommitFailedError if this consumer was removed from the group.
        Raises RebalanceInProgressError while there is no assignment (`poll`, then commit what is
        still assigned); not for the positions of a cooperative member without a
        `group.instance.id`, because nobody else gets its partitions meanwhile. Raises
        FencedInstanceIdError, LockTimeoutError, StorageError (at once, also for a full disk: commit
        again), InvalidGroupIdError, and OffsetOutOfRangeError for a negative offset.
        """
        with self._using():
            self._require_group("commit()").commit(offsets)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: Callback | None = None,
    ) -> None:
        """As `commit`, with one attempt that waits for no lock; a later poll, commit or close calls
        `callback(offsets, error or None)`.
        """
        with self._using():
            self._require_group("commit_async()").commit_async(offsets, callback)

    def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none; waits for open transactions that
        contain offsets of the group.

        Raises DeadlineError if they take longer than `default.api.timeout.ms`, WakeupError after
        `wakeup`, InvalidGroupIdError.
        """
        with self._using():
            return self._require_group("committed()").committed(topic_partitions(partitions))

    def group_metadata(self) -> GroupMetadata:
        """This consumer's member id and generation, for `send_offsets_to_transaction`. Raises
        InvalidGroupIdError.
        """
        with self._using():
            return self._require_group("group_metadata()").metadata()

    def enforce_rebalance(self) -> None:
        """Start a rebalance with the next poll. Raises InvalidGroupIdError, StateError."""
        with self._using():
            self._require_group("enforce_rebalance()").enforce_rebalance()

    def _require_group(self, call: str) -> ConsumerCoordinator:
        if self._group is None:
            raise InvalidGroupIdError(
                f"{call} needs a group id, and this consumer has none",
                expected="group_id=…",
                found="None",
            )
        return self._group

    # ---- wakeup and close ----

    def wakeup(self) -> None:
        """Make the present, or else the next, waiting call raise WakeupError, once. For any thread,
        and for signal handlers.
        """
        self._waiter.wakeup()

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges with Kafka's names; `partitions` has position, lag and lead of each
        partition.
        """
        with self._using():
            return self._metrics.report() | ({} if self._group is None else self._group.metrics())

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Commit what is due and leave the group, within `timeout` seconds, and release all
        partitions. Idempotent.

        After an interrupt, such as Ctrl-C, the next call completes the close. The end of `with` by
        an exception commits nothing by itself if the last call had returned records. Any other
        call, also a wait in another thread, raises ClosedError. Raises a listener's exception.
        """
        self._end(seconds(timeout, "close()"))

    def _end(self, timeout: float | None, *, automatic: bool = True) -> None:
        # a listener, or a signal handler, closes it inside a close
        if self._ended or self._closer == get_ident():
            return
        self._closed = True
        self._waiter.stop()
        problem: Exception | None = None
        try:
            self._release(timeout, automatic=automatic)
        except ConcurrentUseError:
            # a call in another thread does not end; its partitions are still released
            if self._group is not None:
                self._group.end_lease()
        except Exception as error:  # noqa: BLE001 (of a listener: the consumer is closed first)
            problem = error
        self._reading.interceptors.close()
        self._ended = True  # last: after an interrupt the next close does the steps again
        if problem is not None:
            raise problem

    def _release(self, timeout: float | None, *, automatic: bool) -> None:
        """Leave the group and release all partitions. It may be repeated. Raises
        ConcurrentUseError, a listener's exception.
        """
        with _claim_within(self._thread_guard, timeout if self._group is not None else 0.0):
            if self._ended:  # another thread was faster
                return
            # the listeners in this thread may still use the consumer
            with Setting(self, "_closer", get_ident()):
                if self._group is not None:
                    with bound_waits(files.deadline_after(timeout), public=True):
                        self._group.close(timeout, automatic=automatic)
                self._subscription.clear()
                self._reading.replace(())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(CLOSE_S, automatic=kind is None or not self._reading.has_unprocessed)

    def __repr__(self) -> str:
        return f"<embedlog.Consumer {printable(self._name)}{' closed' if self._closed else ''}>"

    # operations of other clients' consumers; type checkers should refuse them
    if not TYPE_CHECKING:

        def __new__(cls, *arguments: Any, **options: Any) -> Self:
            other_clients.check_maker(
                "log.consumer(*topics, …)", arguments or (options.get("engine", ""),)
            )
            return super().__new__(cls)

        def __aenter__(self) -> NoReturn:
            raise TypeError(
                "a Consumer supports `with`; use log.async_consumer(…) for `async with`"
            )

        __aexit__ = __aiter__ = __aenter__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a consumer cannot be pickled: create one in the worker, "
            "embedlog.open(path).consumer(…)"
        )

    def _using(self) -> AbstractContextManager[None]:
        """As `_reading_now`, for a call that ends within `default.api.timeout.ms`."""
        guard = self._reading_now()
        if self._engine.replicated:
            return _bound_guard(guard, self._config.default_api_timeout_ms)
        return guard

    def _reading_now(self) -> Claim:
        """The thread guard; checks that consumer and log are open, and that this is not a forked
        child.
        """
        if self._closed and self._closer != get_ident():
            raise ClosedError("this consumer was closed; create another one with log.consumer(…)")
        self._engine.check_open()
        return self._thread_guard


def _refuse_thread(name: str, owner: int) -> NoReturn:
    raise ConcurrentUseError(
        f"{name} is in use by thread {owner}; use one per thread, or wakeup() to stop it"
    )


@scope
def _claim_within(guard: Claim, timeout_s: float | None) -> Iterator[None]:
    """As `with guard`, but waits for the thread inside, which was asked to leave. Raises
    ConcurrentUseError.
    """
    end = None if timeout_s is None else monotonic() + timeout_s
    while True:
        with Guard(guard.leave, guard.attempt) as entered:
            if entered:
                yield
                return
        if end is not None and monotonic() >= end:
            with guard:  # raises, or the thread inside has just left
                yield
                return
        sleep(RETRY_S)


@scope
def _bound_guard(guard: Claim, timeout_ms: int) -> Iterator[None]:
    """The guard with a deadline for all waits inside."""
    with guard, bound_waits(system.boot_ns() + timeout_ms * 1_000_000, public=True):
        yield


def _default_client_id(config: ConsumerConfig) -> str:
    number = next(_numbers)
    if config.group_id is None:
        return f"consumer-{number}"
    return f"consumer-{config.group_id}-{config.group_instance_id or number}"
