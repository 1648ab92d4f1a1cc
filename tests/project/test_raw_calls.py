"""System calls on files go through `files`, so that each failure is a StorageError with errno and
path.
"""

from __future__ import annotations

import ast
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import StorageError
from tests.conftest import ROOT

PACKAGE = ROOT / "embedlog"
CALLS_OF_OS = {
    "access",
    "chmod",
    "chown",
    "close",
    "copy_file_range",
    "dup",
    "dup2",
    "fallocate",
    "fchmod",
    "fdatasync",
    "fstat",
    "fsync",
    "ftruncate",
    "link",
    "listdir",
    "lseek",
    "lstat",
    "makedirs",
    "mkdir",
    "open",
    "posix_fallocate",
    "pread",
    "preadv",
    "pwrite",
    "pwritev",
    "read",
    "readlink",
    "remove",
    "removedirs",
    "rename",
    "renames",
    "replace",
    "rmdir",
    "scandir",
    "sendfile",
    "stat",
    "statvfs",
    "symlink",
    "sync",
    "truncate",
    "unlink",
    "utime",
    "walk",
    "write",
}
CALLS_OF_PATHS = {
    "absolute",
    "chmod",
    "exists",
    "glob",
    "hardlink_to",
    "is_dir",
    "is_file",
    "is_symlink",
    "iterdir",
    "lstat",
    "mkdir",
    "read_bytes",
    "read_text",
    "readlink",
    "resolve",
    "rglob",
    "rmdir",
    "samefile",
    "stat",
    "symlink_to",
    "touch",
    "unlink",
    "write_bytes",
    "write_text",
}
OF_OS_PATH = {
    "abspath",
    "exists",
    "getsize",
    "getmtime",
    "isdir",
    "isfile",
    "islink",
    "lexists",
    "realpath",
    "samefile",
}
MODULES = {"shutil", "tempfile", "fcntl", "mmap", "io"}
# Where typed errors are made; memory without a file; /proc, where a failure means "not known";
# integrations and tests (other files).
ALLOWED = (
    "storage/files.py",
    "_native/",
    "format/buffer_pool.py",
    "storage/lock_holders.py",
    "storage/process_list.py",
    "tools/cli/",
    "tools/console/",
    "plot/shown_figure.py",
    "schemas/avro.py",
    "spark/",
    "testing/",
)
ROOMS = {"files", "system"}  # have functions of the same names


def raw_calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each system call outside `files`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, f"import {alias.name}")
                for alias in node.names
                if alias.name.split(".")[0] in MODULES
            )
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield node.lineno, f"from {node.module} import"
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield node.lineno, "open"
        if (
            isinstance(called, ast.Attribute)
            and called.attr in CALLS_OF_OS | CALLS_OF_PATHS | OF_OS_PATH
        ):
            whose = ast.unparse(called.value)
            name = called.attr
            of_os = (whose == "os" and name in CALLS_OF_OS) or (
                whose == "os.path" and name in OF_OS_PATH
            )
            of_path = (
                name in CALLS_OF_PATHS
                and "path" in whose.lower()
                and whose.split(".")[0] not in ROOMS
            )
            if of_os or of_path:
                yield node.lineno, f"{whose}.{name}"


def modules() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    return [path for path in found if not str(path.relative_to(PACKAGE)).startswith(ALLOWED)]


def test_no_module_asks_the_operating_system_past_files() -> None:
    found = {
        str(path.relative_to(PACKAGE)): list(raw_calls(ast.parse(path.read_text())))
        for path in modules()
    }
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "code",
    [
        "os.listdir(d)",
        "os.path.isdir(d)",
        "open(0)",
        "import shutil",
        "path.read_text()",
        "Path(d).exists()",
        "self.path.stat()",
    ],
)
def test_a_raw_call_is_seen(code: str) -> None:
    assert len(list(raw_calls(ast.parse(code)))) == 1


def test_a_current_directory_that_is_gone_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StorageError, match="cannot find the current directory for") as told:
        embedlog.open("log")
    assert (told.value.path, told.value.errno) == ("log", errno.ENOENT)
