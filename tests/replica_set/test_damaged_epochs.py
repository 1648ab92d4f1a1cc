"""A damaged leader-epoch-checkpoint of one replica: it is made again from the log, and no record is cut or copied for that."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.storage import checkpoints, file_names
from tests.replica_set.test_damage_while_open import send
from tests.replica_set.test_renewal import until_in_sync
from tests.replica_set.test_verification import WANTED, assert_equal_copies, filled, opened, values


def epochs_of(root: Path, node: int) -> Path:
    return root / f"d{node}" / "t-0" / file_names.EPOCHS


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def garbled(path: Path) -> None:
    path.write_bytes(b"\xff is no text\n")


def without_entries(path: Path) -> None:
    path.write_bytes(path.read_bytes().rsplit(b"\n", 2)[0] + b"\n")


def of_a_later_version(path: Path) -> None:
    path.write_bytes(b"7" + path.read_bytes()[1:])


DAMAGES = [
    emptied,
    garbled,
    *(pytest.param(each, marks=pytest.mark.slow) for each in (os.unlink, without_entries, of_a_later_version)),
]


def assert_made_again(root: Path, text: str, node: int) -> None:
    """Each replica has every epoch, and one message names the file."""
    entries = {each: checkpoints.read_epochs(epochs_of(root, each)).entries for each in (1, 2, 3)}
    assert entries[1] == entries[2] == entries[3]
    assert entries[1][0] == (0, 0)
    assert text.count(f"{epochs_of(root, node)} is made again from the log") == 1
    assert "was not closed in order" not in text
    assert "is copied again" not in text


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_epochs_of_an_open_replica_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], node: int
) -> None:
    """The old and the next leader, and a process that opens the set afterwards (LOGEPOCHS-1)."""
    tmp_path /= f"{damage.__name__}-{node}"  # a repeated message about one path is not logged
    with caplog.at_level(logging.WARNING, "embedlog"):
        with filled(tmp_path) as log, opened(tmp_path) as other:
            assert values(other) == WANTED
            damage(epochs_of(tmp_path, node))
            log.elect("t", 0, unclean=True, node=2)
            send(other, "t", b"more")
            until_in_sync(log)
            assert values(log) == [*WANTED, b"more"]
            assert [each.state for each in log.replicas().directories] == ["live"] * 3
            with contextlib.suppress(embedlog.errors.ElectionNotNeededError):  # after a damage the old leader may lead again
                log.elect("t")
            send(log, "t", b"last")
        with opened(tmp_path) as log:
            assert log.verify_replicas() == []
            assert values(log) == [*WANTED, b"more", b"last"]
    assert_equal_copies(tmp_path)
    assert_made_again(tmp_path, caplog.text, node)


@pytest.mark.parametrize("damage", [emptied, garbled])
def test_a_close_and_an_opening_make_the_epochs_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object]
) -> None:
    tmp_path /= damage.__name__
    with caplog.at_level(logging.WARNING, "embedlog"):
        with filled(tmp_path):
            damage(epochs_of(tmp_path, 2))
        damage(epochs_of(tmp_path, 3))
        with embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)], read_only=True) as log:
            assert values(log) == WANTED
        with opened(tmp_path) as log:
            assert values(log) == WANTED
            log.elect("t", 0, unclean=True, node=3)
            until_in_sync(log)
            send(log, "t", b"more")
            assert log.verify_replicas() == []
    assert_equal_copies(tmp_path)
    assert_made_again(tmp_path, caplog.text, 2)


def test_a_leader_without_epochs_cuts_no_follower(tmp_path: Path) -> None:
    """A follower asks the leader for the ends of its epochs. Without an answer it would be cut to the log start (REPLICA-2)."""
    with filled(tmp_path) as log, opened(tmp_path) as other:
        emptied(epochs_of(tmp_path, 1))
        leader = other._engine.set.directories.get(1).directory.path  # type: ignore[union-attr]
        assert leader == tmp_path / "d1"
        led = log._engine.partition("t", 0)
        assert led.epoch_end(0) == (0, len(WANTED))
        assert other._engine.partition("t", 0).epoch_end(0) == (0, len(WANTED))
        assert epochs_of(tmp_path, 1).read_bytes() == epochs_of(tmp_path, 2).read_bytes()
