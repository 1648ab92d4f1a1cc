"""`make test-wheels` finds the wheel of this machine, and says what is missing without one."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def made(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make test-wheels` in a folder, with `echo` instead of Python."""
    command = [
        "make",
        "-s",
        "-f",
        str(ROOT / "Makefile"),
        "test-wheels",
        "PYTHON=echo",
        "PYTHONS=python3",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_wheel_of_this_machine_is_tried(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    for machine in ("x86_64", "aarch64"):
        (
            tmp_path
            / "dist"
            / f"embedlog-1-cp311-abi3-manylinux2014_{machine}.manylinux_2_17_{machine}.whl"
        ).touch()
    found = made(tmp_path)
    assert found.returncode == 0, found.stderr
    mine = platform.machine()
    assert found.stdout.split() == [
        "-m",
        "release.trial",
        f"dist/embedlog-1-cp311-abi3-manylinux2014_{mine}.manylinux_2_17_{mine}.whl",
        "python3",
    ]


def test_without_a_wheel_of_this_machine_the_command_that_makes_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "embedlog-1-cp311-abi3-manylinux2014_other.whl").touch()
    found = made(tmp_path)
    assert found.returncode != 0
    assert "run make wheels" in found.stderr


def test_every_python_of_the_machine_is_tried(tmp_path: Path) -> None:
    """Also those after a name that is not on the path."""
    python = tmp_path / "pyenv" / "versions" / "3.13.99" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    command = ["make", "-s", "-f", str(ROOT / "Makefile"), "-n", "test-wheels", "PYTHON=echo"]
    environment = {"PATH": "/usr/bin:/bin", "PYENV_ROOT": str(tmp_path / "pyenv")}
    found = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert str(python) in found.stdout
