"""Installs a wheel into new environments without a compiler, one for each Python, and runs programs
there: `make test-wheels`.

- the environment's `bin` is the whole PATH, and pip takes wheels only: a build from source fails
- the program is the first of the README, in an environment with the mandatory packages only
- the tests are copied to another place than the sources of embedlog, which therefore cannot be
  imported
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Tests that need no fault injection, and no package beyond these.
TEST_PACKAGES = (
    "cramjam",
    "hypothesis",
    "pytest",
    "pytest-benchmark",
    "pytest-timeout",
    "pytest-xdist",
    "xxhash",
    "zstandard",
)
TESTS = (
    "tests/test_imports.py",
    "tests/format/test_compression.py",
    "tests/format/test_decoder.py",
    "tests/format/test_encoder.py",
    "tests/native/test_crc32c.py",
    "tests/native/test_hash.py",
    "tests/producer/test_router.py",
    "tests/semantics/test_sending.py",
)
# The fastest checksum that the processor has is in use: a build for the oldest processor must not
# be limited to it. An emulator of another machine shows the features of this one, which are not
# compared.
CHECKSUM = """
import pathlib, platform, re
from embedlog._native import codec
name = {"x86_64": "flags", "aarch64": "Features"}[platform.machine()]
found = re.search(rf"{name}\\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text())
flags = set(found.group(1).split()) if found else set()
folding = {"avx512f", "avx512vl", "vpclmulqdq"} <= flags  # some processors have the last one alone
usable = {"avx512-vpclmul": folding, "sse42": "sse4_2" in flags, "armv8": "crc32" in flags, "software": True}
print(codec.crc32c_backend())
assert not found or codec.crc32c_backend() == next(name for name, here in usable.items() if here), flags
"""


class TrialError(Exception):
    """A command of a trial failed; the text is its output."""


class Environment:
    """A new environment of one Python, and its temporary folder."""

    def __init__(self, python: str, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.variables = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "EMBEDLOG_", "CC"))
        }
        self.run(python, "-m", "venv", folder / "venv")
        self.variables["PATH"] = str(self.python.parent)

    def run(self, *command: str | Path, **variables: str) -> str:
        environment = {**self.variables, **variables}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
        )
        if done.returncode != 0:
            raise TrialError(f"{' '.join(map(str, command))[:200]}\n{done.stdout[-3000:]}")
        return done.stdout

    def install(self, *packages: str | Path) -> None:
        self.run(self.python, "-m", "pip", "install", "-q", "--only-binary", ":all:", *packages)


def readme_program() -> str:
    found = re.search(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None, "README.md has no program"
    return found[1]


def trial(wheel: Path, python: str, folder: Path) -> str:
    """One line with what was run. Raises TrialError."""
    environment = Environment(python, folder)
    environment.install(wheel)
    packages = environment.run(environment.python, "-m", "pip", "list", "--format=freeze").split()
    first = environment.run(environment.python, "-c", readme_program())
    if not first.endswith("100001\n"):
        raise TrialError(f"the first program of the README printed {first!r}")
    checksum = environment.run(environment.python, "-c", CHECKSUM).strip()
    environment.install(*TEST_PACKAGES)
    for name in ("tests", "pyproject.toml", "README.md"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / name)
    options = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not faults and not kafka",
    )
    tested = environment.run(
        environment.python, *options, *TESTS, EMBEDLOG_INSTALLED="1"
    ).splitlines()[-1]
    version = environment.run(
        environment.python, "-c", "import platform; print(platform.python_version())"
    ).strip()
    return (
        f"Python {version}: {len(packages)} packages; the README's program ran; checksum "
        f"{checksum}; {tested.strip('= ')}"
    )


def installed() -> int:
    """Runs the programs with the embedlog of this Python, in a new folder: the test of the release
    workflow.
    """
    with tempfile.TemporaryDirectory() as folder:
        for program in (readme_program(), CHECKSUM):
            subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=600)
    return 0


def minor_version(python: str) -> str:
    """As "3.12", or "" for a Python that does not start or is too old."""
    program = (
        "import sys; print('%d.%d' % sys.version_info[:2] if sys.version_info >= (3, 11) else '')"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    if not arguments:
        return installed()
    wheel, *pythons = arguments
    chosen = {version: python for python in reversed(pythons) if (version := minor_version(python))}
    failed = not chosen
    print(
        f"embedlog: {Path(wheel).name} on {platform.machine()}, {' '.join(platform.libc_ver())}",
        flush=True,
    )
    for _, python in sorted(chosen.items(), key=lambda item: tuple(map(int, item[0].split(".")))):
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(trial(Path(wheel).resolve(), python, Path(folder)), flush=True)
            except TrialError as error:
                failed = True
                print(f"{python}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
