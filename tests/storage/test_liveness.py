"""Slots: a dead process is known to be dead at once, and its successor in the slot is not taken for
it.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from embedlog.errors import ForkedError
from embedlog.format.process_slot import ProcessSlot
from embedlog.storage import file_names
from embedlog.storage.liveness import SLOT_BYTES, Liveness
from tests.faults.harness.processes import Nursery, until
from tests.support.mutants import mutated


@pytest.fixture
def two(until_end: ExitStack, tmp_path: Path) -> tuple[Liveness, Liveness]:
    """Two open logs of one directory."""
    return until_end.enter_context(closing(Liveness(tmp_path))), until_end.enter_context(
        closing(Liveness(tmp_path))
    )


def test_a_life_is_seen_from_both_sides_until_it_ends(two: tuple[Liveness, Liveness]) -> None:
    mine, theirs = two
    process_slot = mine.begin()
    other = mine.begin()
    assert process_slot.slot != other.slot
    assert mine.probe(process_slot)
    assert theirs.probe(process_slot)
    mine.end(process_slot)
    mine.end(process_slot)
    assert not mine.probe(process_slot)
    assert not theirs.probe(process_slot)
    assert theirs.probe(other)
    mine.close()
    mine.close()
    assert not theirs.probe(other)


def test_a_slot_that_is_used_again_belongs_to_somebody_else(two: tuple[Liveness, Liveness]) -> None:
    mine, theirs = two
    process_slot = mine.begin()
    mine.end(process_slot)
    successor = theirs.begin()
    assert successor.slot == process_slot.slot
    assert not mine.probe(process_slot)
    assert mine.probe(successor)


def test_without_a_file_nobody_is_alive(until_end: ExitStack, tmp_path: Path) -> None:
    assert not until_end.enter_context(closing(Liveness(tmp_path))).probe(ProcessSlot(0, 7))
    assert not (tmp_path / file_names.SLOTS).exists()


def test_a_nonce_that_was_cut_off_is_nobodys(two: tuple[Liveness, Liveness]) -> None:
    mine, theirs = two
    process_slot = mine.begin()
    with mine.path.open("r+b") as file:
        file.truncate(process_slot.slot * SLOT_BYTES + 3)
    assert not theirs.probe(process_slot)


def test_a_killed_process_is_dead_at_once(
    until_end: ExitStack, nursery: Nursery, tmp_path: Path
) -> None:
    victim = nursery.spawn()
    process_slot = ProcessSlot(*victim.call("live", str(tmp_path)))
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    assert here.probe(process_slot)
    victim.stop()
    assert here.probe(process_slot), "a frozen process may come back"
    victim.kill()
    assert not here.probe(process_slot)


def test_a_forked_child_does_not_keep_its_parent_alive(
    until_end: ExitStack, nursery: Nursery, tmp_path: Path
) -> None:
    victim = nursery.spawn()
    process_slot = ProcessSlot(*victim.call("live", str(tmp_path), fork=True))
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    assert here.probe(process_slot)
    victim.kill()
    until(
        lambda: not here.probe(process_slot), "the child to release its inherited descriptors", 10
    )


def test_a_forked_child_begins_no_life_with_what_it_inherited(
    until_end: ExitStack, tmp_path: Path
) -> None:
    mine = until_end.enter_context(closing(Liveness(tmp_path)))
    process_slot = mine.begin()
    pid = os.fork()
    if pid == 0:
        try:
            mine.begin()
        except ForkedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert until_end.enter_context(closing(Liveness(tmp_path))).probe(process_slot)


@pytest.mark.parametrize("mutant", ["no_nonce", "no_probe"])
def test_without_the_rule_a_dead_one_is_taken_for_alive(
    two: tuple[Liveness, Liveness], mutant: str
) -> None:
    mine, theirs = two
    process_slot = mine.begin()
    mine.end(process_slot)
    theirs.begin()
    with mutated(mutant):
        assert mine.probe(process_slot)


def test_a_lease_that_the_collector_ends_inside_a_section_does_not_wait_for_itself(
    until_end: ExitStack, tmp_path: Path
) -> None:
    """A consumer without a close was collected while its own thread probed a slot: the thread
    waited without end.
    """
    liveness = until_end.enter_context(closing(Liveness(tmp_path)))
    lease = liveness.lease(
        session_timeout_ms=6000, heartbeat_interval_ms=3000, max_poll_interval_ms=60_000
    )
    ended = threading.Event()

    def collected() -> None:
        with liveness._mutex:
            lease.end()
        ended.set()

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    assert ended.wait(20)
    thread.join()
    assert not liveness.probe(lease.process_slot)
