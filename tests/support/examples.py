"""The programs in examples/, run as a reader of them would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *map(str, arguments)]


def run(
    name: str, *arguments: object, cwd: Path | None = None, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """Runs one to its end, which must be a good one."""
    answer = subprocess.run(
        command(name, *arguments), capture_output=True, text=True, timeout=timeout, cwd=cwd
    )
    assert answer.returncode == 0, (
        f"{name} exited {answer.returncode}: {answer.stdout[-1000:]}{answer.stderr[-4000:]}"
    )
    return answer
