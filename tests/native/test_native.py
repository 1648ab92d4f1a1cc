"""The C core without Python: built and run by itself under the sanitizers; `make test-arm` does the
same for arm64.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from embedlog._native import _core
from release.contents import TEST_NAMES

ROOT = Path(__file__).resolve().parent.parent.parent
NATIVE = ROOT / "embedlog" / "_native"
CORE = [
    path for folder in ("codec", "system", "log") for path in sorted((NATIVE / folder).glob("*.c"))
]
# Folders of C files, and the folders whose headers each may include.
INCLUDES = {
    "api": {"api"},
    "testing": {"testing", "api", "system"},
    "codec": {"codec", "api", "testing"},
    "system": {"system", "api", "testing"},
    "log": {"log", "codec", "system", "api", "testing"},
    "objects": {"objects", "codec", "api"},
}
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-D_FILE_OFFSET_BITS=64",
    "-O0",
    "-g",
    "-fsanitize=address,undefined",
]


def test_the_core_checks_itself(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler on the path")
    program = tmp_path / "selfcheck"
    given = [ROOT / "tests/native/selfcheck.c", *CORE]
    command = [compiler, *FLAGS, f"-I{NATIVE}", *map(str, given), "-o", str(program), "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if "libasan" in built.stderr:
        pytest.skip(f"{compiler} has no libasan")
    assert built.returncode == 0, built.stderr
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run(
        [program, tmp_path],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("ok ") >= 14, done.stdout


@pytest.mark.slow
def test_a_build_for_production_has_no_fault_injection_and_no_mutants(tmp_path: Path) -> None:
    """Neither symbols nor texts; the core that these tests load has them all."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler on the path")
    core = tmp_path / "core.so"
    options = [
        "-std=c11",
        "-D_GNU_SOURCE",
        "-D_FILE_OFFSET_BITS=64",
        "-O1",
        "-shared",
        "-fPIC",
        f"-I{NATIVE}",
    ]
    built = subprocess.run(
        [compiler, *options, *map(str, CORE), "-o", str(core)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert built.returncode == 0, built.stderr
    raw = core.read_bytes()
    assert b"el_crc32c" in raw
    assert [name for name in TEST_NAMES if name in raw] == []
    loaded = Path(str(_core.__file__)).read_bytes()
    assert [name for name in TEST_NAMES if name not in loaded] == []


def test_folders_include_only_what_they_may() -> None:
    """The C core below uses no file above it; `objects`, the other extension, uses the codec
    only.
    """
    wrong = [
        f"{path.relative_to(NATIVE)}: {included}"
        for path in sorted(NATIVE.rglob("*.[ch]"))
        for included in re.findall(r'#include "([^"]+)"', path.read_text())
        if path.name != "_core.c" and included.partition("/")[0] not in INCLUDES[path.parent.name]
    ]
    assert wrong == []


def test_the_numbers_of_the_words_and_codes_are_those_of_the_core() -> None:
    from embedlog._native import replication, system

    checked_count = 0
    for module in (system, replication):
        for name, value in vars(module).items():
            of_core = getattr(system.lib, f"EL_{name}", None)
            if isinstance(value, int) and isinstance(of_core, int):
                assert value == of_core, name
                checked_count += 1
    assert checked_count > 40
