"""Bad directories at opening: a typed error with the facts, nothing written, usable after the
correction.
"""

from __future__ import annotations

import errno
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

import embedlog
from embedlog._native import system
from embedlog.errors import (
    ConfigError,
    CorruptRecordError,
    EmbedlogError,
    ForeignDirectoryError,
    StateError,
    StorageError,
    UnsupportedFormatError,
)
from tests.faults.harness.processes import Nursery, RemoteError
from tests.faults.harness.stage import FakeBroker
from tests.support.batches import crc32c
from tests.support.idle_logs import QUIET, closed, fill, frozen, use, values

__all__ = ["closed"]


def new(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a directory")


def somebody_elses(path: Path) -> None:
    shutil.rmtree(path)
    new(path / "letter.txt", b"Dear Sir")
    new(path / "photos" / "cat.jpg", b"cat")


def damaged_topics(path: Path) -> None:
    data = (path / "embedlog.topics").read_bytes()
    (path / "embedlog.topics").write_bytes(data.replace(b'"partitions": 1', b'"partitions": 2'))


def newer_topics(path: Path) -> None:
    document = json.loads((path / "embedlog.topics").read_text())
    document |= {"version": 2}
    del document["checksum"]
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = "xxh3:" + xxhash.xxh3_64_hexdigest(canonical.encode())
    (path / "embedlog.topics").write_text(json.dumps(document))


def newer_page(path: Path) -> None:
    """The version is after the magic, and once more in the identity."""
    data = bytearray(path.read_bytes())
    found = 0
    for at in range(8, 128, 4):
        if struct.unpack_from("<I", data, at)[0] == system.PAGE_VERSION and (at == 8 or at > 16):
            struct.pack_into("<I", data, at, system.PAGE_VERSION + 1)
            found += 1
    assert found >= 2
    path.write_bytes(data)


def changed(name: str, old: bytes, fresh: bytes) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        data = (path / name).read_bytes()
        assert old in data
        (path / name).write_bytes(data.replace(old, fresh, 1))

    return act


def rewritten(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(data) and None


def foreign_magic(path: Path) -> None:
    with (path / "t-0" / f"{0:020d}.log").open("r+b") as file:
        file.seek(16)
        file.write(b"\7")


def newer_manifest(path: Path) -> None:
    file = path / "t-0" / "embedlog.manifest"
    data = bytearray(file.read_bytes())
    struct.pack_into(">II", data, 8, 4, 0)
    struct.pack_into(">I", data, 12, crc32c(bytes(data[:32])))
    file.write_bytes(data)


DIRECTORIES: list[tuple[str, Callable[[Path], None], type[Exception], str]] = [
    ("a file", a_file, ForeignDirectoryError, "not a directory"),
    ("other people's files", somebody_elses, ForeignDirectoryError, "letter.txt"),
    ("damaged file of topics", damaged_topics, ForeignDirectoryError, "checksum"),
    (
        "empty file of topics",
        rewritten("embedlog.topics", b""),
        ForeignDirectoryError,
        "embedlog.topics",
    ),
    (
        "nested file of topics",
        rewritten("embedlog.topics", b"[" * 100_000),
        ForeignDirectoryError,
        "embedlog.topics",
    ),
    ("newer file of topics", newer_topics, UnsupportedFormatError, "expected 1, found 2"),
    (
        "newer control page",
        lambda path: newer_page(path / "embedlog.control"),
        UnsupportedFormatError,
        "newer embedlog",
    ),
    ("newer manifest", newer_manifest, UnsupportedFormatError, "found 4"),
    (
        "newer page",
        lambda path: newer_page(path / "t-0" / "embedlog.page"),
        UnsupportedFormatError,
        "newer embedlog",
    ),
    (
        "newer identity",
        changed("meta.properties", b"version=1", b"version=2"),
        UnsupportedFormatError,
        "0 or 1",
    ),
    (
        "corrupt identity",
        changed("meta.properties", b"node.id=1", b"node.id=x"),
        ForeignDirectoryError,
        "node.id",
    ),
    (
        "newer topic id file",
        changed("t-0/partition.metadata", b"version: 0", b"version: 1"),
        UnsupportedFormatError,
        "metadata",
    ),
    (
        "newer checkpoint",
        rewritten("recovery-point-offset-checkpoint", b"1\n0\n"),
        UnsupportedFormatError,
        "checkpoint",
    ),
    (
        "malformed checkpoint",
        rewritten("log-start-offset-checkpoint", b"0\n1\nt 0\n"),
        ForeignDirectoryError,
        "line 3",
    ),
    (
        "a checkpoint of no topic",
        rewritten("log-start-offset-checkpoint", b"0\n1\nto!ic 0 0\n"),
        ForeignDirectoryError,
        "line 3",
    ),
    (
        "malformed epochs",
        rewritten("t-0/leader-epoch-checkpoint", b"0\n1\n0\n"),
        ForeignDirectoryError,
        "line 3",
    ),
    ("a batch of another kind", foreign_magic, CorruptRecordError, "magic"),
    (
        "an unfinished backup",
        rewritten("embedlog.backup", b""),
        ForeignDirectoryError,
        "incomplete backup",
    ),
]


# a reader of a closed directory reads no page
PAGES_OF_A_WRITER = {"newer control page", "newer page"}
NOT_ASKED_BY_A_READER = {"newer identity", "corrupt identity"}


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize(
    ("spoil", "error", "fact"), [pytest.param(*row[1:], id=row[0]) for row in DIRECTORIES]
)
def test_a_directory_that_cannot_be_used_is_refused_and_left_alone(
    closed: Path,
    request: pytest.FixtureRequest,
    spoil: Callable[[Path], None],
    error: type[Exception],
    fact: str,
    read_only: bool,
) -> None:
    spoil(closed)
    row = request.node.callspec.id
    before = frozen(closed) if closed.is_dir() else {"": closed.read_bytes()}
    if read_only and any(each in row for each in PAGES_OF_A_WRITER | NOT_ASKED_BY_A_READER):
        use(closed, read_only)
    else:
        with pytest.raises(error) as problem:
            use(closed, read_only)
        assert fact in str(problem.value), str(problem.value)
        assert problem.value.path is not None
    after = frozen(closed) if closed.is_dir() else {"": closed.read_bytes()}
    if read_only or closed.is_file() or "other people" in row:
        assert after == before
    kept = {
        name
        for name in before
        if Path(name).suffix in (".log", ".topics", ".properties", ".txt", ".jpg")
    }
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_what_was_put_right_can_be_used_again(closed: Path) -> None:
    """A refused opening has lost nothing: with the file restored everything is there."""
    for _, spoil, _, _ in DIRECTORIES[2:]:
        copy = closed.with_name("copy")
        shutil.copytree(closed, copy)
        spoil(copy)
        with pytest.raises(EmbedlogError):
            use(copy, read_only=False)
        spoiled = frozen(copy).keys() - frozen(closed).keys()
        for name in spoiled:
            (copy / name).unlink()
        for path in sorted(closed.rglob("*")):
            if path.is_file():
                shutil.copy(path, copy / path.relative_to(closed))
        use(copy, read_only=False)
        shutil.rmtree(copy)


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_a_path_where_nothing_is(tmp_path: Path, read_only: bool) -> None:
    with pytest.raises(StorageError) as problem:
        embedlog.open(tmp_path / "no" / "log", read_only=read_only, create=False)
    assert problem.value.errno == errno.ENOENT
    assert not list(tmp_path.iterdir())


def test_an_empty_directory_has_nothing_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(ForeignDirectoryError, match="not a log directory"):
        embedlog.open(tmp_path, read_only=True)
    assert not list(tmp_path.iterdir())
    with embedlog.open(tmp_path, config=QUIET) as log:  # a writer makes a log of it
        log.create_topic("t")


def test_lost_and_found_is_left_alone(tmp_path: Path) -> None:
    new(tmp_path / "log" / "lost+found" / "#12", b"x")
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t")
        fill(log)
        log.housekeep()
    use(tmp_path / "log", read_only=True)
    assert (tmp_path / "log" / "lost+found" / "#12").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("arguments", "error", "fact"),
    [
        ({"path": 5}, TypeError, "PathLike"),
        ({"config": {"log.segment.byte": 5}}, ConfigError, "log.segment.bytes?"),
        ({"config": {"listeners": "x"}}, ConfigError, "server"),
        ({"config": {"file.mode": "0o99"}}, ConfigError, "octal"),
        ({"config": 5}, TypeError, "mapping"),
        (
            {"read_only": True, "create": True, "path": "absent"},
            StorageError,
            "no such log directory",
        ),
    ],
    ids=repr,
)
def test_an_opening_that_is_wrong_makes_nothing(
    tmp_path: Path, arguments: Any, error: type[Exception], fact: str
) -> None:
    given = {"path": tmp_path / "log"} | arguments
    given["path"] = (
        tmp_path / given["path"] if isinstance(given["path"], (str, Path)) else given["path"]
    )
    with pytest.raises(error) as problem:
        embedlog.open(**given)
    assert fact in str(problem.value), str(problem.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
def test_a_directory_that_a_broker_holds(nursery: Nursery, closed: Path, read_only: bool) -> None:
    broker = FakeBroker(closed)
    assert broker.start()
    before = frozen(closed)
    victim = nursery.spawn()
    with pytest.raises(RemoteError) as refused:
        victim.call(
            "open", str(closed), read_only=read_only, config=QUIET | {"lock.timeout.ms": 100}
        )
    assert refused.value.kind == "DirectoryInUseError"
    assert "broker" in str(refused.value)
    assert frozen(closed) == before
    broker.mark_and_unlock()
    broker.unlink()
    use(closed, read_only=False)


def test_damage_in_what_a_stranger_left_is_an_error_and_never_cut_away(closed: Path) -> None:
    """A copy looks as if another process had used it. Its files still count as durable, as its mark
    says.
    """
    copy = closed.with_name("copy")
    shutil.copytree(closed, copy)
    foreign_magic(copy)
    before = frozen(copy)
    with embedlog.open(copy, config=QUIET) as log, log.producer() as producer:
        for number in range(3):
            producer.send("t", b"more %d" % number).result(10)
            log.flush()
        assert log._engine.partition("t", 0).bounds().log_start == 0
        with pytest.raises(CorruptRecordError, match="magic"):
            values(log)
    assert {name: data for name, data in frozen(copy).items() if f"{0:020d}." in name} == {
        name: data for name, data in before.items() if f"{0:020d}." in name
    }
    assert not list(copy.glob("t-0/embedlog.cut-*"))


def test_a_swap_that_was_broken_off_is_finished_by_a_writer_and_never_read_past(
    closed: Path,
) -> None:
    """Compaction renames its output at its end; a reader must not take a file before its renaming
    for a gap.
    """
    base = sorted((closed / "t-0").glob("*.log"))[1].stem
    for suffix in ("log", "index", "timeindex"):
        path = closed / "t-0" / f"{base}.{suffix}"
        path.rename(path.with_name(path.name + ".swap"))
    before = frozen(closed)
    with pytest.raises(StateError, match="for writing once"):
        use(closed, read_only=True)
    assert frozen(closed) == before
    use(closed, read_only=False)
    use(closed, read_only=True)


def test_a_first_segment_that_is_gone_is_missed_unless_retention_took_it(closed: Path) -> None:
    for suffix in ("log", "index", "timeindex"):
        (closed / "t-0" / f"{0:020d}.{suffix}").rename(closed / suffix)
    with pytest.raises(CorruptRecordError, match="missing"):
        use(closed, read_only=False)
    for suffix in ("log", "index", "timeindex"):
        (closed / suffix).rename(closed / "t-0" / f"{0:020d}.{suffix}")
    use(closed, read_only=False)
    with embedlog.open(closed, config=QUIET) as log:
        held = values(log)
        log.alter_topic("t", {"retention.bytes": 300, "file.delete.delay.ms": 0})
        log.housekeep()
        log.housekeep()
        kept = values(log)
    assert 0 < len(kept) < len(held)
    assert not (closed / "t-0" / f"{0:020d}.log").exists()
    for read_only in (False, True):
        with embedlog.open(closed, read_only=read_only, config=QUIET) as log:
            assert values(log) == kept


def test_a_first_opening_that_a_power_loss_broke_off_can_be_repeated(tmp_path: Path) -> None:
    """Found by a simulated cut: nothing but the first temporary file had reached the disk, and the
    directory was refused.
    """
    (tmp_path / "meta.properties.tmp").write_bytes(b"clus")
    with embedlog.open(tmp_path) as log:
        log.create_topic("events", 1)
        assert log.topics() == ["events"]
