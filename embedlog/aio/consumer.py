"""The consumer for asyncio: blocking work and file access run on a thread, records are returned in
the event loop.

- One task at a time (a second one gets ConcurrentUseError); only `wakeup` and `close` may be called
  from another.
- The thread fetches and moves no position; a position moves in the step in which a task receives
  its records. A cancelled call loses nothing: the next call returns the fetched records.
- Threads and loop exchange runs of records, not single records.
- Fetched records do not block other tasks: after some hundreds of records the loop runs them.
"""

from __future__ import annotations

import asyncio
import operator
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self, TypeVar

from embedlog._native._rows import Record
from embedlog.aio.executor import Executor, OneTask
from embedlog.aio.listeners import ListenerBridge
from embedlog.columns.batch import Batch
from embedlog.config import keywords, other_clients
from embedlog.config.client import ConsumerConfig, K, V
from embedlog.config.timeouts import CLOSE_S, seconds
from embedlog.consumer.collector import Collector, Moved, take_until_due
from embedlog.consumer.consumer import Consumer
from embedlog.consumer.offset_committer import Callback
from embedlog.consumer.rebalance_listener import Listener, listeners_of
from embedlog.errors import ClosedError, ConfigError
from embedlog.types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine

Result = TypeVar("Result")

RECORDS_PER_TURN = 500  # records returned before the loop runs other tasks


class _Fetch:
    """One wait for records; `end` makes it return early."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read
        self._ended = False
        self.result: Any = None

    def end(self) -> None:
        self._ended = True

    def __call__(self) -> bool:
        """The condition of the consumer's wait: true ends it."""
        if not self._ended:
            self.result = self._read()
        return self._ended or bool(self.result)


