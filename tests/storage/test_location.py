"""The texts that are accepted as the path of a log, and a path without a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import EmbedlogError, ForeignDirectoryError
from embedlog.storage import location
from tests.support.idle_logs import QUIET, closed

__all__ = ["closed"]

MISTAKES = [
    ("localhost:9092", "address of a server"),
    ("a.example:9092,b.example:9093", "address of a server"),
    (":9092", "address of a server"),
    ("s3://bucket/x", "a URL"),
    ("https://example.org/log", "a URL"),
    ("file:///x/y", "a file URL"),
    ("~/x", "expanduser"),
    ("~", "expanduser"),
    ("~ann/x", "expanduser"),
    ("", "an empty text"),
    ("a\0b", "a zero character"),
    ("\ud800", "a lone surrogate"),
]
PATHS = [
    "data",
    "./localhost:9092",
    "./~/x",
    "./s3:/b",
    "a b",
    "x:y",
    "log-9092",
    "C:/x",
    "ü",
    "data/~/x",
    "a/b:1",
]
PATHS += [os.fsdecode(b"\xff")]


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
@pytest.mark.parametrize(("text", "fact"), MISTAKES)
def test_a_text_that_is_no_path_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fact: str, read_only: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ForeignDirectoryError, match=fact) as problem:
        embedlog.open(text, read_only=read_only)
    assert "expected the path of a" in str(problem.value)
    assert not list(tmp_path.iterdir())


def test_a_backup_takes_no_url_for_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        embedlog.open(closed, config=QUIET) as log,
        pytest.raises(ForeignDirectoryError, match="a URL"),
    ):
        log.backup("s3://bucket/copy")
    assert [path.name for path in tmp_path.iterdir()] == [closed.name]


@pytest.mark.parametrize("text", PATHS)
def test_paths_that_only_look_odd_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert location.check_path(text) == tmp_path / text
    if not text.startswith("."):  # which a Path leaves out
        assert location.check_path(Path(text)) == tmp_path / text


@pytest.mark.parametrize("text", ["localhost:9092", "~/x", "s3:/b"])
def test_a_directory_that_is_there_is_taken_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: Path, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / text).parent.mkdir(exist_ok=True)
    closed.rename(tmp_path / text)
    with embedlog.open(text, config=QUIET) as log:
        assert log.topics() == ["t"]


@pytest.mark.parametrize("given", [5, b"data", None, 1.5])
def test_a_path_of_a_wrong_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: object
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match="PathLike"):
        embedlog.open(given)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_the_parents_of_a_missing_directory_are_made(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "a" / "b" / "c", config=QUIET) as log:
        assert log.topics() == []
    with pytest.raises(EmbedlogError):
        embedlog.open(tmp_path / "x" / "y", create=False)
    assert not (tmp_path / "x").exists()
