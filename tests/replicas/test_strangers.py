"""A directory that is not the registered one is away, with the command that helps, in every
process. It changes nothing.

`replace_directory` makes it a member again: its content is kept beside it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import DirectoryInUseError, NotEnoughDirectoriesError, ReplicaSetError
from embedlog.replicas.decisions.decision_log import DecisionLog
from embedlog.replicas.members import membership as members
from embedlog.replicas.members import registration
from tests.support.put_back_directories import (
    NODES,
    copied,
    killed,
    level,
    logs,
    opened,
    put_back,
    send,
    values,
)
from tests.support.replica_directories import CHANGES

BEFORE = [b"before"]
AFTER = [b"after 1", b"after 2"]
REASON = "not the registered one"
STRIDE = 11  # of the changes before which a process is killed

Make = Callable[[Path, int], None]


def begun(root: Path) -> None:
    with opened(root) as log:
        log.create_topic("t", assignment={0: [2, 1, 3]}, min_insync_replicas=1)
        send(log, *BEFORE)


def work_on(root: Path) -> None:
    with opened(root) as log:
        send(log, *AFTER)


def earlier_copy(root: Path, node: int) -> None:
    copied(root, node)
    work_on(root)
    put_back(root, node)


def earlier_copy_after_a_kill(root: Path, node: int) -> None:
    copied(root, node)
    killed(root, *AFTER)
    put_back(root, node)


def copy_of_the_killed_opening(root: Path, node: int) -> None:
    killed(root, *AFTER, between=lambda: copied(root, node))
    put_back(root, node)


def written_alone(root: Path, node: int) -> None:
    work_on(root)
    with embedlog.open(root / f"d{node}", alone=True) as lone:
        send(lone, b"other 1", b"other 2", b"other 3")


def earlier_copy_written_alone(root: Path, node: int) -> None:
    earlier_copy(root, node)
    with embedlog.open(root / f"d{node}", alone=True) as lone:
        send(lone, b"other 1", b"other 2", b"other 3")


def of_a_backup_that_was_opened(root: Path, node: int) -> None:
    backup = root / "backup"
    for each in NODES:
        shutil.copytree(root / f"d{each}", backup / f"d{each}")
    work_on(root)
    for number in range(3):
        with opened(backup) as log:
            send(log, b"of the backup %d" % number)
    shutil.rmtree(root / f"d{node}")
    (backup / f"d{node}").rename(root / f"d{node}")
    shutil.rmtree(backup)


def of_a_backup_without_its_decisions(root: Path, node: int) -> None:
    of_a_backup_that_was_opened(root, node)
    shutil.rmtree(root / f"d{node}/__replica_state-0")


def copied_after_a_kill(root: Path, node: int) -> None:
    """Another disk has the directory: it may lack what the kernel had not written."""
    killed(root, *AFTER)
    copied(root, node)
    put_back(root, node)


KINDS: list[Make] = [
    earlier_copy,
    earlier_copy_after_a_kill,
    copy_of_the_killed_opening,
    written_alone,
    earlier_copy_written_alone,
    of_a_backup_that_was_opened,
    of_a_backup_without_its_decisions,
    copied_after_a_kill,
]


def check_away(log: embedlog.Log, node: int) -> None:
    described = log.replicas("t")
    found = next(each for each in described.directories if each.node == node)
    assert not found.answers
    assert found.state == "away"
    assert found.reason is not None
    assert REASON in found.reason
    assert f"replace_directory({node}, " in found.reason
    assert f"embedlog directories --replace {node}" in found.reason
    assert any(f"--replace {node}" in text for text in described.warnings)
    assert described.partitions[0].leader in {*NODES} - {node}
    assert log._engine.set.decisions.attached_copy(node) is None  # type: ignore[attr-defined]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [2, 3], ids=["the leader", "a follower"])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_stranger_is_away_until_it_is_replaced(tmp_path: Path, make: Make, node: int) -> None:
    begun(tmp_path)
    make(tmp_path, node)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        for each in (log, other, log):
            each.housekeep()
            check_away(each, node)
            assert values(each) == BEFORE + AFTER
        send(other, b"later")
        assert node not in log.replicas("t").partitions[0].isr
        log.replace_directory(node, tmp_path / f"d{node}")
        assert len(list(tmp_path.glob(f"d{node}.replaced-*"))) == 1
        level(log)
        other.housekeep()
        send(other, b"last")
        level(other)
        assert log.verify_replicas() == []
    expected = [*BEFORE, *AFTER, b"later", b"last"]
    with opened(tmp_path) as log:
        assert values(log) == expected
        assert all(each.answers for each in log.replicas().directories)
    assert len(logs(tmp_path)) == 1


@pytest.mark.parametrize("make", [earlier_copy, written_alone], ids=lambda make: make.__name__)
def test_a_reader_leaves_a_stranger_away_too(tmp_path: Path, make: Make) -> None:
    begun(tmp_path)
    make(tmp_path, 2)
    with embedlog.open([tmp_path / f"d{node}" for node in NODES], read_only=True) as log:
        check_reader(log)
        with opened(tmp_path) as writer:
            send(writer, b"later")
            assert values(log) == [*BEFORE, *AFTER, b"later"]
        check_reader(log)


def check_reader(log: embedlog.Log) -> None:
    found = next(each for each in log.replicas().directories if each.node == 2)
    assert not found.answers
    assert REASON in (found.reason or "")


def test_a_reader_that_opens_during_a_registration_uses_every_directory(tmp_path: Path) -> None:
    begun(tmp_path)
    with (
        opened(tmp_path),
        embedlog.open([tmp_path / f"d{node}" for node in NODES], read_only=True) as log,
    ):
        assert all(each.answers for each in log.replicas().directories)


@contextlib.contextmanager
def written_by_itself(root: Path, node: int) -> Iterator[None]:
    with embedlog.open(root / f"d{node}", alone=True) as lone:
        send(lone, b"other")
        yield


def test_a_stranger_that_takes_a_place_while_the_set_is_open_is_away(tmp_path: Path) -> None:
    begun(tmp_path)
    copied(tmp_path, 3)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        send(log, *AFTER)
        (tmp_path / "d3").rename(tmp_path / "lost")
        (tmp_path / "copy").rename(tmp_path / "d3")
        for each in (log, other, log, other):
            each.housekeep()
        for each in (log, other):
            check_away(each, 3)
        send(other, b"later")
        (tmp_path / "d3").rename(tmp_path / "copy")
        (tmp_path / "lost").rename(tmp_path / "d3")  # the registered one returns by itself
        level(log)
        level(other)
        assert values(other) == [*BEFORE, *AFTER, b"later"]
        assert log.verify_replicas() == []


def test_the_registered_directory_returns_although_a_stranger_was_at_its_place_when_the_log_was_opened(
    tmp_path: Path,
) -> None:
    begun(tmp_path)
    copied(tmp_path, 3)
    work_on(tmp_path)
    (tmp_path / "d3").rename(tmp_path / "lost")
    (tmp_path / "copy").rename(tmp_path / "d3")
    with opened(tmp_path) as log:
        check_away(log, 3)
        (tmp_path / "d3").rename(tmp_path / "copy")
        (tmp_path / "lost").rename(tmp_path / "d3")
        level(log)
        assert values(log) == BEFORE + AFTER


def test_a_copy_in_a_list_is_away_and_the_directory_in_use_serves(tmp_path: Path) -> None:
    """The registered directory is at its recorded path: it is used as soon as the copy was
    judged.
    """
    begun(tmp_path)
    copied(tmp_path, 1)
    work_on(tmp_path)
    with (
        opened(tmp_path) as log,
        embedlog.open([tmp_path / name for name in ("copy", "d2", "d3")]) as other,
    ):
        other.housekeep()
        for each in (log, other):
            found = each.replicas().directories[0]
            assert (found.answers, found.path) == (True, str(tmp_path / "d1"))
        send(other, b"later")
        level(log)
        assert values(log) == [*BEFORE, *AFTER, b"later"]
        before = log.replicas().decisions
        other.housekeep()
        log.housekeep()
        assert log.replicas().decisions == before
    with embedlog.open(tmp_path / "copy", read_only=True) as copy:
        assert values(copy) == BEFORE


def test_of_two_directories_the_registered_one_serves_alone(tmp_path: Path) -> None:
    """It is no majority: nothing is decided before a person does."""
    paths = [tmp_path / "d1", tmp_path / "d2"]
    with embedlog.open(paths) as log:
        log.create_topic("t", assignment={0: [1, 2]}, min_insync_replicas=1)
        send(log, *BEFORE)
    copied(tmp_path, 2)
    with embedlog.open(paths) as log:
        send(log, *AFTER)
    put_back(tmp_path, 2)
    with embedlog.open(paths) as log:
        assert values(log) == BEFORE + AFTER
        reason = log.replicas().directories[1].reason or ""
        assert "retire_directory(2, force=True)" in reason
        assert "restored=True" in reason
        with pytest.raises(NotEnoughDirectoriesError):
            log.replace_directory(2, tmp_path / "d2")
        log.retire_directory(2, force=True)
        send(log, b"later")
        assert values(log) == [*BEFORE, *AFTER, b"later"]


def put_two_back(root: Path) -> None:
    """Two of three directories are put back to copies of one time; the third one has the later
    decisions and records.
    """
    begun(root)
    for node in (1, 2):
        shutil.copytree(root / f"d{node}", root / "backup" / f"d{node}")
    work_on(root)
    for node in (1, 2):
        shutil.rmtree(root / f"d{node}")
        (root / "backup" / f"d{node}").rename(root / f"d{node}")


def test_a_majority_that_was_put_back_together_hides_no_record(tmp_path: Path) -> None:
    put_two_back(tmp_path)
    for _ in range(2):  # also after a close
        with opened(tmp_path) as log:
            assert [directory.answers for directory in log.replicas().directories] == [
                False,
                False,
                True,
            ]
            reason = log.replicas().directories[0].reason or ""
            assert REASON in reason
            assert "restored=True" in reason
            with pytest.raises(NotEnoughDirectoriesError):
                log.create_topic("later")
    with embedlog.open([tmp_path / f"d{node}" for node in NODES], restored=True) as log:
        level(log)
        assert values(log) == BEFORE + AFTER
        send(log, b"later")
        assert log.verify_replicas() == []


def test_a_majority_that_was_put_back_together_serves_if_nothing_shows_it(tmp_path: Path) -> None:
    """Without the third directory it is the set as it was then."""
    put_two_back(tmp_path)
    (tmp_path / "d3").rename(tmp_path / "away")
    with opened(tmp_path) as log:
        assert values(log) == BEFORE
        send(log, b"later")
    (tmp_path / "away").rename(tmp_path / "d3")
    with opened(tmp_path) as log:
        assert values(log) == [*BEFORE, b"later"]
        assert [directory.answers for directory in log.replicas().directories] == [
            True,
            True,
            False,
        ]


def test_directories_that_exchanged_their_paths_continue(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "d1").rename(tmp_path / "x")
    (tmp_path / "d2").rename(tmp_path / "d1")
    (tmp_path / "x").rename(tmp_path / "d2")
    with opened(tmp_path) as log:
        level(log)
        assert values(log) == BEFORE
        assert all(each.answers for each in log.replicas().directories)


def test_a_set_of_one_directory_uses_it_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with embedlog.open([tmp_path / "d1"]) as log:
        log.create_topic("t")
        send(log, *BEFORE)
    copied(tmp_path, 1)
    with embedlog.open([tmp_path / "d1"]) as log:
        send(log, *AFTER)
    put_back(tmp_path, 1)
    with embedlog.open([tmp_path / "d1"]) as log:
        assert values(log) == BEFORE
        send(log, b"later")
        assert values(log) == [*BEFORE, b"later"]


# ---- all directories were put back ---------------------------------------------------------------------------


def at_different_moments(root: Path) -> list[bytes]:
    """Each directory is a copy of another time. The last one has every record."""
    begun(root)
    sent = BEFORE.copy()
    for node in NODES:
        shutil.copytree(root / f"d{node}", root / "backup" / f"d{node}")
        with opened(root) as log:
            send(log, b"after %d" % node)
        sent.append(b"after %d" % node)
    for node in NODES:
        shutil.rmtree(root / f"d{node}")
        (root / "backup" / f"d{node}").rename(root / f"d{node}")
    return sent[:-1]


def while_it_was_used(root: Path) -> list[bytes]:
    begun(root)

    def copy_all() -> None:
        for node in NODES:
            shutil.copytree(root / f"d{node}", root / "backup" / f"d{node}")

    killed(root, *AFTER, b"lost", between=copy_all)
    for node in NODES:
        shutil.rmtree(root / f"d{node}")
        (root / "backup" / f"d{node}").rename(root / f"d{node}")
    return BEFORE + AFTER


@pytest.mark.parametrize(
    "make", [at_different_moments, while_it_was_used], ids=lambda make: make.__name__
)
def test_a_set_of_which_every_directory_was_put_back_begins_again_by_request(
    tmp_path: Path, make: Callable[[Path], list[bytes]]
) -> None:
    expected = make(tmp_path)
    with contextlib.suppress(ReplicaSetError), opened(tmp_path) as log:
        assert "restored=True" in str([each.reason for each in log.replicas().directories])
    with embedlog.open([tmp_path / f"d{node}" for node in NODES], restored=True) as log:
        assert values(log) == expected
        level(log)
        send(log, b"later")
        level(log)
        assert log.verify_replicas() == []
    with opened(tmp_path) as log:
        assert values(log) == [*expected, b"later"]
        level(log)
    assert len(logs(tmp_path)) == 1


def test_a_set_whose_copies_were_made_in_use_is_refused_with_the_way_out(tmp_path: Path) -> None:
    while_it_was_used(tmp_path)
    with pytest.raises(
        ReplicaSetError, match=r"no directory is the registered one.*restored=True.*--restored"
    ) as refused:
        opened(tmp_path)
    assert sorted(refused.value.paths) == [str(tmp_path / f"d{node}") for node in NODES]


def test_a_set_that_continues_is_not_begun_again(tmp_path: Path) -> None:
    begun(tmp_path)
    earlier_copy(tmp_path, 3)
    paths = [tmp_path / f"d{node}" for node in NODES]
    with pytest.raises(ReplicaSetError, match=r"the set continues.*replace_directory\(3, "):
        embedlog.open(paths, restored=True)
    with opened(tmp_path) as log:
        check_away(log, 3)
        assert values(log) == BEFORE + AFTER


@pytest.mark.parametrize("best", NODES)
def test_the_best_copy_leads_in_whichever_directory_it_is(tmp_path: Path, best: int) -> None:
    """The copies were closed in order: each of them counts as complete for itself."""
    begun(tmp_path)
    sent = BEFORE.copy()
    for node in (*(set(NODES) - {best}), best):
        shutil.copytree(tmp_path / f"d{node}", tmp_path / "backup" / f"d{node}")
        work_on(tmp_path)
        sent += AFTER
    for node in NODES:
        shutil.rmtree(tmp_path / f"d{node}")
        (tmp_path / "backup" / f"d{node}").rename(tmp_path / f"d{node}")
    with embedlog.open([tmp_path / f"d{node}" for node in NODES], restored=True) as log:
        assert values(log) == sent[:-2]
        level(log)
        assert log.verify_replicas() == []


def test_a_refused_request_changes_no_registration(tmp_path: Path) -> None:
    begun(tmp_path)
    before = [registration_of(tmp_path, node) for node in NODES]
    with pytest.raises(ReplicaSetError, match="the set continues"):
        embedlog.open([tmp_path / f"d{node}" for node in NODES], restored=True)
    with opened(tmp_path) as log:
        level(log)
    assert [registration_of(tmp_path, node) for node in NODES] == before


def registration_of(root: Path, node: int) -> object:
    own = members.read(root / f"d{node}")
    assert own is not None
    return own.registration_id


def test_a_set_is_not_begun_again_beside_another_process(tmp_path: Path) -> None:
    while_it_was_used(tmp_path)
    paths = [tmp_path / f"d{node}" for node in NODES]
    with embedlog.open(paths, restored=True) as log:
        with pytest.raises(ReplicaSetError, match="the set continues"):
            embedlog.open(paths, restored=True)
        level(log)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    while_it_was_used(tmp_path)
    with embedlog.open(paths[1], alone=True), pytest.raises(DirectoryInUseError):
        embedlog.open(paths, restored=True)
    with embedlog.open(paths, restored=True) as log:
        level(log)
        assert values(log) == BEFORE + AFTER


def restored_until(root: Path, nth: int) -> bool:
    """A process that is killed before the nth change of the file systems by a request; False if it
    ended before.
    """
    child = os.fork()
    if child == 0:
        try:
            system.fault_arm(CHANGES, nth, "kill_before")
            with embedlog.open([root / f"d{node}" for node in NODES], restored=True) as log:
                level(log)
            system.fault_off()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_request_can_be_killed_at_any_change_and_is_repeated(
    tmp_path: Path, rng: random.Random
) -> None:
    """The set was begun again by the killed process, or it is by the next one. Every record is
    there.
    """
    expected = while_it_was_used(tmp_path / "made")
    nth = rng.randint(1, STRIDE)
    while True:
        root = tmp_path / f"set-{nth}"
        shutil.copytree(tmp_path / "made", root)
        is_killed = restored_until(root, nth)
        try:
            log = opened(root)
        except ReplicaSetError:
            log = embedlog.open([root / f"d{node}" for node in NODES], restored=True)
        with log:
            assert values(log) == expected, nth
            level(log)
            assert log.verify_replicas() == []
        shutil.rmtree(root)
        if not is_killed:
            break
        nth += STRIDE
    assert nth > 2 * STRIDE


@pytest.mark.parametrize("step", ["decide_all", "try_to_record"])
def test_an_interrupt_at_the_registration_of_a_restored_set_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    expected = while_it_was_used(tmp_path)
    paths = [tmp_path / f"d{node}" for node in NODES]
    owner = registration if step == "try_to_record" else DecisionLog
    original = getattr(owner, step)

    def interrupted(*given: Any, **named: Any) -> object:
        original(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, step, interrupted)
        embedlog.open(paths, restored=True)
    with opened(tmp_path) as log:  # it has begun again
        assert values(log) == expected
        level(log)
        assert log.verify_replicas() == []


def test_a_restored_set_begins_with_all_of_its_directories(tmp_path: Path) -> None:
    while_it_was_used(tmp_path)
    (tmp_path / "d2").rename(tmp_path / "elsewhere")
    with pytest.raises(ReplicaSetError, match="some are absent") as refused:
        embedlog.open([tmp_path / f"d{node}" for node in NODES], restored=True)
    assert refused.value.paths == [str(tmp_path / "d2")]


def test_restored_belongs_to_a_list_that_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="list"):
        embedlog.open(tmp_path / "d1", restored=True)
    with pytest.raises(TypeError, match="read_only"):
        embedlog.open([tmp_path / "d1"], restored=True, read_only=True)
