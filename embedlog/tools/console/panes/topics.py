"""Contains the tab of topics and of the partitions of one topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from textual.binding import Binding
from textual.widgets import DataTable

from embedlog.tools.console.model import changes, observe
from embedlog.tools.console.model.rates import Rates
from embedlog.tools.console.model.reader import Task, TaskOutcome
from embedlog.tools.console.panes.pane import GridsPane
from embedlog.tools.console.widgets.dialogs import FormField


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

    def show_outcome(self, outcome: TaskOutcome) -> None:
        topic, grids = outcome.value
        if topic == self.topic:
            self.put(grids)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        row = self.selected
        if row is None:
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
            FormField("topic", "Name"),
            FormField("partitions", "Partitions", "1"),
            FormField("settings", "Settings", "", "name=value …"),
        ]

        def check(values: Mapping[str, str]) -> tuple[str, int, dict[str, str]]:
            return (
                values["topic"].strip(),
                changes.number_of("partitions", values["partitions"], 1),
                changes.settings_of(values["settings"]),
            )

        def then(creation: tuple[str, int, dict[str, str]]) -> None:
            topic, partition_count, settings = creation
            question = f"Create topic {topic} with {partition_count} partitions?"
            self.confirm(question, topic, changes.create_topic(topic, partition_count, settings))

        self.ask_for_change("Create a topic", fields, check, then)

    def _current_topic(self) -> str | None:
        """The topic of the cursor, or the one whose partitions are shown."""
        if self.topic is not None:
            return self.topic
        row = self.selected
        return None if row is None else row.value

    def action_delete(self) -> None:
        topic = self._current_topic()
        if topic is not None:
            question = f"Delete topic {topic} and all its records?"
            self.confirm(question, topic, changes.delete_topic(topic))

    def action_truncate(self) -> None:
        if self.topic is None or self.selected is None:
            self.console.say("open a topic with Enter, and select a partition")
            return
        topic = self.topic
        number = self.selected.value
        fields = [FormField("offset", "Delete the records below this offset")]

        def check(values: Mapping[str, str]) -> int:
            return changes.number_of("offset", values["offset"])

        def then(offset: int) -> None:
            question = f"Delete the records of {topic}-{number} below offset {offset}?"
            self.confirm(question, topic, changes.delete_records(topic, number, offset))

        self.ask_for_change(f"Delete records of {topic}-{number}", fields, check, then)

    def action_send(self) -> None:
        topic = self._current_topic()
        if topic is None:
            return
        number = None
        if self.topic is not None and self.selected is not None:
            number = self.selected.value
        ask_for_record(self, topic, number)


def ask_for_record(pane: Any, topic: str, number: int | None) -> None:
    """Ask for a record, and send it."""
    fields = [
        FormField(
            "partition", "Partition", "" if number is None else str(number), "empty: by the key"
        ),
        FormField("key", "Key", "", "empty: null"),
        FormField("text", "Value"),
        FormField("headers", "Headers", "", "name=value …"),
    ]

    def check(values: Mapping[str, str]) -> changes.Change:
        partition = None
        if values["partition"].strip():
            partition = changes.number_of("partition", values["partition"])
        key = values["key"].encode("utf-8", "surrogateescape")
        value = values["text"].encode("utf-8", "surrogateescape")
        headers = changes.headers_of(values["headers"])
        return changes.send(topic, partition, key or None, value, headers)

    pane.ask_for_change(
        f"Send a record to {topic}",
        fields,
        check,
        lambda change: pane.confirm(f"Send this record to {topic}?", topic, change),
    )
