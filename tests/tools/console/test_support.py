"""The keyboard and the end of a console of the tests are those of its user."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.tools.console.support import NEEDED, TIME_MS, opened, run

pytest.importorskip("textual", reason=NEEDED)

from textual import events
from textual.message_pump import MessagePump


@pytest.fixture(params=[0, 1, 10])
def late_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some turns of the loop pass before a widget or the application handles a key that it has
    taken.
    """
    dispatch = MessagePump._dispatch_message

    async def delayed(pump: MessagePump, message: Any) -> None:
        if isinstance(message, events.Key):
            for _ in range(request.param):
                await asyncio.sleep(0)
        await dispatch(pump, message)

    monkeypatch.setattr(MessagePump, "_dispatch_message", delayed)


@pytest.mark.sample(0.3)
@pytest.mark.usefixtures("late_keys")
def test_a_key_has_been_handled_when_its_press_returns(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log) as screen:
            await screen.tab(2)
            records = screen.app.panes["records"]
            for view in ("json", "hex", "text") * 3:
                await screen.press("v")
                assert records.view == view
            await screen.press("slash", "k", "1", "tab", "escape", "escape", "slash", "escape")
            assert len(screen.app.screen_stack) == 1

    run(scenario)


@pytest.mark.sample(0.3)
@pytest.mark.usefixtures("late_keys")
def test_a_key_that_still_waits_when_the_application_ends_is_no_error(known_log: Path) -> None:
    async def scenario(keys: int) -> None:
        async with opened(known_log) as screen:
            await screen.tab(2)
            for _ in range(keys):
                screen.app._driver.send_message(events.Key("v", "v"))
                await asyncio.sleep(0)

    for keys in (1, 4, 9):  # so that the last one is on its way at different places
        run(lambda keys=keys: scenario(keys))  # type: ignore[misc]


def test_an_error_of_the_application_is_that_of_the_test(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log, clock=lambda: times.pop()) as screen:
            await screen.tab(2)
            times.clear()
            await screen.press("e")  # reads the clock
            await screen.shows("never shown")

    times = [TIME_MS / 1000] * 100
    with pytest.raises(IndexError, match="pop from empty list"):
        run(scenario)


def test_the_end_of_the_application_is_named_at_once(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log) as screen:
            await screen.tab(2)
            await screen.press("q")
            await screen.shows("never shown")

    with pytest.raises(AssertionError, match="the application has ended"):
        run(scenario)
