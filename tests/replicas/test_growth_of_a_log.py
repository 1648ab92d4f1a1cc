"""A log of one directory becomes the first one of a set with everything in it, and a set shrinks to
one directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.coordination.directory import Directory
from embedlog.errors import DirectoryInUseError, EmbedlogError, ReplicaSetError
from embedlog.replicas.members import adoption
from embedlog.storage import file_names
from embedlog.storage.identity import read_meta
from tests.support.adopted_logs import (
    QUIET,
    check_everything,
    filled,
    moved,
    opened,
    send,
    together,
    use,
    values,
    writer,
)
from tests.support.opened_sets import content
from tests.support.replica_directories import CHANGES


@pytest.mark.slow
def test_a_log_becomes_a_set_with_everything_in_it(tmp_path: Path) -> None:
    filled(tmp_path / "d1")
    before = read_meta(tmp_path / "d1")
    ids = [path.read_text() for path in sorted((tmp_path / "d1").glob("*/partition.metadata"))]
    with opened(tmp_path / "d1") as log:
        earlier = log.producer()
        assert log.add_directory(tmp_path / "d2") == 2
        assert log.add_directory(tmp_path / "d3") == 3
        with pytest.raises(embedlog.ClosedError):
            earlier.send("t", b"through an earlier client")
        described = log.replicas("t").partitions
        assert [(each.leader, each.replicas, each.isr) for each in described] == [
            (1, (1,), (1,))
        ] * 2
        assert {int(node.node) for node in log.replicas().directories} == {1, 2, 3}
        check_everything(log)
        use(log, b"in the set")
        check_everything(log, b"in the set")
        moved(log, [1, 2, 3])
        assert all(sorted(each.isr) == [1, 2, 3] for each in log.replicas().partitions)
    assert read_meta(tmp_path / "d1") == before
    assert set(ids) <= {path.read_text() for path in (tmp_path / "d1").glob("*/partition.metadata")}
    shutil.rmtree(tmp_path / "d1")
    with together(tmp_path, 1, 2, 3) as log:
        check_everything(log, b"in the set")
        use(log, b"after the loss of the first directory")
        assert log._engine.topic("t").config == {"retention.ms": "-1"}
        check_everything(log, b"in the set", b"after the loss of the first directory")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clean", "unclean"])
def test_a_directory_of_a_broker_becomes_a_set(
    golden_copy: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Also with batches of old formats, transactions, compacted topics, and log starts inside a
    batch.
    """

    def everything(log: embedlog.Log) -> list[tuple[str, int, int, bytes | None]]:
        return [
            (name, each.partition, each.offset, each.value)
            for name in log.topics()
            for each in log.scan(name).records()
        ]

    with opened(golden_copy(name)) as log:
        before = everything(log)
        node = log.add_directory(tmp_path / "second")
        assert everything(log) == before
        moved(log, [node, *(each.node for each in log.replicas().directories if each.node != node)])
        assert everything(log) == before
        assert log.verify_replicas() == []


# ---- the short forms -------------------------------------------------------------------------------------


def small(path: Path, *values: bytes) -> None:
    """A closed log with these records in one topic."""
    with opened(path) as log:
        log.create_topic("t", config={"retention.ms": "-1"})
        send(log, *values)


def test_the_first_directory_keeps_its_records_identity_and_settings(tmp_path: Path) -> None:
    small(tmp_path / "d1", b"first")
    before = read_meta(tmp_path / "d1")
    topic_id = (tmp_path / "d1" / "t-0" / "partition.metadata").read_text()
    with opened(tmp_path / "d1") as log:
        earlier = log.producer()
        with pytest.raises(ReplicaSetError, match="add_directory"):
            log.elect("t")
        assert log.add_directory(tmp_path / "d2") == 2
        with pytest.raises(embedlog.ClosedError):
            earlier.send("t", b"through an earlier client")
        (partition,) = log.replicas("t").partitions
        assert (partition.leader, partition.leader_epoch, partition.replicas, partition.isr) == (
            1,
            1,
            (1,),
            (1,),
        )
        assert [each.node for each in log.replicas().directories] == [1, 2]
        send(log, b"second")
        moved(log, [2, 1])
        assert values(log) == [b"first", b"second"]
        assert log._engine.topic("t").config == {"retention.ms": "-1"}
    assert read_meta(tmp_path / "d1") == before
    assert (tmp_path / "d2" / "t-0" / "partition.metadata").read_text() == topic_id
    with pytest.raises(ReplicaSetError, match="alone=True"):
        opened(tmp_path / "d1")
    with together(tmp_path, 1, 2) as log:
        assert values(log) == [b"first", b"second"]


def test_a_list_does_not_make_a_set_of_a_log(tmp_path: Path) -> None:
    small(tmp_path / "d1", b"first")
    before = content(tmp_path / "d1")
    for nodes in ((1,), (1, 2)):
        with pytest.raises(ReplicaSetError, match="add_directory"):
            together(tmp_path, *nodes)
    assert content(tmp_path / "d1") == before


def test_what_cannot_be_added_leaves_a_log_as_it_is(tmp_path: Path) -> None:
    small(tmp_path / "d1", b"first")
    small(tmp_path / "log", b"other")
    with together(tmp_path, 7):
        pass
    (tmp_path / "file").write_bytes(b"a file")
    with opened(tmp_path / "d1") as log:
        for path in (tmp_path / "d1", tmp_path / "log", tmp_path / "d7", tmp_path / "file"):
            with pytest.raises(EmbedlogError):
                log.add_directory(path)
        with pytest.raises(ReplicaSetError, match="rack"):
            log.add_directory(tmp_path / "d2", rack="r")
        send(log, b"second")
        assert not (tmp_path / "d1" / file_names.REPLICAS).exists()
        assert not (tmp_path / "d2").exists()


