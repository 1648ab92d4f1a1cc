"""Runs rebalance listeners that are coroutines: in the loop, while the consumer's thread waits and
serves their calls.

- A listener runs during a call on the thread: the thread itself executes the listener's calls of
  the consumer. So it does for tasks that the listener starts, which inherit its context. After the
  listener's end they are tasks like others.
- A listener that is cancelled, or whose loop is closed, has failed: the thread never waits forever.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from embedlog.aio.executor import Job
from embedlog.consumer.rebalance_listener import Listener
from embedlog.types import TopicPartition

Result = TypeVar("Result")
Jobs: TypeAlias = SimpleQueue[Job[Any] | None]

# those of a task and of its parents
_around: ContextVar[tuple[Jobs, ...]] = ContextVar("embedlog listeners", default=())


class ListenerBridge:
    """Connects the consumer's thread with listeners in a loop. `loop` is the loop in which the
    present call waits.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._served: set[Jobs] = set()  # of listeners that the thread waits for

    def bridge(self, listener: Listener | None) -> Listener | None:
        """The function that the thread calls for a listener: the listener itself unless it is a
        coroutine function.
        """
        if inspect.iscoroutinefunction(listener) or _calls_a_coroutine(listener):
            return lambda tps: self._run(listener, tps)
        return listener

    def _run(self, listener: Any, tps: list[TopicPartition]) -> None:
        jobs: Jobs = SimpleQueue()

        async def body() -> None:
            _around.set((*_around.get(), jobs))
            self._served.add(jobs)
            try:
                await listener(tps)
            finally:
                self._served.discard(jobs)

        assert self.loop is not None
        coroutine = body()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()  # the loop is closed
            raise
        future.add_done_callback(lambda _: jobs.put(None))
        self._serve_calls(jobs)
        future.result()

    @staticmethod
    def _serve_calls(jobs: Jobs) -> None:
        """Run the calls of a listener until its end."""
        while True:
            job = jobs.get()
            if job is None:
                return
            result_or_error = job.run()
            if result_or_error is not None:
                job.deliver(*result_or_error)

    async def serve(self, call: Callable[[], Result]) -> Result:
        """A call from a listener. REQUIRES `is_listener`."""
        job = Job(call)
        jobs = next(jobs for jobs in _around.get() if jobs in self._served)
        jobs.put(job)
        return await job.waiter

    def is_listener(self) -> bool:
        """Whether the running task is a listener that this consumer waits for, or was started by
        it.
        """
        return bool(self._served) and not self._served.isdisjoint(_around.get())


def _calls_a_coroutine(listener: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004


__all__ = ["ListenerBridge"]
