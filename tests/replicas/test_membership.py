"""Members of a set: what their file holds, which directories are refused, and set-ups that are
interrupted anywhere.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import (
    DirectoryInUseError,
    EmbedlogError,
    ForeignDirectoryError,
    ReplicaSetError,
    StorageError,
    UnsupportedFormatError,
)
from embedlog.replicas.members import membership, set_up
from embedlog.replicas.members.membership import Member, Membership, check_set
from embedlog.storage import files, identity, json_file
from embedlog.storage.file_names import BROKER_LOCK, PARTITION_METADATA, REPLICAS
from embedlog.storage.identity import new_id, read_meta
from tests.support.mutants import mutated
from tests.support.replica_directories import CHANGES, failing


def member(node: int, **facts: Any) -> Member:
    return Member(node, new_id(), f"/disk{node}/log")._replace(**facts)


def some(nodes: tuple[int, ...] = (1, 2, 3), **facts: Any) -> Membership:
    found = Membership("cluster", nodes[0], uuid.uuid4(), tuple(member(node) for node in nodes))
    return found._replace(**facts)


def later() -> int:
    return files.deadline_after(20)


def prepared(tmp_path: Path, count: int = 3) -> list[Path]:
    """The directories of a set that was set up, but has no decision yet."""
    paths = [tmp_path / f"d{number}" for number in range(1, count + 1)]
    set_up.prepare_set(paths, deadline_ns=later())
    return paths


def registered(paths: list[Path]) -> None:
    """As after the first decision."""
    for path in paths:
        found = membership.read(path)
        assert found is not None
        membership.write(path, found._replace(registered_id=found.registration_id, broker_epoch=0))


# ---- the file ------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    before = some(
        registered_id=uuid.uuid4(),
        broker_epoch=7,
        alone=True,
        cluster_generation=2,
        others={"later": [1]},
    )
    before = before._replace(
        members=(*before.members, member(9, rack="r", voter=False, replicas=False, others={"x": 1}))
    )
    written = membership.write(tmp_path, before)
    assert written.generation == 1
    assert membership.read(tmp_path) == written
    assert membership.read(tmp_path.parent) is None


def changed(data: bytes, rng: random.Random) -> bytes:
    """The file with one value of another kind, and a valid checksum."""
    document = json.loads(data)
    place = rng.choice([document, document["members"][0], rng.choice(document["members"])])
    key = rng.choice(sorted(place))
    bad: list[Any] = [None, -1, 1 << 40, "", "x", [], {}, True, 1.5, [None], "\udcff", place]
    place[key] = json.loads(json.dumps(rng.choice(bad)))
    document.pop("checksum", None)
    return json.dumps(document | {"checksum": json_file.checksum(document)}).encode()


def test_hostile_values_are_typed_errors_or_valid(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / REPLICAS
    problems: list[EmbedlogError] = []
    for _ in range(300):
        path.write_bytes(changed(membership.encode(some(registered_id=uuid.uuid4())), rng))
        try:
            found = membership.read(tmp_path)
        except (ForeignDirectoryError, UnsupportedFormatError) as problem:
            problems.append(problem)
        else:
            assert found is not None
            assert found.own in found.members
    assert len(problems) > 100
    assert {problem.path for problem in problems} == {str(path)}
    assert max(len(str(problem)) for problem in problems) < 1500


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found._replace(node=4),
        lambda found: found._replace(members=()),
        lambda found: found._replace(members=(*found.members, found.members[0])),
        lambda found: found._replace(
            members=tuple(each._replace(voter=False) for each in found.members)
        ),
        lambda found: found._replace(
            members=tuple(each._replace(directory_id=new_id()[:-1]) for each in found.members)
        ),
        lambda found: found._replace(members=tuple(member(node) for node in range(1, 66))),
    ],
)
def test_members_that_contradict_themselves_are_refused(
    tmp_path: Path, change: Callable[[Membership], Membership]
) -> None:
    (tmp_path / REPLICAS).write_bytes(membership.encode(change(some())))
    with pytest.raises(ForeignDirectoryError, match="the members cannot be read"):
        membership.read(tmp_path)


# ---- the check of a set --------------------------------------------------------------------------


def test_quorum_1_a_set_is_one_cluster_with_nodes_from_one(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    checked = check_set(reversed(paths))
    assert [each.meta.node_id for each in checked.directories if each.meta] == [3, 2, 1]
    assert len({each.meta.cluster_id for each in checked.directories if each.meta}) == 1
    assert len({each.meta.directory_id for each in checked.directories if each.meta}) == 3
    assert not checked.is_registered
    registered(paths[:1])
    assert check_set(paths).is_registered


def test_quorum_1_the_same_directory_twice_is_refused(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    (tmp_path / "link").symlink_to(paths[0])
    for again in (paths[0], tmp_path / "link", tmp_path / "." / "d2" / ".." / "d1"):
        with pytest.raises(ReplicaSetError, match="given twice"):
            check_set([*paths, again])
    with pytest.raises(ReplicaSetError, match="given twice"):
        check_set([tmp_path / "absent", tmp_path / "absent"])


def test_quorum_1_a_clone_is_refused(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    shutil.copytree(paths[0], tmp_path / "clone")
    with pytest.raises(ReplicaSetError, match="one directory id") as caught:
        check_set([*paths, tmp_path / "clone"])
    assert caught.value.paths == [str(paths[0]), str(tmp_path / "clone")]
    meta = read_meta(paths[1])
    assert meta is not None
    identity.write_meta(paths[1], meta._replace(directory_id=new_id()))
    with pytest.raises(ReplicaSetError, match="directory id in meta"):
        check_set(paths)


def test_quorum_1_without_the_check_a_clone_is_a_member(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    shutil.copytree(paths[0], tmp_path / "clone")
    with mutated("clones_are_members"):
        assert len(check_set([*paths, tmp_path / "clone"]).directories) == 4


def test_quorum_1_another_directory_with_the_number_of_a_member_is_refused(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    found = membership.read(paths[2])
    meta = read_meta(paths[2])
    assert found is not None
    assert meta is not None
    other = new_id()
    mine = tuple(
        each._replace(directory_id=other) if each.node == 3 else each for each in found.members
    )
    membership.write(paths[2], found._replace(members=mine))
    identity.write_meta(paths[2], meta._replace(directory_id=other))
    registered(paths[:2])
    with pytest.raises(ReplicaSetError, match="another directory is node 3"):
        check_set(paths)


def test_quorum_1_a_foreign_set_is_refused(tmp_path: Path) -> None:
    ours = prepared(tmp_path / "a")
    theirs = prepared(tmp_path / "b")
    with pytest.raises(ReplicaSetError, match="different clusters"):
        check_set([*ours[:2], theirs[2]])
    without_the_last(ours)
    with pytest.raises(ReplicaSetError, match="another generation") as refused:
        check_set(ours)
    assert refused.value.paths == [str(ours[2])]


def without_the_last(paths: list[Path], *, generation: int = 1) -> None:
    """As after a retirement of the last directory by force."""
    for path in paths[:-1]:
        found = membership.read(path)
        assert found is not None
        membership.write(
            path, found._replace(members=found.members[:-1], cluster_generation=generation)
        )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_setmember_7_one_directory_of_the_last_generation_names_each_member(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    paths = prepared(tmp_path)
    registered(paths)
    found = membership.read(paths[1])
    assert found is not None
    membership.write(paths[1], found._replace(cluster_generation=1))
    checked = check_set([paths[at] for at in order])
    assert checked.membership is not None
    assert checked.membership.cluster_generation == 1


def test_setmember_6_directories_of_which_neither_names_the_other_are_two_sets(
    tmp_path: Path,
) -> None:
    paths = prepared(tmp_path)
    without_the_last(paths, generation=0)
    check_set(paths)  # the last one names the others
    found = membership.read(paths[2])
    assert found is not None
    membership.write(paths[2], found._replace(members=found.members[2:]))
    with pytest.raises(ReplicaSetError, match="two sets"):
        check_set(paths)


def test_a_directory_that_is_missing_or_fails_is_away(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    registered(paths)
    shutil.rmtree(paths[1])
    found = check_set(paths).directories
    assert [each.meta is None for each in found] == [False, True, False]
    with failing(["open"], name=f"{paths[0].name}/meta.properties"):
        found = check_set(paths).directories
    assert isinstance(found[0].problem, StorageError)


# ---- one directory of a set ----------------------------------------------------------------------


def test_replica_19_one_directory_of_a_set_is_not_opened_for_writing_without_leave(
    tmp_path: Path,
) -> None:
    paths = prepared(tmp_path)
    registered(paths)
    with pytest.raises(ReplicaSetError, match="alone=True") as caught:
        check_set(paths[:1])
    assert caught.value.paths == [str(path) for path in paths]
    with pytest.raises(ReplicaSetError):
        set_up.enter_alone(paths[0], alone=False, deadline_ns=later())
    before = membership.read(paths[0])
    set_up.enter_alone(paths[0], alone=True, deadline_ns=later())
    after = membership.read(paths[0])
    assert before is not None
    assert after is not None
    assert after.registration_id != before.registration_id
    assert (after.registered_id, after.alone) == (before.registered_id, True)


def test_replica_19_open_refuses_one_directory_of_a_set_unless_it_is_alone_or_reads(
    tmp_path: Path,
) -> None:
    paths = prepared(tmp_path)
    registered(paths)
    before = membership.read(paths[0])
    with pytest.raises(ReplicaSetError, match="alone=True"):
        embedlog.open(paths[0])
    embedlog.open(paths[0], read_only=True).close()
    assert membership.read(paths[0]) == before
    with embedlog.open(paths[0], alone=True) as log, embedlog.open(paths[0], alone=True):
        drawn = membership.read(paths[0])
        log.create_topic("t")
    assert before is not None
    assert drawn is not None
    assert drawn.registration_id != before.registration_id
    assert membership.read(paths[0]) == drawn


def test_replica_19_a_directory_in_use_by_its_set_is_not_opened_alone(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    fd = files.open_file(paths[0] / BROKER_LOCK, files.CREATE)
    try:
        assert system.lock_try(fd, False) == 0
        with pytest.raises(DirectoryInUseError):
            set_up.enter_alone(paths[0], alone=True, deadline_ns=later())
    finally:
        files.close(fd)
    set_up.enter_alone(paths[0], alone=True, deadline_ns=later())
    set_up.enter_alone(tmp_path, alone=False, deadline_ns=later())  # no member of a set


# ---- the first set-up ----------------------------------------------------------------------------


def test_a_set_up_can_be_interrupted_anywhere_and_repeated(tmp_path: Path) -> None:
    """Every call that changes a file fails once; the repeat gives every directory the numbers and
    ids of the first plan.
    """
    number = 0
    while True:
        number += 1
        paths = [tmp_path / str(number) / f"d{node}" for node in (1, 2, 3)]
        with failing(("open", *CHANGES), nth=number) as struck, contextlib.suppress(StorageError):
            set_up.prepare_set(paths, deadline_ns=later())
        planned = [
            found.members
            for path in paths
            if path.exists() and (found := membership.read(path)) is not None
        ]
        set_up.prepare_set(
            [paths[0], paths[2], paths[1]] if planned else paths, deadline_ns=later()
        )
        checked = check_set(paths)
        assert [each.meta.node_id for each in checked.directories if each.meta] == [1, 2, 3]
        assert checked.membership is not None
        assert [found for found in planned if found != checked.membership.members] == []
        for each in checked.directories:
            assert each.membership is not None
            assert each.meta is not None
            assert each.meta.directory_id == each.membership.own.directory_id
        if not struck.count:
            break
    assert number > 20


def test_a_prepared_directory_is_no_foreign_one(tmp_path: Path) -> None:
    """Members are registered by the first decision: before it, a repeat changes nothing."""
    paths = prepared(tmp_path)
    before = [membership.read(path) for path in paths]
    registered(paths[:1])
    set_up.prepare_set(paths, deadline_ns=later())
    assert [membership.read(path) for path in paths[1:]] == before[1:]


def test_an_empty_directory_in_the_place_of_a_member_stays_empty(tmp_path: Path) -> None:
    paths = prepared(tmp_path)
    registered(paths)
    shutil.rmtree(paths[2])
    paths[2].mkdir()
    assert set_up.prepare_set(paths, deadline_ns=later()).directories[2].is_new
    assert list(paths[2].iterdir()) == []


def test_a_set_begins_with_empty_directories_that_no_process_uses(tmp_path: Path) -> None:
    paths = [tmp_path / "d1", tmp_path / "d2"]
    (paths[0] / "t-0").mkdir(parents=True)
    with pytest.raises(ForeignDirectoryError, match="such as t-0"):
        set_up.prepare_set(paths, deadline_ns=later())
    (paths[0] / "t-0" / PARTITION_METADATA).touch()
    with pytest.raises(ReplicaSetError, match="log of its own"):
        set_up.prepare_set(paths, deadline_ns=later())
    shutil.rmtree(paths[0] / "t-0")
    identity.ensure_meta(paths[0])
    fd = files.open_file(paths[0] / BROKER_LOCK, files.CREATE)
    try:
        assert system.lock_try(fd, False) == 0
        with pytest.raises(DirectoryInUseError):
            set_up.prepare_set(paths, deadline_ns=later())
    finally:
        files.close(fd)
    meta = read_meta(paths[0])
    set_up.prepare_set(paths, deadline_ns=later(), racks=["a", "b"])
    found = membership.read(paths[1])
    assert read_meta(paths[0]) == meta
    assert found is not None
    assert [(each.node, each.rack) for each in found.members] == [(1, "a"), (2, "b")]


def test_the_number_of_directories_and_racks_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ReplicaSetError, match="number of directories"):
        set_up.prepare_set([], deadline_ns=later())
    with pytest.raises(ReplicaSetError, match="racks"):
        set_up.prepare_set([tmp_path / "d1"], deadline_ns=later(), racks=[])
    with pytest.raises(ReplicaSetError, match="UTF-8"):
        set_up.prepare_set([tmp_path / "d\udcff"], deadline_ns=later())


class Removing(dict[int, Any]):
    """The directories of a set while another thread removes node 2: it is listed, and then it is
    gone.
    """

    def __getitem__(self, node: int) -> Any:
        if node == 2:
            raise KeyError(node)
        return super().__getitem__(node)


def test_a_removal_by_another_thread_does_not_disturb_a_list_of_directories(tmp_path: Path) -> None:
    with embedlog.open(
        [tmp_path / f"d{node}" for node in (1, 2, 3)], config={"housekeeping": False}
    ) as log:
        members = log._engine.set.members
        states = members._states
        present = states._states
        states._states = Removing(present)
        try:
            assert [each.node for each in members.open_members()] == [1, 2, 3]
            assert members.version() >= 0
        finally:
            states._states = present
