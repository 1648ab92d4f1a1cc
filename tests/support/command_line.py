"""Verbs of the command line that run inside the test's process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from embedlog.tools.cli.program import main


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def run(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs one command line on the directory `data`, and returns its status and output."""
    monkeypatch.setenv("EMBEDLOG_DIR", str(tmp_path / "data"))

    def call(*arguments: str, stdin: bytes = b"") -> Outcome:
        given = tmp_path / "stdin"
        given.write_bytes(stdin)
        with given.open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            status = main(arguments)
        out, err = capfdbinary.readouterr()
        return Outcome(status, out.decode(), err.decode())

    return call
