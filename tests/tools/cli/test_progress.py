"""Progress: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from embedlog.tools.cli import progress as progress_module
from embedlog.tools.cli.progress import progress


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


def test_loads_are_a_bar_only_if_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    shown = progress_module.make_load_progress()
    assert shown is not None
    shown(0, 2 << 20)
    shown(2 << 20, 2 << 20)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress_module, "LATE_S", 0.0)
    shown(2 << 20, 4 << 20)
    shown(3 << 20, 4 << 20)
    shown(4 << 20, 4 << 20)
    assert "3.0/4.0 MiB" in terminal.getvalue()


def test_loads_without_a_terminal_have_no_callback(capfd: pytest.CaptureFixture[str]) -> None:
    assert progress_module.make_load_progress() is None
