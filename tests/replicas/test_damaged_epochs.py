"""A damaged leader-epoch-checkpoint of one replica: it is made again from the log, and no record is
cut or copied for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.partition.recovery import log_epochs
from embedlog.storage import checkpoints, file_names
from tests.support.damaged_sets import send
from tests.support.renewed_replicas import until_in_sync
from tests.support.verified_sets import WANTED, assert_equal_copies, filled, opened, values


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
    *(
        pytest.param(each, marks=pytest.mark.slow)
        for each in (os.unlink, without_entries, of_a_later_version)
    ),
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
    """The old and the next leader, and a process that opens the set afterwards."""
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
            # after a damage the old leader may lead again
            with contextlib.suppress(embedlog.errors.ElectionNotNeededError):
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
    """A follower asks the leader for the ends of its epochs. Without an answer it would be cut to
    the log start (REPLICA-2).
    """
    with filled(tmp_path) as log, opened(tmp_path) as other:
        emptied(epochs_of(tmp_path, 1))
        leader = other._engine.set.directories.get(1).directory.path  # type: ignore[union-attr]
        assert leader == tmp_path / "d1"
        led = log._engine.partition("t", 0)
        assert led.epoch_end(0) == (0, len(WANTED))
        assert other._engine.partition("t", 0).epoch_end(0) == (0, len(WANTED))
        assert epochs_of(tmp_path, 1).read_bytes() == epochs_of(tmp_path, 2).read_bytes()


# ---- well-formed, but wrong --------------------------------------------------------------------------------------


def with_epochs(log: embedlog.Log) -> list[bytes]:
    """Records of three more epochs; all values of the topic."""
    expected = list(WANTED)
    for node, count in ((2, 7), (3, 12), (1, 5)):
        log.elect("t", 0, unclean=True, node=node)
        until_in_sync(log)
        more = [b"%d of node %d" % (number, node) for number in range(count)]
        for value in more:
            send(log, "t", value)
        expected += more
    log.housekeep()
    return expected


def other_digits(data: bytes) -> Iterator[bytes]:
    """The file with another digit, in each place, with each value."""
    for at in range(len(data)):
        for digit in b"0123456789" if data[at : at + 1].isdigit() else b"":
            if digit != data[at]:
                yield data[:at] + bytes([digit]) + data[at + 1 :]


def test_each_other_digit_is_found(tmp_path: Path) -> None:
    """A load, and a process that has not compared the file, believe no wrong start and no wrong
    epoch.
    """
    with filled(tmp_path) as log:
        with_epochs(log)
        replica = (
            next(each for each in log._engine.directories if each.path.name == "d1")
            .partition("t", 0)
            .replica
        )
        path = epochs_of(tmp_path, 1)
        (now, state) = replica.published()
        true = checkpoints.read_epochs(path)
        data = path.read_bytes()
        assert len(true.entries) == 4
        assert log_epochs.agrees(path.parent, now, true)
        wrong = 0
        for damaged in other_digits(data):
            path.write_bytes(damaged)
            found, made = log_epochs.read_or_make(path.parent, now, state)
            assert found.entries == true.entries, damaged
            wrong += made
        assert wrong > 50
        path.write_bytes(data)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [1, 2], ids=["the leader", "a follower"])
def test_no_wrong_start_cuts_or_blocks_a_follower(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, node: int
) -> None:
    """A digit of the checkpoint of one replica is changed; then a follower asks for the ends of its
    epochs.
    """
    with caplog.at_level(logging.WARNING, "embedlog"):
        with filled(tmp_path) as log:
            expected = with_epochs(log)
        path = epochs_of(tmp_path, node)
        for at in [
            at for at, each in enumerate(path.read_bytes()) if chr(each).isdigit() and at > 3
        ][1:11]:
            with opened(tmp_path) as log, opened(tmp_path) as other:
                assert values(other) == expected
                data = bytearray(path.read_bytes())
                data[at] = ord(b"0") + (data[at] - ord(b"0") + 1) % 10
                path.write_bytes(data)
                with opened(tmp_path) as third:  # which has not compared the file
                    assert values(third) == expected
                    third.elect("t", 0, unclean=True, node=3)
                    until_in_sync(third)
                    third.elect("t", 0, unclean=True, node=1)
                    until_in_sync(third)
                    expected.append(b"after %d" % at)
                    send(third, "t", expected[-1])
                    assert values(third) == expected
                assert log.verify_replicas() == []
        assert_equal_copies(tmp_path)
    entries = {
        each: checkpoints.read_epochs(epochs_of(tmp_path, each)).entries for each in (1, 2, 3)
    }
    assert entries[1] == entries[2] == entries[3]
    assert not list(tmp_path.glob("d?/t-0/embedlog.cut-*")), "no record was cut"
    assert "is damaged" not in caplog.text


def test_a_load_makes_wrong_epochs_again(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        expected = with_epochs(log)
    path = epochs_of(tmp_path, 1)
    true = path.read_bytes()
    assert true == b"0\n4\n0 0\n2 60\n4 67\n5 79\n"
    path.write_bytes(true.replace(b"4 67", b"4 77"))
    with opened(tmp_path) as log:
        assert values(log) == expected
        assert checkpoints.read_epochs(path).entries[:4] == [(0, 0), (2, 60), (4, 67), (5, 79)]


def test_a_damaged_epoch_of_a_batch_is_not_taken_for_the_true_one(tmp_path: Path) -> None:
    """The digests show that the batch was changed: the checkpoint stays, and the replica is
    damaged.
    """
    with filled(tmp_path) as log:
        with_epochs(log)
        replica = (
            next(each for each in log._engine.directories if each.path.name == "d1")
            .partition("t", 0)
            .replica
        )
        path = epochs_of(tmp_path, 1)
        (now, state) = replica.published()
        before = path.read_bytes()
        segment = file_names.segment_path(path.parent, 0)
        data = segment.read_bytes()
        # the last batch
        position = data.rindex((now.log_end - 1).to_bytes(8, "big"), 0, now.segment_size)
        with segment.open("r+b") as file:
            file.seek(position + 15)
            file.write(bytes([data[position + 15] + 1]))
        with pytest.raises(embedlog.errors.CorruptRecordError):
            log_epochs.read_or_make(path.parent, now, state)
        assert path.read_bytes() == before
        with segment.open("r+b") as file:
            file.write(data)
