"""Which names remain after a crash, decided without any change of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedlog.errors import StateError
from embedlog.partition import leftovers
from embedlog.storage.manifest import GAPLESS, SegmentInfo
from tests.support.broker_directories import batch


def name(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def directory(path: Path, names: list[str], log: bytes = b"") -> Path:
    path.mkdir()
    for each in names:
        (path / each).write_bytes(log if each.endswith(".log.swap") else b"")
    return path


def sealed(base: int, next_offset: int) -> SegmentInfo:
    return SegmentInfo(base, 0, next_offset, max_timestamp_offset=base, flags=GAPLESS)


def test_a_finished_swap_replaces_the_segments_in_its_range(tmp_path: Path) -> None:
    names = [
        name(0, ".log.swap"),
        name(0, ".index.swap"),
        name(0, ".index"),
        name(0, ".log.deleted"),
        name(5, ".log"),
        name(9, ".log"),
        "embedlog.digests-00000000000000000005",
        "embedlog.page",
    ]
    path = directory(tmp_path / "t-0", names, batch(7, [(7, b"k", b"v")]))
    plan = leftovers.make_plan(path, names, {})
    assert plan.names == {name(0, ".log"), name(0, ".index"), name(9, ".log"), "embedlog.page"}
    assert plan.current_name(name(0, ".log")) == name(0, ".log.swap")
    assert plan.current_name(name(9, ".log")) == name(9, ".log")
    assert plan.replaced_bases() == {0}
    assert sorted(each.name for each in path.iterdir()) == sorted(names), "nothing is changed"
    with pytest.raises(StateError):
        leftovers.carry_out(path, {}, write=False)
    assert leftovers.carry_out(path, {}, write=True) == sorted(plan.names)
    assert {each.name for each in path.iterdir()} == plan.names


def test_a_swap_with_a_file_that_is_not_finished_is_undone(tmp_path: Path) -> None:
    names = [name(0, ".log"), name(0, ".log.cleaned"), name(4, ".log.swap")]
    path = directory(tmp_path / "t-0", names)
    plan = leftovers.make_plan(path, names, {})
    assert plan.names == {name(0, ".log")}
    assert not plan.swaps
    assert leftovers.carry_out(path, {}, write=True) == [name(0, ".log")]
    assert [each.name for each in path.iterdir()] == [name(0, ".log")]


def test_segments_below_a_gap_of_retention_go(tmp_path: Path) -> None:
    names = [name(0, ".log"), name(5, ".log.deleted"), name(9, ".log"), name(0, ".index")]
    path = directory(tmp_path / "t-0", names)
    known = {0: sealed(0, 5), 9: sealed(9, 12)}
    plan = leftovers.make_plan(path, names, known)
    assert plan.names == {name(9, ".log")}
    assert plan.half_retained == [0]
    assert leftovers.carry_out(path, known, write=False) == [name(9, ".log")]
    assert leftovers.carry_out(path, known, write=True) == [name(9, ".log")]
    assert [each.name for each in path.iterdir()] == [name(9, ".log")]


def test_segments_below_the_log_start() -> None:
    assert leftovers.segments_below([0, 5, 9], 5) == [0]
    assert leftovers.segments_below([0, 5, 9], 8) == [0]
    assert leftovers.segments_below([0, 5, 9], 20) == [0, 5]
    assert leftovers.segments_below([], 20) == []
