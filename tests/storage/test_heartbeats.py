"""Leases: a running process writes heartbeats, a frozen one does not, and a resumed one detects it
before it continues.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog._native.system import SLOT_BYTES
from embedlog.errors import StorageError
from embedlog.format.process_slot import ProcessSlot
from embedlog.storage.liveness import Lease, Liveness, SlotState
from tests.conftest import ROOT
from tests.faults.harness.processes import Nursery, state_of, until
from tests.support.crowd import FREE_THREADED
from tests.support.mutants import mutated

SESSION_MS = 300
HEARTBEAT_MS = 10
LONG_MS = 1 << 30

Begin = Callable[..., Lease]


@pytest.fixture(params=[False, True], ids=["mapped", "locks"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Liveness]:
    """One that looks; in the second form as over a network file system."""
    found = Liveness(tmp_path, locked=request.param)
    yield found
    found.close()


@pytest.fixture
def mine(here: Liveness) -> Iterator[Liveness]:
    """Another open log of the same directory, which has the leases."""
    found = Liveness(here.path.parent, locked=bool(here._entry_locks_at))
    yield found
    found.close()


@pytest.fixture
def begin(mine: Liveness) -> Begin:
    def begin(
        session_ms: int = LONG_MS, heartbeat_ms: int = HEARTBEAT_MS, poll_ms: int = LONG_MS
    ) -> Lease:
        return mine.lease(
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=heartbeat_ms,
            max_poll_interval_ms=poll_ms,
        )

    return begin


def wait_for_beat(here: Liveness, process_slot: ProcessSlot) -> SlotState:
    """The slot after a heartbeat that came after the call."""
    before = here.slot_state(process_slot).heartbeat
    until(lambda: here.slot_state(process_slot).heartbeat != before, "a heartbeat")
    return here.slot_state(process_slot)


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


# ---- one's own ---------------------------------------------------------------------------------------------------------


def test_whoever_runs_beats_until_the_end(here: Liveness, begin: Begin) -> None:
    before = threads()
    lease = begin()
    assert len(threads() - before) == 1
    assert wait_for_beat(here, lease.process_slot).is_held
    assert not lease.is_expired
    lease.end()
    lease.end()
    assert threads() <= before  # those of earlier tests may end meanwhile
    assert here.slot_state(lease.process_slot) == SlotState(
        False, here.slot_state(lease.process_slot).heartbeat
    )
    assert lease.is_expired


def test_the_log_ends_its_leases_when_it_closes(mine: Liveness, begin: Begin) -> None:
    before = threads()
    one = begin()
    two = begin()
    mine.close()
    assert threads() <= before  # those of earlier tests may end meanwhile
    assert one.is_expired
    assert two.is_expired


def test_a_lease_that_nobody_has_any_more_stops_beating(begin: Begin) -> None:
    before = threads()
    begin()
    assert threads() <= before  # those of earlier tests may end meanwhile


def test_an_end_that_comes_twice_does_not_end_the_successor(here: Liveness, begin: Begin) -> None:
    first = begin()
    first.end()
    second = begin()
    assert second.process_slot.slot == first.process_slot.slot
    first.end()
    assert here.slot_state(second.process_slot).is_held
    assert here.slot_state(first.process_slot) == SlotState(False)


def test_polls_that_stop_are_told_to_all_and_beats_stop_with_them(
    here: Liveness, begin: Begin
) -> None:
    lease = begin(poll_ms=30)
    wait_for_beat(here, lease.process_slot)
    lease.end_poll()
    until(lambda: here.slot_state(lease.process_slot).has_left, "the notice to others")
    assert lease.has_left
    assert lease.is_expired
    sign = here.slot_state(lease.process_slot)
    lease.begin_poll()
    assert lease.is_expired, "a poll that comes too late changes nothing"
    assert here.slot_state(lease.process_slot) == sign
    lease.renew()
    assert not lease.is_expired
    assert not here.slot_state(lease.process_slot).has_left
    wait_for_beat(here, lease.process_slot)


def test_inside_a_poll_nobody_is_late(here: Liveness, begin: Begin) -> None:
    lease = begin(poll_ms=30)
    lease.end_poll()
    lease.begin_poll()
    for _ in range(6):
        wait_for_beat(here, lease.process_slot)
    assert not lease.has_left
    assert not lease.is_expired


def test_a_poll_in_time_puts_the_next_one_off(here: Liveness, begin: Begin) -> None:
    lease = begin(poll_ms=1000)
    for _ in range(6):
        lease.begin_poll()
        lease.end_poll()
        wait_for_beat(here, lease.process_slot)
    assert not lease.has_left


@pytest.mark.parametrize("mutant", ["", "no_lease_check"])
def test_a_beat_that_cannot_be_written_is_none(mine: Liveness, begin: Begin, mutant: str) -> None:
    """The heartbeats cannot be written: so the lease expires, and cannot be renewed until writing
    works again.
    """
    lease = begin(SESSION_MS)
    writing = os.dup(mine._holder_fd)
    reading = os.open(mine.path, os.O_RDONLY)
    os.dup2(reading, mine._holder_fd)
    until(lambda: lease.is_expired, "the lease to expire")
    with pytest.raises(StorageError, match="renew"):
        lease.renew()
    os.dup2(writing, mine._holder_fd)
    assert lease.is_expired
    if mutant:
        with mutated(mutant):
            assert not lease.is_expired, (
                "the mutant still counts its lease as valid, though others may have taken its place"
            )
    lease.renew()
    assert not lease.is_expired
    os.close(writing)
    os.close(reading)


def test_the_thread_takes_no_signals(begin: Begin) -> None:
    before = threads()
    lease = begin()
    (thread,) = threads() - before
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    blocked = int(
        next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")), 16
    )
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        assert blocked >> (number - 1) & 1, signal.Signals(number).name
    lease.end()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(), (
        "and the mask of the others is unchanged"
    )


@pytest.mark.parametrize("times", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_times_that_are_none_are_refused(
    begin: Begin, here: Liveness, times: tuple[int, int, int]
) -> None:
    with pytest.raises(StorageError, match="heartbeat"):
        begin(*times)
    assert begin().process_slot.slot == 0, "and the slot is free again"


def test_a_thread_needs_a_file_to_write_to(tmp_path: Path) -> None:
    assert system.Heartbeat(-1, 0, 0, 1000, 10, 1000).code < 0
    with (tmp_path / "empty").open("w+b") as file:
        reading = os.open(file.name, os.O_RDONLY)
        assert system.Heartbeat(reading, 0, 0, 1000, 10, 1000).code < 0
        os.close(reading)


def test_an_entry_has_the_layout_that_the_documents_say(mine: Liveness, begin: Begin) -> None:
    mine.begin()
    lease = begin(poll_ms=1)
    lease.end_poll()
    until(lambda: lease.has_left, "the polls to be late")
    until(lambda: mine.slot_state(lease.process_slot).has_left, "the notice")
    entry = (mine.path).read_bytes()[SLOT_BYTES : 2 * SLOT_BYTES]
    assert entry[:8] == lease.process_slot.nonce.to_bytes(8, "big")
    assert int.from_bytes(entry[8:16], "big") == mine.slot_state(lease.process_slot).heartbeat > 0
    assert entry[16:] == (1).to_bytes(8, "big") + bytes(8)


@pytest.mark.parametrize(
    "kept",
    ["kept = begin()", "import sys; sys.kept = begin()", "kept = []; kept.append((kept, begin()))"],
)
def test_a_program_that_ends_with_a_lease_ends_in_order(tmp_path: Path, kept: str) -> None:
    """In whatever order the interpreter gives its objects up, the thread writes into no memory that
    is gone.
    """
    program = f"""