@keywords.checked
class AsyncConsumer(Generic[K, V], metaclass=other_clients.Hinting):
    """Reads partitions as `Consumer` does, without blocking the event loop; its methods are
    coroutines.

    `AsyncConsumer[K, V]` returns `Record[K, V]`. Created by
    `log.async_consumer(*topics, **options)`, started by `async with` or by the first call.
    Deserializers run on a thread, interceptors in the loop.

    **Tasks:** one at a time; `wakeup` and `close` from any. It may be used in several loops, one
    after the other.

    Examples:
        >>> async with log.async_consumer("events") as consumer:             # doctest: +SKIP
        ...     async for record in consumer:
        ...         print(record.offset, record.value)
    """

    def __init__(self, engine: Engine, topics: Iterable[str], config: ConsumerConfig) -> None:
        self._engine = engine
        self._topics = list(topics)
        self._config = config
        self._sync: Consumer[K, V] | None = None
        self._closed = False  # a close has begun
        self._ended = False  # a close has done all of its steps
        self._executor = Executor("embedlog-async-consumer")
        self._one_task = OneTask("this consumer")
        self._returned_count = 0  # since the loop last ran other tasks
        self._woken = False
        self._call_continues = False
        self._bridge = ListenerBridge()

    # ---- subscription ----------------------------------------------------------------------------

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """As `Consumer.assign`."""
        await self._call(lambda consumer: consumer.assign(partitions))

    async def subscribe(
        self,
        topics: Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        listener: object = None,
    ) -> None:
        """As `Consumer.subscribe`. Listeners that are coroutine functions run in the loop, others
        on the consumer's thread.

        In the loop they may call this consumer's methods, except those that return records.
        """
        callbacks = listeners_of(listener, (on_assigned, on_revoked, on_lost))
        listeners = [self._bridge.bridge(callback) for callback in callbacks]
        await self._call(lambda consumer: consumer.subscribe(topics, pattern, *listeners))

    async def unsubscribe(self) -> None:
        """As `Consumer.unsubscribe`."""
        await self._call(Consumer.unsubscribe)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned now."""
        return set() if self._sync is None else self._sync.assignment()

    def subscription(self) -> set[str]:
        """The subscribed topics; empty with assigned partitions."""
        return set(self._topics) if self._sync is None else self._sync.subscription()

    # ---- records ---------------------------------------------------------------------------------

    async def poll(
        self, timeout: float | None = 0.0, max_records: int | None = None, **unknown: Never
    ) -> list[Record[K, V]]:
        """The next records, at most `max_records` (or `max.poll.records`); waits up to `timeout`
        seconds for the first.

        A cancelled call has returned no record; the next call returns them. Raises as
        `Consumer.poll`.
        """
        if unknown:
            raise keywords.unknown_keyword(
                "AsyncConsumer.poll()", next(iter(unknown)), ("timeout", "max_records")
            )
        limit = self._config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise ConfigError("max_records", expected="at least 1", found=max_records)
        if timeout != 0.0:
            timeout = seconds(timeout, "poll()")
        moved: Sequence[Moved] = ()
        try:
            with self._one_task.enter():
                consumer = await self._open()
                if not self._has_ahead(consumer):
                    await self._fetch(consumer, lambda reading: reading.fetch_ahead(limit), timeout)
                elif self._returned_count >= RECORDS_PER_TURN:
                    self._returned_count = 0
                    await asyncio.sleep(0)
                moved = consumer._reading.begin()
                records = _take_fetched(consumer, lambda reading: reading.collect(limit)) or []
                self._returned_count += len(records)
                return records
        except BaseException:  # an interrupt after the collection, as in `Consumer.poll`
            if self._sync is not None:
                self._sync._reading.put_back(moved)
            raise

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Iterate over records forever, or until none arrives for `consumer.timeout.ms`.

        The loop ends when another task closes the consumer, as in aiokafka.
        """
        while not self._closed:
            try:
                run = await self._next_run()
            except ClosedError:
                if self._has_ended():
                    return
                raise  # the log was closed
            if run is None:
                return
            while operator.length_hint(run):
                for record in self._slice(run):
                    yield record
                if self._is_due():
                    break
                await asyncio.sleep(0)

    def _has_ended(self) -> bool:
        """Whether this consumer was closed, also by another task while this one waited."""
        return self._closed

    def _slice(self, run: Iterator[Record[K, V]]) -> Iterator[Record[K, V]]:
        """The next records of a run; in a group at most until the group must be read again."""
        rows = islice(run, RECORDS_PER_TURN)
        group = None if self._sync is None else self._sync._group
        return rows if group is None else take_until_due(rows, group.until_ns)

    def _is_due(self) -> bool:
        group = None if self._sync is None else self._sync._group
        return group is not None and group.is_due()

    async def _next_run(self) -> Iterator[Record[K, V]] | None:
        """The next records of an iteration: the remaining fetched records of one partition. None at
        the end.
        """
        with self._one_task.enter():
            consumer = await self._open()
            if not self._has_ahead(consumer):
                await self._fetch(
                    consumer, lambda reading: reading.fetch_ahead(1), consumer._api_timeout_s(None)
                )
            return _take_fetched(consumer, Collector.open_iterator)

    async def batches(self, timeout: float | None = None) -> AsyncIterator[Batch]:
        """The same records in columns, one Batch per fetch, with the same positions; ends after
        `timeout` seconds without any.

        The loop ends when another task closes the consumer.
        """
        timeout = seconds(timeout, "batches()")
        while not self._closed:
            with self._one_task.enter():
                consumer = await self._open()
                try:
                    cursor_and_chunk = await self._fetch(
                        consumer, Collector.fetch_chunk, consumer._api_timeout_s(timeout)
                    )
                except ClosedError:
                    if self._has_ended():
                        return
                    raise  # the log was closed
                if cursor_and_chunk is None:
                    return
                with consumer._using():
                    cursor, chunk = cursor_and_chunk
                    batch = consumer._reading.take_batch(cursor, chunk)
            yield batch

    def _has_ahead(self, consumer: Consumer[K, V]) -> bool:
        """Whether fetched records can be returned without reading the log. Raises as a wait
        would.
        """
        consumer._reading_now()
        consumer._reading.begin()
        if self._is_due():
            return False
        cursors = consumer._reading.rotation.readable_cursors()
        if not any(cursor.has_records for cursor in cursors):
            return False
        consumer._waiter.raise_if_interrupted()
        if consumer._group is not None:
            consumer._group.begin_poll()
            consumer._group.end_poll()
        consumer._waiter.count_call(time.monotonic())
        return True

    async def _fetch(
        self, consumer: Consumer[K, V], read: Callable[[Collector], Result], timeout: float | None
    ) -> Result | None:
        """On the thread: wait until records exist, for `timeout` seconds, or until the task is
        cancelled.
        """
        fetch = _Fetch(lambda: read(consumer._reading))

        def wait() -> None:
            with consumer._reading_now():
                consumer._reading.begin()
                consumer._waiter.wait_for(fetch, timeout, consumer._subscription)

        def on_cancelled(continues: bool) -> None:
            fetch.end()
            self._engine.wake(consumer._waiter)
            self._on_cancelled(continues)

        self._returned_count = 0
        consumer._reading.has_unprocessed = False  # the task asks for more
        self._bridge.loop = asyncio.get_running_loop()
        await self._executor.run(wait, on_cancelled)
        result: Result | None = fetch.result
        return result

    # ---- positions -------------------------------------------------------------------------------

    async def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """As `Consumer.seek`."""
        await self._call(lambda consumer: consumer.seek(partition, offset))

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """As `Consumer.seek_to_beginning`."""
        await self._call(lambda consumer: consumer.seek_to_beginning(*partitions))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """As `Consumer.seek_to_end`."""
        await self._call(lambda consumer: consumer.seek_to_end(*partitions))

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be returned."""
        return await self._call(lambda consumer: consumer.position(partition))

    async def pause(self, *partitions: TopicPartition) -> None:
        """As `Consumer.pause`."""
        await self._call(lambda consumer: consumer.pause(*partitions))

    async def resume(self, *partitions: TopicPartition) -> None:
        """As `Consumer.resume`."""
        await self._call(lambda consumer: consumer.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return set() if self._sync is None else self._sync.paused()

    async def current_lag(self, partition: TopicPartition) -> int | None:
        """As `Consumer.current_lag`."""
        return await self._call(lambda consumer: consumer.current_lag(partition))

    # ---- offsets of any partition ----------------------------------------------------------------

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """As `Consumer.beginning_offsets`."""
        return await self._call(lambda consumer: consumer.beginning_offsets(partitions))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """As `Consumer.end_offsets`."""
        return await self._call(lambda consumer: consumer.end_offsets(partitions))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Any]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """As `Consumer.offsets_for_times`."""
        return await self._call(lambda consumer: consumer.offsets_for_times(times))

    # ---- group -----------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """As `Consumer.commit`. A cancelled call committed all offsets or none: `committed` shows
        which.
        """
        await self._call(lambda consumer: consumer.commit(offsets))

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: Callback | None = None,
    ) -> None:
        """As `Consumer.commit_async`; the callback runs on the consumer's thread."""
        await self._call(lambda consumer: consumer.commit_async(offsets, callback))

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """As `Consumer.committed`."""
        return await self._call(lambda consumer: consumer.committed(*partitions))

    async def group_metadata(self) -> GroupMetadata:
        """As `Consumer.group_metadata`."""
        return await self._call(Consumer.group_metadata)

    async def enforce_rebalance(self) -> None:
        """As `Consumer.enforce_rebalance`."""
        await self._call(Consumer.enforce_rebalance)

    # ---- wakeup and close ------------------------------------------------------------------------

    async def metrics(self) -> dict[str, Any]:
        """As `Consumer.metrics`."""
        return await self._call(Consumer.metrics)

    def wakeup(self) -> None:
        """Make the present, or else the next, waiting call raise WakeupError, once. For any task,
        thread and signal handler.
        """
        self._woken = True  # for a synchronous consumer that does not exist yet
        if self._sync is not None:
            self._sync.wakeup()

    async def close(self, timeout: float | None = CLOSE_S) -> None:
        """As `Consumer.close`: a call that waits in another task raises ClosedError, and an
        iteration ends. Idempotent.

        After a cancellation or an interrupt the next call completes the close.
        """
        await self._end(seconds(timeout, "close()"))

    async def _end(self, timeout: float | None, *, automatic: bool = True) -> None:
        self._closed = True
        if self._sync is not None:
            self._sync._waiter.stop()  # ends the thread's wait; the close runs after it

        def end() -> None:  # on the thread, where a first call may have made the consumer meanwhile
            try:
                if self._sync is not None:
                    self._sync._end(timeout, automatic=automatic)
            finally:
                self._ended = True

        try:
            if self._executor.has_threads and not self._ended:
                await self._run_on_thread(end)
        finally:
            # after an interrupt the next close needs the thread
            if self._ended or not self._executor.has_threads:
                self._executor.shutdown()

    async def _run_on_thread(self, call: Callable[[], Result]) -> Result:
        """A call on the consumer's thread, also while that waits for the listener that calls."""
        if self._bridge.is_listener():
            return await self._bridge.serve(call)
        self._bridge.loop = asyncio.get_running_loop()
        return await self._executor.run(call, self._on_cancelled)

    async def start(self) -> None:
        """Begin, as `async with` does, for programs of aiokafka; other calls begin by
        themselves.
        """
        with self._one_task.enter():
            await self._open()

    async def stop(self) -> None:
        """`close`, under the name of aiokafka."""
        await self.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        has_unprocessed = self._sync is not None and self._sync._reading.has_unprocessed
        await self._end(CLOSE_S, automatic=kind is None or not has_unprocessed)

    if not TYPE_CHECKING:  # type checkers report this mistake; this reports it at run time

        def __new__(cls, *arguments: Any, **options: Any) -> Self:
            other_clients.check_maker(
                "log.async_consumer(*topics, …)", arguments or (options.get("engine", ""),)
            )
            return super().__new__(cls)

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "an AsyncConsumer supports `async with` and `async for`; use log.consumer(…) for "
                "`with` and `for`"
            )

        __exit__ = __iter__ = __enter__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an AsyncConsumer cannot be pickled: create one in the worker with "
            "embedlog.open(path).async_consumer(…)"
        )

    async def _call(self, call: Callable[[Consumer[K, V]], Result]) -> Result:
        """Call a method of the synchronous consumer on the thread."""
        opened = self._sync
        if opened is not None and self._bridge.is_listener():
            return await self._run_on_thread(lambda: call(opened))
        with self._one_task.enter():
            consumer = await self._open()
            return await self._run_on_thread(lambda: call(consumer))

    def _on_cancelled(self, continues: bool) -> None:
        """A task was cancelled; its call may still run on the thread."""
        if continues:
            self._call_continues = True

    async def _open(self) -> Consumer[K, V]:
        """The synchronous consumer, created on the thread: subscribing reads files."""
        if self._closed:
            raise ClosedError("this consumer was closed; create another with log.async_consumer(…)")
        if self._sync is not None and not self._call_continues:
            return self._sync
        # after the calls that still run
        consumer = await self._executor.run(self._open_on_thread, self._on_cancelled)
        self._call_continues = False
        return consumer

    def _open_on_thread(self) -> Consumer[K, V]:
        if self._closed:
            raise ClosedError("the consumer was closed during its first call")
        if self._sync is None:
            consumer = Consumer(self._engine, self._topics, self._config)
            # created here: a wake-up from the loop then takes no lock
            self._engine.waiter(consumer._waiter)
            self._engine.children.add(consumer)
            if self._woken:
                consumer.wakeup()
            self._sync = consumer
        return self._sync


def _take_fetched(consumer: Consumer[Any, Any], read: Callable[[Collector], Result]) -> Result:
    """Return fetched records only. Positions move in the same step of the loop in which their
    records are returned.
    """
    with consumer._using():
        reading = consumer._reading
        reading.may_fetch = False
        try:
            return read(reading)
        finally:
            reading.may_fetch = True
