"""Files of a directory of another party: types that are opened, sizes that are read, names of
temporary files.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.errors import CorruptRecordError, StorageError
from embedlog.storage import file_names, files
from tests.support.replica_directories import failing

VICTIM = b"precious"


def a_link(path: Path) -> None:
    victim = path.with_name("victim")
    victim.write_bytes(VICTIM)
    path.symlink_to(victim)


def a_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("made"))


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS: list[tuple[Callable[[Path], object], str]] = [
    (a_link, "a symbolic link"),
    (a_dangling_link, "a symbolic link"),
    (os.mkfifo, "a named pipe"),
    (os.mkdir, "a directory"),
    (a_socket, "a socket"),
]


@pytest.mark.parametrize(
    "flags", [files.READ, files.WRITE, files.CREATE, files.CREATE | os.O_TRUNC, files.EXCLUSIVE]
)
@pytest.mark.parametrize(("make", "what"), KINDS, ids=[what for _, what in KINDS])
def test_only_a_regular_file_is_opened(
    tmp_path: Path, make: Callable[[Path], object], what: str, flags: int
) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(StorageError, match=f"expected a regular file.*found {what}") as problem:
        files.open_file(path, flags)
    assert problem.value.path == str(path)
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "victim").exists() or (tmp_path / "victim").read_bytes() == VICTIM


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_no_file_of_a_log(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "x", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no devices on this file system")
    with pytest.raises(StorageError):
        files.open_file(tmp_path / "x", files.READ)


def test_a_link_is_looked_at_itself(tmp_path: Path) -> None:
    a_link(tmp_path / "x")
    (tmp_path / "d").mkdir()
    (tmp_path / "to-d").symlink_to("d")
    found = files.lstat(tmp_path / "x")
    assert found is not None
    assert stat.S_ISLNK(found.mode)
    with pytest.raises(StorageError, match="found a symbolic link"):
        files.facts_of(tmp_path / "x")
    assert files.is_link(tmp_path / "x")
    assert files.is_directory(tmp_path / "to-d")
    assert not files.is_directory(tmp_path / "x")
    (tmp_path / "loop").symlink_to("loop")
    assert not files.is_directory(tmp_path / "loop")


def test_a_call_that_is_interrupted_for_ever_ends_with_an_error(tmp_path: Path) -> None:
    system.fault_arm(["open"], 1, "fail", errno.EINTR, sticky=True)
    with pytest.raises(StorageError) as caught:
        files.open_file(tmp_path / "f", files.CREATE)
    system.fault_off()
    assert caught.value.errno == errno.EINTR


def test_an_interrupted_open_is_made_again_by_python(tmp_path: Path) -> None:
    """Only between two calls of ours can a signal's handler run."""
    (tmp_path / "x").touch()
    system.fault_arm(["open"], 1, "fail", errno.EINTR)
    try:
        files.close(files.open_file(tmp_path / "x", files.READ))
        assert system.fault_counters()[1] == 1
    finally:
        system.fault_off()


def test_a_file_larger_than_its_kind_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        CorruptRecordError, match="at most 67108864 bytes, found 1099511627776"
    ) as problem:
        files.read_bytes(path)
    assert problem.value.path == str(path)
    path.write_bytes(b"12345")
    assert files.read_bytes(path, 5) == b"12345"
    with pytest.raises(CorruptRecordError):
        files.read_bytes(path, 4)


@pytest.mark.parametrize(
    "make", [a_link, a_dangling_link, os.mkfifo], ids=["link", "dangling", "pipe"]
)
def test_a_temporary_is_never_written_through_what_lies_there(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "x.tmp")
    files.write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "victim").exists() or (tmp_path / "victim").read_bytes() == VICTIM


def test_what_is_replaced_is_the_link_and_not_the_file_it_leads_to(tmp_path: Path) -> None:
    a_link(tmp_path / "x")
    files.write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "victim").read_bytes() == VICTIM
    assert (tmp_path / "x").read_bytes() == b"new"


def test_a_failed_replacement_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    for kind in ("open", "pwrite", "fsync", "rename"):
        system.fault_arm([kind], 1, "fail", errno.ENOSPC)
        with pytest.raises(StorageError):
            files.write_atomically(tmp_path / "x", b"new")
        system.fault_off()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"old"}


def test_temporaries_of_any_version_are_swept_and_nothing_else(tmp_path: Path) -> None:
    theirs = [
        "embedlog.topics.tmp",
        "embedlog.manifest.0123456789abcdef.tmp",
        "leader-epoch-checkpoint.tmp",
        "meta.properties.tmp",
        "recovery-point-offset-checkpoint.00ff00ff00ff00ff.tmp",
        f"{3:020d}.snapshot.tmp",
    ]
    others = [
        "letter.tmp",
        ".tmp",
        "letter.0123456789abcdef.tmp",
        f"{0:020d}.log",
        "embedlog.topics",
    ]
    for name in theirs + others:
        (tmp_path / name).touch()
    (tmp_path / "embedlog.door.tmp").mkdir()
    files.remove_temporaries(tmp_path, files.listing(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*others, "embedlog.door.tmp"]
    )


@pytest.mark.parametrize(
    "number", ["²", "٣", "-1", "+1", "1.5", "9" * 20, "9" * 19, "9" * 400, "1\n"]
)
def test_a_number_in_a_name_is_ascii_and_an_offset(number: str) -> None:
    """`str.isdigit` takes what `int` does not, and twenty digits hold more than an offset can."""
    for name in (f"{file_names.DIGESTS}{number}", f"{number:0>20}.log"):
        assert file_names.digests_base(name) is None
        assert file_names.parse(name) is None
    assert file_names.base_after(file_names.POISON, f"{file_names.POISON}{number}") is None
    assert file_names.parse(f"{2**63 - 1:020d}.log") == (2**63 - 1, ".log")
    assert file_names.digests_base(f"{file_names.DIGESTS}{7:020d}") == 7


def created(path: Path) -> int | None:
    with files.opened(path) as fd:
        return files.created_ns(fd, path)


def test_the_birth_time_of_a_file_stays_and_a_copy_has_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    copy = tmp_path / "copy"
    path.write_bytes(b"before")
    before = created(path)
    if before is None:
        pytest.skip("the file system has no birth times")
    assert 0 <= system.kernel_ms() - before // 1_000_000 < 3_600_000
    path.write_bytes(b"after")
    os.utime(path, ns=(1, 1))
    path.rename(tmp_path / "b")
    assert created(tmp_path / "b") == before
    shutil.copy2(tmp_path / "b", copy)
    assert created(copy) != before


def test_a_birth_time_that_cannot_be_read_is_an_error_and_one_that_is_absent_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    with (
        files.opened(path) as fd,
        failing(("stat",), error=errno.EIO),
        pytest.raises(StorageError, match="stat"),
    ):
        files.created_ns(fd, path)
    with files.opened(Path("/proc/self/stat")) as fd:
        assert files.created_ns(fd) is None
