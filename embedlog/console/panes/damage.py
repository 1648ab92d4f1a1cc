"""Contains the tab of damage: a check of all files, which is started by a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding

from embedlog.console.model import damage, text
from embedlog.console.model.grid import grid
from embedlog.console.model.reader import Outcome, Task
from embedlog.console.panes.pane import GridsPane

PROGRESS_S = 0.2


class DamagePane(GridsPane):
    """What a check has found."""

    NAME = "damage"
    LABEL = "Damage"
    live = False
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("c", "check", "check"),
        Binding("escape", "back", "cancel", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._reading: Task | None = None

    def on_mount(self) -> None:
        super().on_mount()
        self.put([grid("press c to read and check all files", damage.COLUMNS, [])])
        self.set_interval(PROGRESS_S, self._report)

    def work(self) -> Callable[[Task], Any]:
        places = self.console.places
        return lambda task: damage.check(task, places)

    def action_check(self) -> None:
        if self._reading is None:
            self._reading = self.console.search(self.NAME, self.work())

    def action_back(self) -> None:
        if self._reading is not None:
            self._reading.cancelled.set()
        else:
            super().action_back()

    def received(self, outcome: Outcome) -> None:
        self.put(outcome.value)

    def finished(self) -> None:
        """The check has ended, also with an error."""
        self._reading = None

    def _report(self) -> None:
        if self._reading is not None and self._reading.progress is not None:
            done, total, _ = self._reading.progress
            part = 100 * done // max(total, 1)
            self.sections[0].state(f"checking: {part} % of {text.size(total)}; Escape cancels")
