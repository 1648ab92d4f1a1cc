"""The whole screen of each tab on a known directory, compared with stored texts.

`EMBEDLOG_UPDATE_SNAPSHOTS=1` writes them anew. What differs in each run is replaced: the path, the
id of a topic, processes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.tools.console.support import NEEDED, POLL_S, Screen, opened, run

pytest.importorskip("textual", reason=NEEDED)

SNAPSHOTS = Path(__file__).parent / "snapshots"
TEXTUAL = importlib.metadata.version("textual").partition(".")[0]

pytestmark = pytest.mark.skipif(
    TEXTUAL != "8", reason="the snapshots have the borders and lines of textual 8"
)


Compare = Callable[[str, Screen], Awaitable[None]]


@pytest.fixture
def compare(known_log: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Waits until the screen is a stored one. Fails with the difference after a deadline."""
    monkeypatch.chdir(known_log.parent)

    def shown(screen: Screen) -> str:
        text = re.sub(r"(topic \w+, id )\S+", r"\1ID", screen.text)
        if str(known_log) in text:  # its length moves the columns
            text = re.sub(r" {2,}", "  ", text.replace(str(known_log), "PATH"))
        # the widths of the pid and of the command are those of a run
        text = re.sub(r"(?m)^ +pid ", " pid ", text)
        return re.sub(r"(?m)^ +\d+  \w+ +read .*\n[ ▏▎▍▌▋▊▉█]*$", " (a process)", text) + "\n"

    async def call(name: str, screen: Screen) -> None:
        file = SNAPSHOTS / f"{name}.txt"
        if os.environ.get("EMBEDLOG_UPDATE_SNAPSHOTS"):
            for _ in range(100):
                await screen.pilot.pause(POLL_S)
            file.write_text(shown(screen))
        with contextlib.suppress(AssertionError):  # the difference says more
            await screen.until(lambda: shown(screen) == file.read_text())
        assert shown(screen) == file.read_text()

    return call


def test_each_tab_looks_as_stored_and_is_reached_by_its_number(compare: Compare) -> None:
    async def scenario() -> None:
        async with opened(Path("data")) as screen:
            await screen.shows("2 topics", "orders")
            await compare("topics", screen)
            for number, text in (
                (2, "tombstone"),
                (3, "readers"),
                (4, "0 tr"),
                (5, "3 p"),
                (6, "none"),
                (7, "read"),
                (8, "press c"),
            ):
                await screen.tab(number)
                await screen.shows(text)
                if number == 2:
                    await screen.shows("CreateTime")
                if number == 6:  # all settings would have the new ones of each version
                    await screen.press("o")
                    await screen.hides("none")
                await compare(screen.app.pane.NAME, screen)
            await screen.press("c")
            await screen.shows("no damage in ")
            await compare("checked", screen)

    run(scenario)


@pytest.mark.slow
def test_dialogs_and_views_look_as_stored(compare: Compare) -> None:
    async def scenario() -> None:
        async with opened(Path("data"), write=True) as screen:
            await screen.shows("2 topics", "orders")
            await screen.press("down", "enter")
            await screen.shows("topic orders, id", "8.")
            await compare("partitions", screen)
            await screen.press("down", "enter")
            await screen.shows("partition 1", "CreateTime")
            for name in ("text", "json", "hex"):
                await screen.shows(f"view: {name}")
                await compare(f"record-{name}", screen)
                await screen.press("v")
            await screen.press("slash")
            await screen.shows("Escape: leave")
            await compare("filter", screen)
            await screen.press("escape")
            await screen.hides("Filter records")
            await screen.press("x")
            await screen.shows("Type orders to confirm")
            await compare("confirmation", screen)
            await screen.press("escape")
            await screen.hides("Type orders")
            await screen.press("question_mark")
            await screen.shows("Keys; Escape leaves")
            await compare("keys", screen)

    run(scenario)
