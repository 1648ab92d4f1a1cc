"""The tests in docs/testing.md pass as they are written there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.project.test_docs import program
from tests.testing.test_plugin import PLUGIN

PAGE = ROOT / "docs" / "testing.md"


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    text = program(PAGE)
    (tmp_path / "test_page.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:benchmark", *PLUGIN, "test_page.py"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert answer.returncode == 0, answer.stdout[-5000:] + answer.stderr[-3000:]
    assert f"{text.count('def test_')} passed" in answer.stdout
