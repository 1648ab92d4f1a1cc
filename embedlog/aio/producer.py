"""The producer for asyncio: `send()` puts records into the buffer in the loop, blocking work runs
on threads.

- `send()` accepts a record in the step in which it returns: a cancelled call has accepted nothing.
- Calls that wait for buffer memory are served in order; only the first one occupies a thread.
- Topic metadata is read on a thread: before the first record of a topic, and after the producer
  noticed a change.
- A task that only sends does not block other tasks: the loop runs them after some hundreds of
  records.
- Results reach the loop batch by batch (`awaitable`), never record by record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from embedlog.aio.executor import Executor
from embedlog.config import keywords, other_clients
from embedlog.config.client import K, ProducerConfig, V
from embedlog.config.timeouts import seconds
from embedlog.errors import (
    ClosedError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from embedlog.producer.one_record import (
    OMITTED,
    check_call,
    check_tombstone,
    record_size,
    unknown_metadata,
)
from embedlog.producer.pipeline import FAILS_THE_FUTURE, Item, Pipeline
from embedlog.producer.producer import Producer
from embedlog.producer.targets import TopicTarget
from embedlog.types import (
    GroupMetadata,
    Headers,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)

if TYPE_CHECKING:
    from embedlog._native._rows import Future, Router
    from embedlog.engine.engine import Engine
    from embedlog.transaction import Outcome

Result = TypeVar("Result")

RECORDS_PER_TURN = 500  # records accepted before the loop runs other tasks
THREADS = 4  # for calls that wait: a flush, columns without buffer memory
CHECK_S = 1.0  # validity of the metadata of a topic without a fast path


@keywords.checked
class AsyncProducer(Generic[K, V], metaclass=other_clients.Hinting):
    """Sends records into one log without blocking the event loop; its methods are coroutines.

    `AsyncProducer[K, V]` takes keys K and values V: the types that its serializers accept, bytes
    without serializers. Created by `log.async_producer(**options)`, best used in `async with`.
    Serializers and partitioners run in the loop for `send()`, on a thread for `send_batch()`;
    callbacks of futures run on the producer's thread.

    **Tasks:** any number may share one; records of one task to one partition keep their order. It
    may be used in one loop after another.

    Examples:
        >>> async with log.async_producer() as producer:      # doctest: +SKIP
        ...     future = await producer.send("events", b"value")      # it is in the buffer
        ...     print(await future)                                   # it is in the log
    """

    def __init__(self, engine: Engine, config: ProducerConfig) -> None:
        self._engine = engine
        self._config = config
        self._sync: Producer[K, V] | None = None
        self._closed = False  # a close has begun
        self._ended = False  # a close has done all of its steps, or a thread will
        self._executor = Executor("embedlog-async-producer", THREADS)
        # one thread: topics, transactions and close, in order
        self._steps = Executor("embedlog-async-producer-steps")
        self._routes: dict[str, Router] = {}
        self._targets: dict[str, tuple[TopicTarget, float]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        # records left for the fast path; 0 while calls wait for memory
        self._records_left = RECORDS_PER_TURN
        # batches of cancelled tasks that a thread still sends
        self._unfinished_batches: list[threading.Event] = []

    # ---- records ---------------------------------------------------------------------------------

    async def send(
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
        """Wait for buffer memory, accept one record, and return the future of its result, which can
        be awaited.

        A cancelled call has not accepted the record. After the return the record is sent, even if
        the task is cancelled. Raises, and fails the future, as `Producer.send` does. With
        `expected_offset` it is `send_batch` of one record.
        """
        if value is OMITTED:
            check_tombstone(key)
            value = None
        if expected_offset is not None:
            return await self._run_on_thread(
                f"send to {topic}",
                lambda producer: producer.send(
                    topic,
                    value,
                    key,
                    headers,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                    expected_offset=expected_offset,
                ),
            )
        self._records_left = left_count = self._records_left - 1
        if left_count > 0:
            try:
                future = self._routes[topic].append(value, key, partition, timestamp_ms, headers)
            except (KeyError, TypeError):  # no fast path yet, or not the name of a topic
                future = None
            if future is not None:
                return future
        return await self._send_checked(
            ProducerRecord(topic, value, key, partition, timestamp_ms, headers)
        )

    async def send_and_wait(
        self,
        topic: str,
        value: V | None = OMITTED,
        key: K | None = None,
        headers: Headers | None = (),
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        expected_offset: int | None = None,
    ) -> RecordMetadata:
        """Send one record, wait until it is in the log, and return its place, as in aiokafka:
        `await (await send(…))`.
        """
        future = await self.send(
            topic,
            value,
            key,
            headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            expected_offset=expected_offset,
        )
        future.hasten()
        return await future

    async def _send_checked(self, record: ProducerRecord) -> Future:
        if self._records_left <= 0:
            self._records_left = 0 if self._waiting else RECORDS_PER_TURN
            await asyncio.sleep(0)
        pipeline = (await self._open())._pipeline
        check_call(record)
        if not pipeline.interceptors:
            return await self._send_intercepted(pipeline, record)
        intercepted = pipeline.interceptors.on_send(record)
        try:
            future = await self._send_intercepted(pipeline, intercepted)
        except BaseException as error:  # also for a cancelled task: interceptors see each record
            pipeline.interceptors.on_acknowledgement(unknown_metadata(intercepted), error)
            raise
        future._observe(partial(pipeline.acknowledge, intercepted))
        return future

    async def _send_intercepted(self, pipeline: Pipeline, record: ProducerRecord) -> Future:
        try:
            pipeline.check_usable()
            topic_target = await self._topic_target(pipeline, record)
            try:
                item = pipeline.make_item(topic_target, record)
            except (InvalidRecordError, InvalidTimestampError, RecordTooLargeError):
                read_target = await self._read_target(pipeline, record.topic)
                if read_target is topic_target:
                    raise
                topic_target = read_target  # the settings of the topic have changed: these decide
                item = pipeline.make_item(topic_target, record)
            return await self._put(pipeline, topic_target, item)
        except FAILS_THE_FUTURE as error:
            return pipeline.fail_call(record, error)

    async def _topic_target(self, pipeline: Pipeline, record: ProducerRecord) -> TopicTarget:
        """The metadata of a topic; read again if it changed, is too old, or lacks the partition."""
        topic = record.topic
        partition = record.partition
        topic_target, until = self._targets.get(topic, (None, 0.0))
        is_current = (
            topic_target is not None
            and pipeline.known_target(topic) is topic_target
            and topic_target.route is not None
            and not topic_target.route.moved
        )
        is_recent = is_current and (topic in self._routes or time.monotonic() < until)
        if (
            topic_target is not None
            and is_recent
            and (partition is None or topic_target.target_of(partition) is not None)
        ):
            return topic_target
        return await self._read_target(pipeline, topic)

    async def _read_target(self, pipeline: Pipeline, topic: str) -> TopicTarget:
        """The metadata of a topic, read now."""
        topic_target = await self._steps.run(lambda: pipeline.topic_target(topic, followed=True))
        self._targets[topic] = topic_target, time.monotonic() + CHECK_S
        return topic_target

    async def _put(self, pipeline: Pipeline, topic_target: TopicTarget, item: Item) -> Future:
        """Append the record to its partition queue as soon as there is memory and no earlier call
        waits.
        """
        route: Router = topic_target.route  # type: ignore[assignment]  # set by topic_target()
        future = None if self._waiting else route.append(*item, False)
        if future is not None:
            return future
        try:
            async with asyncio.timeout(self._config.max_block_ms / 1000):
                return await self._append_in_turn(pipeline, route, item)
        except TimeoutError:
            raise pipeline.buffer_exhausted_error() from None

    async def _append_in_turn(self, pipeline: Pipeline, route: Router, item: Item) -> Future:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._records_left = 0  # no record overtakes the waiting ones
        try:
            if self._waiting[0] is not waiter:
                await waiter
            while True:
                pipeline.check_usable()
                future = route.append(*item, True)
                if future is not None:
                    return future
                await self._wait_for_memory(pipeline, item)
        finally:
            self._waiting.remove(waiter)
            if self._waiting and not self._waiting[0].done():
                self._waiting[0].set_result(None)

    async def _wait_for_memory(self, pipeline: Pipeline, item: Item) -> None:
        """Wait until the buffer has memory for the record, or the task is cancelled."""
        value, key, _, _, headers = item
        size = record_size(value, key, headers)
        cancelled: list[bool] = []
        await self._executor.run(
            lambda: pipeline.wait_for_memory(size, lambda: bool(cancelled)), cancelled.append
        )

    async def send_batch(
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
        """Wait until all rows are in the buffer and return the future of their result, which can be
        awaited.

        A call that is cancelled before a thread began has accepted nothing. Later, all rows are
        sent. The error's note says it.
        """
        return await self._run_on_thread(
            f"send_batch to {topic}",
            lambda producer: producer.send_batch(
                topic,
                values,
                keys,
                partition=partition,
                timestamps_ms=timestamps_ms,
                headers=headers,
                expected_offset=expected_offset,
            ),
        )

    async def _run_on_thread(
        self, name: str, send: Callable[[Producer], Future[Result]]
    ) -> Future[Result]:
        """The future of records that a thread sends; a thread that began sends all of them."""
        producer = await self._open()
        ended = threading.Event()
        continued: list[bool] = []

        def call() -> Future[Result]:
            try:
                return send(producer)
            finally:
                ended.set()

        def on_cancelled(continues: bool) -> None:
            continued.append(continues)
            if continues:
                unfinished = [batch for batch in self._unfinished_batches if not batch.is_set()]
                self._unfinished_batches = [*unfinished, ended]

        try:
            return await self._executor.run(call, on_cancelled)
        except asyncio.CancelledError as error:
            outcome = "the records are sent" if any(continued) else "nothing was accepted"
            error.add_note(f"{name}: {outcome}")
            raise

    def _await_unfinished(self, timeout: float | None) -> float | None:
        """On a thread: wait for the batches of cancelled tasks; return the remaining seconds of
        `timeout`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for ended in self._unfinished_batches:
            ended.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    # ---- flush and close -------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Send everything at once and wait until every record is written or has failed. Raises as
        `Producer.flush`.

        After a cancellation everything is still sent.
        """
        timeout = seconds(timeout, "flush()")
        producer = await self._open()
        await self._executor.run(lambda: producer._flush(self._await_unfinished(timeout)))
        # here: after a cancellation the next call reports the failures
        producer._failures.raise_or_log_unreceived()

    async def close(self, timeout: float | None = None) -> None:
        """As `Producer.close`: send buffered records and end. After a cancellation it continues and
        logs failures. Idempotent.
        """
        await self._end(seconds(timeout, "close()"))
        if self._sync is not None:
            self._sync._raise_last()

    async def _end(self, timeout: float | None = None) -> None:
        self._closed = True
        self._routes = {}

        def end() -> None:  # on the thread, where a first call may have made the producer meanwhile
            try:
                if self._sync is not None:
                    self._sync._end(self._await_unfinished(timeout))
            finally:
                self._ended = True

        def end_alone() -> None:
            end()
            if self._sync is not None:
                self._sync._log_last()

        try:
            if self._steps.has_threads and not self._ended:
                # not after the calls that wait for memory: it ends their wait
                await self._steps.run(end)
        except asyncio.CancelledError:
            self._steps.post(end_alone)  # it may be that no thread has taken the first call
            self._ended = True
            raise
        finally:
            # after an interrupt the next close needs the thread
            if self._ended or not self._steps.has_threads:
                self._executor.shutdown()
                self._steps.shutdown()

    # ---- transactions ----------------------------------------------------------------------------

    async def init_transactions(self) -> Outcome | None:
        """As `Producer.init_transactions`. For all calls of this section: a cancelled call has not
        begun, or continues to its end. The error's note says which, and the next call waits for
        that end.
        """
        return await self._run_step(
            "init_transactions", lambda producer: producer.init_transactions()
        )

    async def begin_transaction(self) -> None:
        """As `Producer.begin_transaction`. A cancelled call leaves no transaction open."""
        await self._begin(object())

    async def commit_transaction(self) -> None:
        """As `Producer.commit_transaction`."""
        await self._run_step("commit_transaction", Producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """As `Producer.abort_transaction`."""
        await self._run_step("abort_transaction", Producer.abort_transaction)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: GroupMetadata,
    ) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        await self._run_step(
            "send_offsets_to_transaction",
            lambda producer: producer.send_offsets_to_transaction(offsets, group_metadata),
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction(): …` begins, and commits at the end, or aborts if
        anything was raised.

        A cancellation inside aborts. A commit that is cancelled continues to its end.
        """
        opener = object()
        try:
            await self._begin(opener)  # inside, since an interrupt may come after it
            yield self
            await self.commit_transaction()
        except BaseException as problem:
            if self._closed or self._sync is None:
                raise  # the close has aborted it
            abort = partial(self._abort_after_failure, opener, problem)
            error = await self._steps.run(abort)
            if error is not problem:
                raise error from None
            raise

    async def _begin(self, opener: object) -> None:
        try:
            await self._run_step("begin_transaction", lambda producer: producer._begin(opener))
        except asyncio.CancelledError as problem:
            self._steps.post(partial(self._abort_after_failure, opener, problem))
            raise

    def _abort_after_failure(self, opener: object, problem: BaseException) -> BaseException:
        """On a thread, after the earlier calls; without effect on a transaction that another call
        has opened.
        """
        return problem if self._sync is None else self._sync._abort_after_failure(opener, problem)

    async def _run_step(self, name: str, call: Callable[[Producer], Result]) -> Result:
        producer = await self._open()
        continued: list[bool] = []
        try:
            return await self._steps.run(lambda: call(producer), continued.append)
        except asyncio.CancelledError as error:
            outcome = "it continues to its end" if any(continued) else "it did not begin"
            error.add_note(f"{name}: {outcome}")
            raise

    # ---- metadata and metrics --------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> set[int]:
        """As `Producer.partitions_for`."""
        producer = await self._open()
        return await self._executor.run(lambda: producer.partitions_for(topic))

    async def metrics(self) -> dict[str, float]:
        """As `Producer.metrics`."""
        return (await self._open()).metrics()

    async def _open(self) -> Producer:
        """The synchronous producer, created on a thread."""
        if self._closed:
            raise ClosedError("the producer was closed; create another with log.async_producer(…)")
        if self._sync is None:
            await self._steps.run(self._open_on_thread)
        producer = self._sync
        assert producer is not None
        producer._pipeline.check_open()
        return producer

    def _open_on_thread(self) -> None:
        if self._closed:
            raise ClosedError("the producer was closed during its first call")
        if self._sync is None:
            self._engine.check_writable()
            producer = Producer(self._engine, self._config)
            self._engine.children.add(producer)
            self._routes = producer._routes
            self._sync = producer

    async def start(self) -> None:
        """Begin, as `async with` does, for programs of aiokafka; other calls begin by
        themselves.
        """
        await self._open()

    async def stop(self) -> None:
        """`close`, under the name of aiokafka."""
        await self.close()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            return await self.close()
        await self._end()
        if self._sync is not None:
            self._sync._log_last()

    if not TYPE_CHECKING:  # type checkers report this mistake; this reports it at run time

        def __new__(cls, *arguments: Any, **options: Any) -> Self:
            other_clients.check_maker(
                "log.async_producer(…)", arguments or (options.get("engine", ""),)
            )
            return super().__new__(cls)

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "an AsyncProducer supports `async with`; use log.producer(…) for `with`"
            )

        __exit__ = __enter__

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an AsyncProducer cannot be pickled: open the log in the process that sends, and "
            "create a producer there"
        )

    def __repr__(self) -> str:
        if self._closed:
            return "<embedlog.AsyncProducer closed>"
        if self._sync is None:
            return "<embedlog.AsyncProducer not started>"
        return f"<embedlog.AsyncProducer {self._sync!r}>"
