"""What reaches a terminal: no control character of a record, of a group, or of a file."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.tools.cli.program import main
from tests.conftest import ROOT

HOSTILE = "a\x1b]0;TITLE\x07\x1b[31m\r\x08\x7f\x9b31m\u202eb"
CONTROLS = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x202E)} - {"\n", "\t"}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A log whose keys, values, headers, group, member and transactional id control terminals."""
    path = tmp_path / "data"
    with embedlog.open(path) as log:
        log.create_topic("t")
        with log.producer(transactional_id=HOSTILE) as producer:
            producer.init_transactions()
            with producer.transaction():
                value = HOSTILE.encode() + b"\xff"
                producer.send(
                    "t", value, key=HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())]
                )
        with log.consumer(
            "t", group_id=HOSTILE, client_id=HOSTILE, auto_offset_reset="earliest"
        ) as consumer:
            consumer.poll(5)
            consumer.commit()
    return path


VERBS = [
    ["cat", "t"],
    ["cat", "t", "-K", ":"],
    ["cat", "t", "-J"],
    ["cat", "t", "-f", "%k %s %h %R\\x1b[1m\\n"],
    ["cat", "t", "--property", "print.headers=true"],
    ["consume", "-t", "t", "--from-beginning", "-e"],
    ["consume", "-t", "t", "--from-beginning", "-c", "1"],
    ["tail", "t", "-e"],
    ["grep", "31m", "t"],
    ["grep", "31m", "t", "--json"],
    ["groups"],
    ["groups", "--describe", "--all-groups"],
    ["groups", "--describe", "--all-groups", "--json"],
    ["groups", "--describe", "--all-groups", "--state"],
    ["groups", "--reset-offsets", "--all-groups", "--all-topics", "--to-earliest"],
    ["transactions"],
    ["metrics"],
    ["metrics", "--prometheus"],
    ["dump", "t-0", "--print-data-log"],
    ["dump", "t-0", "--print-data-log", "--json"],
]


def test_no_verb_writes_control_characters_to_a_terminal(
    hostile: Path, on_terminal: Callable[..., bytes]
) -> None:
    for arguments in VERBS:
        shown = on_terminal(*arguments).decode()
        assert "␛" in shown or "\\u001b" in shown, (arguments, shown)
        assert CONTROLS.isdisjoint(shown), (arguments, shown)


def test_a_pipe_gets_the_bytes_of_records(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("EMBEDLOG_DIR", str(hostile))
    for arguments in (
        ["cat", "t"],
        ["consume", "-t", "t", "--from-beginning", "-e"],
        ["tail", "t", "-e"],
    ):
        main(arguments)
        assert capfdbinary.readouterr().out == HOSTILE.encode() + b"\xff\n", arguments


def test_messages_have_no_control_characters_anywhere(
    hostile: Path, run: Callable[..., Any]
) -> None:
    for arguments in (
        ["groups", "--describe", "--group", f"{HOSTILE}no"],
        ["cat", HOSTILE],
        [HOSTILE],
        ["cat", "t", HOSTILE],
    ):
        outcome = run(*arguments, "--debug")
        assert outcome.status
        assert CONTROLS.isdisjoint(outcome.err), arguments


def test_only_one_module_writes_to_standard_error() -> None:
    """`tell` escapes; every other way would have to remember it."""
    found = []
    for path in sorted((ROOT / "embedlog" / "cli").rglob("*.py")):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                is_message = any(each.arg == "err" for each in node.keywords) and text.endswith(
                    "echo"
                )
                if is_message or text in ("print", "sys.stderr.write", "traceback.print_exc"):
                    found.append(f"{path.name}:{node.lineno}: {text}")
    assert found == []
