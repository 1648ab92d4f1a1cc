"""The bridge from a future of ours to an asyncio event loop.

W1  the loop is never blocked: a future's fate reaches it by one callback, from whichever thread learns it
W2  cancelling the awaiting task cancels nothing that was sent
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from embedlog._native._rows import Future


def await_future(future: Future) -> Generator[Any, None, Any]:
    """What `await future` runs: the future's result, or what it failed of."""
    if not future.done():
        import asyncio  # who awaits has it already; `import embedlog` does without

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(lambda _: _tell(loop, waiter))
        yield from waiter
    return future.result()


def _tell(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_wake, waiter)
    except RuntimeError:
        if not loop.is_closed():  # nobody is left to be told
            raise


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
