"""The verb `who`: a table, JSON, and a status of 1 without processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import LockDescription, ProcessDescription, WaitDescription


def test_locks_and_waits_are_rows(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "data"
    locks = (
        LockDescription(f"{base}/.lock", "directory in use", "shared"),
        LockDescription(f"{base}/a-0/embedlog.lock", "append", "exclusive"),
    )
    found = [
        ProcessDescription(
            1,
            "me",
            "run",
            "write",
            locks,
            (WaitDescription(f"{base}/b-0/embedlog.page", "append"),),
            4,
        ),
        ProcessDescription(2, "me", "look\n\x1b[31m now", "read", (), None, 1),
        ProcessDescription(None, None, "", "write", locks[:1], None, 0),
    ]
    monkeypatch.setattr(embedlog, "processes", lambda places: found)
    outcome = events("who")
    assert outcome.status == 0
    assert [" ".join(line.split()) for line in outcome.out.splitlines()] == [
        "PID USER MODE STATE PURPOSE FILE COMMAND",
        "1 me write shares directory in use .lock run",
        "1 me write holds append a-0/embedlog.lock run",
        "1 me write waits for append b-0/embedlog.page run",
        "2 me read - - - look [31m now",
        "- - write shares directory in use .lock not visible",
    ]


def test_json_has_all_fields(events: Callable[..., Any], tmp_path: Path) -> None:
    assert events("who")[:2] == (1, "PID  USER  MODE  STATE  PURPOSE  FILE  COMMAND\n")
    assert events("who", "--json") == (1, "[]\n", "")
    with embedlog.open(tmp_path / "data"):
        (found,) = json.loads(events("who", "--json").out)
    assert (found["pid"], found["mode"]) == (os.getpid(), "write")
    assert {
        "path": str(tmp_path / "data" / ".lock"),
        "purpose": "directory in use",
        "kind": "shared",
        "position": 0,
    } in found["locks"]


def test_an_absent_directory_is_one_line(events: Callable[..., Any], tmp_path: Path) -> None:
    outcome = events("-d", str(tmp_path / "absent"), "who")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (1, "", 1)
