"""Two copies of one directory at once, instead of the original, beside it, and in the places of
other directories.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import ReplicaSetError
from tests.support.renewed_replicas import until_in_sync
from tests.support.verified_sets import QUIET, WANTED, filled, isr, values


def clone(root: Path, source: str, *targets: str) -> None:
    for target in targets:
        shutil.rmtree(root / target, ignore_errors=True)
        shutil.copytree(root / source, root / target)


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def opened(root: Path, *names: str, read_only: bool = False) -> embedlog.Log:
    return embedlog.open([root / name for name in names], config=QUIET, read_only=read_only)


@pytest.mark.parametrize(
    ("source", "targets", "given", "named"),
    [
        ("d1", ("c1", "c2"), ("c1", "c2", "d2", "d3"), ("c1", "c2")),
        ("d1", ("c1", "c2"), ("d1", "c1", "c2", "d2", "d3"), ("d1", "c1", "c2")),
        ("d3", ("d1", "d2"), ("d1", "d2", "d3"), ("d1", "d2", "d3")),
    ],
)
def test_two_clones_of_one_directory_are_refused(
    tmp_path: Path,
    source: str,
    targets: tuple[str, ...],
    given: tuple[str, ...],
    named: tuple[str, ...],
) -> None:
    """The error names all of them, and nothing is changed (QUORUM-1)."""
    with filled(tmp_path):
        pass
    clone(tmp_path, source, *targets)
    before = content(tmp_path)
    for read_only in (False, True):
        with pytest.raises(ReplicaSetError, match="directories have one") as refused:
            opened(tmp_path, *given, read_only=read_only)
        assert refused.value.paths == [str(tmp_path / name) for name in named]
    assert content(tmp_path) == before


def test_two_directories_that_become_clones_while_the_log_is_open_are_not_used(
    tmp_path: Path,
) -> None:
    """There is no majority, so nothing is decided. With the directories back, nothing is lost."""
    limits = {**QUIET, "lock_timeout_ms": 300}
    with (
        filled(tmp_path),
        embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)], config=limits) as log,
    ):
        clone(tmp_path, "d3", "x1", "x2")
        for node in (1, 2):
            (tmp_path / f"d{node}").rename(tmp_path / f"away{node}")
            (tmp_path / f"x{node}").rename(tmp_path / f"d{node}")
        before = content(tmp_path / "d1"), content(tmp_path / "d2")
        with (
            pytest.raises(embedlog.errors.EmbedlogError),
            log.producer(delivery_timeout_ms=400, linger_ms=0) as producer,
        ):
            producer.send("t", b"lost").result(20)
        assert (content(tmp_path / "d1"), content(tmp_path / "d2")) == before
        for node in (1, 2):
            shutil.rmtree(tmp_path / f"d{node}")
            (tmp_path / f"away{node}").rename(tmp_path / f"d{node}")
    with opened(tmp_path, "d1", "d2", "d3") as log:
        assert values(log)[: len(WANTED)] == WANTED
        until_in_sync(log)
        assert log.verify_replicas() == []
        assert isr(log) == [1, 2, 3]
