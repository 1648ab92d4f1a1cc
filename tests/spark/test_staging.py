"""The staging directory: the owner of each file, and the processes that may remove it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.spark import staging
from embedlog.spark.write_options import parse_write


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "staging")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, alive."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def area_in(place: str, writer: str = "a") -> staging.StagingArea:
    return staging.make_area([staging.StagingPlace(place, os.path.dirname(place))], writer)


def leave(area: staging.StagingArea, batch: int = 0, task: int = 0, owner: str = "") -> str:
    with area.file(batch, task, owner) as (file, path):
        file.write(b"rows")
        assert not os.path.exists(path), "it has its name when it is whole"
    return path


def files(place: str) -> list[str]:
    return sorted(os.path.join(above, name) for above, _, names in os.walk(place) for name in names)


def test_the_driver_is_a_jvm_or_nobody(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    read = staging._read
    above = os.getppid()
    monkeypatch.setattr(
        staging, "_read", lambda path: "java" if path == f"/proc/{above}/comm" else read(path)
    )
    assert staging.driver_name() == staging.name_of(above)
    monkeypatch.setattr(
        staging, "_read", lambda path: "other" if path.endswith("/comm") else read(path)
    )
    leave(area_in(place))
    assert os.listdir(place) == [staging.name_of(staging.UNKNOWN)]
    assert staging.remove_dead(place) == []


def test_discarding_leaves_what_others_have(place: str) -> None:
    area = area_in(place)
    beside = area_in(place, "b")
    leave(area)
    leave(area)
    kept = leave(beside)
    assert staging.discard([area.path, area.path]) == []
    assert os.path.exists(kept)
    assert not os.path.exists(area.path)
    assert beside.clear() == []
    assert not os.path.exists(place)
    assert beside.clear() == []


@pytest.mark.parametrize("owner", ["9f3a1e0c-query", "nightly/import ä" * 20])
def test_what_other_drivers_staged_goes_with_its_batch(place: str, owner: str) -> None:
    """A driver that was killed in another container: nobody can judge it, and its batch is written
    by now.
    """
    elsewhere = [f"driver-aa-bb-1-{number}-1" for number in (1, 2)]
    gone = [
        leave(staging.StagingArea(place, driver, "stream-x"), 3, owner=owner)
        for driver in elsewhere
    ]
    gone.append(leave(area_in(place, "stream-y"), 2, owner=owner))
    kept = [leave(staging.StagingArea(place, elsewhere[0], "stream-z"), 4, owner=owner)]
    kept += [
        leave(staging.StagingArea(place, elsewhere[1], name), 1, owner=other)
        for name, other in (("job", ""), ("s", "q"))
    ]
    beginning = area_in(place, "stream-begins")
    staging.remove_written(place, owner, 3)
    assert files(place) == sorted(kept)
    assert not any(os.path.exists(os.path.dirname(path)) for path in gone)
    assert os.path.isdir(beginning.path)


def test_a_name_of_any_kind_makes_one_directory(place: str) -> None:
    for writer in ("../../etc", ".", "", "a/b", "ä" * 200):
        leave(area_in(place, writer))
    areas = os.listdir(os.path.join(place, staging.driver_name()))
    assert len(areas) == 5


def test_a_dead_driver_leaves_nothing_and_a_living_one_all(
    place: str, other: subprocess.Popen[bytes]
) -> None:
    mine, theirs = (
        leave(staging.StagingArea(place, staging.name_of(pid), "a"))
        for pid in (os.getpid(), other.pid)
    )
    assert staging.remove_dead(place) == []
    dead = staging.name_of(other.pid)
    other.kill()
    other.wait()
    assert staging.remove_dead(place) == [dead]
    assert os.path.exists(mine)
    assert not os.path.exists(theirs)


IN_A_CONTAINER = """
import os, sys
from embedlog.spark import staging
area = staging.StagingArea(sys.argv[1], staging.name_of(os.getpid()), "job")
with area.file(0, 0) as (file, path):
    file.write(b"rows")
