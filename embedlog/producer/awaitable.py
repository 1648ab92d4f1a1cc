"""Connects the producer's futures to asyncio event loops.

- The loop is never blocked: a future's result arrives by a callback, from the thread that settles
  it.
- Cancelling the awaiting task cancels no record that was sent.
- Results that become known together are delivered together: one wake-up of the loop, not one per
  record.
- Tasks that send and await in the same iteration of the loop share a batch: it is sent at the end
  of the iteration.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from embedlog._native._rows import Future

_bridges = threading.local()  # the bridge to this thread's running loop


class LoopBridge:
    """Passes results into one loop: the waiting futures, and whether a wake-up is scheduled.

    **Threads:** `wake` from any, everything else in the loop's own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[asyncio.Future[None]] = deque()
        self._wake_scheduled = False
        self._unsent: list[Future] = []

    def send_soon(self, future: Future) -> None:
        """Send the batch of `future` at the end of this iteration of the loop."""
        if not self._unsent:
            self.loop.call_soon(self._send)
        self._unsent.append(future)

    def _send(self) -> None:
        futures = self._unsent
        self._unsent = []
        for future in futures:
            future.hasten()

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """The result that `waiter` waits for is known."""
        self._arrived.append(waiter)
        if self._wake_scheduled:
            return
        self._wake_scheduled = True
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            if not self.loop.is_closed():  # a closed loop needs no result
                raise

    def _wake(self) -> None:
        # before the loop below: a later arrival schedules another wake-up
        self._wake_scheduled = False
        while self._arrived:
            waiter = self._arrived.popleft()
            if not waiter.done():
                waiter.set_result(None)


def await_future(future: Future) -> Generator[Any, None, Any]:
    """The implementation of `await future`: the future's result, or its exception."""
    if not future.done():
        bridge = _bridge_of_loop()
        waiter: asyncio.Future[None] = bridge.loop.create_future()
        bridge.send_soon(future)
        # a task cancelled meanwhile does not receive a failure
        future._observe(lambda _: bridge.wake(waiter))
        yield from waiter
    return future.result()


def _bridge_of_loop() -> LoopBridge:
    import asyncio  # already imported by every program that awaits; not by `import embedlog`

    loop = asyncio.get_running_loop()
    bridge: LoopBridge | None = getattr(_bridges, "bridge", None)
    if bridge is None or bridge.loop is not loop:
        bridge = _bridges.bridge = LoopBridge(loop)
    return bridge
