"""Shows the progress of long work on standard error, if that is a terminal.

rich is imported for terminals only; without one, nothing is printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from embedlog.progress import Advance

LATE_S: Final = 1.0  # most loads take milliseconds; an import of rich takes longer


@contextmanager
def progress(
    *, lines: bool = False, unit: Literal["bytes", "offsets"] = "bytes"
) -> Iterator[Advance]:
    """A bar until the end of the block. `lines`: records go to standard output, so a bar needs
    another place for them.
    """
    if not sys.stderr.isatty() or (lines and sys.stdout.isatty()):
        yield lambda done, total: None
        return
    from embedlog.progress import bar

    with bar(unit=unit, transient=lines) as advance:
        yield advance


class LoadProgress:
    """The progress of loads of partitions as a bar, which appears after a second. Threads: one."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._advance: Advance | None = None  # of the bar that is shown
        self._stack = ExitStack()

    def __call__(self, done: int, total: int) -> None:
        """Draw the amounts; the bar is removed when all is loaded."""
        if done == total:
            self._stack.close()
            self._began_s = time.monotonic()
            self._advance = None
        elif self._advance is not None:
            self._advance(done, total)
        elif time.monotonic() - self._began_s > LATE_S:
            from embedlog.progress import bar

            self._advance = self._stack.enter_context(bar("loading", unit="bytes", transient=True))


def make_load_progress() -> LoadProgress | None:
    """A callback for `progress=` of `embedlog.open`, if standard error is a terminal."""
    return LoadProgress() if sys.stderr.isatty() else None