import pathlib
from embedlog.storage.liveness import Liveness
liveness = Liveness(pathlib.Path({str(tmp_path)!r}))
begin = lambda: [liveness.lease(session_timeout_ms=1, heartbeat_interval_ms=1, max_poll_interval_ms=1) for _ in range(4)]
{kept}
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")


# ---- other processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", ["", "forgive_lapse"])
def test_member_4_who_was_frozen_knows_it_before_it_goes_on(
    until_end: ExitStack, nursery: Nursery, tmp_path: Path, mutant: str
) -> None:
    """Its thread may write a heartbeat before anything else of it runs: the lease stays expired."""
    victim = nursery.spawn()
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    victim.call("mutants", *([mutant] if mutant else []))
    process_slot = ProcessSlot(*victim.call("lease", str(tmp_path), SESSION_MS, HEARTBEAT_MS))
    wait_for_beat(here, process_slot)
    assert victim.call("lease_state") == (False, False)
    victim.stop()
    frozen = here.slot_state(process_slot)
    assert frozen.is_held, "a frozen process may come back"
    clock = system.boot_ns() + 2 * SESSION_MS * 1_000_000
    until(lambda: system.boot_ns() > clock, "its session to be over")
    assert here.slot_state(process_slot) == frozen
    victim.resume()
    wait_for_beat(here, process_slot)
    assert victim.call("lease_state") == (not mutant, False)
    victim.call("lease_do", "renew")
    assert victim.call("lease_state") == (False, False)