# ---- other processes -------------------------------------------------------------------------------------


def test_a_log_that_another_process_has_open_becomes_no_set(tmp_path: Path) -> None:
    small(tmp_path / "d1", b"first")
    (commands, command), (answer, answers) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(command)
            writer(tmp_path / "d1", commands, answers)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.read(answer, 100) == b"open"
        with opened(tmp_path / "d1") as log:
            with pytest.raises(DirectoryInUseError) as refused:
                log.add_directory(tmp_path / "d2")
            assert f"pid {child}" in str(refused.value)
            os.write(command, b"second")
            assert os.read(answer, 100) == b"sent"
            send(log, b"third")
            os.close(command)
            assert os.waitpid(child, 0)[1] == 0
            assert log.add_directory(tmp_path / "d2") == 2
            assert values(log) == [b"first", b"second", b"third"]
    finally:
        for fd in (commands, answer, answers):
            os.close(fd)


def test_a_process_that_opens_the_log_at_its_end_prevents_the_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the close of the log and the file of members: the log continues as it was."""
    small(tmp_path / "d1", b"first")
    begin = adoption.begin
    others = list[embedlog.Log]()

    def raced(path: Path, *, deadline_ns: int, mode: int = 0o666) -> None:
        others.append(opened(path))
        begin(path, deadline_ns=deadline_ns, mode=mode)

    monkeypatch.setattr(adoption, "begin", raced)
    with opened(tmp_path / "d1") as log:
        with pytest.raises(DirectoryInUseError):
            log.add_directory(tmp_path / "d2")
        send(others[0], b"second")
        send(log, b"third")
        assert values(log) == [b"first", b"second", b"third"]
        others[0].close()


@pytest.mark.parametrize("used", [False, True], ids=["as the first", "beside a set"])
def test_a_log_that_becomes_a_set_during_its_opening_is_not_written_without_it(
    tmp_path: Path, used: bool
) -> None:
    small(tmp_path / "d1", b"first")
    with contextlib.ExitStack() as using:
        prepare = Directory.enter

        def late(self: Directory, prepare_directory: Any) -> None:
            """The other process grows the log after this one has looked for the file of members."""
            Directory.enter = prepare  # type: ignore[method-assign]
            with opened(tmp_path / "d1") as other:
                other.add_directory(tmp_path / "d2")
            if used:
                using.enter_context(together(tmp_path, 1, 2))
            prepare(self, prepare_directory)

        Directory.enter = late  # type: ignore[method-assign]
        try:
            with pytest.raises(DirectoryInUseError):
                opened(tmp_path / "d1")
        finally:
            Directory.enter = prepare  # type: ignore[method-assign]
    with together(tmp_path, 1, 2) as log:
        assert values(log) == [b"first"]


def test_a_process_that_writes_alone_excludes_the_set(tmp_path: Path) -> None:
    with together(tmp_path, 1, 2) as log:
        log.create_topic("t", replication_factor=2)
    with embedlog.open(tmp_path / "d1", alone=True, config=QUIET) as alone:
        send(alone, b"alone")
        with pytest.raises(DirectoryInUseError, match="without its set"):
            together(tmp_path, 1, 2)
        send(alone, b"still alone")


# ---- stops -----------------------------------------------------------------------------------------------


def grown_until(root: Path, nth: int, kinds: Sequence[str] = CHANGES, name: str = "") -> bool:
    """A process that is killed before the nth of these calls of a growth; False if it ended
    before.
    """
    child = os.fork()
    if child == 0:
        try:
            with opened(root / "d1") as log:
                system.fault_arm(tuple(kinds), nth, "kill_before", name=name)
                log.add_directory(root / "d2")
                system.fault_off()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def check_after_stop(root: Path) -> None:
    """Nothing is lost, the directory opens as a log or as a set, and the growth is completed."""
    try:
        log = opened(root / "d1")
    except ReplicaSetError:
        log = together(root, 1, 2)
    with log:
        assert values(log) == [b"first", b"second"]
        send(log, b"third")
        assert log.add_directory(root / "d2") == 2
        send(log, b"fourth")
        assert [each.node for each in log.replicas().directories] == [1, 2]
    with together(root, 1, 2) as log:
        moved(log, [1, 2])
        assert values(log) == [b"first", b"second", b"third", b"fourth"]
        assert log._engine.topic("t").config == {"retention.ms": "-1"}


STEPS = [
    ("rename", f"d1/{file_names.REPLICAS}"),
    ("pwrite", "d1/__replica_state-0"),
    ("rename", f"d2/{file_names.REPLICAS}"),
]


@pytest.mark.parametrize(("kind", "name"), STEPS)
def test_a_growth_that_is_killed_at_a_main_step_loses_nothing(
    tmp_path: Path, kind: str, name: str
) -> None:
    small(tmp_path / "d1", b"first", b"second")
    assert grown_until(tmp_path, 1, (kind,), name)
    check_after_stop(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_growth_can_be_killed_before_every_system_call(tmp_path: Path) -> None:
    small(tmp_path / "log", b"first", b"second")
    nth = 1
    killed = True
    while killed:
        root = tmp_path / str(nth)
        root.mkdir()
        shutil.copytree(tmp_path / "log", root / "d1")
        killed = grown_until(root, nth)
        check_after_stop(root)
        shutil.rmtree(root)
        nth += 1
    assert nth > 50
