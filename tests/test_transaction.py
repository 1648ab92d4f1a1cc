"""The pure rules of transactions: every row of Kafka's tables, exhaustion of epochs, time-outs, and
random histories of them.
"""

from __future__ import annotations

import random

import pytest

from embedlog import transaction as rules
from embedlog.format.process_slot import ProcessSlot
from embedlog.transaction import (
    EPOCH_LAST,
    EPOCH_MAX,
    NO_ID,
    Beginning,
    Moment,
    Outcome,
    Refusal,
    Status,
    Transaction,
)
from tests.support import transaction_world
from tests.support.mutants import mutated

MINE = ProcessSlot(1, 11)
THEIRS = ProcessSlot(2, 22)
NOW = Moment(1_700_000_000_000, 5_000_000_000, 7)
ID = 4000
NEW_ID = 5000
T0 = ("t", 0)
T1 = ("t", 1)


def state(status: Status, epoch: int = 3, **fields: object) -> Transaction:
    open_ = status in (Status.ONGOING, *rules.PREPARED)
    known = Transaction(
        ID, epoch, 60_000, status, frozenset({T0}) if open_ else frozenset(), owner=MINE
    )
    if status is Status.ONGOING:
        known = known._replace(began=Beginning(NOW.boot, NOW.monotonic_ns), started_ms=NOW.wall_ms)
    return known._replace(**fields)  # type: ignore[arg-type]


# ---- InitPid -------------------------------------------------------------------------------------


def test_init_of_an_unknown_id_is_a_new_producer() -> None:
    new = rules.initialize(None, MINE, 60_000, NEW_ID, NOW)
    assert new == Transaction(NEW_ID, 0, 60_000, updated_ms=NOW.wall_ms, owner=MINE)


@pytest.mark.parametrize("status", [Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT])
def test_init_of_a_settled_id_raises_the_epoch(status: Status) -> None:
    outcome = Outcome("commit", ID, 2)
    new = rules.initialize(state(status, outcome=outcome), THEIRS, 1000, NEW_ID, NOW)
    assert isinstance(new, Transaction)
    assert (new.producer_id, new.epoch, new.status, new.timeout_ms, new.owner) == (
        ID,
        4,
        Status.EMPTY,
        1000,
        THEIRS,
    )
    assert new.outcome == outcome


@pytest.mark.parametrize("status", [Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT])
def test_init_of_an_unsettled_id_waits(status: Status) -> None:
    assert (
        rules.initialize(state(status), THEIRS, 1000, NEW_ID, NOW)
        is Refusal.CONCURRENT_TRANSACTIONS
    )


def test_init_behind_an_open_transaction_is_two_epochs_on() -> None:
    given_up = rules.abort_abandoned(state(Status.ONGOING), state(Status.ONGOING), NEW_ID, NOW)
    assert given_up is not None
    assert (given_up.status, given_up.epoch, given_up.owner) == (Status.PREPARE_ABORT, 4, None)
    settled = rules.complete(given_up, given_up, NOW)
    new = rules.initialize(settled, THEIRS, 1000, NEW_ID, NOW)
    assert isinstance(new, Transaction)
    assert (new.epoch, new.outcome) == (5, Outcome("abort", ID, 3))


CLAIMS = [((ID, 3), True), ((ID, 2), True), ((ID, 1), False), ((ID, 4), False), ((1, 3), False)]


@pytest.mark.parametrize(("claimed", "taken"), CLAIMS)
def test_init_by_who_had_the_id_before(claimed: tuple[int, int], taken: bool) -> None:
    new = rules.initialize(state(Status.EMPTY), THEIRS, 1000, NEW_ID, NOW, claimed)
    assert (new is not Refusal.PRODUCER_FENCED) == taken


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (EPOCH_LAST - 1, (ID, EPOCH_LAST)),
        (EPOCH_LAST, (NEW_ID, 0)),
        (EPOCH_MAX, (NEW_ID, 0)),
    ],
)
def test_init_with_the_last_epoch_takes_a_new_producer_id(
    epoch: int, expected: tuple[int, int]
) -> None:
    new = rules.initialize(state(Status.EMPTY, epoch), THEIRS, 1000, NEW_ID, NOW)
    assert isinstance(new, Transaction)
    assert (new.producer_id, new.epoch) == expected
    assert new.previous_id == (ID if expected[0] == NEW_ID else NO_ID)