print(path, flush=True)
sys.stdin.read()
"""


def test_a_driver_of_a_container_is_judged_by_one_that_sees_all_processes(place: str) -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no right to make a pid namespace: needs root and unshare(1)")
    if staging._processes() != staging.INITIAL_PROCESSES:
        pytest.skip("runs in a container itself")
    program = [*command, sys.executable, "-c", IN_A_CONTAINER, place]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        path = running.stdout.readline().strip()
        assert files(place) == [path]
        assert staging.remove_dead(place) == []
        assert files(place) == [path]
        running.stdin.close()
        running.wait(60)
    assert len(staging.remove_dead(place)) == 1
    assert not os.path.exists(place)


def test_processes_that_are_hidden_are_not_dead(
    place: str, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/proc` mounted with hidepid shows a user his own processes only."""
    kept = leave(staging.StagingArea(place, staging.name_of(other.pid), "a"))
    read = staging._read
    hidden = (f"/proc/{other.pid}/", "/proc/1/")
    monkeypatch.setattr(
        staging, "_read", lambda path: "" if path.startswith(hidden) else read(path)
    )
    assert staging.remove_dead(place) == []
    assert files(place) == [kept]


def test_what_nobody_can_judge_goes_after_a_week_without_a_change(place: str) -> None:
    driver = "driver-aa-bb-1-1-1"
    old, beside, new = (
        leave(staging.StagingArea(place, driver, name), task=at)
        for at, name in enumerate(("a", "b", "b"))
    )
    for path in (old, os.path.dirname(old), beside, os.path.dirname(beside)):
        os.utime(path, times=(0, time.time() - staging.AGE_S - 60))
    assert staging.remove_dead(place) == []
    assert files(place) == sorted([beside, new])


