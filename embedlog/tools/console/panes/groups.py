"""Contains the tab of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from textual.binding import Binding
from textual.widgets import DataTable

from embedlog.tools.console.model import changes, observe
from embedlog.tools.console.model.reader import Task, TaskOutcome
from embedlog.tools.console.panes.pane import GridsPane
from embedlog.tools.console.widgets.dialogs import FormField


class GroupsPane(GridsPane):
    """Groups, and the members and lags of the selected one."""

    NAME = "groups"
    LABEL = "Groups"
    CHANGES = frozenset({"reset"})
    SECTIONS = 3
    BINDINGS: ClassVar[list[Binding]] = [Binding("o", "reset", "reset offsets")]

    def __init__(self) -> None:
        super().__init__()
        self._group: str | None = None

    def work(self) -> Callable[[Task], Any]:
        group = self._group
        return lambda task: (group, observe.groups(task.log, group))

    def show_outcome(self, outcome: TaskOutcome) -> None:
        _, grids = outcome.value
        self.put(grids)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        row = self.selected
        if event.data_table is not self.sections[0].table or row is None:
            return
        if row.value != self._group:
            self._group = row.value
            self.console.observe()

    def action_reset(self) -> None:
        row = self.selected
        if row is None:
            return
        group = row.value
        fields = [
            FormField("topic", "Topic", "", "empty: all partitions with a committed offset"),
            FormField("to", "New offset", "", "earliest, latest, an offset, +n, -n, or @time"),
        ]

        def check(values: Mapping[str, str]) -> tuple[str, Any]:
            return values["topic"].strip(), changes.target_of(values["to"], self.console.now_ms())

        def then(request: tuple[str, Any]) -> None:
            topic, to = request
            scope = f"of topic {topic}" if topic else "of all partitions"
            question = f"Reset the offsets {scope} of group {group} to {to}?"
            self.confirm(question, group, changes.reset_group(group, topic, to))

        self.ask_for_change(f"Reset offsets of {group}", fields, check, then)
