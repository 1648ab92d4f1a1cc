"""The consumer for asyncio: blocking work and file access run on a thread, records are returned in the event loop.

AIOCONSUMER-1  one task at a time (a second one gets ConcurrentUseError); only `wakeup` and `close` may be called from another
AIOCONSUMER-2  the thread fetches and moves no position; a position moves in the step in which a task receives its records. A
    cancelled call loses nothing: the next call returns the fetched records
AIOCONSUMER-3  threads and loop exchange runs of records, not single records
AIOCONSUMER-4  fetched records do not block other tasks: after some hundreds of records the loop runs them
"""

from __future__ import annotations

import asyncio
import operator
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self, TypeVar

from embedlog._native._rows import Record
from embedlog.aio.executor import Crew, OneTask
from embedlog.aio.listeners import Bridge
from embedlog.columns.batch import Batch
from embedlog.config import keywords
from embedlog.config.client import ConsumerConfig, K, V
from embedlog.consumer.collector import Reading
from embedlog.consumer.consumer import Consumer, until
from embedlog.consumer.offset_committer import Callback
from embedlog.consumer.rebalance_listener import Listener
from embedlog.errors import ClosedError, ConfigError
from embedlog.types import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition, seconds

if TYPE_CHECKING:
    from embedlog.engine import Engine

Found = TypeVar("Found")

TURN = 500  # records that are handed out before other tasks get a turn


class _Fetch:
    """One wait for something to be fetched; `end` makes it return early."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self._ended = False
        self.found: Any = None

    def end(self) -> None:
        self._ended = True

    def __call__(self) -> bool:
        """A look, as the consumer's wait asks for it: true ends the wait."""
        if not self._ended:
            self.found = self._look()
        return self._ended or bool(self.found)


