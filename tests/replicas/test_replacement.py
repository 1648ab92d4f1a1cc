"""A lost directory of a set is replaced by one that begins empty, also after a stop at any step and
beside other processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import (
    DirectoryInUseError,
    EmbedlogError,
    NotEnoughDirectoriesError,
    ReplicaSetError,
)
from embedlog.replicas.members import replacement
from embedlog.storage import file_names
from tests.support.opened_sets import QUIET, content, isr, made, opened, send, values
from tests.support.replica_directories import CHANGES, failing

ROUNDS = 30
STRIDE = 7  # of the system calls before which a process is killed


def copy_all(log: embedlog.Log) -> None:
    for _ in range(ROUNDS):
        if not any(each.under_replicated for each in log.replicas().partitions):
            return
        log.housekeep()
    raise AssertionError(str(log.replicas()))


def check_whole(log: embedlog.Log, expected: Sequence[bytes]) -> None:
    copy_all(log)
    assert values(log) == sorted(expected)
    assert log.verify_replicas() == []
    assert log.check().good


def lose(path: Path) -> None:
    """As a disk that died; a new, empty one is mounted in its place."""
    path.rename(path.with_name(f"lost-{path.name}"))
    path.mkdir()


# ---- what it does ----------------------------------------------------------------------------------------


def test_a_new_disk_at_the_old_path_gets_all_replicas(tmp_path: Path) -> None:
    made(tmp_path)
    lose(tmp_path / "d2")
    (tmp_path / "d2/lost+found").mkdir()  # as mkfs makes it
    with opened(tmp_path) as log:
        send(log, b"second")
        log.replace_directory(2, tmp_path / "d2")
        check_whole(log, [b"first", b"second"])
        assert isr(log) == [1, 2, 3]
    with opened(tmp_path) as log:
        send(log, b"third")
        check_whole(log, [b"first", b"second", b"third"])


def test_another_path_replaces_the_lost_one_in_every_process(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        (tmp_path / "d2").rename(tmp_path / "lost")
        send(log, b"second")
        log.replace_directory(2, tmp_path / "new")
        copy_all(log)
        other.housekeep()
        send(other, b"third")
        (tmp_path / "d1").rename(tmp_path / "lost too")
        send(other, b"fourth")
        assert isr(other) == [2, 3]
        assert values(log) == [b"first", b"fourth", b"second", b"third"]
        (tmp_path / "lost too").rename(tmp_path / "d1")
    with embedlog.open([tmp_path / "d1", tmp_path / "new", tmp_path / "d3"], config=QUIET) as log:
        check_whole(log, [b"first", b"second", b"third", b"fourth"])


def test_content_of_the_place_is_kept_beside_it(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        (tmp_path / "d2").rename(tmp_path / "moved")
        send(log, b"second")
        (tmp_path / "moved/embedlog.replicas").write_bytes(b"damaged")
        before = content(tmp_path / "moved")
        log.replace_directory(2, tmp_path / "moved")
        [kept] = tmp_path.glob("moved.replaced-*")
        assert content(kept) == before
        check_whole(log, [b"first", b"second"])


def test_the_only_other_voter_and_a_witness_suffice(tmp_path: Path) -> None:
    made(tmp_path, 2)
    with opened(tmp_path, 2) as log:
        log.add_directory(tmp_path / "w", replicas=False)
        copy_all(log)
        lose(tmp_path / "d1")
        send(log, b"second")
        log.replace_directory(1, tmp_path / "d1")
        check_whole(log, [b"first", b"second"])
        lose(tmp_path / "w")
        send(log, b"third")
        log.replace_directory(3, tmp_path / "w")
        lose(tmp_path / "d2")
        send(log, b"fourth")
        assert values(log) == [b"first", b"fourth", b"second", b"third"]


def test_records_of_one_directory_alone_are_given_up_only_by_force(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        log.create_topic("single", assignment={0: [2]})
        lose(tmp_path / "d2")
        send(log, b"second")
        with pytest.raises(ReplicaSetError, match=r"single-0.*force=True"):
            log.replace_directory(2, tmp_path / "d2")
        assert not content(tmp_path / "d2")
        log.replace_directory(2, tmp_path / "d2", force=True)
        copy_all(log)
        with contextlib.suppress(embedlog.ElectionNotNeededError):
            log.elect("single", 0, unclean=True, node=2)
        with log.producer() as producer:
            assert producer.send("single", b"begins again").result(30).offset == 0
        check_whole(log, [b"first", b"second"])


# ---- what it refuses -------------------------------------------------------------------------------------


def test_what_cannot_be_replaced_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    made(tmp_path)
    with embedlog.open(tmp_path / "other", config=QUIET) as other, opened(tmp_path) as log:
        with pytest.raises(ReplicaSetError, match="answers"):
            log.replace_directory(2, tmp_path / "new")
        with pytest.raises(TypeError):
            log.replace_directory("2", tmp_path / "new")  # type: ignore[arg-type]
        lose(tmp_path / "d2")
        send(log, b"second")
        with pytest.raises(ReplicaSetError, match="number"):
            log.replace_directory(7, tmp_path / "new")
        for place in (tmp_path / "d1", tmp_path / "d3"):
            with pytest.raises(ReplicaSetError, match="node"):
                log.replace_directory(2, place)
        with pytest.raises(DirectoryInUseError):
            log.replace_directory(2, tmp_path / "other")
        with pytest.raises(ReplicaSetError, match="replace_directory"):
            log.add_directory(tmp_path / "d2")
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "d1",
            "d2",
            "d3",
            "lost-d2",
            "other",
        ]
        assert not content(tmp_path / "d2")
        send(log, b"third")
        assert other.topics() == []
        lose(tmp_path / "d3")
        with pytest.raises(NotEnoughDirectoriesError):
            log.replace_directory(2, tmp_path / "d2")
        assert not list((tmp_path / "d2").iterdir())


def test_one_directory_has_no_member_to_replace(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "log", config=QUIET) as log,
        pytest.raises(ReplicaSetError, match="one directory"),
    ):
        log.replace_directory(1, tmp_path / "new")


def test_the_lost_directory_is_not_used_when_it_returns(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        lose(tmp_path / "d2")
        send(log, b"second")
        log.replace_directory(2, tmp_path / "new")
        copy_all(log)
        shutil.rmtree(tmp_path / "d2")
        (tmp_path / "lost-d2").rename(tmp_path / "d2")
        before = content(tmp_path / "d2")
        send(log, b"third")
        check_whole(log, [b"first", b"second", b"third"])
    with embedlog.open([tmp_path / "d1", tmp_path / "new", tmp_path / "d3"], config=QUIET) as log:
        check_whole(log, [b"first", b"second", b"third"])
    assert content(tmp_path / "d2") == before


@pytest.mark.parametrize("has_noticed", [False, True])
def test_an_earlier_opening_uses_the_successor_although_the_lost_directory_is_back(
    tmp_path: Path, *, has_noticed: bool
) -> None:
    """Both have the node and the directory id: the one that the decisions name is used, not the one
    that was given once.
    """
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        (tmp_path / "d2").rename(tmp_path / "lost")
        send(log, b"second")
        if has_noticed:
            other.housekeep()
        log.replace_directory(2, tmp_path / "new")
        (tmp_path / "lost").rename(tmp_path / "d2")
        before = content(tmp_path / "d2")
        for each in (other, log, other):
            each.housekeep()
            assert [Path(found.path).name for found in each.replicas().directories] == [
                "d1",
                "new",
                "d3",
            ]
        send(other, b"third")
        check_whole(other, [b"first", b"second", b"third"])
        check_whole(log, [b"first", b"second", b"third"])
        assert all(found.answers for found in other.replicas().directories)
        assert content(tmp_path / "d2") == before


def test_a_replacement_gives_way_to_the_lost_directory_that_another_process_uses_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns after the new directory was prepared, and before that is registered."""
    made(tmp_path)
    prepare = replacement._prepare

    def prepared_late(*given: Any) -> None:
        prepare(*given)
        (tmp_path / "lost").rename(tmp_path / "d2")
        copy_all(other)
        assert isr(other) == [1, 2, 3]

    with opened(tmp_path) as log, opened(tmp_path) as other:
        (tmp_path / "d2").rename(tmp_path / "lost")
        send(log, b"second")
        send(other, b"third")
        with (
            monkeypatch.context() as patch,
            pytest.raises(ReplicaSetError, match="uses the directory that it replaces"),
        ):
            patch.setattr(replacement, "_prepare", prepared_late)
            log.replace_directory(2, tmp_path / "new")
        for each in (log, other, log):
            each.housekeep()
            copy_all(each)
            assert [
                Path(found.path).name for found in each.replicas().directories if found.answers
            ] == ["d1", "d2", "d3"]
        send(log, b"fourth")
        (tmp_path / "d2").rename(tmp_path / "lost")
        send(other, b"fifth")
        log.replace_directory(2, tmp_path / "new")
        check_whole(other, [b"fifth", b"first", b"fourth", b"second", b"third"])
        assert [
            Path(found.path).name for found in other.replicas().directories if found.answers
        ] == ["d1", "new", "d3"]


