"""The examples of the document: each command is run, and prints what the page shows; and each verb
as a process.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embedlog.tools.cli.commands import VERBS
from tests.conftest import ROOT

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SESSION = "".join(BLOCK.findall((ROOT / "docs" / "command-line.md").read_text()))
# verbs that the page does not show, because their output depends on the machine or on the time
OTHERS = (
    ["tail", "events", "-n", "1", "--timeout-ms", "0"],
    ["query", "-t", "events:0:0"],
    ["du", "--json"],
    ["dump", "events-0", "--print-data-log"],
    ["check"],
    ["repair", "--json"],
    ["handover", "to-kafka", "--dry-run", "--json"],
    ["metrics", "--json"],
    ["directories", "--json"],
    ["replicas", "--json"],
    ["reassign", "--list"],
    ["transactions", "--json"],
    ["perf", "producer", "--topic", "events", "--num-records", "10", "--record-size", "10"],
    ["verifiable", "consumer", "--topic", "events", "--group-id", "readers", "--max-messages", "1"],
)
# Their tests are in test_replicas.py, test_processes.py, test_transfer_kills.py, test_mirror.py and
# tests/tools/console
ELSEWHERE = {"backup", "restore", "console", "elect", "export", "import", "mirror", "who"}


def commands() -> Iterator[tuple[str, bytes, list[str]]]:
    """Line, standard input and arguments of each command of the page."""
    for line in SESSION.splitlines():
        if line.startswith("$ "):
            *before, last = line[2:].split(" | ")
            given = (
                subprocess.run(before[0], shell=True, capture_output=True, check=True).stdout
                if before
                else b""
            )
            name, *arguments = shlex.split(last)
            assert name == "embedlog"
            yield line, given, arguments


@pytest.mark.usefixtures("usual_internal_topics")
def test_the_examples_of_the_page_print_what_it_shows(run: Callable[..., Any]) -> None:
    printed = ""
    for line, given, arguments in commands():
        outcome = run(*arguments, stdin=given)
        assert (outcome.status, outcome.err) == (0, ""), line
        printed += f"{line}\n{outcome.out}".replace("\t", "<TAB>")
    assert printed == SESSION
    assert SESSION.count("$ embedlog") + SESSION.count("| embedlog") > 10


def test_every_verb_is_run() -> None:
    shown = {arguments[0] for _, _, arguments in commands()}
    assert shown | {arguments[0] for arguments in OTHERS} | ELSEWHERE == set(VERBS)


@pytest.mark.slow
def test_each_verb_is_run_as_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDLOG_DIR", str(tmp_path / "data"))
    shown = list(commands())
    printed = ""
    for line, given, arguments in [*shown, *(("", b"", each) for each in OTHERS)]:
        command = [sys.executable, "-m", "embedlog", *arguments]
        answer = subprocess.run(command, input=given, capture_output=True, timeout=100)
        assert (answer.returncode, answer.stderr) == (0, b""), arguments
        printed += f"{line}\n{answer.stdout.decode()}".replace("\t", "<TAB>") if line else ""
    assert printed == SESSION


def test_the_installed_command_is_the_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["embedlog"].partition(":")
    assert (
        getattr(importlib.import_module(module), function)
        is importlib.import_module("embedlog.tools.cli.program").main
    )
