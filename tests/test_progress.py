"""Progress bars: in terminals only, with the numbers of the callback."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import embedlog
from embedlog import progress

QUIET = {"housekeeping": False}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_a_bar_shows_a_scan_and_a_backup(tmp_path: Path, terminal: Terminal) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", 2)
        with log.producer() as producer:
            producer.send_batch("t", [b"x"] * 30)
        with progress.bar("[t]", file=terminal) as advance:
            assert len(list(log.scan("t", progress=advance).records())) == 30
        assert "[t]" in terminal.getvalue()
        assert "30/30" in terminal.getvalue()
        with progress.bar(unit="bytes", file=terminal) as advance:
            log.backup(tmp_path / "copy", progress=advance)
        assert "bytes" in terminal.getvalue()


def test_without_a_terminal_a_bar_prints_nothing(terminal: Terminal) -> None:
    plain = io.StringIO()
    with progress.bar("t", file=plain) as advance:
        advance(1, 2)
    assert plain.getvalue() == ""


def test_a_bar_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(embedlog.MissingExtraError, match=r"embedlog\[progress\]"), progress.bar():
        pytest.fail("there is no bar")
