"""Changed bits of a control page: in the published tuple while processes use it, and anywhere while
no process does.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

import embedlog
from embedlog.replicas.rules.records import LOG
from embedlog.storage import control_page, file_names
from tests.faults.replicas.directory_damage import TUPLES, USED_BYTES, damage_page, flipped
from tests.support.damaged_sets import killed_append, send
from tests.support.renewed_replicas import until_in_sync
from tests.support.verified_sets import QUIET, WANTED, assert_equal_copies, filled, opened, values


def page_of(root: Path, node: int, name: str = "t-0") -> Path:
    return root / f"d{node}" / name / file_names.PAGE


def flip_tuple(path: Path, rng: random.Random) -> int:
    """Change a bit of the copy that is published now; its position in the file."""
    page = control_page.map_page(path, writable=False)
    assert page is not None
    try:
        while page.page.read() is not None:
            flipped(path, at := rng.choice(TUPLES), rng)
        return at
    finally:
        page.close()


def test_the_checksums_protect_these_bytes_and_no_others(
    tmp_path: Path, rng: random.Random
) -> None:
    with filled(tmp_path):
        path = page_of(tmp_path, 1)
        before = path.read_bytes()
        assert not any(before[USED_BYTES:])
        for at in (TUPLES[0] - 1, TUPLES[-1] + 1):
            flipped(path, at, rng)
        page = control_page.map_page(path, writable=False)
        assert page is not None
        assert page.page.read() is not None
        page.close()
        assert TUPLES[0] <= flip_tuple(path, rng) <= TUPLES[-1]
        with path.open("r+b") as file:
            file.write(before)


def test_the_page_of_an_open_log_is_rebuilt(tmp_path: Path, rng: random.Random) -> None:
    """Before, each call failed until the last process had closed the log."""
    with (
        embedlog.open(tmp_path, config=QUIET) as log,
        embedlog.open(tmp_path, config=QUIET) as other,
    ):
        log.create_topic("t")
        send(log, "t", b"first")
        assert values(other) == [b"first"]
        flip_tuple(tmp_path / "t-0" / file_names.PAGE, rng)
        assert values(log) == values(other) == [b"first"]
        flip_tuple(tmp_path / "t-0" / file_names.PAGE, rng)
        send(other, "t", b"of the other")
        send(log, "t", b"more")
        assert values(log) == values(other) == [b"first", b"of the other", b"more"]
        flip_tuple(tmp_path / "t-0" / file_names.PAGE, rng)
    with embedlog.open(tmp_path, config=QUIET) as log:
        assert values(log) == [b"first", b"of the other", b"more"]


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("name", ["t-0", file_names.partition_name(LOG, 0)])
def test_the_page_of_an_open_replica_is_rebuilt(
    tmp_path: Path, rng: random.Random, node: int, name: str
) -> None:
    with filled(tmp_path) as log, opened(tmp_path) as other:
        assert values(other) == WANTED
        flip_tuple(page_of(tmp_path, node, name), rng)
        send(other, "t", b"of the other")
        send(log, "t", b"more")
        log.create_topic("second", replication_factor=3)
        until_in_sync(log)
        assert log.verify_replicas() == []
        assert values(log) == values(other) == [*WANTED, b"of the other", b"more"]
        assert [each.state for each in other.replicas().directories] == ["live"] * 3
    assert_equal_copies(tmp_path)


@pytest.mark.parametrize("node", [1, 2])
def test_the_page_of_a_killed_append_is_rebuilt(
    tmp_path: Path, rng: random.Random, node: int
) -> None:
    """The repair of the append finds the damage."""
    with filled(tmp_path) as log:
        killed_append(tmp_path, node)
        flip_tuple(page_of(tmp_path, node), rng)
        send(log, "t", b"more")
        until_in_sync(log)
        assert log.verify_replicas() == []
        assert [value for value in values(log) if value != b"lost"] == [*WANTED, b"more"]
    assert_equal_copies(tmp_path)


def test_a_changed_bit_of_a_closed_page_costs_no_record(tmp_path: Path, rng: random.Random) -> None:
    """A page of an earlier incarnation is a lower bound at most."""
    with filled(tmp_path):
        pass
    wanted = list(WANTED)
    for turn in range(3):
        told = damage_page(tmp_path / f"d{rng.choice((1, 2))}", rng)
        with opened(tmp_path) as log:
            assert values(log) == wanted, told
            send(log, "t", b"%d" % turn)
            wanted.append(b"%d" % turn)
            until_in_sync(log)
            assert log.verify_replicas() == [], told
            assert values(log) == wanted, told
    assert_equal_copies(tmp_path)


# ---- bytes without a checksum, while the log is open ---------------------------------------------------------------


SIZE_FIELD = range(12, 16)  # the size of a slot
# of embedlog.control: identity, words, futex words
CONTROL_FIELDS = [*range(0, 16, 3), 70, 76, 100, 176, 200, 224]


def flip_bit(path: Path, at: int, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


@pytest.mark.parametrize("at", SIZE_FIELD)
def test_a_changed_size_of_an_open_page_is_damage_and_no_older_version(
    tmp_path: Path, rng: random.Random, at: int
) -> None:
    """Before, each process that opened the partition was refused until the last one had closed
    it.
    """
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        send(log, "t", b"first")
        flip_bit(tmp_path / "t-0" / file_names.PAGE, at, rng)
        with embedlog.open(tmp_path, config=QUIET) as other:
            assert values(other) == [b"first"]
            send(other, "t", b"of the other")
            send(log, "t", b"more")
            assert values(log) == values(other) == [b"first", b"of the other", b"more"]
    with embedlog.open(tmp_path, config=QUIET) as log:
        assert values(log) == [b"first", b"of the other", b"more"]


@pytest.mark.parametrize("node", [1, 2])
def test_a_changed_size_of_the_page_of_an_open_replica_is_damage(
    tmp_path: Path, rng: random.Random, node: int
) -> None:
    with filled(tmp_path) as log:
        flip_bit(page_of(tmp_path, node), rng.choice(SIZE_FIELD), rng)
        with opened(tmp_path) as other:
            send(other, "t", b"of the other")
            send(log, "t", b"more")
            until_in_sync(log)
            assert log.verify_replicas() == []
            assert values(log) == values(other) == [*WANTED, b"of the other", b"more"]
    assert_equal_copies(tmp_path)


@pytest.mark.parametrize("at", CONTROL_FIELDS)
def test_a_changed_bit_of_an_open_directory_costs_no_record(
    tmp_path: Path, rng: random.Random, at: int
) -> None:
    """The processes that have the directory open continue. Another one is refused, at most until
    they have closed it.
    """
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        send(log, "t", b"first")
        flip_bit(tmp_path / file_names.CONTROL, at, rng)
        send(log, "t", b"second")
        refusals = embedlog.errors.ForeignDirectoryError, embedlog.errors.DirectoryInUseError
        with contextlib.suppress(*refusals), embedlog.open(tmp_path, config=QUIET) as other:
            assert values(other) == [b"first", b"second"]
        send(log, "t", b"third")
        assert values(log) == [b"first", b"second", b"third"]
    with embedlog.open(tmp_path, config=QUIET) as log:
        assert values(log) == [b"first", b"second", b"third"]
        send(log, "t", b"fourth")
        assert values(log) == [b"first", b"second", b"third", b"fourth"]
