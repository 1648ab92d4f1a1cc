"""Contains `Console`, the application: tabs, keys, the interval, and the threads that read.

An error of a read is a line on the screen; the application goes on and reads again. A read that
takes longer than the interval is not started twice; its duration is shown.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.message import Message
from textual.widgets import ContentSwitcher, Footer, Static, Tab, Tabs

from embedlog.tools.console.model.changes import Change, apply_change
from embedlog.tools.console.model.reader import LogReader, Task, TaskOutcome
from embedlog.tools.console.panes.damage import DamagePane
from embedlog.tools.console.panes.groups import GroupsPane
from embedlog.tools.console.panes.lists import (
    ProcessesPane,
    ReplicasPane,
    SettingsPane,
    TransactionsPane,
)
from embedlog.tools.console.panes.pane import GridsPane, Pane
from embedlog.tools.console.panes.records import RecordsPane
from embedlog.tools.console.panes.topics import TopicsPane
from embedlog.tools.console.widgets.dialogs import Dialog, Help
from embedlog.tools.console.widgets.tables import plain_text

PANES: tuple[type[Pane], ...] = (
    TopicsPane,
    RecordsPane,
    GroupsPane,
    TransactionsPane,
    ReplicasPane,
    SettingsPane,
    ProcessesPane,
    DamagePane,
)
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
READ_ONLY = "read-only: start with --write"
WIDE = 96  # columns that the tabs need


def label_of(number: int, pane: type[Pane], *, narrow: bool = False) -> str:
    """The text of a tab; the short one in a terminal of 80 columns."""
    name = pane.SHORT if narrow and pane.SHORT else pane.LABEL
    return f"{number} {name}"


class Delivered(Message):
    """The outcome of a task, from its thread."""

    def __init__(self, outcome: TaskOutcome) -> None:
        super().__init__()
        self.outcome = outcome


class Console(App[None]):
    """A log in tabs."""

    TITLE = "embedlog console"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { background: $primary-background; height: 1; padding: 0 1; }
    #place { width: 1fr; }
    #always { width: auto; color: $text-muted; }
    #status { height: auto; max-height: 4; padding: 0 1; background: $surface; }
    .narrow Tab { padding: 0 1 0 0; }
    #status.error { color: $text-error; text-style: bold; }
    ContentSwitcher { height: 1fr; }
    .section { height: 1fr; }
    .section.records { height: 3fr; }
    .detail { height: 2fr; border: round $primary; }
    .title { height: 1; text-style: bold; padding: 0 1; }
    .needle { height: 1; }
    Dialog { align: center middle; }
    .dialog { width: 80; max-width: 95%; height: auto; max-height: 90%; padding: 0 2; }
    .dialog { border: thick $primary; background: $panel; }
    .dialog Input { background: $boost; }
    .label { margin-top: 1; }
    .keys { margin-top: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"show('{pane.NAME}')", pane.LABEL, show=False)
            for number, pane in enumerate(PANES, 1)
        ),
        Binding("r", "read", "refresh", show=False),
        Binding("question_mark", "keys", "keys", key_display="?", show=False),
        Binding("q", "quit", "quit", show=False),
        Binding("ctrl+c", "quit", "quit", show=False),
    ]

    def __init__(
        self,
        paths: Sequence[str],
        *,
        write: bool = False,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.paths = list(paths)
        self.write = write
        self.interval_s = interval_s
        self._clock = clock
        self.panes = {pane.NAME: pane() for pane in PANES}
        self.observer = LogReader("observer", self.paths, self._deliver)
        self._searcher = LogReader("search", self.paths, self._deliver)
        self._changer = LogReader("change", self.paths, self._deliver)
        self._failed = False  # whether the status line has the error of a read
        self._status = Static("", id="status", markup=False)
        self._tabs = Tabs(
            *(
                Tab(label_of(number, pane), id=f"tab-{pane.NAME}")
                for number, pane in enumerate(PANES, 1)
            )
        )
        self._switcher = ContentSwitcher(*self.panes.values(), initial=f"pane-{PANES[0].NAME}")
        self.pane: Pane = self.panes[PANES[0].NAME]  # the tab that is shown

    def compose(self) -> ComposeResult:
        mode = "write" if self.write else "read-only"
        with Horizontal(id="head"):
            yield Static(plain_text(f"embedlog · {mode} · {', '.join(self.paths)}"), id="place")
            yield Static(plain_text("? keys  q quit"), id="always")
        yield self._tabs
        yield self._switcher
        yield self._status
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(self.interval_s, self._tick)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:  # the terminal gets its previous state
                asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)

    def on_resize(self, event: Resize) -> None:
        narrow = event.size.width < WIDE
        self._tabs.set_class(narrow, "narrow")
        for number, pane in enumerate(PANES, 1):
            self._tabs.query_one(f"#tab-{pane.NAME}", Tab).label = plain_text(
                label_of(number, pane, narrow=narrow)
            )

    async def on_unmount(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)
        for reader in (self.observer, self._searcher, self._changer):
            reader.close()

    # ---- what tabs use ---------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The time of the machine."""
        return int(self._clock() * 1000)

    def say(self, text: str, *, error: bool = False) -> None:
        """Show a line at the bottom."""
        self._status.set_class(error, "error")
        self._status.update(plain_text(text))

    def check_can_write(self) -> bool:
        """Whether changes are allowed; if not, a line at the bottom has the reason."""
        if not self.write:
            self.say(READ_ONLY)
        return self.write

    def observe(self) -> None:
        """Read what the current tab shows."""
        if self.pane.is_live:
            self.observer.submit(self.pane.NAME, self.pane.work())

    def search(self, name: str, work: Callable[[Task], Any]) -> Task:
        """Run a long read on the thread for searches."""
        return self._searcher.submit(name, work)

    def change(self, change: Change) -> None:
        """Change the log, and then read the tab again."""
        self.say("changing …")
        self._changer.submit("change", lambda task: apply_change(self.paths, change))

    def show_records(self, topic: str, partition: int) -> None:
        """Go to the records of a partition."""
        records = self.panes[RecordsPane.NAME]
        assert isinstance(records, RecordsPane)
        records.open(topic, (partition,))
        self.action_show(RecordsPane.NAME)

    # ---- events ----------------------------------------------------------------------------------

    def _deliver(self, outcome: TaskOutcome) -> None:
        self.post_message(Delivered(outcome))

    def on_delivered(self, message: Delivered) -> None:
        outcome = message.outcome
        name = outcome.task.name
        if name == "record":
            pane = self.panes[RecordsPane.NAME]
        elif name == "change":
            pane = self.pane
        else:
            pane = self.panes[name]
        if outcome.error is not None:
            self._failed = name != "change"
            self.say(f"error: {outcome.error}", error=True)
        elif name == "change":
            self.say(outcome.value)
            self.action_read()
        else:
            if self._failed:
                self._failed = False
                self.say("")
            pane.show_outcome(outcome)
        if isinstance(pane, RecordsPane):
            pane.end_task(outcome)
        elif isinstance(pane, DamagePane):
            pane.end_task()

    def _tick(self) -> None:
        busy_s = self.observer.busy_s()
        if busy_s is not None and busy_s > max(2 * self.interval_s, 2.0):
            self._failed = True
            self.say(f"the directory has not answered for {busy_s:.0f} s", error=True)
        elif self.observer.is_idle():
            self.observe()
        if isinstance(self.pane, RecordsPane):
            self.pane.tick()

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        self.action_show(str(event.tab.id).removeprefix("tab-"))  # by the mouse, or at the start

    # ---- keys ------------------------------------------------------------------------------------

    def action_show(self, name: str) -> None:
        self.pane = self.panes[name]
        self._switcher.current = f"pane-{name}"
        with self.prevent(Tabs.TabActivated):  # a late event would return to a tab that was left
            self._tabs.active = f"tab-{name}"
        self.pane.enter()
        self.observe()

    def action_read(self) -> None:
        if isinstance(self.pane, RecordsPane):
            self.pane.action_newest()
        self.observe()

    def action_keys(self) -> None:
        self.push_screen(Help(list_keys(write=self.write)))


def list_keys(*, write: bool = True) -> list[tuple[str, str, str]]:
    """Tab, key and meaning of all keys; without `write` of those that change nothing."""
    owners: list[tuple[str, Any]] = [
        ("all", Console),
        ("tables", GridsPane),
        *[(pane.LABEL, pane) for pane in PANES],
        ("dialogs", Dialog),
    ]
    keys = []
    for label, owner in owners:
        changes = getattr(owner, "CHANGES", ())
        for binding in owner.__dict__.get("BINDINGS", ()):
            if write or binding.action not in changes:
                key = binding.key_display or binding.key.replace("slash", "/")
                keys.append((label, key, binding.description))
    return keys
