"""A second interpreter in the process is refused; the first one may be any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = "_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"
PROGRAM = """
import sys, textwrap
import {module} as interpreters
if sys.argv[2] == "after the main one":
    import embedlog
    embedlog.open(sys.argv[1]).close()
made = interpreters.create({shared})
body = f'''
import sys
sys.path[:0] = {{sys.path!r}}
import embedlog
try:
    with embedlog.open({{sys.argv[1]!r}}) as log:
        log.create_topic("t")
        print("opened", flush=True)
except embedlog.UnsupportedPlatformError as problem:
    print(problem, flush=True)
'''
interpreters.run_string(made, body)
"""


@pytest.mark.parametrize("which", ["alone", "after the main one"])
def test_only_the_first_interpreter_of_a_process_uses_the_log(tmp_path: Path, which: str) -> None:
    pytest.importorskip(MODULE)
    shared = "isolated=False" if sys.version_info < (3, 13) else "'legacy'"
    program = PROGRAM.format(module=MODULE, shared=shared)
    command = [sys.executable, "-c", program, str(tmp_path / "log"), which]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    wanted = "opened" if which == "alone" else "embedlog runs in one interpreter of a process only"
    assert answer.stdout.startswith(wanted)
