"""Standard streams that are closed: one line of error, no traceback, and no file of the log in
their place.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EMBEDLOG = f"{sys.executable} -m embedlog"
CLOSED = "embedlog: standard output is closed: give it a file, or /dev/null\n"


def shell(line: str, path: Path) -> tuple[int, str, str]:
    environment = os.environ | {"EMBEDLOG_DIR": str(path / "data")}
    answer = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=60, env=environment
    )
    return answer.returncode, answer.stdout, answer.stderr


@pytest.fixture
def filled(events: Callable[..., Any]) -> Callable[..., Any]:
    assert events("produce", "-t", "events", stdin=b"a\nb\n").status == 0
    return events


@pytest.mark.parametrize(
    "words",
    ["ls", "cat events", "topics --create --topic made", "topics --help", "check", "groups --json"],
)
def test_a_closed_output_is_refused_before_anything_is_done(
    filled: Callable[..., Any], tmp_path: Path, words: str
) -> None:
    assert shell(f"{EMBEDLOG} {words} >&-", tmp_path) == (1, "", CLOSED)
    assert filled("topics").out == "events\n"


@pytest.mark.parametrize(
    "words",
    [
        "produce -t events",
        "import - -t events --format jsonl",
        "delete-records --offset-json-file -",
    ],
)
def test_a_closed_input_is_one_line(filled: Callable[..., Any], tmp_path: Path, words: str) -> None:
    status, out, error = shell(f"{EMBEDLOG} {words} <&-", tmp_path)
    assert (status, out) in ((1, ""), (2, ""))
    assert error.count("\n") == 1
    assert error.startswith("embedlog: ")
    assert "standard input is closed" in error
    assert filled("cat", "events").out == "a\nb\n"


def test_a_verb_without_input_needs_none(filled: Callable[..., Any], tmp_path: Path) -> None:
    assert shell(f"{EMBEDLOG} cat events <&-", tmp_path) == (0, "a\nb\n", "")
    (tmp_path / "file").write_bytes(b"c")
    assert shell(f"{EMBEDLOG} produce -t events {tmp_path / 'file'} <&-", tmp_path) == (0, "", "")
    assert filled("cat", "events").out == "a\nb\nc\n"


def test_a_closed_error_output_drops_messages(filled: Callable[..., Any], tmp_path: Path) -> None:
    assert shell(f"{EMBEDLOG} cat events 2>&-", tmp_path) == (0, "a\nb\n", "")
    assert shell(f"{EMBEDLOG} cat absent 2>&-", tmp_path) == (1, "", "")
    assert shell(f"{EMBEDLOG} cat events >&- 2>&-", tmp_path) == (1, "", "")