# ---- AddPartitions -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT])
def test_the_first_partition_begins_the_transaction(status: Status) -> None:
    new = rules.register(state(status), ID, 3, [T0], NOW)
    assert isinstance(new, Transaction)
    assert (new.status, new.partitions, new.started_ms) == (Status.ONGOING, {T0}, NOW.wall_ms)
    assert new.began == Beginning(NOW.boot, NOW.monotonic_ns)


def test_more_partitions_keep_the_beginning_and_known_ones_write_nothing() -> None:
    old = state(Status.ONGOING)
    later = NOW._replace(monotonic_ns=NOW.monotonic_ns + 5)
    new = rules.register(old, ID, 3, [T1], later)
    assert isinstance(new, Transaction)
    assert (new.partitions, new.began) == ({T0, T1}, old.began)
    assert rules.register(new, ID, 3, [T0, T1], later) is new


@pytest.mark.parametrize(
    "status", [Status.EMPTY, Status.ONGOING, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT]
)
def test_a_registration_names_the_present_slot_of_its_owner(status: Status) -> None:
    old = state(status)
    same = rules.register(old, ID, 3, [T0], NOW, old.owner)
    assert isinstance(same, Transaction)
    assert same.owner == old.owner
    assert (same is old) == (status is Status.ONGOING)
    moved = rules.register(old, ID, 3, [T0], NOW, THEIRS)
    assert isinstance(moved, Transaction)
    assert moved == same._replace(owner=THEIRS, updated_ms=NOW.wall_ms)
    assert rules.register(moved, ID, 3, [T0], NOW, THEIRS) is moved


@pytest.mark.parametrize(
    ("old", "refusal"),
    [
        (None, Refusal.INVALID_PRODUCER_ID_MAPPING),
        (state(Status.ONGOING, producer_id=1), Refusal.INVALID_PRODUCER_ID_MAPPING),
        (state(Status.ONGOING, epoch=4), Refusal.PRODUCER_FENCED),
        (state(Status.EMPTY, epoch=4), Refusal.PRODUCER_FENCED),
        (state(Status.PREPARE_ABORT, epoch=4), Refusal.PRODUCER_FENCED),
        (state(Status.PREPARE_COMMIT), Refusal.CONCURRENT_TRANSACTIONS),
        (state(Status.PREPARE_ABORT), Refusal.CONCURRENT_TRANSACTIONS),
    ],
)
def test_partitions_are_refused(old: Transaction | None, refusal: Refusal) -> None:
    assert rules.register(old, ID, 3, [T0], NOW) is refusal


# ---- EndTxn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_decides_once_and_completes_once(commit: bool) -> None:
    kind = "commit" if commit else "abort"
    decided = rules.end(state(Status.ONGOING), ID, 3, MINE, commit, NEW_ID, NOW)
    assert isinstance(decided, Transaction)
    assert (decided.status, decided.epoch) == (
        Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT,
        4,
    )
    assert (decided.outcome, decided.decision) == (Outcome(kind, ID, 3), kind)
    assert rules.end(decided, ID, 3, MINE, commit, NEW_ID, NOW) is decided, "the same call again"
    assert rules.producer_identity_of(decided) == (ID, 4)
    done = rules.complete(decided, decided, NOW)
    assert done is not None
    completed = Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT
    assert (done.status, done.epoch, done.partitions) == (completed, 4, frozenset())
    assert rules.complete(done, decided, NOW) is None
    assert rules.end(done, ID, 3, MINE, commit, NEW_ID, NOW) is done
    assert rules.producer_identity_of(done) == (ID, 4)
    assert rules.end(done, ID, 3, MINE, not commit, NEW_ID, NOW) is Refusal.PRODUCER_FENCED, (
        "a decision is final"
    )


