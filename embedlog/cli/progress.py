"""Shows the progress of long work on standard error, if that is a terminal.

PROGRESS-1  rich is imported for terminals only; without one, nothing is printed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from embedlog.progress import Advance


@contextmanager
def progress(*, lines: bool = False, unit: Literal["bytes", "offsets"] = "bytes") -> Iterator[Advance]:
    """A bar until the end of the block. `lines`: records go to standard output, so a bar needs another place for them."""
    if not sys.stderr.isatty() or (lines and sys.stdout.isatty()):
        yield lambda done, total: None
        return
    from embedlog.progress import bar

    with bar(unit=unit, transient=lines) as advance:
        yield advance
