"""Contains `Pane`, the base of the tabs, and `GridsPane`, a tab of tables. A tab uses of the
application what `PaneHost` names.

A tab gives the reader a function and shows its result; it reads nothing itself. A key that changes
the log says that the console is read-only, unless it was started with `--write`; the footer and the
help of a read-only console do not offer it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Key
from textual.widgets import Input

from embedlog.tools.console.model.changes import Change
from embedlog.tools.console.model.grid import Grid, Row
from embedlog.tools.console.model.reader import LogReader, Task, TaskOutcome
from embedlog.tools.console.widgets.dialogs import Confirmation, Form, FormField
from embedlog.tools.console.widgets.tables import GridTable, Section


class PaneHost(Protocol):
    """The application of a tab."""

    paths: list[str]
    write: bool
    observer: LogReader

    def now_ms(self) -> int:
        """The time of the machine."""

    def say(self, text: str, *, error: bool = False) -> None:
        """Show a line at the bottom."""

    def check_can_write(self) -> bool:
        """Whether changes are allowed; if not, a line at the bottom has the reason."""

    def observe(self) -> None:
        """Read what the current tab shows."""

    def search(self, name: str, work: Callable[[Task], Any]) -> Task:
        """Run a long read on the thread for searches."""

    def change(self, change: Change) -> None:
        """Change the log, and then read the tab again."""

    def show_records(self, topic: str, partition: int) -> None:
        """Go to the records of a partition."""


class Pane(Vertical):
    """One tab. Its name is that of its tasks."""

    NAME: ClassVar[str]
    LABEL: ClassVar[str]
    SHORT: ClassVar[str] = ""  # in a narrow terminal, if it differs
    BINDINGS: ClassVar[list[Binding]] = []
    CHANGES: ClassVar[frozenset[str]] = frozenset()  # actions of its bindings that change the log
    is_live: ClassVar[bool] = True  # whether the interval reads it again

    def __init__(self) -> None:
        super().__init__(id=f"pane-{self.NAME}")

    @property
    def console(self) -> PaneHost:
        """The application."""
        return cast(PaneHost, self.app)

    def work(self) -> Callable[[Task], Any]:
        """The function that reads what the tab shows."""
        raise NotImplementedError

    def show_outcome(self, outcome: TaskOutcome) -> None:
        """Show a result without error."""
        raise NotImplementedError

    def enter(self) -> None:
        """The tab is shown. The keyboard belongs to it at once: the next key may be one of its
        own.
        """
        self.screen.set_focus(self.query(GridTable).first())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        return self.console.write or action not in self.CHANGES

    def on_key(self, event: Key) -> None:
        for binding in self.BINDINGS:
            if binding.key == event.key and binding.action in self.CHANGES:
                # says why the key does nothing: with --write its binding had taken it
                self.console.check_can_write()

    def ask_for_change(
        self,
        title: str,
        fields: Sequence[FormField],
        check: Callable[[Any], Any],
        then: Callable[[Any], None],
    ) -> None:
        """Ask with a form before a change; refused in a read-only console."""
        if not self.console.check_can_write():
            return

        def continue_with(result: Any) -> None:
            if result is not None:
                then(result)

        self.app.push_screen(Form(title, fields, check), continue_with)

    def confirm(self, question: str, name: str, change: Change) -> None:
        """Change the log after the name was typed; refused in a read-only console."""
        if not self.console.check_can_write():
            return

        def change_if_confirmed(is_confirmed: bool | None) -> None:
            if is_confirmed:
                self.console.change(change)

        self.app.push_screen(Confirmation(question, name), change_if_confirmed)


class GridsPane(Pane):
    """A tab of tables, which `/` limits to rows with a text."""

    SECTIONS: ClassVar[int] = 1
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("slash", "find", "find"),
        Binding("escape", "back", "all rows", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._grids: list[Grid] = []
        self.sections = [Section(classes="section") for _ in range(self.SECTIONS)]
        self._needle = Input(classes="needle", compact=True)

    def compose(self) -> ComposeResult:
        yield from self.sections
        yield self._needle

    def on_mount(self) -> None:
        self._needle.display = False

    def show_outcome(self, outcome: TaskOutcome) -> None:
        self.put(outcome.value)

    def put(self, grids: Sequence[Grid]) -> None:
        """Show grids, limited to the text of `/`."""
        self._grids = list(grids)
        for section, grid in zip(self.sections, self._grids, strict=True):
            section.put(grid.select_matching(self._needle.value))

    @property
    def selected(self) -> Row | None:
        """The row of the cursor in the first table."""
        return self.sections[0].table.selected

    def action_find(self) -> None:
        self._needle.display = True
        self._needle.focus()
        self.console.say("only rows with this text; Enter keeps it, Escape shows all")

    def action_back(self) -> None:
        if self._needle.display:
            self._needle.value = ""
            self._needle.display = False
            self.put(self._grids)
            self.enter()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self._needle and self._grids:
            self.put(self._grids)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._needle:
            self._needle.display = bool(self._needle.value)
            self.enter()