@pytest.mark.parametrize(
    ("status", "commit", "answer"),
    [
        (Status.COMPLETE_COMMIT, True, None),
        (Status.COMPLETE_ABORT, False, None),
        (Status.COMPLETE_ABORT, True, Refusal.INVALID_TXN_STATE),
        (Status.COMPLETE_COMMIT, False, Refusal.INVALID_TXN_STATE),
        (Status.PREPARE_ABORT, True, Refusal.INVALID_TXN_STATE),
        (Status.PREPARE_COMMIT, False, Refusal.INVALID_TXN_STATE),
        (Status.PREPARE_COMMIT, True, Refusal.CONCURRENT_TRANSACTIONS),
        (Status.PREPARE_ABORT, False, Refusal.CONCURRENT_TRANSACTIONS),
        (Status.EMPTY, True, Refusal.INVALID_TXN_STATE),
        (Status.EMPTY, False, Refusal.INVALID_TXN_STATE),
    ],
)
def test_an_end_in_another_state(status: Status, commit: bool, answer: Refusal | None) -> None:
    old = state(status)
    assert rules.end(old, ID, 3, MINE, commit, NEW_ID, NOW) is (old if answer is None else answer)


def test_an_end_by_who_is_no_longer_the_owner() -> None:
    assert rules.end(None, ID, 3, MINE, True, NEW_ID, NOW) is Refusal.INVALID_PRODUCER_ID_MAPPING
    assert (
        rules.end(state(Status.ONGOING, producer_id=1), ID, 3, MINE, True, NEW_ID, NOW)
        is Refusal.INVALID_PRODUCER_ID_MAPPING
    )
    assert (
        rules.end(state(Status.ONGOING, epoch=4), ID, 3, MINE, True, NEW_ID, NOW)
        is Refusal.PRODUCER_FENCED
    )


@pytest.mark.parametrize("commit", [True, False])
def test_who_was_timed_out_is_fenced_whatever_he_wants(commit: bool) -> None:
    given_up = rules.abort_abandoned(state(Status.ONGOING), state(Status.ONGOING), NEW_ID, NOW)
    for now in (given_up, rules.complete(given_up, given_up, NOW)):  # type: ignore[arg-type]
        assert rules.end(now, ID, 3, MINE, commit, NEW_ID, NOW) is Refusal.PRODUCER_FENCED
        assert rules.register(now, ID, 3, [T0], NOW) is Refusal.PRODUCER_FENCED


def test_the_last_epoch_ends_in_a_new_producer_id() -> None:
    old = state(Status.ONGOING, EPOCH_LAST)
    decided = rules.end(old, ID, EPOCH_LAST, MINE, True, NEW_ID, NOW)
    assert isinstance(decided, Transaction)
    assert (decided.producer_id, decided.epoch, decided.next_id) == (ID, EPOCH_MAX, NEW_ID), (
        "markers still carry the old one"
    )
    assert rules.producer_identity_of(decided) == (NEW_ID, 0)
    done = rules.complete(decided, decided, NOW)
    assert done is not None
    assert (done.producer_id, done.epoch, done.previous_id, done.next_id) == (NEW_ID, 0, ID, NO_ID)
    assert rules.producer_identity_of(done) == (NEW_ID, 0)
    assert rules.end(done, ID, EPOCH_LAST, MINE, True, NEW_ID, NOW) is done


# ---- actions of any process ----------------------------------------------------------------------


def test_a_completion_needs_that_same_decision() -> None:
    seen = state(Status.PREPARE_COMMIT)
    for other in (
        None,
        state(Status.PREPARE_COMMIT, 4),
        state(Status.PREPARE_ABORT),
        seen._replace(producer_id=1),
        state(Status.ONGOING),
        state(Status.EMPTY),
    ):
        assert rules.complete(other, seen, NOW) is None


def test_a_transaction_is_given_up_only_while_it_is_that_same_one() -> None:
    seen = state(Status.ONGOING)
    for other in (
        None,
        state(Status.ONGOING, 4),
        seen._replace(producer_id=1),
        state(Status.PREPARE_COMMIT, 4),
    ):
        assert rules.abort_abandoned(other, seen, NEW_ID, NOW) is None


