"""Runs the console without a terminal, and reads its screen."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import embedlog

NEEDED = "the console needs textual: pip install 'embedlog[console]'"
TIME_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
DEADLINE_S = 30.0
POLL_S = 0.005
CHARACTERS = {"slash": "/", "question_mark": "?", "full_stop": "."}
SIZE = (118, 30)
QUICK = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
HOSTILE = b"\x1b[31mred\x1b[0m [bold]markup[/bold] [/] \r\n\x07\x9b\xe2\x80\xae\xff\x00"


def make_log(path: Path) -> None:
    """A directory with two topics, a group, a finished transaction, and records with fixed
    times.
    """
    with embedlog.open(path, config=QUICK) as log:
        log.create_topic("orders", 2, {"retention.ms": "-1"})
        log.create_topic("evil", 1, {"retention.ms": "-1"})
        with log.producer() as producer:
            for partition in range(2):  # one batch each: sizes do not depend on the time
                numbers = range(partition, 250, 2)
                producer.send_batch(
                    "orders",
                    [b'{"n":%d,"list":[1,{"a":null}],"price":1.10}' % number for number in numbers],
                    [b"k%d" % (number % 10) for number in numbers],
                    partition=partition,
                    timestamps_ms=[TIME_MS + 1000 * number for number in numbers],
                    headers=[[("trace", b"t%d" % number)] for number in numbers],
                ).result()
            producer.send_batch(
                "evil",
                [HOSTILE, None],
                [b"\x1b]0;title\x07[red]", b"tombstone"],
                timestamps_ms=[TIME_MS, TIME_MS + 1],
                headers=[[("\x1b[2Jh[/x]", b"\x9b31m")], []],
            ).result()
        log.reset_group_offsets("readers", "orders", to=100)


class Screen:
    """A running console and its keyboard."""

    def __init__(self, app: Any, pilot: Any) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def text(self) -> str:
        """What the screen shows."""
        lines = (
            "".join(segment.text for segment in strip).rstrip()
            for strip in self.app.screen._compositor.render_strips()
        )
        return "\n".join(lines)

    async def press(self, *keys: str) -> None:
        """Press keys one by one; each has been handled at the return. The pilot's own `press` waits
        for an idle machine.
        """
        from textual import events

        for key in keys:
            self.app.post_message(
                events.Key(key, CHARACTERS.get(key, key if len(key) == 1 else None))
            )
            # a key goes to the widget with the focus, and back through all that contain it: each
            # takes it from its queue
            depth = max(
                len(each.ancestors_with_self)
                for each in self.app.screen.walk_children(with_self=True)
            )
            for _ in range(1 + depth):
                await self._handled()

    async def _handled(self) -> None:
        """Wait until each widget has handled what was in its queue. Fails if the application has
        ended.
        """
        handled = asyncio.create_task(self.pilot._wait_for_screen(DEADLINE_S))
        await asyncio.wait([handled, self.app._task], return_when=asyncio.FIRST_COMPLETED)
        if self.app._task.done():
            handled.cancel()
            # if by an error, `opened` raises that one instead
            raise AssertionError("the application has ended")
        await handled

    async def tab(self, number: int) -> None:
        """Show a tab, and wait until the keyboard belongs to it."""
        await self.press(str(number))
        pane = list(self.app.panes.values())[number - 1]
        focused = lambda: self.app.focused is not None and pane in self.app.focused.ancestors  # noqa: E731
        await self.until(
            lambda: self.app.pane is pane and focused() and self.app.observer.is_idle(),
            f"not in tab {number}",
        )

    async def fill(self, **texts: str) -> None:
        """Put texts into the lines of a dialog, as a paste does."""
        await self.until(
            lambda: all(self.app.screen.query(f"#{name}") for name in texts),
            f"no lines {list(texts)}",
        )
        for name, text in texts.items():
            self.app.screen.query_one(f"#{name}").value = text
        await self._handled()

    async def until(self, condition: Callable[[], object], reason: str = "") -> None:
        """Wait until a condition holds. Fails with the screen after the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{reason}\n{self.text}"
            await self._handled()
            await asyncio.sleep(POLL_S)
            self.app.screen._on_timer_update()  # draws at once what has changed

    async def shows(self, *texts: str) -> None:
        """Wait until the screen has these texts."""
        await self.until(lambda: all(text in self.text for text in texts), f"not shown: {texts}")

    async def hides(self, text: str) -> None:
        """Wait until the screen does not have this text."""
        await self.until(lambda: text not in self.text, f"still shown: {text}")


@contextlib.asynccontextmanager
async def opened(
    path: Path, size: tuple[int, int] = SIZE, **settings: Any
) -> AsyncIterator[Screen]:
    """A console on a directory, whose interval is too long to pass in a test unless one is
    given.
    """
    from embedlog.tools.console.app import Console

    settings = {"interval_s": 3600.0, "clock": lambda: TIME_MS / 1000 + 3600} | settings
    app = Console([str(path)], **settings)
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        try:
            yield Screen(app, pilot)
        finally:
            # its messages end before its screen, as for a user; the pilot removes the screen while
            # keys wait
            app.exit()
            await asyncio.wait([app._task], timeout=DEADLINE_S)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in a loop of its own."""
    asyncio.run(scenario())  # type: ignore[arg-type]
