"""Contains the tab of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from textual.binding import Binding
from textual.widgets import DataTable

from embedlog.console.model import changes, observe
from embedlog.console.model.reader import Outcome, Task
from embedlog.console.panes.pane import GridsPane
from embedlog.console.widgets.dialogs import Field


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

    def received(self, outcome: Outcome) -> None:
        _, grids = outcome.value
        self.put(grids)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if (
            event.data_table is self.sections[0].table
            and (row := self.selected) is not None
            and row.value != self._group
        ):
            self._group = row.value
            self.console.observe()

    def action_reset(self) -> None:
        if (row := self.selected) is None:
            return
        group = row.value
        fields = [
            Field("topic", "Topic", "", "empty: all partitions with a committed offset"),
            Field("to", "New offset", "", "earliest, latest, an offset, +n, -n, or @time"),
        ]

        def check(given: Mapping[str, str]) -> tuple[str, Any]:
            return given["topic"].strip(), changes.target_of(given["to"], self.console.now_ms())

        def then(found: tuple[str, Any]) -> None:
            topic, to = found
            where = f"of topic {topic}" if topic else "of all partitions"
            self.confirm(
                f"Reset the offsets {where} of group {group} to {to}?",
                group,
                changes.reset_group(group, topic, to),
            )

        self.changing(f"Reset offsets of {group}", fields, check, then)
