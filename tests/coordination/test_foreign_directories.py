"""Directories of other programs: they are no log, none of their subdirectories is a topic, and no
file in them is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination import topic_directories
from embedlog.errors import ForeignDirectoryError
from embedlog.storage import file_names, files, identity
from embedlog.topic import Topic
from tests.support.idle_logs import QUIET, closed

__all__ = ["closed"]

AT_ONCE = QUIET | {"log.segment.delete.delay.ms": 0}


def frozen(path: Path) -> dict[str, bytes | None]:
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else None
        for each in sorted(path.rglob("*"))
    }


def album(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "photo.jpg").write_bytes(b"jpeg")
    (path / "raw").mkdir()
    (path / "raw" / "photo.dng").write_bytes(b"raw")
    return path


def linked(path: Path) -> None:
    """Only a link leads to a partition."""
    other = path.with_name("other")
    with embedlog.open(other, config=QUIET) as log:
        log.create_topic("t", 1)
    (path / "t-0").symlink_to(other / "t-0")
    (path / "README.md").write_text("a project")


OTHERS: dict[str, Callable[[Path], object]] = {
    "a subdirectory": lambda path: album(path / "holiday-1"),
    "many": lambda path: [album(path / name) for name in ("dbus-1", "python-3", "build-1")],
    "an empty subdirectory": lambda path: (path / "build-1").mkdir(),
    "a checkpoint of another program": lambda path: (path / "model-checkpoint").write_text(
        "weights"
    ),
    "a file that begins with our name": lambda path: (path / "embedlog.toml").write_text("[log]"),
    "a temporary of another program": lambda path: (path / "model-checkpoint.tmp").write_text(
        "weights"
    ),
    "a lock of another program": lambda path: [
        (path / name).write_text("") for name in (".lock", "notes")
    ],
    "a link to a partition": linked,
    "a numbered file": lambda path: (album(path / "holiday-1") / f"{7:020d}.jpg").write_bytes(
        b"jpeg"
    ),
    "a directory that is closed to us": lambda path: album(path / "build-1").chmod(0),
}


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_a_directory_of_another_program_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], object], read_only: bool
) -> None:
    path = tmp_path / "project"
    path.mkdir()
    make(path)
    before = frozen(path)
    with pytest.raises(ForeignDirectoryError, match="not a log directory"):
        embedlog.open(path, read_only=read_only)
    assert frozen(path) == before


def test_the_refusal_names_a_file_in_the_directory(tmp_path: Path) -> None:
    album(tmp_path / "holiday-1")
    with pytest.raises(ForeignDirectoryError, match=r"1 other names, such as holiday-1/photo\.jpg"):
        embedlog.open(tmp_path)


def test_a_partition_is_a_log_without_any_file_of_the_directory(
    tmp_path: Path, closed: Path
) -> None:
    """Partitions may be copied alone; brokers before 2.8 wrote no partition.metadata."""
    for number, kept in enumerate(("partition.metadata", "00000000000000000000.log")):
        root = tmp_path / str(number)
        (root / "t-0").mkdir(parents=True)
        shutil.copy(closed / "t-0" / kept, root / "t-0")
        album(root / "holiday-1")
        with embedlog.open(root, config=QUIET) as log:
            assert log.topics() == ["t"]


# ---- beside partitions ---------------------------------------------------------------------------


def test_a_foreign_directory_in_a_log_is_no_topic(
    closed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = frozen(album(closed / "holiday-1"))
    for read_only in (True, False):
        with embedlog.open(closed, read_only=read_only, config=AT_ONCE) as log:
            assert log.topics() == ["t"]
            if not read_only:
                log.housekeep()
            notes = [
                (each.severity, Path(each.path).name, each.found) for each in log.check().findings
            ]
            assert notes == [("note", "holiday-1", "photo.jpg")]
    assert frozen(closed / "holiday-1") == before
    assert caplog.text.count("holiday-1 is no partition") == 1
    assert "photo.jpg" in caplog.text


def test_a_foreign_directory_adds_no_partition_to_a_topic(closed: Path) -> None:
    before = frozen(album(closed / "t-7"))
    with embedlog.open(closed, config=AT_ONCE) as log:
        assert len(log.describe_topic("t").partitions) == 1
        log.delete_topic("t")
        log.housekeep()
        assert log.topics() == []
    assert frozen(closed / "t-7") == before


def test_no_topic_is_made_or_grows_in_a_foreign_directory(closed: Path) -> None:
    album(closed / "holiday-1")
    album(closed / "t-1")
    before = frozen(closed / "holiday-1") | frozen(closed / "t-1")
    with embedlog.open(closed, config=AT_ONCE) as log:
        with pytest.raises(ForeignDirectoryError, match="foreign file") as problem:
            log.create_topic("holiday", 2)
        assert problem.value.path == str(closed / "holiday-1")
        with pytest.raises(ForeignDirectoryError, match="is no partition") as problem:
            log.create_partitions("t", 3)
        assert (problem.value.path, problem.value.found) == (str(closed / "t-1"), "photo.jpg")
        assert len(log.describe_topic("t").partitions) == 1
        log.housekeep()
    assert frozen(closed / "holiday-1") | frozen(closed / "t-1") == before


def test_the_topic_of_an_interrupted_creation_is_not_made_in_a_foreign_directory(
    tmp_path: Path,
) -> None:
    before = frozen(album(tmp_path / "holiday-0"))
    topic = Topic("holiday", identity.new_id(), 1, state="creating")
    with pytest.raises(ForeignDirectoryError, match="is no partition"):
        topic_directories.make_partition(tmp_path, topic, 0)
    assert frozen(tmp_path / "holiday-0") == before


def test_a_link_to_a_foreign_directory_makes_no_topic_even_if_links_are_followed(
    closed: Path,
) -> None:
    photos = album(closed.with_name("photos"))
    before = frozen(photos)
    (closed / "holiday-1").symlink_to(photos)
    with embedlog.open(closed, config=AT_ONCE | {"follow.links": True}) as log:
        assert log.topics() == ["t"]
    assert frozen(photos) == before


def test_an_empty_partition_is_one(closed: Path) -> None:
    """A process may end between the creation of a directory and that of its first file."""
    (closed / "u-0").mkdir()
    with embedlog.open(closed, config=QUIET) as log:
        assert log.topics() == ["t", "u"]


# ---- deletion ------------------------------------------------------------------------------------


def test_a_deletion_keeps_files_that_no_partition_has(
    closed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    album(closed / "t-0" / "album")
    (closed / "t-0" / "notes.txt").write_text("of an operator")
    (closed / "t-0" / f"{0:020d}.log.bak").write_bytes(b"a copy")
    with embedlog.open(closed, config=AT_ONCE) as log:
        log.delete_topic("t")
        for _ in range(2):
            log.housekeep()
    (retired,) = closed.glob("t-0.*-delete")
    assert sorted(frozen(retired)) == [
        "00000000000000000000.log.bak",
        "album",
        "album/photo.jpg",
        "album/raw",
        "album/raw/photo.dng",
        "notes.txt",
    ]
    messages = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(messages) == 1
    assert all(name in messages[0] for name in (retired.name, "album", "notes.txt", ".log.bak"))
    shutil.rmtree(retired / "album")
    (retired / "notes.txt").unlink()
    (retired / f"{0:020d}.log.bak").unlink()
    with embedlog.open(closed, config=AT_ONCE) as log:
        log.housekeep()
    assert not retired.exists()


def test_a_directory_that_only_has_the_name_of_a_retired_one_keeps_its_files(closed: Path) -> None:
    before = frozen(album(closed / "my-project.old-delete"))
    with embedlog.open(closed, config=AT_ONCE) as log:
        log.housekeep()
    assert frozen(closed / "my-project.old-delete") == before


def test_a_linked_partition_keeps_files_that_no_partition_has(closed: Path) -> None:
    elsewhere = closed.with_name("elsewhere")
    shutil.move(closed / "t-0", elsewhere)
    (elsewhere / "notes.txt").write_text("of an operator")
    (closed / "t-0").symlink_to(elsewhere)
    with embedlog.open(closed, config=AT_ONCE | {"follow.links": True}) as log:
        log.delete_topic("t")
        log.housekeep()
    assert list(frozen(elsewhere)) == ["notes.txt"]
    assert not list(closed.glob("t-*"))


def test_a_partition_whose_files_were_replaced_is_not_retired(tmp_path: Path) -> None:
    topic = Topic("holiday", identity.new_id(), 1)
    before = frozen(album(tmp_path / "holiday-0"))
    topic_directories.retire_partition(tmp_path, topic, 0)
    assert frozen(tmp_path / "holiday-0") == before


def test_every_file_that_a_log_makes_has_a_known_name(closed: Path) -> None:
    """Also those of an open log: an unknown name would stay after a deletion."""
    with embedlog.open(closed, config=QUIET) as log:
        with log.producer() as producer:
            producer.send("t", b"v").result()
        for opened in (True, False):
            if not opened:
                log.close()
            assert [
                name
                for name in files.listing(closed / "t-0")
                if not file_names.is_of_partition(name)
            ] == []
            own = (name for name in files.listing(closed) if name.startswith("embedlog."))
            assert [name for name in own if not file_names.is_of_directory(name)] == []


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("00000000000000000000.log", True),
        ("00000000000000000000.log.deleted", True),
        ("00000000000000000009.index.cleaned", True),
        ("00000000000000000009.timeindex.swap", True),
        ("00000000000000000009.txnindex", True),
        ("partition.metadata.tmp", True),
        ("partition.metadata.damaged", True),
        ("00000000000000000009.snapshot.deleted", True),
        ("leader-epoch-checkpoint", True),
        ("embedlog.page", True),
        ("embedlog.digests-00000000000000000009", True),
        ("embedlog.poison-9", True),
        ("embedlog.cut-00000000000000000009-61", True),
        ("embedlog.manifest.0123456789abcdef.tmp", True),
        ("0.log", False),
        ("00000000000000000000.log.bak", False),
        ("00000000000000000000.jpg", False),
        ("00000000000000000000", False),
        ("00000000000000000000.deleted", False),
        ("photo.deleted", False),
        ("embedlog.toml", False),
        ("embedlog.toml.tmp", False),
        ("embedlog.cut-notes", False),
        ("x-checkpoint", False),
        ("99999999999999999999.log", False),
    ],
)
def test_names_of_a_partitions_files(name: str, known: bool) -> None:
    assert file_names.is_of_partition(name) is known
