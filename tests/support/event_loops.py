"""The common part of the tests of asyncio clients: a loop with a deadline, and a counter of its
turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from embedlog._native import system

Result = TypeVar("Result")

DEADLINE_S = 60.0
DELAY_US = 60_000
ATTEMPTS = 5


class Blocked(AssertionError):
    """The loop made no turn."""


def run(main: Coroutine[Any, Any, Result], deadline_s: float = DEADLINE_S) -> Result:
    """`asyncio.run`, bounded in time."""

    async def bounded() -> Result:
        async with asyncio.timeout(deadline_s):
            return await main

    return asyncio.run(bounded())


async def turns_until(condition: Callable[[], object]) -> None:
    """Gives the loop turns until a condition holds; the caller's deadline ends it."""
    while not condition():
        await asyncio.sleep(0.001)


def count_calls_from_threads(calls: list[object]) -> None:
    """From now on every call that a thread makes into the running loop is also in the list."""
    loop = asyncio.get_running_loop()
    real = loop.call_soon_threadsafe

    def counted(*arguments: Any) -> asyncio.Handle:
        calls.append(arguments)
        return real(*arguments)

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign]


class Ticker:
    """Counts the loop's turns, and the longest time without one."""

    def __init__(self) -> None:
        self.count = 0
        self.gap_s = 0.0
        self._began = self._last = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._began = self._last = time.monotonic()
        self._task = asyncio.create_task(self._tick())
        return self

    async def _tick(self) -> None:
        while True:
            now = time.monotonic()
            self.gap_s = max(self.gap_s, now - self._last)
            self._last = now
            self.count += 1
            await asyncio.sleep(0.001 if self.count > 200 else 0)

    async def stop(self) -> None:
        """One more turn, so that the last gap is counted."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.gap_s = max(self.gap_s, time.monotonic() - self._last)

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()

    def check(self, delay_s: float) -> None:
        """The files were slow, by `delay_s` a call, and the loop was never blocked."""
        assert time.monotonic() - self._began >= delay_s, "no call was slow: this shows nothing"
        if self.count < 10 or self.gap_s >= delay_s * 0.8:
            raise Blocked(
                f"{self.count} turns, none for {self.gap_s:.3f} s, as long as a call to the file "
                "system took"
            )


def while_files_are_slow(
    directory: Path, kinds: list[str], attempt: Callable[[Path, Slow], Coroutine[Any, Any, None]]
) -> None:
    """Shows that no call of `kinds` is made on the loop's thread: each takes long, and the loop is
    never blocked.

    A busy machine stops the loop as well, now and then, but not for as long as a call takes that
    takes ever longer.
    """
    for number in range(ATTEMPTS):
        try:
            return run(attempt(directory / str(number), Slow(kinds, DELAY_US << number)))
        except Blocked:
            if number == ATTEMPTS - 1:
                raise


class Slow:
    """In this block the calls of `kinds` take long, and the loop's turns are counted."""

    def __init__(self, kinds: list[str], delay_us: int) -> None:
        self._kinds = kinds
        self._delay_us = delay_us
        self._ticker = Ticker()

    async def __aenter__(self) -> None:
        self._ticker.__enter__()
        system.fault_arm(self._kinds, 1, "delay", self._delay_us)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        system.fault_off()
        await self._ticker.stop()
        self._ticker.__exit__()
        if kind is None:
            self._ticker.check(self._delay_us / 1e6)
