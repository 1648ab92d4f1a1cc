"""Runs tests in a process of their own, with a plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def run_pytest(
    plugin: str, base: Path, *arguments: str, timeout_s: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The ended process; its tests have their files below `base`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        plugin,
        "-p",
        "no:cacheprovider",
        f"--basetemp={base}",
        *arguments,
    ]
    together = os.environ | environment
    return subprocess.run(
        command,
        cwd=ROOT,
        env=together,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


# The entry point may be installed or not; both ways the plugin is loaded once.
PLUGIN = ("-p", "no:embedlog", "-p", "embedlog.testing.plugin", "-p", "no:cacheprovider")