# ---- decisions -------------------------------------------------------------------------------------------


def test_an_empty_copy_of_the_decisions_does_not_vote(tmp_path: Path) -> None:
    """A decision is in d2 and d3 only; d3 is replaced, and d2 is away before the new copy has the
    decision.
    """
    made(tmp_path)
    with opened(tmp_path) as log:
        (tmp_path / "d1").rename(tmp_path / "away-d1")
        log.create_topic("late", assignment={0: [2, 3]})
    (tmp_path / "away-d1").rename(tmp_path / "d1")
    lose(tmp_path / "d3")
    with opened(tmp_path) as log:
        with (
            failing(("pwrite",), name="d3/__replica_state", error=errno.EIO) as struck,
            contextlib.suppress(EmbedlogError),
        ):
            log.replace_directory(3, tmp_path / "d3")
        assert struck.count
    (tmp_path / "d2").rename(tmp_path / "away-d2")
    with opened(tmp_path) as log, pytest.raises(NotEnoughDirectoriesError):
        log.create_topic("other", assignment={0: [1, 3]})
    (tmp_path / "away-d2").rename(tmp_path / "d2")
    with opened(tmp_path) as log:
        assert log.topics() == ["late", "t"]
        check_whole(log, [b"first"])


def test_the_replaced_directory_and_one_that_missed_the_replacement_are_no_majority(
    tmp_path: Path,
) -> None:
    """The new directory has no vote about its own registration: a majority of the others has it."""
    made(tmp_path)
    with opened(tmp_path) as log:
        (tmp_path / "d3").rename(tmp_path / "lost-d3")
        send(log, b"second")
        with (
            failing(("pwrite",), name="d2/__replica_state", error=errno.EIO) as struck,
            pytest.raises(NotEnoughDirectoriesError),
        ):
            log.replace_directory(3, tmp_path / "d3")
        assert struck.count
        copy_all(log)  # the housekeeper registers the prepared directory
        send(log, b"third")
    (tmp_path / "d1").rename(tmp_path / "away-d1")
    (tmp_path / "d3").rename(tmp_path / "away-d3")
    (tmp_path / "lost-d3").rename(tmp_path / "d3")
    with opened(tmp_path) as log, pytest.raises(NotEnoughDirectoriesError):
        log.create_topic("other", assignment={0: [2]})
    shutil.rmtree(tmp_path / "d3")
    (tmp_path / "away-d1").rename(tmp_path / "d1")
    (tmp_path / "away-d3").rename(tmp_path / "d3")
    with opened(tmp_path) as log:
        check_whole(log, [b"first", b"second", b"third"])


