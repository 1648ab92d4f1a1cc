"""Shows the progress of long work on standard error, if that is a terminal.

PROGRESS-1  rich is imported for terminals only; without one, nothing is printed
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int], None]  # the bytes done, and all bytes


@contextmanager
def progress(*, lines: bool = False) -> Iterator[Advance]:
    """A bar until the end of the block. `lines`: records go to standard output, so a bar needs another place for them."""
    if not sys.stderr.isatty() or (lines and sys.stdout.isatty()):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=lines) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
