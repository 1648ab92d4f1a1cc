"""Process slots of a set: each process may have another first directory, and any directory may
fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from embedlog.errors import StorageError
from embedlog.format.process_slot import ProcessSlot
from embedlog.storage.set_liveness import SetLiveness

LEASE = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 10, "max_poll_interval_ms": 60_000}


class View:
    """The directories as one process sees them."""

    def __init__(self, *paths: Path) -> None:
        # by node
        self.usable = {int(path.name[1:]): path for path in paths}
        self.away = False
        self.slots = SetLiveness(lambda: (self.usable, self.away), paths[0] if paths else Path("."))

    def without(self, path: Path, *, away: bool = True) -> None:
        self.usable = {node: each for node, each in self.usable.items() if each != path}
        self.away = away


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"d{number}" for number in range(3)]
    for path in found:
        path.mkdir()
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def a_view(stack: ExitStack, *paths: Path) -> View:
    view = View(*paths)
    stack.enter_context(closing(view.slots))
    return view


def test_a_slot_is_found_whichever_directory_it_is_in(places: list[Path], stack: ExitStack) -> None:
    one = a_view(stack, *places)
    other = a_view(stack, *reversed(places))
    mine = one.slots.begin()
    theirs = other.slots.begin()
    assert one.slots.probe(theirs)
    assert other.slots.probe(mine)
    one.slots.end(mine)
    assert not other.slots.probe(mine)
    assert not other.slots.probe(ProcessSlot(mine.slot, mine.nonce ^ 1))


def test_slots_of_one_number_in_two_directories_are_not_confused(
    places: list[Path], stack: ExitStack
) -> None:
    one = a_view(stack, places[0], places[1])
    other = a_view(stack, places[1], places[0])
    mine = one.slots.begin()
    theirs = other.slots.begin()
    assert mine.slot == theirs.slot
    one.slots.end(mine)
    assert not other.slots.probe(mine)
    assert one.slots.probe(theirs)


def test_a_slot_that_no_directory_shows_has_ended_unless_one_is_away(
    places: list[Path], stack: ExitStack
) -> None:
    view = a_view(stack, *places)
    never = ProcessSlot(0, 7)
    assert not view.slots.probe(never)
    view.without(places[0])
    state = view.slots.slot_state(never)
    assert (state.is_held, state.heartbeat) == (True, 0), "it may be in the directory that is away"


def test_a_removed_directory_still_shows_its_slots_to_those_who_have_it_open(
    places: list[Path], stack: ExitStack
) -> None:
    one = a_view(stack, *places)
    other = a_view(stack, *places)
    mine = one.slots.begin()
    assert other.slots.probe(mine)
    places[0].rename(places[0].with_name("removed"))
    other.without(places[0])
    one.without(places[0])
    assert other.slots.probe(mine)
    one.slots.end(mine)
    assert not other.slots.probe(mine), "its end is seen, too"
    assert one.slots.begin() is not None
    assert (places[1] / "embedlog.slots").exists()


def test_a_lease_in_a_failed_directory_is_not_shown(places: list[Path], stack: ExitStack) -> None:
    view = a_view(stack, *places)
    lease = view.slots.lease(**LEASE)
    assert view.slots.shows(lease)
    view.without(places[0])
    assert not view.slots.shows(lease)
    another = view.slots.lease(**LEASE)
    assert view.slots.shows(another)
    lease.end()
    another.end()


def test_a_slot_names_its_directory(places: list[Path], stack: ExitStack) -> None:
    view = a_view(stack, *places)
    mine = view.slots.begin()
    assert mine.node == 0
    assert view.slots.shows_slot(mine)
    view.without(places[0])
    assert not view.slots.shows_slot(mine)
    another = view.slots.begin()
    assert another.node == 1
    assert view.slots.shows_slot(another)


def test_a_slot_in_a_directory_that_left_the_set_counts_as_held(
    places: list[Path], stack: ExitStack
) -> None:
    """A process that has opened the directory before still sees its end."""
    one = a_view(stack, *places)
    before = a_view(stack, *places)
    after = a_view(stack, *places[1:])
    mine = one.slots.begin()
    other = one.slots.begin()
    assert before.slots.probe(mine)
    for view in (one, before):
        view.without(places[0], away=False)
    assert after.slots.slot_state(mine) == (True, 0, False)
    assert not after.slots.probe(mine._replace(node=None)), "of an older version"
    assert not after.slots.probe(mine._replace(node=1)), (
        "it was in a directory that shows another nonce"
    )
    one.slots.end(mine)
    assert not before.slots.probe(mine)
    assert before.slots.probe(other)
    assert after.slots.probe(mine)


def test_a_killed_process_frees_its_slot(places: list[Path], stack: ExitStack) -> None:
    view = a_view(stack, *places)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        slot = View(places[1], places[2]).slots.begin()
        os.write(writer, b"%d %d" % slot[:2])
        signal.pause()
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        slot, nonce = map(int, pipe.read(100).split())
    assert view.slots.probe(ProcessSlot(slot, nonce))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not view.slots.probe(ProcessSlot(slot, nonce))


def test_without_a_usable_directory_there_is_no_slot(stack: ExitStack) -> None:
    with pytest.raises(StorageError, match="usable"):
        a_view(stack).slots.begin()


def test_a_slot_begins_in_the_next_directory_if_the_loss_of_the_first_one_is_not_noticed(
    places: list[Path], stack: ExitStack
) -> None:
    """A directory counts as usable until a call has noticed its loss."""
    view = a_view(stack, *places)
    other = a_view(stack, *places[1:])
    places[0].rename(places[0].with_name("lost"))
    mine = view.slots.begin()
    assert other.slots.probe(mine)
    lease = view.slots.lease(**LEASE)
    assert lease.path.parent == places[1]
    for place in places[1:]:
        place.rename(place.with_name(f"lost-{place.name}"))
    with pytest.raises(StorageError):
        a_view(stack, *places).slots.begin()


def test_a_signal_handler_can_end_a_slot_inside_of_a_section_of_its_thread(
    places: list[Path], stack: ExitStack
) -> None:
    view = a_view(stack, *places)
    slot = view.slots.begin()

    def interrupted() -> None:
        with view.slots._choosing:
            view.slots.end(slot)

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not view.slots.probe(slot)


def test_a_directory_that_was_absent_for_a_moment_has_its_slots(
    places: list[Path], stack: ExitStack
) -> None:
    """Each absence left a descriptor open, and its holders took other slots."""
    view = a_view(stack, *places)
    slot = view.slots.begin()
    for _ in range(3):
        places[0].rename(places[0].with_name("away"))
        assert view.slots.probe(slot)
        places[0].with_name("away").rename(places[0])
        assert view.slots.probe(slot)
    assert view.slots.shows_slot(slot)
    assert view.slots._earlier == []
    later = a_view(stack, *places)
    assert later.slots.probe(slot)


def test_the_slots_of_a_directory_that_returns_after_its_copy_are_found(
    places: list[Path], stack: ExitStack
) -> None:
    view = a_view(stack, *places)
    first = places[0]
    slot = view.slots.begin()
    first.rename(first.with_name("original"))
    shutil.copytree(first.with_name("original"), first)
    another = view.slots.begin()
    assert not view.slots.shows_slot(slot)
    shutil.rmtree(first)
    first.with_name("original").rename(first)
    assert view.slots.probe(another)
    assert view.slots.probe(slot)
    assert view.slots.shows_slot(slot)
    assert a_view(stack, *places).slots.probe(slot)


def test_a_slot_is_in_the_file_that_a_replaced_directory_has_now(
    places: list[Path], stack: ExitStack
) -> None:
    """The descriptors were those of the removed file: other processes took each later holder for
    dead.
    """
    view = a_view(stack, *places)
    other = a_view(stack, *places)
    before = view.slots.begin()
    lease = view.slots.lease(**LEASE)
    assert view.slots.shows_slot(before)
    assert view.slots.shows(lease)
    assert other.slots.probe(before)
    places[0].rename(places[0].with_name("removed"))
    shutil.copytree(places[0].with_name("removed"), places[0])
    assert not view.slots.shows_slot(before)
    assert not view.slots.shows(lease)
    after = view.slots.begin()
    another = view.slots.lease(**LEASE)
    assert view.slots.shows_slot(after)
    assert view.slots.shows(another)
    later = a_view(stack, *places)
    for each in (view, other, later):
        assert each.slots.probe(after)
        assert each.slots.probe(another.process_slot)
    assert view.slots.probe(before)
    assert other.slots.probe(before), "its descriptor shows the removed file"
    view.slots.end(after)
    assert not later.slots.probe(after)