@pytest.mark.parametrize(
    ("change", "alive", "after_ns", "expected"),
    [
        ({}, True, 0, False),
        ({}, False, 0, True),
        ({}, True, 60_000_000_000, False),
        ({}, True, 60_000_000_001, True),
        ({"owner": None}, True, 0, True),
        ({"began": None}, True, 0, True),
        ({"began": Beginning(8, 0)}, True, 0, True),
        ({"status": Status.PREPARE_ABORT}, False, 10**15, False),
        ({"status": Status.EMPTY}, False, 10**15, False),
    ],
)
def test_when_a_transaction_is_forsaken(
    change: dict[str, object], alive: bool, after_ns: int, expected: bool
) -> None:
    later = NOW._replace(monotonic_ns=NOW.monotonic_ns + after_ns)
    assert rules.is_abandoned(state(Status.ONGOING)._replace(**change), alive, later) is expected  # type: ignore[arg-type]


def test_no_wall_clock_ends_a_transaction() -> None:
    assert not rules.is_abandoned(
        state(Status.ONGOING), True, NOW._replace(wall_ms=NOW.wall_ms + 10**12)
    )


@pytest.mark.parametrize(
    ("status", "alive", "age_ms", "expected"),
    [
        (Status.EMPTY, False, 1000, True),
        (Status.COMPLETE_COMMIT, False, 1000, True),
        (Status.COMPLETE_ABORT, False, 1000, True),
        (Status.EMPTY, False, 999, False),
        (Status.EMPTY, True, 10**9, False),
        (Status.ONGOING, False, 10**9, False),
        (Status.PREPARE_COMMIT, False, 10**9, False),
    ],
)
def test_when_an_id_is_forgotten(status: Status, alive: bool, age_ms: int, expected: bool) -> None:
    assert (
        rules.is_expired(state(status, updated_ms=NOW.wall_ms - age_ms), alive, 1000, NOW)
        is expected
    )


def test_what_a_record_covers_behind_a_power_loss() -> None:
    assert rules.covers(state(Status.ONGOING), T0, 3)
    assert rules.covers(state(Status.PREPARE_COMMIT), T0, 2)
    for covered, where, epoch in (
        (None, T0, 3),
        (state(Status.ONGOING), T1, 3),
        (state(Status.ONGOING), T0, 2),
        (state(Status.PREPARE_COMMIT), T0, 3),
        (state(Status.COMPLETE_ABORT), T0, 3),
    ):
        assert not rules.covers(covered, where, epoch)


def test_an_id_is_lifted_but_never_lowered_and_only_when_settled() -> None:
    empty = state(Status.EMPTY)
    assert rules.raise_epoch(empty, empty.producer_id, 9, NOW).epoch == 9
    for old, epoch in ((empty, 3), (empty, 2), (state(Status.ONGOING), 9)):
        assert rules.raise_epoch(old, old.producer_id, epoch, NOW) is old
    assert rules.raise_epoch(empty, empty.producer_id + 1, 9, NOW) is empty, (
        "of the id that it had before"
    )


# ---- random histories ----------------------------------------------------------------------------


@pytest.mark.parametrize("first_epoch", [0, EPOCH_LAST - 2])
@pytest.mark.parametrize("cuts", [False, True])
def test_no_random_history_breaks_an_invariant_of_the_model(
    rng: random.Random, cuts: bool, first_epoch: int
) -> None:
    worlds = [transaction_world.run(rng, cuts=cuts, first_epoch=first_epoch) for _ in range(75)]
    print(f"{len(worlds)} histories, {sum(world.txns for world in worlds)} transactions")
    assert sum(world.txns for world in worlds) > 200


MUTANTS = {
    "init_keeps_epoch": False,
    "register_unfenced": False,
    "register_while_prepared": False,
    "prepare_keeps_epoch": False,
    "forget_outcome": False,
    "complete_anything": False,
    "sweep_by_partition_only": True,
    "lift_settled_only": True,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_a_rule_some_history_breaks_an_invariant(rng: random.Random, mutant: str) -> None:
    with mutated(mutant):
        for _ in range(20_000):
            try:
                transaction_world.run(rng, cuts=MUTANTS[mutant])
            except transaction_world.Violation as problem:
                print(f"{mutant}: {problem}")
                return
    pytest.fail(f"{mutant} was not noticed")
