"""Contains the tab of damage: a check of all files, which is started by a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import Binding

from embedlog.tools.console.model import damage, text
from embedlog.tools.console.model.grid import make_grid
from embedlog.tools.console.model.reader import Task, TaskOutcome
from embedlog.tools.console.panes.pane import GridsPane

PROGRESS_S = 0.2


class DamagePane(GridsPane):
    """What a check has found."""

    NAME = "damage"
    LABEL = "Damage"
    is_live = False
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("c", "check", "check"),
        Binding("escape", "back", "cancel", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._reading: Task | None = None

    def on_mount(self) -> None:
        super().on_mount()
        self.put([make_grid("press c to read and check all files", damage.COLUMNS, [])])
        self.set_interval(PROGRESS_S, self._report)

    def work(self) -> Callable[[Task], Any]:
        paths = self.console.paths
        return lambda task: damage.check(task, paths)

    def action_check(self) -> None:
        if self._reading is None:
            self._reading = self.console.search(self.NAME, self.work())

    def action_back(self) -> None:
        if self._reading is not None:
            self._reading.cancelled.set()
        else:
            super().action_back()

    def show_outcome(self, outcome: TaskOutcome) -> None:
        self.put(outcome.value)

    def end_task(self) -> None:
        """The check has ended, also with an error."""
        self._reading = None

    def _report(self) -> None:
        if self._reading is not None and self._reading.progress is not None:
            checked_bytes, total_bytes, _ = self._reading.progress
            percent = 100 * checked_bytes // max(total_bytes, 1)
            self.sections[0].show_state(
                f"checking: {percent} % of {text.size(total_bytes)}; Escape cancels"
            )
