"""The bridge from futures of ours to asyncio event loops.

AWAITABLE-1  the loop is never blocked: a future's fate reaches it by a callback, from whichever thread learns it
AWAITABLE-2  cancelling the awaiting task cancels nothing that was sent
AWAITABLE-3  what gets its fate together crosses over together: a loop is told once, not once a record
AWAITABLE-4  tasks that send and await in the same turn of the loop share a batch: it is sent when the turn is over
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from embedlog._native._rows import Future

_here = threading.local()  # the bridge to the loop that runs in this thread


class Bridge:
    """The way into one loop: those who wait in it, and whether it has been told to look.

    **Threads:** `tell` from any, everything else in the loop's own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[asyncio.Future[None]] = deque()
        self._told = False
        self._hasty: list[Future] = []

    def hasten(self, future: Future) -> None:
        """Sends the batch of `future` when this turn of the loop is over."""
        if not self._hasty:
            self.loop.call_soon(self._send)
        self._hasty.append(future)

    def _send(self) -> None:
        futures, self._hasty = self._hasty, []
        for future in futures:
            future.hasten()

    def tell(self, waiter: asyncio.Future[None]) -> None:
        """The fate that `waiter` waits for is known."""
        self._arrived.append(waiter)
        if self._told:
            return
        self._told = True
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            if not self.loop.is_closed():  # nobody is left to be told
                raise

    def _wake(self) -> None:
        self._told = False  # before looking: what arrives behind the look tells again
        while self._arrived:
            waiter = self._arrived.popleft()
            if not waiter.done():
                waiter.set_result(None)


def await_future(future: Future) -> Generator[Any, None, Any]:
    """What `await future` runs: the future's result, or what it failed of."""
    if not future.done():
        bridge = _bridge()
        waiter: asyncio.Future[None] = bridge.loop.create_future()
        bridge.hasten(future)
        future._observe(lambda _: bridge.tell(waiter))  # a task that is cancelled meanwhile hears of no failure
        yield from waiter
    return future.result()


def _bridge() -> Bridge:
    import asyncio  # who awaits has it already; `import embedlog` does without

    loop = asyncio.get_running_loop()
    bridge: Bridge | None = getattr(_here, "bridge", None)
    if bridge is None or bridge.loop is not loop:
        bridge = _here.bridge = Bridge(loop)
    return bridge
