"""shared="locks": nothing that is mapped is trusted. Pages are read and written under locks, data
is written through.

The file system here is a local one, with the mode forced: the tests show that processes agree
without any mapping.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embedlog
from embedlog import StateError
from embedlog._native import system
from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError
from tests.faults.harness.stage import Play, fails_without

LOCKS = {"shared": "locks"}
MODE = {"config": LOCKS}


def maps_of(directory: Path) -> list[str]:
    """The mappings of files below that; mappings of other tests are not counted."""
    return [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "embedlog." in line and str(directory) in line
    ]


def test_no_control_page_is_mapped(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "locks", config=LOCKS) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"a", partition=0)
        assert [record.value for record in log.scan("t").records()] == [b"a"]
        assert maps_of(tmp_path) == []
    with embedlog.open(tmp_path / "mapped") as log:
        log.create_topic("t")
        assert maps_of(tmp_path), "this test does not cover the other mode"


def two_write_and_one_reads(play: Play) -> Verdict:
    """Each gets the records that the others published, through rolls, although none of them shares
    memory with another.
    """
    a, b, reader = (play.enter(**MODE) for _ in range(3))
    verdict = Verdict()
    for turn in range(8):
        play.append(a)
        play.append(b)
        if turn % 2:
            verdict.add(play.seen_by(reader))
            if reader.call("ends")[0][1] != 2 * turn + 2:
                verdict.violations.append(f"turn {turn}: an old end is used")
    verdict.add(play.seen_by(a))
    verdict.add(play.seen_by(b))
    for each in (a, b, reader):
        play.leave(each)
    return verdict


@pytest.mark.parametrize("config", [{}, {"segment.bytes": 600}], ids=["one segment", "rolls"])
def test_processes_agree_without_any_mapping(
    nursery: Nursery, tmp_path: Path, config: dict[str, object]
) -> None:
    play = Play(nursery, tmp_path / "log", config=config)
    verdict = two_write_and_one_reads(play)
    assert not verdict.violations, verdict
    assert (play.directory / ".kafka_cleanshutdown").exists()
    assert not play.seen_afresh().violations, "in order for the other mode, too"


def test_a_copy_is_never_believed_after_its_lock(nursery: Nursery, tmp_path: Path) -> None:
    fails_without("trust_copy", two_write_and_one_reads, nursery, tmp_path / "mutant")


@pytest.mark.parametrize("point", ["locked", "before-publish", "after-publish", "before-unlock"])
def test_a_killed_writer_is_repaired_by_the_next(
    nursery: Nursery, tmp_path: Path, point: str
) -> None:
    play = Play(nursery, tmp_path / "log")
    a = play.enter(**MODE)
    b = play.enter(**MODE)
    play.append(a)
    play.append(b)
    play.stop_in_append(a, point)
    a.kill()
    for _ in range(3):
        play.append(b)
    verdict = play.seen_by(b)
    assert not verdict.violations, verdict
    play.leave(b)
    assert not play.seen_afresh().violations


def test_one_that_waits_for_records_gets_them(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    writer = play.enter(**MODE)
    reader = play.enter(**MODE)
    play.append(writer)
    reader.start("tail", 4)
    for _ in range(3):
        play.append(writer)
    assert [row.offset for row in reader.result()] == [0, 1, 2, 3]


def test_the_two_modes_do_not_mix(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log")
    play.enter(**MODE)
    with pytest.raises(StateError, match="another setting"):
        embedlog.open(play.directory)
    with pytest.raises(StateError, match="another setting"):
        embedlog.open(play.directory, read_only=True)
    other = Play(nursery, tmp_path / "other")
    other.enter()
    with pytest.raises(RemoteError) as refused:
        other.enter(**MODE)
    assert refused.value.kind == "StateError"


def test_retention_and_deletion_reach_the_others(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log", config={"segment.bytes": 400, "retention.bytes": 900})
    a = play.enter(**MODE)
    b = play.enter(**MODE)
    for _ in range(12):
        play.append(a)
    assert b.call("ends")[0] == (0, 12)
    a.call("on_log", "housekeep")
    assert b.call("ends")[0][0] > 0
    a.call("on_log", "delete_topic", "t")
    with pytest.raises(RemoteError) as gone:
        b.call("append", [b"late"])
    assert gone.value.kind == "UnknownTopicOrPartitionError"


def test_a_page_that_cannot_be_read_is_no_page(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(bytes(4096))
    fd = os.open(path, os.O_RDWR)
    page = system.Page(fd, True, True)
    os.close(fd)
    page.set(0, 7)
    assert page.word(0) == 7
    os.truncate(path, 100)
    assert page.word(0) == 0
    with pytest.raises(embedlog.StorageError):
        page.set(0, 8)