# ---- stops -----------------------------------------------------------------------------------------------


def replaced_until(root: Path, nth: int, kinds: Sequence[str] = CHANGES, name: str = "") -> bool:
    """A process that is killed before the nth of these calls of a replacement; False if it ended
    before.
    """
    child = os.fork()
    if child == 0:
        try:
            with opened(root) as log:
                system.fault_arm(tuple(kinds), nth, "kill_before", name=name)
                log.replace_directory(2, root / "d2")
                copy_all(log)
                system.fault_off()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def check_after_stop(root: Path) -> None:
    """The set serves, and the replacement is completed: by itself, or by the same call. Nothing but
    the set is left.
    """
    with opened(root) as log:
        before = values(log)
        send(log, b"second")
        if not log.replicas().directories[1].answers:
            log.replace_directory(2, root / "d2")
        check_whole(log, [*before, b"second"])
        assert isr(log) == [1, 2, 3]
    assert not list(root.glob("*.replaced-*"))


STEPS = [
    ("rename", f"d2/{file_names.META_PROPERTIES}"),
    ("rename", f"d2/{file_names.REPLICAS}"),
    ("pwrite", "d2/__replica_state-0"),
    ("rename", f"d2/__replica_state-0/{file_names.PROMISE}"),
    ("pwrite", "d1/__replica_state-0"),
]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(("kind", "name"), STEPS)
def test_a_replacement_that_is_killed_at_a_main_step_is_completed(
    tmp_path: Path, kind: str, name: str
) -> None:
    made(tmp_path)
    lose(tmp_path / "d2")
    assert replaced_until(tmp_path, 1, (kind,), name)
    check_after_stop(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_replacement_can_be_killed_before_any_system_call(
    tmp_path: Path, rng: random.Random
) -> None:
    """Before every seventh one; the seed selects which."""
    made(tmp_path / "set")
    lose(tmp_path / "set/d2")
    nth = rng.randint(1, STRIDE)
    killed = True
    while killed:
        root = tmp_path / "set"
        killed = replaced_until(root, nth)
        check_after_stop(root)
        shutil.rmtree(root / "d2")
        (root / "d2").mkdir()
        nth += STRIDE
    assert nth > 50


def test_a_call_that_failed_is_repeated(tmp_path: Path) -> None:
    made(tmp_path)
    lose(tmp_path / "d2")
    with opened(tmp_path) as log:
        for nth in range(1, 40):
            with (
                failing(CHANGES, nth=nth, name="/d2", error=errno.EIO) as struck,
                contextlib.suppress(EmbedlogError),
            ):
                log.replace_directory(2, tmp_path / "d2")
            if not struck.count:
                break
        send(log, b"second")
        if not log.replicas().directories[1].answers:
            log.replace_directory(2, tmp_path / "d2")
        check_whole(log, [b"first", b"second"])
