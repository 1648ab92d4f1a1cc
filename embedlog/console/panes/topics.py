"""Contains the tab of topics and of the partitions of one topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from textual.binding import Binding
from textual.widgets import DataTable

from embedlog.console.model import changes, observe
from embedlog.console.model.rates import Rates
from embedlog.console.model.reader import Outcome, Task
from embedlog.console.panes.pane import GridsPane
from embedlog.console.widgets.dialogs import Field


class TopicsPane(GridsPane):
    """Topics; Enter opens the partitions, and a second one the records."""

    NAME = "topics"
    LABEL = "Topics"
    CHANGES = frozenset({"create", "delete", "truncate", "send"})
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("enter", "open", "partitions, then records", show=False),
        Binding("i", "internal", "internal"),
        Binding("escape", "back", "topics", show=False),
        Binding("c", "create", "create"),
        Binding("d", "delete", "delete"),
        Binding("x", "truncate", "delete records"),
        Binding("s", "send", "send"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.topic: str | None = None
        self._internal = False
        self._rates = Rates()
        self._partition_rates = Rates()

    def work(self) -> Callable[[Task], Any]:
        topic = self.topic
        internal = self._internal
        if topic is None:
            rates = self._rates
            return lambda task: (
                None,
                observe.topics(task.log, rates, time.monotonic(), internal=internal),
            )
        rates = self._partition_rates
        return lambda task: (topic, observe.partitions(task.log, topic, rates, time.monotonic()))

    def received(self, outcome: Outcome) -> None:
        topic, grids = outcome.value
        if topic == self.topic:
            self.put(grids)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        if (row := self.selected) is None:
            return
        if self.topic is None:
            self._show(row.value)
        else:
            self.console.show_records(self.topic, row.value)

    def _show(self, topic: str | None) -> None:
        self.topic = topic
        self._partition_rates = Rates()
        self.console.observe()

    def action_back(self) -> None:
        if self._needle.display:
            super().action_back()
        elif self.topic is not None:
            self._show(None)

    def action_internal(self) -> None:
        self._internal = not self._internal
        self.console.observe()

    # ---- changes ---------------------------------------------------------------------------------

    def action_create(self) -> None:
        fields = [
            Field("topic", "Name"),
            Field("partitions", "Partitions", "1"),
            Field("settings", "Settings", "", "name=value …"),
        ]
        self.changing(
            "Create a topic",
            fields,
            self._creation,
            lambda found: self.confirm(
                f"Create topic {found[0]} with {found[1]} partitions?",
                found[0],
                changes.create_topic(*found),
            ),
        )

    def _creation(self, given: Mapping[str, str]) -> tuple[str, int, dict[str, str]]:
        return (
            given["topic"].strip(),
            changes.number_of("partitions", given["partitions"], 1),
            changes.settings_of(given["settings"]),
        )

    def _present(self) -> str | None:
        """The topic of the cursor, or the one whose partitions are shown."""
        return self.topic or (self.selected.value if self.selected is not None else None)

    def action_delete(self) -> None:
        if (topic := self._present()) is not None:
            self.confirm(
                f"Delete topic {topic} and all its records?", topic, changes.delete_topic(topic)
            )

    def action_truncate(self) -> None:
        if self.topic is None or self.selected is None:
            self.console.say("open a topic with Enter, and select a partition")
            return
        topic = self.topic
        number = self.selected.value
        fields = [Field("offset", "Delete the records below this offset")]
        self.changing(
            f"Delete records of {topic}-{number}",
            fields,
            lambda given: changes.number_of("offset", given["offset"]),
            lambda offset: self.confirm(
                f"Delete the records of {topic}-{number} below offset {offset}?",
                topic,
                changes.delete_records(topic, number, offset),
            ),
        )

    def action_send(self) -> None:
        if (topic := self._present()) is not None:
            number = (
                self.selected.value
                if self.topic is not None and self.selected is not None
                else None
            )
            send(self, topic, number)


def send(pane: Any, topic: str, number: int | None) -> None:
    """Ask for a record, and send it."""
    fields = [
        Field("partition", "Partition", "" if number is None else str(number), "empty: by the key"),
        Field("key", "Key", "", "empty: null"),
        Field("text", "Value"),
        Field("headers", "Headers", "", "name=value …"),
    ]

    def check(given: Mapping[str, str]) -> changes.Change:
        chosen = (
            changes.number_of("partition", given["partition"])
            if given["partition"].strip()
            else None
        )
        key, value = (given[name].encode("utf-8", "surrogateescape") for name in ("key", "text"))
        return changes.send(topic, chosen, key or None, value, changes.headers_of(given["headers"]))

    pane.changing(
        f"Send a record to {topic}",
        fields,
        check,
        lambda change: pane.confirm(f"Send this record to {topic}?", topic, change),
    )
