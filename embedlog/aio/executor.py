"""Runs blocking calls of the asyncio clients on threads, and guards objects that only one task may
use.

- A call that may read a file, take a lock or wait runs on a thread, never in the loop; its outcome
  crosses back once.
- A call that is cancelled before a thread took it does not happen; a call that a thread took runs
  to its end.
- The threads reference their queue, never its owner: an owner that is collected ends them, and they
  do not delay the interpreter's exit.
- Nothing belongs to a loop for longer than one call: loops may change, and may be closed during a
  call.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from embedlog._native.scope import Guard
from embedlog._native.threads import start
from embedlog.errors import ClosedError, ConcurrentUseError, ForkedError

Outcome = TypeVar("Outcome")


class Job(Generic[Outcome]):
    """One call for a thread, and the future of its outcome in the loop."""

    def __init__(self, call: Callable[[], Outcome]) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiter: asyncio.Future[Outcome] = self.loop.create_future()
        self._call = call
        self._context = contextvars.copy_context()
        # setdefault decides atomically: taken by a thread, or withdrawn
        self._state: dict[str, str] = {}

    def withdraw(self) -> bool:
        """Withdraw the call; False if a thread has taken it."""
        return self._state.setdefault("is", "withdrawn") == "withdrawn"

    def has_failed_with(self, error: BaseException) -> bool:
        """Whether the call raised `error`, and not a cancellation of the task."""
        return (
            self.waiter.done() and not self.waiter.cancelled() and self.waiter.exception() is error
        )

    def run(self) -> tuple[Outcome | None, BaseException | None] | None:
        """On a thread: run the call; its outcome or its exception, None if the call was
        withdrawn.
        """
        if self._state.setdefault("is", "taken") != "taken":
            return None
        try:
            return self._context.run(self._call), None
        except StopIteration as error:  # asyncio's futures refuse it
            return None, RuntimeError(f"a callable raised {error!r}")
        except BaseException as error:  # noqa: BLE001  (the thread's edge: the waiting task receives the exception)
            return None, error

    def deliver(self, outcome: Outcome | None, problem: BaseException | None) -> None:
        """Pass what `run` returned to the loop."""
        try:
            self.loop.call_soon_threadsafe(self._deliver, outcome, problem)
        except RuntimeError:
            if not self.loop.is_closed():  # no task waits any more
                raise

    def _deliver(self, outcome: Any, problem: BaseException | None) -> None:
        if self.waiter.done():  # cancelled
            return
        if problem is None:
            self.waiter.set_result(outcome)
        else:
            self.waiter.set_exception(problem)


class Executor:
    """Up to `limit` threads that process one queue; they start with the first call.

    **Threads:** any; `run` in a running loop.
    """

    def __init__(self, name: str, limit: int = 1) -> None:
        self._name = name
        self._limit = limit
        self._pid = os.getpid()
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._busy: list[None] = []  # one entry per unfinished job
        self._threads: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _shutdown, self._jobs, limit)

    async def run(
        self, call: Callable[[], Outcome], on_cancelled: Callable[[bool], object] | None = None
    ) -> Outcome:
        """`call()` on a thread. If the task is cancelled,
        `on_cancelled(whether the call still continues)` is called.

        Raises ClosedError after `shutdown`, ForkedError, and RuntimeError if the system refuses the
        first thread: the call is not made then.
        """
        if self._pid != os.getpid():
            raise ForkedError(
                "the threads exist in the parent process only: open the log again in the child"
            )
        job = Job(call)
        self._put(job)
        try:
            return await job.waiter
        except BaseException as error:  # also GeneratorExit: the loop discards the task
            if not job.has_failed_with(error):
                continues = not job.withdraw()
                if on_cancelled is not None:
                    on_cancelled(continues)
            raise

    def post(self, call: Callable[[], object]) -> None:
        """Queue `call()` for a thread after the earlier calls; no task waits for it, and it must
        not raise.
        """
        self._put(Job(call))

    def _put(self, job: Job[Any]) -> None:
        with self._lock:
            if not self._end.alive:  # its threads would never make the call
                raise ClosedError("the client was closed")
            if len(self._busy) >= len(self._threads) < self._limit:
                self._add_thread()
            self._busy.append(None)
        self._jobs.put(job)

    def _add_thread(self) -> None:
        """Start a thread. If the system refuses it, the others make the calls; without others this
        raises RuntimeError.

        After an interrupt of the start it may run or not: it takes its number itself, if no other
        thread has it.
        """
        number = len(self._threads) + 1
        arguments = (self._jobs, self._busy, self._threads, number)
        thread = threading.Thread(
            target=_work, args=arguments, name=f"{self._name}-{number}", daemon=True
        )
        try:
            start(thread)
        except Exception:
            if not self._threads:
                raise
        else:
            self._threads.setdefault(number, thread)

    @property
    def has_threads(self) -> bool:
        """Whether a call was made."""
        return bool(self._threads)

    def shutdown(self) -> None:
        """End the threads after the queued calls. Idempotent."""
        self._end()


def _work(
    jobs: SimpleQueue[Job[Any] | None],
    busy: list[None],
    threads: dict[int, threading.Thread],
    number: int,
) -> None:
    own = threading.current_thread()
    if threads.setdefault(number, own) is not own:
        return  # an interrupted start was repeated
    while True:
        job = jobs.get()
        if job is None:
            return
        result_or_error = job.run()
        busy.pop()  # before the delivery: the next call of the loop finds this thread idle
        if result_or_error is not None:
            job.deliver(*result_or_error)
        del job, result_or_error  # an idle thread references no job


def _shutdown(jobs: SimpleQueue[Job[Any] | None], limit: int) -> None:
    for _ in range(limit):
        jobs.put(None)


class OneTask:
    """A context manager that admits one task; a second one gets ConcurrentUseError at once.

    Examples:
        >>> guard = OneTask("this consumer")
        >>> with guard.enter():
        ...     pass
    """

    __slots__ = ("_guarded", "_inside")

    def __init__(self, guarded: str) -> None:
        self._guarded = guarded
        self._inside: dict[str, asyncio.Task[Any] | None] = {}

    def enter(self) -> AbstractContextManager[bool, None]:
        """A context, which raises ConcurrentUseError if another task is inside."""
        return cast("AbstractContextManager[bool, None]", Guard(self._inside.clear, self._enter))

    def _enter(self) -> bool:
        task = asyncio.current_task()
        task_inside = self._inside.setdefault("task", task)
        if task_inside is not task:
            if (
                task_inside is not None
                and not task_inside.done()
                and not task_inside.get_loop().is_closed()
            ):
                raise ConcurrentUseError(
                    f"{self._guarded} is in use by another task; use one per task, or wakeup() to "
                    "stop it"
                )
            self._inside["task"] = task  # the other one never leaves by itself: its loop ended
        return True
