"""Progress: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from embedlog.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(lines: bool) -> str:
    with progress(lines=lines) as advance:
        advance(1 << 20, 2 << 20)
        advance(2 << 20, 2 << 20)
    return sys.stderr.getvalue() if isinstance(sys.stderr, Terminal) else ""


def test_a_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert "2.0/2.0 MiB" in drawn(lines=False)


def test_lines_on_the_same_terminal_have_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert drawn(lines=True) == ""


def test_no_terminal_gets_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    drawn(lines=False)
    assert capfd.readouterr() == ("", "")
