"""Several users by file modes: each file has `file.mode` less the umask; access to the log is
access to its files, no more.

The tests with other users fork processes and change their user: that needs root, and without it
they are skipped.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from tests.faults.harness.processes import Nursery, RemoteError, Victim

QUIET = {"housekeeping": False}
SMALL = {"segment.bytes": 400, "index.interval.bytes": 50, "file.delete.delay.ms": 3_600_000}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
KINDS = (
    "poison-",
    ".deleted",
    "-delete",
    "cut-",
    "snapshot",
    "timeindex",
    "durable",
    "manifest",
    "page",
    "sync",
    "lock",
    "dirty",
    "control",
    "topics",
    "door",
    "housekeeper",
    "-checkpoint",
    "cleanshutdown",
    "meta.properties",
    "copy/",
)
LOCKS = (
    "embedlog.lock",
    "embedlog.sync",
    "embedlog.door",
    "embedlog.directory",
    "embedlog.housekeeper",
    "embedlog.slots",
)
ANN = 50_001
BOB = 50_002
STAFF = 50_000


@pytest.fixture(params=[0o022, 0o077, 0o002, 0o000], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield int(request.param)
    os.umask(before)


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory that all users can reach, with files that others may have left in it."""
    path = Path(tempfile.mkdtemp(prefix="embedlog-users-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def modes(root: Path) -> dict[str, tuple[bool, int]]:
    below = [root, *root.rglob("*")]
    return {
        str(path.relative_to(root)): (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
        for path in below
    }


def live_through_everything(
    root: Path, config: dict[str, Any], seen: dict[str, tuple[bool, int]]
) -> None:
    """Every kind of file that there is comes into being."""
    with embedlog.open(root, config=QUIET | config) as log:
        log.create_topic("t", 2, config=SMALL)
        log.create_topic("gone")
        with log.producer(linger_ms=0) as producer:
            for number in range(30):
                producer.send("t", b"value %d" % number * 5, partition=number % 2).result(10)
            producer.send("gone", b"v").result(10)
        log.flush()
        log.delete_records({TopicPartition("t", 0): 8})
        log.alter_topic("t", {"retention.ms": 10**12})
        log.create_partitions("t", 3)
        log.delete_topic("gone")
        log.housekeep()
        seen |= modes(root)
        poison(log)
        seen |= modes(root)
    seen |= modes(root)


def poison(log: embedlog.Log) -> None:
    """A sync that fails leaves a mark."""
    with log.producer() as producer:
        producer.send("t", b"unsynced", partition=1).result(10)
    system.fault_arm(["fdatasync"], 1, "fail", errno.EIO, name=".log")
    with pytest.raises(embedlog.DurabilityError):
        log.flush("t")
    system.fault_off()


def tear(root: Path) -> None:
    """As a crash leaves it: no clean mark, dirty, a torn tail and a roll that was not finished."""
    (root / ".kafka_cleanshutdown").unlink()
    tail = max((root / "t-1").glob("*.log"))
    (root / "t-1" / "embedlog.dirty").touch()
    with tail.open("ab") as file:
        file.write(b"torn" * 30)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("mode", [0o666, 0o640, 0o600], ids=oct)
def test_every_file_and_directory_has_the_mode_that_was_asked_for(
    tmp_path: Path, umask: int, mode: int
) -> None:
    seen: dict[str, tuple[bool, int]] = {}
    root = tmp_path / "deep" / "log"
    config = {"file.mode": f"{mode:o}"}
    live_through_everything(root, config, seen)
    tear(root)
    (root / "t-1" / "embedlog.dirty").chmod(mode & ~umask)
    with embedlog.open(root, config=QUIET | config) as log:
        assert len(list(log.scan("t").records())) == 31 - 8
        log.backup(tmp_path / "copy")
    seen |= modes(root) | {f"copy/{name}": each for name, each in modes(tmp_path / "copy").items()}
    folder = mode | (mode & 0o444) >> 2
    lock = locks(mode, umask)
    expected = {
        name: (folder if is_dir else lock if is_lock(name) else mode) & ~umask
        for name, (is_dir, _) in seen.items()
    }
    wrong = {name: oct(found) for name, (_, found) in seen.items() if found != expected[name]}
    assert wrong == {}
    for part in KINDS:
        assert any(part in name for name in seen), f"no {part} came into being"


def is_lock(name: str) -> bool:
    return Path(name).name in LOCKS


def locks(mode: int, umask: int) -> int:
    """Of a lock file: no rights for users without write access, as a user can lock every file that
    it can open.
    """
    for whose in (0o060, 0o006):
        if not mode & ~umask & whose & 0o222:
            mode &= ~whose
    return mode


# ---- other users ---------------------------------------------------------------------------------


def user(nursery: Nursery, uid: int, umask: int = 0o022) -> Victim:
    victim = nursery.spawn()
    victim.call("become", uid, STAFF, umask)
    return victim


def refused(victim: Victim, *call: Any, **keywords: Any) -> RemoteError:
    with pytest.raises(RemoteError) as problem:
        victim.call(*call, **keywords)
    return problem.value


@needs_root
def test_a_reader_without_the_right_to_write_follows_a_live_directory(
    nursery: Nursery, common: Path
) -> None:
    root = common / "log"
    ann = user(nursery, ANN)
    bob = user(nursery, BOB)
    ann.call("open", str(root), config=QUIET)
    ann.call("create_topic", "t", 1, SMALL)
    assert ann.call("append", [b"one", b"two"]) == [0, 1]
    before = modes(root)
    bob.call("open", str(root), read_only=True)
    assert [row.value for row in bob.call("read")[0]] == [b"one", b"two"]
    bob.start("tail", 12)
    for number in range(10):
        ann.call("append", [b"more %d" % number * 9])
    assert [row.offset for row in bob.result()] == list(range(12))
    assert bob.call("durable") <= 12
    assert modes(root).keys() >= before.keys()
    problem = refused(bob, "append", [b"mine"])
    assert problem.kind == "ReadOnlyError"
    bob.call("close")
    ann.call("close")
    bob.call("open", str(root), read_only=True)  # at rest, too
    assert len(bob.call("read")[0]) == 12


@needs_root
def test_who_may_not_write_is_told_and_changes_nothing(nursery: Nursery, common: Path) -> None:
    root = common / "log"
    ann = user(nursery, ANN)
    bob = user(nursery, BOB)
    ann.call("open", str(root), config=QUIET)
    ann.call("create_topic")
    ann.call("append", [b"one"])
    before = modes(root)
    problem = refused(bob, "open", str(root))
    assert "StorageError" in problem.kinds
    assert "Permission denied" in str(problem)
    assert modes(root) == before
    ann.call("append", [b"two"])
    ann.call("close")


@needs_root
@pytest.mark.parametrize("old", [False, True], ids=["new", "made by an older version"])
def test_who_may_only_read_cannot_stop_writers_by_a_lock(
    nursery: Nursery, common: Path, old: bool
) -> None:
    """A shared lock needs no more than the right to read: on the door or an append lock it made
    every writer time out.
    """
    root = common / "log"
    config = QUIET | {"lock.timeout.ms": 200}
    ann = user(nursery, ANN)
    bob = user(nursery, BOB)
    for step in range(2):
        ann.call("open", str(root), config=config)
        if step == 0:
            ann.call("create_topic")
        ann.call("append", [b"one"])
        ann.call("flush")
        ann.call("close")
        files = [path for path in root.rglob("*") if path.name in LOCKS]
        if old and step == 0:
            for path in files:
                path.chmod(0o644)
    assert {path.name for path in files} >= {"embedlog.lock", "embedlog.door", "embedlog.directory"}
    for path in files:
        assert "Permission denied" in str(refused(bob, "lock_shared", str(path)))
    assert bob.call("lock_shared", str(root / ".lock"))
    ann.call("open", str(root), config=config)
    assert ann.call("append", [b"two"]) == [2]
    ann.call("flush")
    bob.call("open", str(root), read_only=True)
    assert len(bob.call("read")[0]) == 3
    ann.call("close")


@needs_root
def test_who_may_not_even_read_is_told(nursery: Nursery, common: Path) -> None:
    root = common / "log"
    ann = user(nursery, ANN, 0o077)
    bob = user(nursery, BOB)
    ann.call("open", str(root), config=QUIET)
    ann.call("create_topic")
    ann.call("append", [b"one"])
    for read_only in (True, False):
        problem = refused(bob, "open", str(root), read_only=read_only)
        assert "StorageError" in problem.kinds
        assert "Permission denied" in str(problem)
    ann.call("close")


@needs_root
@pytest.mark.parametrize("umask", [0o002, 0o000], ids=["one group", "everybody"])
def test_two_users_write_one_log_and_repair_after_each_other(
    nursery: Nursery, common: Path, umask: int
) -> None:
    root = common / "log"
    ann = user(nursery, ANN, umask)
    bob = user(nursery, BOB, umask)
    ann.call("open", str(root), config=QUIET)
    ann.call("create_topic", "t", 1, SMALL)
    bob.call("open", str(root), config=QUIET)
    for number in range(8):
        for who in (ann, bob):
            who.call("append", [b"%d of %d" % (number, who.pid) * 8])
            who.call("flush")
    ann.arm(["point"], "kill_before", name="before-publish")
    ann.start("append", [b"never acknowledged"])
    ann.wait_dead()
    assert bob.call("append", [b"behind the dead"])[0] in (16, 17)
    bob.call("on_log", "alter_topic", "t", {"retention.ms": 10**12})
    bob.call("delete_records", 5)
    bob.call("on_log", "housekeep")
    bob.call("close")
    carl = user(nursery, ANN, umask)
    carl.call("open", str(root), config=QUIET)
    assert len(carl.call("read")[0]) >= 12
    carl.call("append", [b"again"])
    carl.call("close")
