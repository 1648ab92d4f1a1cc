"""Progress bars for long work, in terminals and notebooks (extra `progress`).

- Where neither a terminal nor a notebook shows it, a bar prints nothing.
- rich is imported for the first bar, not with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Literal, TypeAlias

from embedlog import MissingExtraError

__all__ = ["Advance", "bar"]

Advance: TypeAlias = Callable[[int, int], None]
"""A callback for `progress=`: it takes the amount done, and the whole amount."""


@contextmanager
def bar(
    title: str = "",
    *,
    unit: Literal["bytes", "offsets"] = "offsets",
    transient: bool = False,
    file: IO[str] | None = None,
) -> Iterator[Advance]:
    """A bar until the end of the block, as a callback for `progress=` of `open`, `scan`, `backup`,
    `housekeep`, `check`.

    `transient` removes it at the end. `file` is standard error without one. Raises
    MissingExtraError without rich.

    Examples:
        >>> with bar("events") as progress:                                     # doctest: +SKIP
        ...     table = log.scan("events", progress=progress).to_arrow()
    """
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    except ImportError as missing:
        raise MissingExtraError("progress bars need rich", extra="progress") from missing
    console = Console(file=file, stderr=file is None)
    amount = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
    )
    is_silent = not (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, transient=transient, disable=is_silent) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
