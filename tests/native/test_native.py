"""The C core without Python: built and run by itself under the sanitizers; `make test-arm` does the same for arm64."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = ROOT / "embedlog" / "_native"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-O1", "-g", "-fsanitize=address,undefined"]


def test_the_core_checks_itself(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler on the path")
    sources = [path for path in sorted(NATIVE.glob("*.c")) if not path.name.startswith(("rows", "_core"))]
    program = tmp_path / "selfcheck"
    given = [ROOT / "tests/native/selfcheck.c", *sources]
    command = [compiler, *FLAGS, f"-I{NATIVE}", *map(str, given), "-o", str(program), "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if "libasan" in built.stderr:
        pytest.skip(f"{compiler} has no libasan")
    assert built.returncode == 0, built.stderr
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run([program, tmp_path], capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("ok ") >= 14, done.stdout
