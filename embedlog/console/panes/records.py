"""Contains the tab of records: pages, filters, and the selected record in three views.

RECORDSPANE-1  a page is read by the thread for searches, so that a search does not delay the other
    tabs
RECORDSPANE-2  the result of a replaced search is dropped
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Static

from embedlog.console.model import changes, pages, text, views
from embedlog.console.model.filters import TIME_HINT, FilterError, Filters, moment
from embedlog.console.model.grid import Grid, grid, row
from embedlog.console.model.pages import Cursor, Page
from embedlog.console.model.reader import Outcome, Task
from embedlog.console.panes.pane import Pane
from embedlog.console.panes.topics import send
from embedlog.console.widgets.dialogs import Field, Form
from embedlog.console.widgets.tables import Section

PAGE = 100
PROGRESS_S = 0.2
COLUMNS = "partition|offset|time|size|headers|key|value"


class RecordsPane(Pane):
    """The records of one topic."""

    NAME = "records"
    LABEL = "Records"
    CHANGES = frozenset({"send", "truncate"})
    live = False
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
        self.page: Page | None = None
        self._before: list[Cursor] = []  # where the previous pages begin
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
            self.read(lambda log, topic: pages.from_end(log, topic, self.partitions))

    def open(self, topic: str, partitions: tuple[int, ...]) -> None:
        """Show the newest records of some partitions; of all, if none is given."""
        self.topic = topic
        self.partitions = partitions
        self.filters = Filters()
        self.action_newest()

    # ---- reads -----------------------------------------------------------------------------------

    def read(self, begin: Callable[[Any, str], Cursor], before: list[Cursor] | None = None) -> None:
        """Read a page from a cursor, which is made by the reader; `before` are the pages before
        it.
        """
        if self._reading is not None:
            self._reading.cancelled.set()
        topic = self.topic
        filters = self.filters
        now_ms = self.console.now_ms()
        matcher = filters.compiled(now_ms) if filters else None
        earlier = before or []

        def work(task: Task) -> tuple[str | None, list[Cursor], Page | None]:
            names = task.log.topics()
            name = topic if topic is not None else names[0] if names else None
            if name is None:
                return None, [], None
            cursor = begin(task.log, name)
            if matcher is None:
                return name, earlier, pages.read(task.log, name, cursor, PAGE)
            return name, earlier, pages.search(task.log, name, cursor, PAGE, matcher, task)

        self._reading = self.console.search(self.NAME, work)

    def received(self, outcome: Outcome) -> None:
        if outcome.task.name == "record":
            self._show_record(*outcome.value)
        elif outcome.task is self._reading:
            self.topic, self._before, page = outcome.value
            self.put_page(page)

    def finished(self, outcome: Outcome) -> None:
        """A task has ended, also with an error."""
        if outcome.task is self._reading:
            self._reading = None

    def tick(self) -> None:
        """The interval has passed: follow the end of the topic."""
        if (
            self.follows
            and self._reading is None
            and not self._before
            and (self.page is None or self.page.cursor.newest_first)
        ):
            self.read(lambda log, topic: pages.from_end(log, topic, self.partitions))

    # ---- the screen ------------------------------------------------------------------------------

    def put_page(self, page: Page | None) -> None:
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
        return grid(
            self._title(),
            COLUMNS,
            [
                row(
                    f"{line.partition}-{line.offset}",
                    [
                        line.partition,
                        line.offset,
                        text.time(line.timestamp_ms),
                        text.size(line.size_bytes),
                        line.header_count or "",
                        text.brief(line.key, 40),
                        text.brief(line.value),
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
        where = (
            "all partitions"
            if not self.partitions
            else f"partition {','.join(map(str, self.partitions))}"
        )
        parts = [f"topic {self.topic}", where]
        if self.page is not None:
            parts.append("newest first" if self.page.cursor.newest_first else "oldest first")
            parts.append(
                f"page {len(self._before) + 1}" + ("" if self.page.following else ", the last")
            )
        if self.filters:
            parts.append(f"filter {self.filters}")
            parts.append(
                "" if self.page is None or self.page.complete else "cancelled: n continues"
            )
        if self.follows:
            parts.append("following")
        return " · ".join(filter(None, parts))

    def _report(self) -> None:
        if self._reading is not None and self._reading.progress is not None:
            done, total, found = self._reading.progress
            part = 100 * done // max(total, 1)
            state = (
                f"{self._title()} · searching: {part} % of {text.size(total)}, {found} found; "
                "Escape cancels"
            )
            self.section.state(state)

    # ---- the selected record ---------------------------------------------------------------------

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._select()

    def _select(self) -> None:
        """Read the record of the cursor."""
        selected = self.section.table.selected
        if selected is None or self.topic is None:
            return
        place = selected.value
        topic = self.topic
        view = self.view

        def work(task: Task) -> tuple[tuple[int, int], list[str] | None]:
            record = pages.record_at(task.log, topic, *place)
            return place, None if record is None else views.record_lines(record, view)

        if place != self._shown:
            self._shown = place
            self.console.observer.submit("record", work)

    def _show_record(self, place: tuple[int, int], lines: list[str] | None) -> None:
        if place == self._shown:
            shown = Text("\n").join(
                map(Text, lines if lines is not None else ["this record was deleted"])
            )
            self.detail.update(shown)
            self.frame.border_title = f"view: {self.view}"

    # ---- keys ------------------------------------------------------------------------------------

    def action_view(self) -> None:
        self.view = views.NAMES[(views.NAMES.index(self.view) + 1) % len(views.NAMES)]
        self._shown = None
        self._select()

    def action_newest(self) -> None:
        self.read(lambda log, topic: pages.from_end(log, topic, self.partitions))

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
        self.section.state(self._title())
        if self.follows:
            self.action_newest()

    def action_cancel(self) -> None:
        if self._reading is not None:
            self._reading.cancelled.set()
        elif self.filters:
            self.filters = Filters()
            self.action_newest()

    def action_filter(self) -> None:
        given = self.filters
        fields = [
            Field("key", "Key", given.key, "text, or /expression/, or /expression/i"),
            Field("value", "Value", given.value, "the same"),
            Field("header", "Header", given.header, "name, or name=text"),
            Field("since", "Since", given.since, TIME_HINT),
            Field("until", "Until", given.until, "exclusive"),
        ]

        def check(values: Mapping[str, str]) -> Filters:
            made = Filters(**values)
            made.compiled(self.console.now_ms())
            return made

        def then(made: Filters | None) -> None:
            if made is not None:
                self.filters = made
                self.action_newest()

        self.app.push_screen(Form("Filter records", fields, check), then)

    def action_go(self) -> None:
        fields = [
            Field("where", "Position", "", "an offset, @time, beginning or end"),
            Field(
                "partitions", "Partitions", ",".join(map(str, self.partitions)), "0,1,…; empty: all"
            ),
        ]

        def then(found: tuple[Callable[[Any, str], Cursor], tuple[int, ...]] | None) -> None:
            if found is not None:
                begin, self.partitions = found
                self.read(begin)

        self.app.push_screen(Form("Go to", fields, self._position), then)

    def _position(
        self, given: Mapping[str, str]
    ) -> tuple[Callable[[Any, str], Cursor], tuple[int, ...]]:
        where = given["where"].strip()
        chosen = tuple(
            changes.number_of("partitions", each)
            for each in given["partitions"].split(",")
            if each.strip()
        )
        if where.startswith("@"):
            time_ms = moment("position", where[1:], self.console.now_ms())
            if time_ms is None:
                raise FilterError(f"position: expected {TIME_HINT} after @")
            return lambda log, topic: pages.from_time(log, topic, chosen, time_ms), chosen
        if where in ("", "end"):
            return lambda log, topic: pages.from_end(log, topic, chosen), chosen
        offset = 0 if where == "beginning" else changes.number_of("position", where)
        return lambda log, topic: pages.from_offset(log, topic, chosen, offset), chosen

    def action_send(self) -> None:
        if self.topic is not None:
            send(self, self.topic, self.partitions[0] if len(self.partitions) == 1 else None)

    def action_truncate(self) -> None:
        selected = self.section.table.selected
        if selected is not None and self.topic is not None:
            topic = self.topic
            (number, offset) = selected.value
            question = f"Delete the records of {topic}-{number} below offset {offset}?"
            self.confirm(question, topic, changes.delete_records(topic, number, offset))
