"""The base of the asyncio clients: threads for blocking calls, loops that start and end, the guard
for one task.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from embedlog.aio.executor import Executor, Job, OneTask
from embedlog.errors import ConcurrentUseError, ForkedError
from tests.support.producer_helpers import wait_until


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


class Gate:
    """A call that signals its begin, and returns at a signal."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.go.wait(30)
        return "done"


async def began(gate: Gate) -> None:
    async with asyncio.timeout(30):
        while not gate.began.is_set():
            await asyncio.sleep(0.001)


# ---- threads -----------------------------------------------------------------------------------------------------------


def test_calls_of_one_thread_keep_their_order_and_the_loop_goes_on() -> None:
    async def main() -> None:
        executor = Executor("crew-order")
        gate = Gate()
        order = []
        first = asyncio.create_task(executor.run(gate))
        await began(gate)
        rest = [asyncio.create_task(executor.run(lambda n=n: order.append(n))) for n in range(50)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not first.done()
        assert order == []
        gate.go.set()
        assert await first == "done"
        await asyncio.gather(*rest)
        assert order == list(range(50))
        assert len(threads("crew-order")) == 1
        executor.shutdown()

    asyncio.run(main())
    wait_until(lambda: not threads("crew-order"))


def test_a_crew_grows_only_while_all_are_busy() -> None:
    async def main() -> None:
        executor = Executor("crew-grows", 3)
        for _ in range(20):
            await executor.run(lambda: None)
        # the thread is idle before its outcome reaches the loop
        assert len(threads("crew-grows")) == 1
        gates = [Gate() for _ in range(3)]
        tasks = [asyncio.create_task(executor.run(gate)) for gate in gates]
        for gate in gates:
            await began(gate)
        assert len(threads("crew-grows")) == 3
        for gate in gates:
            gate.go.set()
        await asyncio.gather(*tasks)
        executor.shutdown()
        executor.shutdown()

    asyncio.run(main())
    wait_until(lambda: not threads("crew-grows"))


def test_an_owner_that_is_dropped_ends_its_threads() -> None:
    async def main() -> None:
        await Executor("crew-dropped").run(lambda: None)

    asyncio.run(main())
    gc.collect()
    wait_until(lambda: not threads("crew-dropped"))


def test_a_call_sees_the_context_of_its_task() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def main() -> int:
        variable.set(7)
        return await Executor("executor").run(variable.get)

    assert asyncio.run(main()) == 7


@pytest.mark.parametrize(
    "raised", [ValueError("x"), KeyboardInterrupt(), StopIteration(1)], ids=repr
)
def test_what_a_call_raises_reaches_the_task(raised: BaseException) -> None:
    def call() -> None:
        raise raised

    async def main() -> BaseException | None:
        executor = Executor("executor")
        try:
            await executor.run(call, lambda _: pytest.fail("no call was cancelled"))
        except BaseException as error:  # noqa: BLE001
            return error
        finally:
            executor.shutdown()
        return None

    found = asyncio.run(main())
    assert found is raised or (isinstance(found, RuntimeError) and "StopIteration" in str(found))


# ---- cancellation ------------------------------------------------------------------------------------------------------


async def cancelled(awaitable: Awaitable[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await awaitable


def test_a_cancelled_call_that_nobody_took_does_not_happen() -> None:
    async def main() -> None:
        executor = Executor("executor")
        gate = Gate()
        happened = []
        told = []
        first = asyncio.create_task(executor.run(gate, told.append))
        await began(gate)
        second = asyncio.create_task(executor.run(lambda: happened.append(1), told.append))
        await asyncio.sleep(0)
        second.cancel()
        await cancelled(second)
        assert told == [False]
        first.cancel()
        await cancelled(first)
        assert told == [False, True]
        gate.go.set()
        await executor.run(lambda: None)
        assert happened == []

    asyncio.run(main())


def test_an_outcome_that_crosses_a_cancellation_counts_as_given_up() -> None:
    """The call is done and its outcome in the loop, but the task is cancelled before it runs: it
    never gets the outcome.
    """

    async def main() -> None:
        executor = Executor("executor")
        told = []
        jobs = []
        real = Job.run

        def run(job: Job[Any]) -> Any:
            jobs.append(job)
            return real(job)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Job, "run", run)
            task = asyncio.create_task(executor.run(lambda: "outcome", told.append))
            while not (jobs and jobs[0].waiter.done()):
                await asyncio.sleep(0)
            # `waiter` is done; the task's step is in the loop's queue, or after it
            if not task.done():
                task.cancel()
                await cancelled(task)
                assert told == [True]

    asyncio.run(main())


# ---- loops -------------------------------------------------------------------------------------------------------------


def test_a_loop_that_is_closed_in_the_middle_of_a_call_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = Executor("crew-closed")
    gate = Gate()
    loop = asyncio.new_event_loop()
    task = loop.create_task(executor.run(gate))
    loop.run_until_complete(began(gate))
    loop.close()
    gate.go.set()

    async def main() -> int:
        return await executor.run(lambda: 5)

    assert asyncio.run(main()) == 5
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_forked_child_is_refused() -> None:
    executor = Executor("executor")
    asyncio.run(executor.run(lambda: None))
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(executor.run(lambda: None))
        except ForkedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_call_that_never_ends_does_not_keep_the_interpreter() -> None:
    program = """
import asyncio, threading
from embedlog.aio.executor import Executor
async def main():
    try:
        await asyncio.wait_for(Executor("executor").run(threading.Event().wait), 0.05)
    except TimeoutError:
        print("left")
asyncio.run(main())
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert (answer.stdout, answer.stderr, answer.returncode) == ("left\n", "", 0)


# ---- one task ----------------------------------------------------------------------------------------------------------


def test_a_second_task_is_refused_at_once() -> None:
    async def main() -> None:
        guard = OneTask("this thing")
        inside = asyncio.Event()
        leave = asyncio.Event()

        async def stay() -> None:
            with guard.enter():
                inside.set()
                await leave.wait()

        task = asyncio.create_task(stay())
        await inside.wait()
        with (
            pytest.raises(ConcurrentUseError, match="this thing is in use by another task"),
            guard.enter(),
        ):
            pass
        leave.set()
        await task
        with guard.enter():
            pass

    asyncio.run(main())


def test_who_stayed_inside_in_a_closed_loop_keeps_nobody_out() -> None:
    guard = OneTask("this thing")

    async def stay() -> None:
        with guard.enter():
            await asyncio.Event().wait()

    async def main() -> None:
        with guard.enter():
            pass

    loop = asyncio.new_event_loop()
    task = loop.create_task(stay())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    asyncio.run(main())
    task._log_destroy_pending = False  # type: ignore[attr-defined]


# ---- a system that refuses threads -------------------------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The starts of threads of this file fail while the list has an entry."""
    flags = list[bool]()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if flags and thread.name.startswith("crew-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return flags


@pytest.mark.parametrize("limit", [1, 3])
def test_a_call_without_a_thread_fails_and_the_next_one_is_made(
    refused: list[bool], limit: int
) -> None:
    async def main() -> None:
        executor = Executor("crew-refused", limit)
        calls = list[int]()
        refused.append(True)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await executor.run(lambda: calls.append(0))
        refused.clear()
        async with asyncio.timeout(30):
            assert await executor.run(lambda: "made") == "made"
        assert calls == []  # a call that failed is not made later
        executor.shutdown()

    asyncio.run(main())


def test_without_another_thread_those_that_exist_make_the_calls(refused: list[bool]) -> None:
    async def main() -> None:
        executor = Executor("crew-few", 2)
        gate = Gate()
        first = asyncio.create_task(executor.run(gate))
        await began(gate)
        refused.append(True)
        second = asyncio.create_task(executor.run(lambda: "second"))
        await asyncio.sleep(0)
        gate.go.set()
        async with asyncio.timeout(30):
            assert await asyncio.gather(first, second) == ["done", "second"]
        refused.clear()
        one = Gate()
        other = Gate()
        calls = [asyncio.create_task(executor.run(each)) for each in (one, other)]
        await asyncio.gather(began(one), began(other))  # two threads at a time, as before
        one.go.set()
        other.go.set()
        await asyncio.gather(*calls)
        executor.shutdown()

    asyncio.run(main())
