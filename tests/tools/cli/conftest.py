"""Fixtures of the command line: verbs that run inside of the test's process."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlog.tools.cli.program import main
from tests.support.command_line import run as run


@pytest.fixture
def on_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """Runs one command line on the directory `data` with standard output on a terminal, and returns
    what that gets.
    """
    monkeypatch.setenv("EMBEDLOG_DIR", str(tmp_path / "data"))

    def call(*arguments: str, columns: int = 80) -> bytes:
        ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # a new line stays one byte
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        parts: list[bytes] = []
        reader = threading.Thread(target=_read_all, args=(ours, parts))
        reader.start()
        try:
            with os.fdopen(theirs, "w") as output, monkeypatch.context() as patch:
                patch.setenv("COLUMNS", str(columns))
                patch.setattr(sys, "stdout", output)
                main(arguments)
                sys.stdout.flush()
        finally:
            reader.join(60)
            os.close(ours)
        return b"".join(parts)

    return call


def _read_all(fd: int, parts: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while data := os.read(fd, 65536):
            parts.append(data)


@pytest.fixture
def events(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with the topic `events` of one partition."""
    assert run("topics", "--create", "--topic", "events", "--partitions", "1").status == 0
    return run