@keywords.checked
class AsyncConsumer(Generic[K, V]):
    """Reads partitions as `Consumer` does, without ever blocking the event loop; its verbs are coroutines.

    `AsyncConsumer[K, V]` hands out `Record[K, V]`. Made by `log.async_consumer(*topics, **options)`, begun by `async with` or by
    the first verb. Deserializers run on a thread, interceptors on the loop.

    **Tasks:** one at a time; `wakeup` and `close` from any. It may be used in one loop after another.

    Example:
        >>> async with log.async_consumer("events", auto_offset_reset="earliest") as consumer:      # doctest: +SKIP
        ...     async for record in consumer:
        ...         print(record.offset, record.value)
    """

    def __init__(self, engine: Engine, topics: Iterable[str], config: ConsumerConfig) -> None:
        self._engine = engine
        self._topics = list(topics)
        self._config = config
        self._sync: Consumer[K, V] | None = None
        self._closed = False
        self._crew = Crew("embedlog-async-consumer")
        self._alone = OneTask("this consumer")
        self._handed_count = 0  # since other tasks got their turn
        self._woken = False
        self._straggling = False
        self._bridge = Bridge()

    # ---- what is read ----

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
    ) -> None:
        """As `Consumer.subscribe`. Listeners that are coroutine functions run in the loop, others on the consumer's thread.

        In the loop they may use this consumer's verbs, but not those that hand out records.
        """
        listeners = [self._bridge.bridged(each) for each in (on_assigned, on_revoked, on_lost)]
        await self._call(lambda consumer: consumer.subscribe(topics, pattern, *listeners))

    async def unsubscribe(self) -> None:
        """Reads nothing any more; all positions are forgotten."""
        await self._call(Consumer.unsubscribe)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read now."""
        return set() if self._sync is None else self._sync.assignment()

    def subscription(self) -> set[str]:
        """The topics that are subscribed; empty with assigned partitions."""
        return set(self._topics) if self._sync is None else self._sync.subscription()

    # ---- records ----

    async def poll(self, timeout: float | None = 0.0, max_records: int | None = None, **unknown: Never) -> list[Record[K, V]]:
        """The next records, at most `max_records` (or `max.poll.records`); waits up to `timeout` seconds for the first.

        Cancelled, it has handed out nothing, and the next call hands out what this one would have. Raises as `Consumer.poll`.
        """
        if unknown:
            raise keywords.unknown_keyword("AsyncConsumer.poll()", next(iter(unknown)), ("timeout", "max_records"))
        limit = self._config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise ConfigError("max_records", expected="at least 1", found=max_records)
        if timeout != 0.0:
            timeout = seconds(timeout, "poll()")
        with self._alone:
            consumer = await self._made()
            if not self._has_ahead(consumer):
                await self._fetch(consumer, lambda reading: reading.ahead(limit), timeout)
            elif self._handed_count >= TURN:
                self._handed_count = 0
                await asyncio.sleep(0)
            records = _at_hand(consumer, lambda reading: reading.collect(limit)) or []
            self._handed_count += len(records)
            return records

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Records, one after the other, for ever, or until none comes for `consumer.timeout.ms`."""
        while not self._closed:
            run = await self._next_run()
            if run is None:
                return
            while operator.length_hint(run):
                for record in self._turn(run):
                    yield record
                if self._is_due():
                    break
                await asyncio.sleep(0)

    def _turn(self, run: Iterator[Record[K, V]]) -> Iterator[Record[K, V]]:
        """The next records of a run; in a group no further than to the moment at which the group has to be looked at."""
        turn = islice(run, TURN)
        group = None if self._sync is None else self._sync._group
        return turn if group is None else until(turn, group.until_ns)

    def _is_due(self) -> bool:
        group = None if self._sync is None else self._sync._group
        return group is not None and group.is_due()

    async def _next_run(self) -> Iterator[Record[K, V]] | None:
        """What iteration goes on with: the rest of what was fetched of one partition. None at the end."""
        with self._alone:
            consumer = await self._made()
            if not self._has_ahead(consumer):
                await self._fetch(consumer, lambda reading: reading.ahead(1), consumer._patience_s(None))
            return _at_hand(consumer, Reading.lend)

    async def batches(self, timeout: float | None = None) -> AsyncIterator[Batch]:
        """The same records in columns, one Batch a fetch, with the same positions; ends when none comes for `timeout` seconds."""
        timeout = seconds(timeout, "batches()")
        while not self._closed:
            with self._alone:
                consumer = await self._made()
                found = await self._fetch(consumer, Reading.chunk, consumer._patience_s(timeout))
                if found is None:
                    return
                with consumer._using():
                    batch = consumer._reading.hand_out(*found)
            yield batch

    def _has_ahead(self, consumer: Consumer[K, V]) -> bool:
        """Whether records can be handed out without a look at the log. Raises what a wait would at once."""
        consumer._using()
        consumer._reading.recall()
        if self._is_due() or not any(cursor.has_records for cursor in consumer._reading.rotation.turns()):
            return False
        consumer._waiting.give_way()
        if consumer._group is not None:
            consumer._group.polling()
            consumer._group.polled()
        consumer._waiting.count(time.monotonic())
        return True

    async def _fetch(self, consumer: Consumer[K, V], look: Callable[[Reading], Found], timeout: float | None) -> Found | None:
        """On the thread: looks and waits until there is something, for `timeout` seconds, or until the task is cancelled."""
        fetch = _Fetch(lambda: look(consumer._reading))

        def wait() -> None:
            with consumer._using():
                consumer._reading.recall()
                consumer._waiting.wait_for(fetch, timeout, consumer._subscription)

        def given_up(happens: bool) -> None:
            fetch.end()
            self._engine.wake(consumer._waiting)
            self._given_up(happens)

        self._handed_count = 0
        self._bridge.loop = asyncio.get_running_loop()
        await self._crew.run(wait, given_up)
        found: Found | None = fetch.found
        return found

    # ---- positions ----

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
        """Offset of the next record to be handed out."""
        return await self._call(lambda consumer: consumer.position(partition))

    async def pause(self, *partitions: TopicPartition) -> None:
        """As `Consumer.pause`."""
        await self._call(lambda consumer: consumer.pause(*partitions))

    async def resume(self, *partitions: TopicPartition) -> None:
        """As `Consumer.resume`."""
        await self._call(lambda consumer: consumer.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return set() if self._sync is None else self._sync.paused()

    async def current_lag(self, partition: TopicPartition) -> int | None:
        """As `Consumer.current_lag`."""
        return await self._call(lambda consumer: consumer.current_lag(partition))

    # ---- questions about any partition ----

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """As `Consumer.beginning_offsets`."""
        return await self._call(lambda consumer: consumer.beginning_offsets(partitions))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """As `Consumer.end_offsets`."""
        return await self._call(lambda consumer: consumer.end_offsets(partitions))

    async def offsets_for_times(self, times: Mapping[TopicPartition, Any]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """As `Consumer.offsets_for_times`."""
        return await self._call(lambda consumer: consumer.offsets_for_times(times))

    # ---- what needs a group ----

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """As `Consumer.commit`. Cancelled, it may have happened or not, as a whole: `committed` tells."""
        await self._call(lambda consumer: consumer.commit(offsets))

    async def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, callback: Callback | None = None
    ) -> None:
        """As `Consumer.commit_async`; the callback runs on the consumer's thread."""
        await self._call(lambda consumer: consumer.commit_async(offsets, callback))

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """As `Consumer.committed`."""
        return await self._call(lambda consumer: consumer.committed(*partitions))

    async def group_metadata(self) -> GroupMetadata:
        """As `Consumer.group_metadata`."""
        return await self._call(Consumer.group_metadata)

    async def enforce_rebalance(self) -> None:
        """As `Consumer.enforce_rebalance`."""
        await self._call(Consumer.enforce_rebalance)

    # ---- life ----

    async def metrics(self) -> dict[str, Any]:
        """As `Consumer.metrics`."""
        return await self._call(Consumer.metrics)

    def wakeup(self) -> None:
        """Makes the present, or else the next, waiting call raise WakeupError, once. For any task, thread and signal handler."""
        self._woken = True  # for one that is not made yet
        if self._sync is not None:
            self._sync.wakeup()

    async def close(self, timeout: float | None = 30.0) -> None:
        """As `Consumer.close`: a call that waits in another task raises ClosedError. Twice is nothing."""
        timeout = seconds(timeout, "close()")
        if self._closed:
            return
        self._closed = True
        consumer = self._sync
        if consumer is not None:
            consumer._waiting.stop()  # ends what the thread waits for; it closes behind that
            self._bridge.loop = asyncio.get_running_loop()
            await self._crew.run(lambda: consumer.close(timeout))
        self._crew.dismiss()

    async def __aenter__(self) -> Self:
        with self._alone:
            await self._made()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    if not TYPE_CHECKING:  # a mistake that checkers see is told at run time, too

        def __enter__(self) -> NoReturn:
            raise TypeError("this consumer is for `async with`; log.consumer(…) is for `with`")

        __exit__ = __iter__ = __enter__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a consumer cannot be pickled: make one in the worker, embedlog.open(path).async_consumer(…)")

    async def _call(self, call: Callable[[Consumer[K, V]], Found]) -> Found:
        """One of the sync consumer's verbs, on the thread."""
        if self._bridge.is_listener() and self._sync is not None:
            made = self._sync
            return await self._bridge.serve(lambda: call(made))
        with self._alone:
            consumer = await self._made()
            self._bridge.loop = asyncio.get_running_loop()
            return await self._crew.run(lambda: call(consumer), self._given_up)

    def _given_up(self, happens: bool) -> None:
        """A task was cancelled; its call is perhaps still on the thread."""
        self._straggling = self._straggling or happens

    async def _made(self) -> Consumer[K, V]:
        """The sync consumer, made on the thread: subscribing looks at files."""
        if self._closed:
            raise ClosedError("this consumer was closed; log.async_consumer(…) makes another")
        if self._sync is not None and not self._straggling:
            return self._sync
        made = await self._crew.run(self._make, self._given_up)  # behind what still runs
        self._straggling = False
        return made

    def _make(self) -> Consumer[K, V]:
        if self._sync is None:
            made = Consumer(self._engine, self._topics, self._config)
            self._engine.waiter(made._waiting)  # made here: a wake-up from the loop then takes no lock
            self._engine.children.add(made)
            if self._woken:
                made.wakeup()
            self._sync = made
        return self._sync


def _at_hand(consumer: Consumer[Any, Any], look: Callable[[Reading], Found]) -> Found:
    """What a look hands out of what is fetched already. In one step of the loop: a position moves and its records are there."""
    with consumer._using():
        reading = consumer._reading
        reading.fetches = False
        try:
            return look(reading)
        finally:
            reading.fetches = True
