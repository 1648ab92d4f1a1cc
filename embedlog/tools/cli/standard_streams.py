"""Makes standard streams usable that the calling process has closed: Python has None in their
place.

- Their descriptors are occupied before any file is opened: a log file as descriptor 1 would get
  what is printed.
- Control characters reach no terminal (`embedlog.tools.cli.terminal`).
- A closed input is an error when it is read, a closed error output drops messages.
"""

from __future__ import annotations

import io
import os
import sys

from embedlog.tools.cli.terminal import protect


class _ClosedInput(io.RawIOBase):
    """An input whose use is an error."""

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("standard input is closed")

    def readinto(self, buffer: object) -> int:
        raise OSError("standard input is closed")


def prepare_streams() -> bool:
    """Replace closed streams; False if the output is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_ClosedInput()))
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (it is open until the process ends)
    if sys.stdout is None:
        return False
    protect()
    return True
