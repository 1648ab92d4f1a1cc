"""The verb `console` as a process: refusals, a real terminal, signals."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

import embedlog

pytest.importorskip("textual", reason="the console needs textual: pip install 'embedlog[console]'")
DEADLINE_S = 60.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "the console needs a terminal: standard input, its keyboard, is none; --web serves it "
            "to a browser",
        ),
        (("--json",), "the console has no JSON: the other verbs print it"),
        (("--interval", "0"), "Invalid value for '--interval'"),
        (("--web", "--port", "0"), "Invalid value for '--port'"),
    ],
)
def test_a_call_without_meaning_is_one_line(
    events: Callable[..., Any], arguments: tuple[str, ...], message: str
) -> None:
    outcome = events("console", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err


def test_a_directory_that_does_not_exist_is_one_line(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = run("console", "--web", str(tmp_path / "absent"))
    assert outcome.err.startswith(f"embedlog: {tmp_path / 'absent'}: ")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)


def test_an_absent_package_is_one_line(
    events: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    outcome = events("console")
    assert (outcome.status, outcome.out) == (2, "")
    assert (
        outcome.err == "embedlog: the console needs textual and textual-serve: pip install "
        '"embedlog[console]"\n'
    )


class Terminal:
    """A process with a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.output = b""

    def shows(self, *texts: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not all(text in self.output for text in texts):
            assert time.monotonic() < deadline, self.output
            self._read(1.0)

    def _read(self, timeout_s: float) -> bool:
        if select.select([self._descriptor], [], [], timeout_s)[0]:
            try:
                data = os.read(self._descriptor, 65536)
            except OSError:  # the process has closed the terminal
                return False
            self.output += data
            return bool(data)
        return True

    def press(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def ended(self) -> int:
        """The exit status, after all output was read."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.output
            self._read(0.05)
        while select.select([self._descriptor], [], [], 0)[0] and self._read(0):
            pass
        return self.process.returncode


@contextmanager
def terminal(path: Path, *arguments: str) -> Iterator[Terminal]:
    """The console on a directory in a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, "-m", "embedlog", "console", str(path), *arguments]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_redirected_screen_is_one_line(tmp_path: Path) -> None:
    embedlog.open(tmp_path / "data").close()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "embedlog", "console", str(tmp_path / "data")]
    uses = {
        "stdin": b"standard input, its keyboard",
        "stdout": b"standard output, whose size",
        "stderr": b"standard error, on which",
    }
    try:
        for name, use in uses.items():
            with (tmp_path / "redirected").open("w+b") as file:
                streams: dict[str, Any] = {
                    "stdin": theirs,
                    "stdout": theirs,
                    "stderr": theirs,
                    name: file,
                }
                status = subprocess.run(
                    command, timeout=DEADLINE_S, check=False, **streams
                ).returncode
                said = (
                    (tmp_path / "redirected").read_bytes()
                    if name == "stderr"
                    else os.read(ours, 65536)
                )
            assert status == 2
            assert use in b" ".join(said.split())
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
def test_it_runs_in_a_terminal_and_leaves_it_as_it_was(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    events("produce", "-t", "events", "-K", ":", stdin=b"\x1b]0;title\x07:\x1b[31mred\n")
    for end in (b"q", b"\x03"):
        with terminal(tmp_path / "data") as console:
            console.shows(b"1 topic", b"events", b"read-only")
            console.press(b"2")
            console.shows("␛[31mred".encode(), "␛]0;title␇".encode())
            console.press(end)
            assert console.ended() == 0
            assert b"\x1b]0;title" not in console.output
            assert console.output.rindex(b"\x1b[?1049l") > console.output.index(b"\x1b[?1049h")
            assert b"Traceback" not in console.output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_restores_the_terminal(
    events: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    with terminal(tmp_path / "data") as console:
        console.shows(b"1 topic", b"events")
        console.process.send_signal(number)
        assert console.ended() == 128 + number
        assert b"\x1b[?1049l" in console.output
        assert b"Traceback" not in console.output