NEEDS_GIL = pytest.mark.skipif(
    FREE_THREADED, reason="without the GIL a thread of Python's own is not silent"
)


@pytest.mark.parametrize(
    "python", [False, pytest.param(True, marks=NEEDS_GIL)], ids=["native", "python"]
)
def test_member_3_who_computes_without_a_pause_is_alive(
    until_end: ExitStack, nursery: Nursery, tmp_path: Path, python: bool
) -> None:
    """The interpreter's lock is held for longer than a session: a thread of Python's own would be
    silent for as long.
    """
    victim = nursery.spawn()
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    process_slot = ProcessSlot(
        *victim.call("lease", str(tmp_path), SESSION_MS, HEARTBEAT_MS, python=python)
    )
    wait_for_beat(here, process_slot)
    victim.start("hold_interpreter", 3 * SESSION_MS)
    notes = iter(victim.notes())
    assert next(notes) == "now"
    clock = system.boot_ns() + 2 * SESSION_MS * 1_000_000
    seen = set()
    until(
        lambda: bool(seen.add(here.slot_state(process_slot).heartbeat)) or system.boot_ns() > clock,
        "its session to be over",
    )
    assert list(notes) == []
    assert (len(seen) <= 2) == python, f"{len(seen)} heartbeats were seen"
    if not python:
        assert victim.call("lease_state") == (False, False)


def test_member_5_a_killed_one_is_dead_at_once_whatever_its_session(
    until_end: ExitStack, nursery: Nursery, tmp_path: Path
) -> None:
    victim = nursery.spawn()
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    process_slot = ProcessSlot(*victim.call("lease", str(tmp_path), LONG_MS, HEARTBEAT_MS))
    assert here.slot_state(process_slot).is_held
    victim.kill()
    assert not here.slot_state(process_slot).is_held


@pytest.mark.parametrize("mutant", ["", "keep_inherited"])
def test_life_1_a_forked_child_does_not_keep_its_parent_alive(
    until_end: ExitStack, nursery: Nursery, tmp_path: Path, mutant: str
) -> None:
    victim = nursery.spawn()
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    victim.call("mutants", *([mutant] if mutant else []))
    process_slot = ProcessSlot(*victim.call("lease", str(tmp_path), LONG_MS, HEARTBEAT_MS))
    child = victim.call("leave_child")
    try:
        wait_for_beat(here, process_slot)
        victim.kill()
        assert here.slot_state(process_slot).is_held == bool(mutant)
        assert state_of(child) in ("S", "R"), "and yet the child runs"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_ends_nothing_of_its_parents(until_end: ExitStack, tmp_path: Path) -> None:
    mine = until_end.enter_context(closing(Liveness(tmp_path)))
    here = until_end.enter_context(closing(Liveness(tmp_path)))
    lease = mine.lease(
        session_timeout_ms=LONG_MS, heartbeat_interval_ms=HEARTBEAT_MS, max_poll_interval_ms=LONG_MS
    )
    pid = os.fork()
    if pid == 0:
        code = 0 if lease.is_expired else 1
        lease.begin_poll()
        lease.end_poll()
        lease.end()
        mine.close()
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert wait_for_beat(here, lease.process_slot).is_held
    assert not lease.is_expired
    mine.close()