def test_who_cannot_be_known_to_be_dead_is_left_alone(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if this process was in a container
    monkeypatch.setattr(staging, "INITIAL_PROCESSES", "none")
    machine, boot, processes, pid, started = staging.name_of(os.getpid()).split("-")[1:]
    kept = [
        f"driver-{machine[::-1]}-{boot[::-1]}-{processes}-{pid}-{started}",  # another machine
        # another container
        f"driver-{machine}-{boot}-{int(processes) + 1}-{pid}-{int(started) + 1}",
        f"driver-{machine}-{boot}-{processes}-0-0",  # without a JVM
        "driver-x",
        "mine",
    ]
    gone = [
        # its number is another process's by now
        f"driver-{machine}-{boot}-{processes}-{pid}-{int(started) + 1}",
        # before this machine was restarted
        f"driver-{machine}-{boot[::-1]}-{processes}-{pid}-{started}",
    ]
    for name in kept + gone:
        os.makedirs(os.path.join(place, name, "job"))
    staging.remove_dead(place)
    left = set(os.listdir(place))
    assert set(kept) <= left
    assert gone[0] not in left
    assert (gone[1] in left) == (not os.path.exists("/etc/machine-id"))


def test_a_directory_that_cannot_be_written_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(embedlog.StorageError, match=r"rows cannot be staged.*file"):
        area_in(str(tmp_path / "file"))


def test_directories_come_and_go_beside_each_other(place: str) -> None:
    """One writer removes the directories above, which are empty, while another makes its own below
    them.
    """
    problems: list[BaseException] = []

    def use(writer: str) -> None:
        try:
            for _ in range(200):
                area = area_in(place, writer)
                leave(area)
                assert area.clear() == []
        except BaseException as problem:
            problems.append(problem)
            raise

    threads = [threading.Thread(target=use, args=(f"writer-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert not os.path.exists(place)


# ---- several users -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_the_log", "above", "own"),
    [
        (0o700, 0o711, 0o733),
        (0o755, 0o755, 0o733),
        (0o2770, 0o2771, 0o2773),
        (0o2775, 0o2775, 0o2773),
        (0o777, 0o777, 0o777),
    ],
    ids=lambda mode: f"{mode:o}",
)
def test_who_may_write_the_log_may_stage_and_only_they_can_list(
    tmp_path: Path, of_the_log: int, above: int, own: int
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    log.chmod(of_the_log)
    before = os.umask(0o077)
    try:
        area = staging.make_area([staging.StagingPlace(f"{log}.staging", str(log))], "job")
    finally:
        os.umask(before)
    found = [
        stat.S_IMODE(os.stat(path).st_mode)
        for path in (area.staging, os.path.dirname(area.path), area.path)
    ]
    assert [f"{mode:o}" for mode in found] == [f"{mode:o}" for mode in (above, above, own)]


def as_user(uid: int, gid: int, call: Callable[[], Any]) -> str:
    """What a call prints or raises in a process of another user, whose umask hides all from
    others.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            os.umask(0o077)
            said = str(call())
        except BaseException as problem:  # noqa: BLE001 (the parent reads it)
            said = f"{type(problem).__name__}: {problem}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_tasks_of_another_user_stage_for_the_driver_which_reads_and_removes() -> None:
    ann = 50_001
    bob = 50_002
    eve = 50_003
    staff = 50_000
    with tempfile.TemporaryDirectory(prefix="embedlog-users-") as common:
        os.chmod(common, 0o777)
        log = os.path.join(common, "log")
        places = [staging.StagingPlace(f"{log}.staging", log)]
        as_user(ann, staff, lambda: os.mkdir(log))
        os.chmod(log, 0o2770)
        names = [f"job-{number}" for number in range(2)]
        assert as_user(ann, staff, lambda: staging.make_area(places, names[0]).path).endswith(
            names[0]
        )
        # a second driver
        assert as_user(bob, staff, lambda: staging.make_area(places, names[1]).path).endswith(
            names[1]
        )
        driver = staging.driver_name()
        for name, owner, task in zip(names, (ann, bob), (eve, ann), strict=True):
            area = staging.StagingArea(places[0].staging, driver, name)
            path = as_user(task, task, lambda area=area: leave(area))  # type: ignore[misc]
            assert as_user(owner, staff, lambda path=path: Path(path).read_text()) == "rows"  # type: ignore[misc]
            assert as_user(eve, eve, lambda area=area: os.listdir(area.path)).startswith(
                "PermissionError"
            )  # type: ignore[misc]
            assert as_user(owner, staff, area.clear) == "[]"
        assert os.listdir(common) == ["log"]


# ---- where it may be -----------------------------------------------------------------------------


def test_it_never_lies_in_a_log_directory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for other in (log, tmp_path / "other"):
        embedlog.open(other).close()
    base = {"path": str(log), "topic": "t"}
    assert parse_write(base, stream=False).staging_places() == [
        staging.StagingPlace(f"{log}.staging", str(log))
    ]
    (tmp_path / "link").symlink_to(log)
    for inside in (log, log / "t-0" / "x", tmp_path / "link" / "x", tmp_path / "other" / "x"):
        with pytest.raises(
            embedlog.ConfigError, match=r"stagingDirectory.*outside of the log directory"
        ):
            parse_write(base | {"stagingDirectory": str(inside)}, stream=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topik": "t"}, "unknown option of the embedlog sink; did you mean topic"),
        ({"kafka.bootstrap.servers": "h:9092"}, "the sink has no broker"),
        ({"batchId": "3"}, "needs a transactionalId"),
        ({"transactionalId": "a", "batchId": "-3"}, "batchId.*whole number"),
        ({"transactionalId": ""}, "transactionalId.*1 to 32767"),
        ({"compression.type": "lzma"}, "compression.type.*zstd"),
        ({"partitioner": "mine"}, "partitioner.*module:callable"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    with pytest.raises(embedlog.ConfigError, match=words):
        parse_write({"path": str(tmp_path)} | options, stream=False)


def test_a_stream_counts_its_batches_itself(tmp_path: Path) -> None:
    with pytest.raises(embedlog.ConfigError, match="Spark numbers"):
        parse_write({"path": str(tmp_path), "transactionalId": "a", "batchId": "1"}, stream=True)
    given = {
        "path": str(tmp_path),
        "TOPIC": "t",
        "checkpointLocation": "c",
        "queryName": "q",
        "kafka.compression.type": "ZSTD",
    }
    settings = parse_write(given, stream=True)
    assert (settings.topic, settings.compression, settings.made_partitioner()) == (
        "t",
        "zstd",
        None,
    )
    with pytest.raises(embedlog.ConfigError, match="path: the log directory is missing"):
        parse_write({"topic": "t"}, stream=True)


def test_a_partitioner_is_imported_on_the_driver(tmp_path: Path) -> None:
    base = {"path": str(tmp_path)}
    made = parse_write(
        base | {"partitioner": "embedlog.partitioners:RoundRobinPartitioner"}, stream=False
    ).made_partitioner()
    assert made is embedlog.partitioners.RoundRobinPartitioner
    with pytest.raises(embedlog.ConfigError, match=r"partitioner.*can import"):
        parse_write(base | {"partitioner": "nowhere:thing"}, stream=False).made_partitioner()
