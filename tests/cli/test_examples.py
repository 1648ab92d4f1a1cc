"""The examples of the document: each command is run, and prints what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

from tests.conftest import ROOT

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_page_print_what_it_shows(run: Callable[..., Any]) -> None:
    session = "".join(BLOCK.findall((ROOT / "docs" / "command-line.md").read_text()))
    printed = ""
    count = 0
    for line in session.splitlines():
        if not line.startswith("$ "):
            continue
        *before, last = line[2:].split(" | ")
        given = subprocess.run(before[0], shell=True, capture_output=True, check=True).stdout if before else b""
        name, *arguments = shlex.split(last)
        assert name == "embedlog"
        outcome = run(*arguments, stdin=given)
        assert (outcome.status, outcome.err) == (0, ""), line
        printed += f"{line}\n{outcome.out}".replace("\t", "<TAB>")
        count += 1
    assert printed == session
    assert count > 5
