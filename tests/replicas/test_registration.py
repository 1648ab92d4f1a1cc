"""Registration ids at the opening of directories, and the decision that registers them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from embedlog.errors import NotEnoughDirectoriesError, ReplicaSetError
from embedlog.replicas.members import membership, registration, set_up
from embedlog.replicas.members.membership import Membership, check_set
from embedlog.replicas.members.registration import EnteredDirectory, Opening
from embedlog.replicas.rules.events import Condition
from embedlog.replicas.rules.state import State
from embedlog.storage import files
from embedlog.storage.identity import new_id
from tests.support.decision_logs import NODES, Process, batches_of, made

CRASHED: dict[str, object] = {"first": True, "clean": False}


def later() -> int:
    return files.deadline_after(60)


def found_in(root: Path, node: int) -> Membership:
    found = membership.read(root / f"d{node}")
    assert found is not None
    return found


def set_of(root: Path) -> Path:
    """Three prepared directories with empty copies of the log."""
    set_up.prepare_set([root / f"d{node}" for node in NODES], deadline_ns=later())
    return made(root)


def entered(root: Path, node: int, **facts: object) -> EnteredDirectory:
    """A process opens a directory: by default the only one, after an orderly close."""
    path = root / f"d{node}"
    found = found_in(root, node)
    known: dict[str, object] = {
        "first": True,
        "clean": True,
        "mark_epoch": found.broker_epoch,
    } | facts
    opening = Opening(path, **known)  # type: ignore[arg-type]
    with set_up.open_locks([path], later(), 0o666):
        if opening.first:
            registration.stand_for(opening)
        result = registration.enter(opening)
    assert result is not None
    return result


def registered(root: Path, *every: EnteredDirectory) -> State:
    with Process(root, cluster=found_in(root, 1).cluster_id) as process:
        return registration.register(process.log, every, deadline_ns=later())


def begun(root: Path) -> State:
    return registered(set_of(root), *(entered(root, node, **CRASHED) for node in NODES))


def test_the_first_decision_adds_all_members(tmp_path: Path) -> None:
    state = begun(tmp_path)
    assert list(state.nodes) == [1, 2, 3]
    assert state.voters == NODES
    assert [each.broker_epoch for each in state.nodes.values()] == [0, 1, 2]
    for node in NODES:
        found = found_in(tmp_path, node)
        assert found.registered_id == found.registration_id == state.nodes[node].registration_id
        assert found.broker_epoch == node - 1
        assert [each.path for each in found.members] == [
            str(tmp_path / f"d{other}") for other in NODES
        ]
    assert check_set(tmp_path / f"d{node}" for node in NODES).is_registered


def test_a_new_set_begins_with_all_of_its_directories(tmp_path: Path) -> None:
    set_of(tmp_path)
    with pytest.raises(NotEnoughDirectoriesError, match="begins with all"):
        registered(tmp_path, *(entered(tmp_path, node) for node in (1, 2)))
    assert batches_of(tmp_path, 1) == []


def test_replica_12_after_an_orderly_close_the_id_stays_and_the_broker_epoch_rises(
    tmp_path: Path,
) -> None:
    before = begun(tmp_path)
    count = len(batches_of(tmp_path, 1))
    after = registered(tmp_path, *(entered(tmp_path, node) for node in NODES))
    for node in NODES:
        own = after.nodes[node]
        assert own == replace(
            before.nodes[node], broker_epoch=own.broker_epoch, opening=own.opening
        )
        assert own.opening != before.nodes[node].opening
        assert found_in(tmp_path, node).openings == (own.opening,)
        assert (
            found_in(tmp_path, node).broker_epoch
            == after.nodes[node].broker_epoch
            > before.nodes[node].broker_epoch
        )
    assert len(batches_of(tmp_path, 1)) == count + 1
    again = registered(tmp_path, *(entered(tmp_path, node, first=False) for node in NODES))
    assert again.nodes == after.nodes
    assert len(batches_of(tmp_path, 1)) == count + 1, "a later process decides nothing"


@pytest.mark.parametrize("facts", [CRASHED, {"mark_epoch": 7}, {"mark_epoch": -1}])
def test_replica_12_a_directory_that_was_not_closed_in_order_draws_a_new_id(
    tmp_path: Path, facts: dict[str, object]
) -> None:
    before = begun(tmp_path)
    second = entered(tmp_path, 2, **facts)
    assert second.membership.registration_id != second.previous_id
    assert (
        found_in(tmp_path, 2).registered_id == second.previous_id == before.nodes[2].registration_id
    )
    after = registered(tmp_path, entered(tmp_path, 1), second, entered(tmp_path, 3))
    assert after.nodes[2].registration_id == second.membership.registration_id
    assert after.nodes[2].broker_epoch > before.nodes[2].broker_epoch
    assert [after.nodes[node].registration_id for node in (1, 3)] == [
        before.nodes[node].registration_id for node in (1, 3)
    ]
    assert found_in(tmp_path, 2).broker_epoch == after.nodes[2].broker_epoch


def test_replica_12_a_process_that_joins_others_keeps_the_id(tmp_path: Path) -> None:
    begun(tmp_path)
    first = entered(tmp_path, 2, **CRASHED)
    joined = entered(tmp_path, 2, first=False, clean=False)
    assert joined.membership == first.membership


def test_all_directories_are_registered_by_one_decision(tmp_path: Path) -> None:
    begun(tmp_path)
    count = len(batches_of(tmp_path, 1))
    after = registered(tmp_path, *(entered(tmp_path, node, **CRASHED) for node in NODES))
    assert len(batches_of(tmp_path, 1)) == count + 1
    assert len({each.broker_epoch for each in after.nodes.values()}) == 3


def test_replica_12_a_crashed_directory_had_the_registered_opening_others_are_strangers(
    tmp_path: Path,
) -> None:
    state = begun(tmp_path / "set")
    root = tmp_path / "set"
    shutil.copytree(root / "d2", tmp_path / "old")
    second = entered(root, 2, **CRASHED)
    assert registration.condition_of(second, state) is Condition.CRASHED
    assert registration.condition_of(entered(root, 2, **CRASHED), state) is Condition.CRASHED, (
        "it crashed again before its registration"
    )
    assert registration.condition_of(entered(root, 1), state) is Condition.COMPLETE
    after = registered(root, entered(root, 1), entered(root, 2, **CRASHED), entered(root, 3))
    shutil.rmtree(root / "d2")
    shutil.copytree(tmp_path / "old", root / "d2")
    assert "earlier copy" in registration.strangeness(entered(root, 2), after), "closed in order"
    assert "without the set" in registration.strangeness(entered(root, 3, broker_wrote=True), after)
    assert "without the set" in registration.strangeness(entered(root, 3, **CRASHED), after), (
        "a crash does not hide the visit"
    )
    with pytest.raises(registration.StrangerFound):
        registered(root, entered(root, 1), entered(root, 2, **CRASHED))


@pytest.mark.parametrize(
    ("then", "now", "copied"), [(5, 5, False), (5, 6, True), (None, 6, False), (5, None, False)]
)
def test_a_crashed_directory_with_another_birth_time_is_a_stranger(
    tmp_path: Path, then: int | None, now: int | None, copied: bool
) -> None:
    begun(tmp_path)
    state = registered(tmp_path, *(entered(tmp_path, node, created_ns=then) for node in NODES))
    assert found_in(tmp_path, 2).created_ns == then
    for _ in range(2):  # it crashed once more
        second = entered(tmp_path, 2, **CRASHED, created_ns=now)
        assert ("copied" in registration.strangeness(second, state)) == copied
        if not copied:
            assert registration.condition_of(second, state) is Condition.CRASHED


def test_a_copy_that_was_closed_in_order_is_complete_when_its_registration_is_recorded(
    tmp_path: Path,
) -> None:
    begun(tmp_path)
    state = registered(tmp_path, *(entered(tmp_path, node, created_ns=5) for node in NODES))
    moved = entered(tmp_path, 2, created_ns=6)
    assert registration.condition_of(moved, state) is Condition.COMPLETE
    assert found_in(tmp_path, 2).created_ns == 5
    after = registered(tmp_path, moved)
    assert found_in(tmp_path, 2).created_ns == 6
    assert (
        registration.condition_of(entered(tmp_path, 2, **CRASHED, created_ns=6), after)
        is Condition.CRASHED
    )


def test_a_copy_that_was_closed_in_order_continues_after_a_crash_before_its_registration(
    tmp_path: Path,
) -> None:
    """Nothing was written since the orderly close: it stands for the directory from its first
    opening on.
    """
    begun(tmp_path)
    state = registered(tmp_path, *(entered(tmp_path, node, created_ns=5) for node in NODES))
    entered(tmp_path, 2, created_ns=6)
    crashed = entered(tmp_path, 2, **CRASHED, created_ns=6)
    assert registration.condition_of(crashed, state) is Condition.CRASHED
    assert "copied" in registration.strangeness(
        entered(tmp_path, 2, **CRASHED, created_ns=7), state
    ), "a copy of the crashed one"


def test_replica_19_a_directory_that_was_written_alone_is_a_stranger(tmp_path: Path) -> None:
    state = begun(tmp_path)
    set_up.enter_alone(tmp_path / "d1", alone=True, deadline_ns=later())
    shown = registration.entry_in_file(tmp_path / "d1", found_in(tmp_path, 1))
    assert "without the set" in registration.strangeness(shown, state), (
        "its file shows that to every process"
    )
    assert "without the set" in registration.strangeness(entered(tmp_path, 1), state)


def without_openings(state: State, *nodes: int) -> State:
    """As a set of an earlier version has recorded it."""
    return replace(
        state,
        nodes={**state.nodes, **{node: replace(state.nodes[node], opening=None) for node in nodes}},
    )


def test_without_ids_of_openings_broker_epochs_are_compared(tmp_path: Path) -> None:
    before = begun(tmp_path)
    after = registered(tmp_path, *(entered(tmp_path, node) for node in NODES))
    own = entered(tmp_path, 1)
    assert "earlier copy" in registration.strangeness(own, without_openings(before, 1)), (
        "of another history"
    )
    assert not registration.strangeness(own, without_openings(after, 1))
    old = own._replace(
        membership=own.membership._replace(broker_epoch=before.nodes[1].broker_epoch)
    )
    assert "earlier copy" in registration.strangeness(old, without_openings(after, 1))
    crashed = entered(tmp_path, 1, **CRASHED)
    assert not registration.strangeness(crashed, without_openings(after, 1))


def test_replica_19_a_directory_that_replaces_another_one_begins_once(tmp_path: Path) -> None:
    """Its registration may not be recorded: the next one takes it for what it is."""
    begun(tmp_path)
    own = found_in(tmp_path, 2)
    membership.write(
        tmp_path / "d2",
        own._replace(replaces=True, openings=(), registered_id=None, registration_id=uuid4()),
    )
    state = registered(tmp_path, entered(tmp_path, 1), entered(tmp_path, 3))
    second = entered(tmp_path, 2, **CRASHED)
    assert not registration.strangeness(second, state)
    assert registration.condition_of(second, state) is Condition.STRANGER
    after = registered(tmp_path, second)
    recorded = found_in(tmp_path, 2)
    assert not recorded.replaces
    membership.write(tmp_path / "d2", recorded._replace(replaces=True))
    assert registration.condition_of(entered(tmp_path, 2, **CRASHED), after) is Condition.CRASHED


def test_a_prepared_directory_that_the_log_does_not_have_is_added(tmp_path: Path) -> None:
    """An addition that was interrupted before its decision is completed."""
    begun(tmp_path)
    path = tmp_path / "d4"
    known = found_in(tmp_path, 1)
    made(tmp_path, (4,))
    new = membership.Member(4, new_id(), str(path), voter=False)
    membership.write(path, Membership(known.cluster_id, 4, uuid4(), (*known.members, new)))
    state = registered(
        tmp_path, *(entered(tmp_path, node) for node in NODES), entered(tmp_path, 4, **CRASHED)
    )
    assert list(state.nodes) == [1, 2, 3, 4]
    assert state.voters == NODES
    assert found_in(tmp_path, 4).registered_id == state.nodes[4].registration_id


def test_a_directory_of_another_generation_is_refused(tmp_path: Path) -> None:
    begun(tmp_path)
    second = entered(tmp_path, 2, **CRASHED)
    second = second._replace(membership=second.membership._replace(cluster_generation=3))
    with pytest.raises(ReplicaSetError, match="STALE_CLUSTER_GENERATION"):
        registered(tmp_path, second)
