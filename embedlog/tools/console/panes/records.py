"""Contains the tab of records: pages, filters, and the selected record in three views.

A page is read by the thread for searches, so that a search does not delay the other tabs. The
result of a replaced search is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Static

from embedlog.tools.console.model import changes, pages, text, views
from embedlog.tools.console.model.filters import TIME_HINT, FilterError, Filters, parse_moment
from embedlog.tools.console.model.grid import Grid, make_grid, make_row
from embedlog.tools.console.model.pages import PageCursor, RecordPage
from embedlog.tools.console.model.reader import Task, TaskOutcome
from embedlog.tools.console.panes.pane import Pane
from embedlog.tools.console.panes.topics import ask_for_record
from embedlog.tools.console.widgets.dialogs import Form, FormField
from embedlog.tools.console.widgets.tables import Section

PAGE = 100
PROGRESS_S = 0.2
COLUMNS = "partition|offset|time|size|headers|key|value"


class RecordsPane(Pane):
    """The records of one topic."""

    NAME = "records"
    LABEL = "Records"
    CHANGES = frozenset({"send", "truncate"})
    is_live = False
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("slash", "filter", "filter"),
        Binding("g", "go", "go to"),
        Binding("e", "newest", "newest"),
        Binding("n", "next", "next page"),
        Binding("p", "previous", "previous"),
        Binding("v", "view", "view"),
        Binding("f", "follow", "follow"),
        Binding("s", "send", "send"),
        Binding("x", "truncate", "delete older"),
        Binding("escape", "cancel", "cancel, or clear", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.topic: str | None = None
        self.partitions: tuple[int, ...] = ()
        self.filters = Filters()
        self.view = views.NAMES[0]
        self.follows = False
        self.page: RecordPage | None = None
        self._before: list[PageCursor] = []  # where the previous pages begin
        self._reading: Task | None = None
        self._shown: tuple[int, int] | None = None  # partition and offset of the record in the view
        self.section = Section(classes="section records")
        self.detail = Static("", markup=False)
        # a result can arrive before its mount, and after its removal
        self.frame = VerticalScroll(classes="detail")

    def compose(self) -> ComposeResult:
        yield self.section
        with self.frame:
            yield self.detail

    def on_mount(self) -> None:
        self.put_page(None)
        self.set_interval(PROGRESS_S, self._report)

    def enter(self) -> None:
        super().enter()
        if self.page is None and self._reading is None:
            self.read(lambda log, topic: pages.cursor_at_end(log, topic, self.partitions))

    def open(self, topic: str, partitions: tuple[int, ...]) -> None:
        """Show the newest records of some partitions; of all, if none is given."""
        self.topic = topic
        self.partitions = partitions
        self.filters = Filters()
        self.action_newest()

    # ---- reads -----------------------------------------------------------------------------------

    def read(
        self, begin: Callable[[Any, str], PageCursor], before: list[PageCursor] | None = None
    ) -> None:
        """Read a page from a cursor, which is made by the reader; `before` are the pages before
        it.
        """
        if self._reading is not None:
            self._reading.cancelled.set()
        topic = self.topic
        filters = self.filters
        now_ms = self.console.now_ms()
        matcher = filters.compile(now_ms) if filters else None
        earlier = before or []

        def work(task: Task) -> tuple[str | None, list[PageCursor], RecordPage | None]:
            name = topic
            if name is None:
                names = task.log.topics()
                if not names:
                    return None, [], None
                name = names[0]
            cursor = begin(task.log, name)
            if matcher is None:
                return name, earlier, pages.read_page(task.log, name, cursor, PAGE)
            return name, earlier, pages.search_page(task.log, name, cursor, PAGE, matcher, task)

        self._reading = self.console.search(self.NAME, work)

    def show_outcome(self, outcome: TaskOutcome) -> None:
        if outcome.task.name == "record":
            self._show_record(*outcome.value)
        elif outcome.task is self._reading:
            self.topic, self._before, page = outcome.value
            self.put_page(page)

    def end_task(self, outcome: TaskOutcome) -> None:
        """A task has ended, also with an error."""
        if outcome.task is self._reading:
            self._reading = None

    def tick(self) -> None:
        """The interval has passed: follow the end of the topic."""
        is_at_end = not self._before and (self.page is None or self.page.cursor.newest_first)
        if self.follows and self._reading is None and is_at_end:
            self.read(lambda log, topic: pages.cursor_at_end(log, topic, self.partitions))

    # ---- the screen ------------------------------------------------------------------------------

    def put_page(self, page: RecordPage | None) -> None:
        """Show a page."""
        self.page = page
        self.section.put(self._grid(), top=not self.follows or self.section.table.cursor_row == 0)
        if self.section.table.selected is None:
            self._shown = None
            self.detail.update("")
        else:
            self._select()

    def _grid(self) -> Grid:
        lines = self.page.lines if self.page is not None else ()
        return make_grid(
            self._title(),
            COLUMNS,
            [
                make_row(
                    f"{line.partition}-{line.offset}",
                    [
                        line.partition,
                        line.offset,
                        text.time(line.timestamp_ms),
                        text.size(line.size_bytes),
                        line.header_count or "",
                        text.abbreviate(line.key, 40),
                        text.abbreviate(line.value),
                    ],
                    (line.partition, line.offset),
                )
                for line in lines
            ],
            "partition|offset|size|headers",
        )

    def _title(self) -> str:
        if self.topic is None:
            return "no topic: press 1 and Enter"
        parts = [f"topic {self.topic}"]
        if self.partitions:
            parts.append(f"partition {','.join(map(str, self.partitions))}")
        else:
            parts.append("all partitions")
        if self.page is not None:
            parts.append("newest first" if self.page.cursor.newest_first else "oldest first")
            number = len(self._before) + 1
            parts.append(f"page {number}" if self.page.following else f"page {number}, the last")
        if self.filters:
            parts.append(f"filter {self.filters}")
            if self.page is not None and not self.page.complete:
                parts.append("cancelled: n continues")
        if self.follows:
            parts.append("following")
        return " · ".join(parts)

    def _report(self) -> None:
        if self._reading is not None and self._reading.progress is not None:
            searched_bytes, total_bytes, match_count = self._reading.progress
            percent = 100 * searched_bytes // max(total_bytes, 1)
            state = (
                f"{self._title()} · searching: {percent} % of {text.size(total_bytes)}, {match_count} found; "
                "Escape cancels"
            )
            self.section.show_state(state)

    # ---- the selected record ---------------------------------------------------------------------

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._select()

    def _select(self) -> None:
        """Read the record of the cursor."""
        selected = self.section.table.selected
        if selected is None or self.topic is None:
            return
        position = selected.value
        topic = self.topic
        view = self.view

        def work(task: Task) -> tuple[tuple[int, int], list[str] | None]:
            record = pages.read_record(task.log, topic, *position)
            return position, None if record is None else views.record_lines(record, view)

        if position != self._shown:
            self._shown = position
            self.console.observer.submit("record", work)

    def _show_record(self, position: tuple[int, int], lines: list[str] | None) -> None:
        if position == self._shown:
            if lines is None:
                lines = ["this record was deleted"]
            self.detail.update(Text("\n").join(map(Text, lines)))
            self.frame.border_title = f"view: {self.view}"

    # ---- keys ------------------------------------------------------------------------------------

    def action_view(self) -> None:
        self.view = views.NAMES[(views.NAMES.index(self.view) + 1) % len(views.NAMES)]
        self._shown = None
        self._select()

    def action_newest(self) -> None:
        self.read(lambda log, topic: pages.cursor_at_end(log, topic, self.partitions))

    def action_next(self) -> None:
        if self.page is None or self.page.following is None:
            self.console.say("this is the last page")
            return
        following = self.page.following
        self.read(lambda log, topic: following, [*self._before, self.page.cursor])

    def action_previous(self) -> None:
        if not self._before:
            self.console.say("this is the first page")
            return
        cursor = self._before[-1]
        self.read(lambda log, topic: cursor, self._before[:-1])

    def action_follow(self) -> None:
        self.follows = not self.follows
        self.section.show_state(self._title())
        if self.follows:
            self.action_newest()

    def action_cancel(self) -> None:
        if self._reading is not None:
            self._reading.cancelled.set()
        elif self.filters:
            self.filters = Filters()
            self.action_newest()

    def action_filter(self) -> None:
        current = self.filters
        fields = [
            FormField("key", "Key", current.key, "text, or /expression/, or /expression/i"),
            FormField("value", "Value", current.value, "the same"),
            FormField("header", "Header", current.header, "name, or name=text"),
            FormField("since", "Since", current.since, TIME_HINT),
            FormField("until", "Until", current.until, "exclusive"),
        ]

        def check(values: Mapping[str, str]) -> Filters:
            filters = Filters(**values)
            filters.compile(self.console.now_ms())
            return filters

        def then(filters: Filters | None) -> None:
            if filters is not None:
                self.filters = filters
                self.action_newest()

        self.app.push_screen(Form("Filter records", fields, check), then)

    def action_go(self) -> None:
        fields = [
            FormField("where", "Position", "", "an offset, @time, beginning or end"),
            FormField(
                "partitions", "Partitions", ",".join(map(str, self.partitions)), "0,1,…; empty: all"
            ),
        ]

        def then(target: tuple[Callable[[Any, str], PageCursor], tuple[int, ...]] | None) -> None:
            if target is not None:
                begin, self.partitions = target
                self.read(begin)

        self.app.push_screen(Form("Go to", fields, self._parse_position), then)

    def _parse_position(
        self, values: Mapping[str, str]
    ) -> tuple[Callable[[Any, str], PageCursor], tuple[int, ...]]:
        where = values["where"].strip()
        chosen = tuple(
            changes.number_of("partitions", number)
            for number in values["partitions"].split(",")
            if number.strip()
        )
        if where.startswith("@"):
            time_ms = parse_moment("position", where[1:], self.console.now_ms())
            if time_ms is None:
                raise FilterError(f"position: expected {TIME_HINT} after @")
            return lambda log, topic: pages.cursor_at_time(log, topic, chosen, time_ms), chosen
        if where in ("", "end"):
            return lambda log, topic: pages.cursor_at_end(log, topic, chosen), chosen
        offset = 0 if where == "beginning" else changes.number_of("position", where)
        return lambda log, topic: pages.cursor_at_offset(log, topic, chosen, offset), chosen

    def action_send(self) -> None:
        if self.topic is not None:
            number = self.partitions[0] if len(self.partitions) == 1 else None
            ask_for_record(self, self.topic, number)

    def action_truncate(self) -> None:
        selected = self.section.table.selected
        if selected is not None and self.topic is not None:
            topic = self.topic
            (number, offset) = selected.value
            question = f"Delete the records of {topic}-{number} below offset {offset}?"
            self.confirm(question, topic, changes.delete_records(topic, number, offset))
