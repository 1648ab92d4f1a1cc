"""Defines what a tab uses of the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from embedlog.tools.console.model.changes import Change
from embedlog.tools.console.model.reader import LogReader, Task


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
