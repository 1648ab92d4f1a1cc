"""Directories are added to an open set and retired, also after a stop at any step, and by force
after a loss.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import EmbedlogError, NotEnoughDirectoriesError, ReplicaSetError
from embedlog.replicas.members import membership
from embedlog.storage import file_names
from tests.support.growing_sets import add, nodes, recorded, retire
from tests.support.opened_sets import QUIET, content, isr, made, opened, paths, send, values
from tests.support.replica_directories import CHANGES, failing
from tests.support.stamped_batches import run_of


def voters(log: embedlog.Log) -> tuple[int, ...]:
    return tuple(log._engine.set.decisions.counted_state().voters)


# ---- growth ----------------------------------------------------------------------------------------------


def test_a_set_grows_from_one_directory_to_three(tmp_path: Path) -> None:
    with opened(tmp_path, 1) as log:
        log.create_topic("t")
        send(log, b"first")
        assert add(log, tmp_path / "d2") == 2
        assert add(log, tmp_path / "d3") == 3
        assert (nodes(log), voters(log)) == ([1, 2, 3], (1, 2, 3))
        assert [recorded(path) for path in paths(tmp_path)] == [[1, 2, 3]] * 3
        with pytest.raises(ReplicaSetError, match="rack"):
            add(log, tmp_path / "d4", "r4")
        log.create_topic("u", replication_factor=3)
        with log.producer() as producer:
            producer.send("u", b"three times").result(30)
        assert values(log) == [b"first"]
    (tmp_path / "d1").rename(tmp_path / "removed")
    with opened(tmp_path) as log:
        assert [record.value for record in log.scan("u").records()] == [b"three times"]
        (tmp_path / "removed").rename(tmp_path / "d1")
        log.housekeep()
        assert values(log) == [b"first"]


def test_an_addition_is_repeated_and_returns_the_same_node(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        assert add(log, tmp_path / "d4") == 4
        assert add(log, tmp_path / "d4") == 4
        assert add(log, tmp_path / "d2") == 2
        assert nodes(log) == [1, 2, 3, 4]


def test_another_process_opens_the_new_directory(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log, opened(tmp_path) as other:
        add(log, tmp_path / "d4")
        other.housekeep()
        other.create_topic("u", assignment={0: [4, 1]})
        with other.producer() as producer:
            producer.send("u", b"value").result(30)
        assert [record.value for record in log.scan("u").records()] == [b"value"]


def test_a_witness_votes_and_holds_no_partition(tmp_path: Path) -> None:
    made(tmp_path, 2)
    with opened(tmp_path, 2) as log:
        assert add(log, tmp_path / "w", replicas=False) == 3
        with pytest.raises(embedlog.InvalidReplicationFactorError):
            log.create_topic("u", replication_factor=3)
        log.create_topic("u", 6, replication_factor=2)
        assert not list((tmp_path / "w").glob("u-*"))
        (tmp_path / "d1").rename(tmp_path / "removed")
        send(log, b"second")
        assert values(log) == [b"first", b"second"]
        assert isr(log) == [2]


def test_two_directories_need_both_for_a_decision(tmp_path: Path) -> None:
    made(tmp_path, 2)
    with embedlog.open(paths(tmp_path, 2), config={**QUIET, "lock_timeout_ms": 300}) as log:
        send(log, b"1")
        (tmp_path / "d2").rename(tmp_path / "removed")
        with pytest.raises(embedlog.NotEnoughReplicasAfterAppendError):
            log._engine.partition("t", 0).append(run_of(b"second"))
        send(log, b"third", acks=1, enable_idempotence=False)
        assert values(log) == [b"1", b"first"]
        (tmp_path / "removed").rename(tmp_path / "d2")
        log.housekeep()
        send(log, b"fourth")
        assert values(log) == [b"1", b"first", b"fourth", b"second", b"third"]


def test_a_second_directory_without_a_vote_may_fail(tmp_path: Path) -> None:
    with opened(tmp_path, 1) as log:
        add(log, tmp_path / "d2", voter=False)
        assert voters(log) == (1,)
        log.create_topic("t", assignment={0: [2, 1]})
        send(log, b"first")
        (tmp_path / "d2").rename(tmp_path / "removed")
        send(log, b"second")
        assert values(log) == [b"first", b"second"]


@pytest.mark.parametrize("kind", ["log", "member", "copy", "file"])
def test_what_is_no_new_directory_is_refused_and_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    made(tmp_path)
    place = tmp_path / "new"
    if kind == "log":
        with embedlog.open(place, config=QUIET) as log:
            log.create_topic("x")
    elif kind == "member":
        with embedlog.open([place], config=QUIET):
            pass
    elif kind == "copy":
        shutil.copytree(tmp_path / "d2", place)
    else:
        place.write_bytes(b"a file")
    before = content(place) if place.is_dir() else place.read_bytes()
    with opened(tmp_path) as log:
        with pytest.raises(EmbedlogError) as refused:
            add(log, place)
        assert kind == "file" or isinstance(refused.value, ReplicaSetError)
        assert nodes(log) == [1, 2, 3]
        send(log, b"second")
    assert (content(place) if place.is_dir() else place.read_bytes()) == before


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("kind", CHANGES)
def test_an_addition_that_fails_anywhere_is_repeated(tmp_path: Path, kind: str) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        for nth in range(1, 60):
            with (
                failing((kind,), nth=nth, name="/d4", error=errno.EIO) as struck,
                contextlib.suppress(EmbedlogError),
            ):
                add(log, tmp_path / "d4")
            send(log, b"value")
            if not struck.count:
                break
            if nth % 7 == 0 and 4 in nodes(log):
                break
        assert add(log, tmp_path / "d4") == 4
        log.housekeep()
        log.create_topic("u", assignment={0: [4, 2]})
    with opened(tmp_path, 4) as log:
        assert nodes(log) == [1, 2, 3, 4]
        assert voters(log) == (1, 2, 3, 4)
        assert log.topics() == ["t", "u"]


def test_a_prepared_directory_is_added_by_the_next_opening(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        with (
            failing(("pwrite",), name="d4/__replica_state", error=errno.EIO) as struck,
            pytest.raises(EmbedlogError),
        ):
            add(log, tmp_path / "d4")
        assert struck.count
        assert nodes(log) == [1, 2, 3]
    with opened(tmp_path, 4) as log:
        assert nodes(log) == [1, 2, 3, 4]


# ---- retirement ------------------------------------------------------------------------------------------


def test_a_directory_is_not_retired_if_too_few_would_remain(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as log:
        with pytest.raises(ReplicaSetError, match="too few directories") as refused:
            retire(log, 2)
        assert " t" in str(refused.value)
        with pytest.raises(ReplicaSetError):
            retire(log, 7)
        assert nodes(log) == [1, 2, 3]
        assert not any(
            each.leaving for each in log._engine.set.decisions.counted_state().nodes.values()
        )


@pytest.mark.parametrize("node", [1, 2])
def test_the_replicas_of_a_retired_directory_move_to_others(tmp_path: Path, node: int) -> None:
    with opened(tmp_path, 4) as log:
        log.create_topic("t", assignment={0: [1, 2], 1: [2, 3], 2: [3, 1]})
        log.create_topic("u", assignment={0: [2], 1: [1]})
        for partition in range(3):
            send(log, b"%d" % partition, partition=partition)
        with log.producer() as producer:
            assert [
                producer.send("u", b"one copy", partition=number).result(30).offset
                for number in (0, 1)
            ] == [0, 0]
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            found = 0
            while found < 3:
                found += len(consumer.poll(10))
            consumer.commit()
        retire(log, node)
        state = log._engine.set.decisions.counted_state()
        assert node not in state.nodes
        assert all(node not in each.replicas for each in state.partitions.values())
        assert {
            len(each.replicas)
            for each in state.partitions.values()
            if state.topics[each.topic_uuid].name == "t"
        } == {2}
        assert values(log) == [b"0", b"1", b"2"]
        assert [record.value for record in log.scan("u").records()] == [b"one copy"] * 2
        assert log.describe_group("g").lag == 0
    remaining = [path for path in paths(tmp_path, 4) if path.name != f"d{node}"]
    with embedlog.open(remaining, config=QUIET) as log:
        send(log, b"3")
        assert values(log) == [b"0", b"1", b"2", b"3"]


def test_a_set_returns_to_one_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1]})
        send(log, b"first")
        retire(log, 3)
        retire(log, 2)
        assert (nodes(log), voters(log)) == ([1], (1,))
        send(log, b"second")
        assert not (tmp_path / "d2" / file_names.REPLICAS).exists()
    with embedlog.open([tmp_path / "d1"], config=QUIET) as log:
        assert values(log) == [b"first", b"second"]
        assert add(log, tmp_path / "new") == 4, (
            "the number of a retired directory is not used again"
        )


def test_another_process_forgets_a_retired_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as log, opened(tmp_path) as other:
        log.create_topic("t", assignment={0: [1, 2]})
        retire(log, 3)
        other.housekeep()
        assert [directory.path.name for directory in other._engine.directories] == ["d1", "d2"]
        send(other, b"first")
        assert values(log) == [b"first"]


def test_the_last_voter_and_a_set_without_a_majority_stay(tmp_path: Path) -> None:
    with opened(tmp_path, 1) as log, pytest.raises(EmbedlogError, match="voter"):
        retire(log, 1)
    with embedlog.open(
        [tmp_path / name for name in ("a", "b")], config={**QUIET, "lock_timeout_ms": 300}
    ) as log:
        (tmp_path / "b").rename(tmp_path / "removed")
        with pytest.raises(NotEnoughDirectoriesError):
            retire(log, 2)


@pytest.mark.parametrize("count", [2, 3])
def test_a_forced_retirement_continues_with_what_is_left(tmp_path: Path, count: int) -> None:
    made(tmp_path, count)
    for node in range(2, count + 1):
        (tmp_path / f"d{node}").rename(tmp_path / f"lost{node}")
    with embedlog.open(paths(tmp_path, count), config={**QUIET, "lock_timeout_ms": 300}) as log:
        if count == 3:
            with pytest.raises(NotEnoughDirectoriesError):
                retire(log, 3, force=True)
            return
        retire(log, 2, force=True)
        assert (nodes(log), voters(log)) == ([1], (1,))
        assert log._engine.set.decisions.counted_state().generation == 1
        send(log, b"second")
        assert values(log) == [b"first", b"second"]
        log.create_topic("u")
    (tmp_path / "lost2").rename(tmp_path / "d2")
    with pytest.raises(ReplicaSetError, match="generation"):
        opened(tmp_path, 2)
    with embedlog.open([tmp_path / "d1"], config=QUIET) as log:
        assert values(log) == [b"first", b"second"]
        assert log.topics() == ["t", "u"]


@pytest.mark.parametrize("retired", [(3, 1), (4, 1)], ids=str)
def test_two_parts_of_a_set_that_retired_each_other_by_force_are_two_sets(
    tmp_path: Path, retired: tuple[int, int]
) -> None:
    """Each part still names a directory of the other one, and both begin the same
    generation. A retired directory with the highest number is no later one, either.
    """
    made(tmp_path, 4)
    parts = [1, 2], [3, 4]
    for (own, other), gone in zip((parts, parts[::-1]), retired, strict=True):
        for node in other:
            (tmp_path / f"d{node}").rename(tmp_path / f"lost{node}")
        given = [tmp_path / f"d{node}" for node in own]
        with embedlog.open(given, config={**QUIET, "lock_timeout_ms": 300}) as log:
            retire(log, gone, force=True)
            assert gone not in nodes(log)
        for node in other:
            (tmp_path / f"lost{node}").rename(tmp_path / f"d{node}")
    with pytest.raises(ReplicaSetError, match="two sets"):
        opened(tmp_path, 4)


def test_a_stop_after_a_forced_decision_is_completed_by_the_next_opening(tmp_path: Path) -> None:
    made(tmp_path, 2)
    (tmp_path / "d2").rename(tmp_path / "lost")
    with embedlog.open(paths(tmp_path, 2), config={**QUIET, "lock_timeout_ms": 300}) as log:
        with failing(("rename",), name=f"d1/{file_names.REPLICAS}", error=errno.EIO) as struck:
            retire(log, 2, force=True)
        assert struck.count
    shutil.copytree(tmp_path / "d1", tmp_path / "copy")
    with opened(tmp_path, 2) as log:
        assert nodes(log) == [1]
        send(log, b"second")
    with embedlog.open([tmp_path / "d1"], config=QUIET) as log:
        assert values(log) == [b"first", b"second"]
    (tmp_path / "lost").rename(tmp_path / "d2")
    shutil.rmtree(tmp_path / "d1")
    (tmp_path / "copy").rename(tmp_path / "d1")
    with opened(tmp_path, 2) as log:
        assert nodes(log) == [1], "the directory that was retired by force is not used"
        assert [directory.path.name for directory in log._engine.directories] == ["d1"]
        send(log, b"third")
    found = membership.read(tmp_path / "d1")
    assert found is not None
    assert found.cluster_generation == 1


def test_the_methods_of_a_log_check_their_arguments(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "single", config=QUIET) as log,
        pytest.raises(ReplicaSetError, match="one directory"),
    ):
        log.retire_directory(1)
    made(tmp_path)
    with opened(tmp_path) as log:
        with pytest.raises(TypeError, match="rack"):
            log.add_directory(tmp_path / "d4", rack=7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="voter"):
            log.add_directory(tmp_path / "d4", voter=0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="node"):
            log.retire_directory("2")  # type: ignore[arg-type]
        assert not (tmp_path / "d4").exists()
    with (
        embedlog.open(paths(tmp_path), read_only=True) as log,
        pytest.raises(embedlog.ReadOnlyError),
    ):
        log.add_directory(tmp_path / "d4")


def test_a_path_or_rack_that_no_file_can_have_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"\xff")
    with embedlog.open(tmp_path / "single", config=QUIET) as log:
        with pytest.raises(ReplicaSetError, match="UTF-8"):
            log.add_directory(place)
        assert not (tmp_path / "single" / file_names.REPLICAS).exists()
    with embedlog.open(paths(tmp_path, 2), config=QUIET, racks=["a", "b"]) as log:
        for path, rack in ((place, "c"), (tmp_path / "new", "\ud800")):
            with pytest.raises(ReplicaSetError, match="UTF-8"):
                log.add_directory(path, rack=rack)
            assert not path.exists()


def test_a_partition_of_a_lost_directory_begins_again_where_replicas_are(tmp_path: Path) -> None:
    with opened(tmp_path, 1) as log:
        assert add(log, tmp_path / "witness", replicas=False) == 2
        assert add(log, tmp_path / "d3") == 3
        log.create_topic("t", assignment={0: [1]})
        retire(log, 1, force=True)
        assert [each.replicas for each in log.replicas().partitions] == [(3,)]
        assert not (tmp_path / "witness" / "t-0").exists()
        send(log, b"again")
        assert values(log) == [b"again"]


def test_a_directory_that_was_retired_before_it_noted_its_registration_is_away(
    tmp_path: Path,
) -> None:
    """A process that opens the set finds such a directory if another one adds and retires it at the
    same time.
    """
    made(tmp_path)
    with opened(tmp_path) as log:
        add(log, tmp_path / "d4")
        noted = membership.read(tmp_path / "d4")
        assert noted is not None
        retire(log, 4)
    membership.write(tmp_path / "d4", noted._replace(registered_id=None, broker_epoch=-1))
    with opened(tmp_path, 4) as log:
        assert nodes(log) == [1, 2, 3]
        assert values(log) == [b"first"]
