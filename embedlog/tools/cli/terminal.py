"""Writes to standard output and standard error, so that no text of a log controls a terminal.

Standard output is raw in a pipe and in a file. On a terminal every byte of it passes through
`VisibleOutput`, whichever verb writes it: no verb can forget to escape a key, a value, or the name
of a group. Therefore escape sequences in the format of `cat -f` are shown there, too. Messages go
through `tell`, which escapes everywhere: a log file is read on a terminal later.
"""

from __future__ import annotations

import io
import sys
import traceback
from typing import TYPE_CHECKING, BinaryIO

from embedlog.descriptions.display.visible_text import visible

if TYPE_CHECKING:
    from typing_extensions import Buffer

LAYOUT = "\n\t"  # control characters that only move on


class VisibleOutput(io.BufferedIOBase):
    """A binary output that shows control characters. A character that is divided between two calls
    of `write` is shown as its bytes. Threads: one at a time.
    """

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self._encoding = encoding

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        encoded = bytes(data)
        text = encoded.decode("utf-8", "backslashreplace")
        self._file.write(visible(text, LAYOUT).encode(self._encoding, "backslashreplace"))
        return len(encoded)

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()


def protect() -> None:
    """Put `VisibleOutput` before standard output, if that is a terminal."""
    output = sys.stdout
    if (
        not isinstance(output, io.TextIOWrapper)
        or not output.isatty()
        or isinstance(output.buffer, VisibleOutput)
    ):
        return
    output.flush()
    shown = VisibleOutput(output.buffer, output.encoding)
    sys.stdout = io.TextIOWrapper(
        shown, encoding="utf-8", errors="surrogateescape", line_buffering=True
    )


def tell(text: str) -> None:
    """Write a message of one or more lines to standard error."""
    sys.stderr.write(f"{visible(text, LAYOUT)}\n")


def tell_traceback() -> None:
    """Write the traceback of the error that is handled now to standard error."""
    tell(traceback.format_exc().rstrip())
