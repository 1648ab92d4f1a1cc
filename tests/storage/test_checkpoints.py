"""Kafka's checkpoint files: a broker's files are read; files that a broker would refuse are
refused, and never written.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from embedlog.errors import ForeignDirectoryError, UnsupportedFormatError
from embedlog.storage import checkpoints, file_names
from embedlog.storage.checkpoints import EpochCache

MALFORMED = {
    "a trailing blank line": (b"0\n1\na 0 5\n\n", "line 4"),
    "a leading blank": (b"0\n1\n a 0 5\n", "line 3"),
    "too few fields": (b"0\n1\na 5\n", "line 3"),
    "too many fields": (b"0\n1\na 0 5 6\n", "line 3"),
    "more entries than declared": (b"0\n1\na 0 5\nb 0 5\n", "line 2"),
    "fewer entries than declared": (b"0\n3\na 0 5\n", "line 2"),
    "a word for the version": (b"zero\n1\na 0 5\n", "line 1"),
    "an empty count": (b"0\n\n", "line 2"),
    "a word for the count": (b"0\none\na 0 5\n", "line 2"),
    "a word for the partition": (b"0\n1\na x 5\n", "line 3"),
    "a negative offset": (b"0\n1\na 0 -5\n", "line 3"),
    "an offset beyond 63 bits": (b"0\n1\na 0 9223372036854775808\n", "line 3"),
    "digits without end": (b"0\n1\na 0 " + b"1" * 9000 + b"\n", "line 3"),
    "an underscore that Python would read": (b"0\n1\na 0 1_0\n", "line 3"),
    "bytes that are no text": (b"0\n1\na 0 \xff\n", "line 3"),
    "another program's file": (b"\x7fELF\x02\x01", "line 1"),
    "a name that no topic has": (b"0\n1\nto!ic 0 5\n", "line 3"),
    "a name that is too long": (b"0\n1\n" + b"a" * 250 + b" 0 5\n", "line 3"),
}


@pytest.mark.parametrize(("data", "line"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_checkpoint_is_refused_with_file_and_line(
    tmp_path: Path, data: bytes, line: str
) -> None:
    path = tmp_path / file_names.LOG_STARTS
    path.write_bytes(data)
    with pytest.raises(ForeignDirectoryError, match=line) as caught:
        checkpoints.read_offsets(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("name", file_names.CACHES)
@pytest.mark.parametrize("data", [data for data, _ in MALFORMED.values()], ids=MALFORMED)
def test_a_damaged_checkpoint_that_only_saves_work_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, data: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert checkpoints.read_offsets(path) == {}
    assert str(path) in caplog.text
    checkpoints.update(path, {})
    assert path.read_bytes() == b"0\n0\n"
    path.write_bytes(data)
    checkpoints.update(path, {("mine", 0): 8})
    assert checkpoints.read_offsets(path) == {("mine", 0): 8}


@pytest.mark.parametrize("data", [None, b"", b"0\n", b"0\n0\n", b"0"])
def test_no_file_an_empty_one_and_a_bare_version_mean_no_entries(
    tmp_path: Path, data: bytes | None
) -> None:
    path = tmp_path / file_names.LOG_STARTS
    if data is not None:
        path.write_bytes(data)
    assert checkpoints.read_offsets(path) == {}
    assert checkpoints.read_epochs(path).entries == []


def test_newer_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / file_names.LOG_STARTS
    path.write_bytes(b"1\n0\n")
    with pytest.raises(UnsupportedFormatError, match="expected 0, found 1"):
        checkpoints.read_offsets(path)


def test_blanks_between_fields_and_windows_line_ends_are_taken_as_kafka_takes_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / file_names.LOG_STARTS
    path.write_bytes(b"0\r\n2\r\na \t 0  5 \r\nb 1 +6")
    assert checkpoints.read_offsets(path) == {("a", 0): 5, ("b", 1): 6}


def test_what_is_written_is_what_kafka_would_write(tmp_path: Path) -> None:
    path = tmp_path / file_names.RECOVERY_POINTS
    checkpoints.write_offsets(path, {("b", 1): 2**63 - 1, ("a", 10): 0})
    assert path.read_bytes() == b"0\n2\na 10 0\nb 1 9223372036854775807\n"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "entry",
    [
        (("a b", 0), 1),
        (("", 0), 1),
        (("a\n", 0), 1),
        (("a", -1), 1),
        (("a", 0), -1),
        (("a", 0), 2**63),
    ],
)
def test_an_entry_that_would_disable_a_broker_is_never_written(
    tmp_path: Path, entry: tuple[tuple[str, int], int]
) -> None:
    path = tmp_path / file_names.RECOVERY_POINTS
    checkpoints.write_offsets(path, {("a", 0): 1})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not an entry"):
        checkpoints.update(path, dict([entry]))
    assert path.read_bytes() == before


def test_update_keeps_the_entries_of_others(tmp_path: Path) -> None:
    """DIR-2: a checkpoint of the directory is read, modified and written. A writer that knows only
    its own partitions would set the log starts of all others back.
    """
    path = tmp_path / file_names.LOG_STARTS
    path.write_bytes(b"0\n2\nbrokers-topic 3 333\nmine 0 7\n")
    checkpoints.update(path, {("mine", 0): 8, ("mine", 1): 9})
    checkpoints.update(path, {("mine", 1): None, ("never-there", 0): None})
    assert path.read_bytes() == b"0\n2\nbrokers-topic 3 333\nmine 0 8\n"


def test_update_without_a_change_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / file_names.LOG_STARTS
    checkpoints.write_offsets(path, {("a", 0): 1})
    before = path.stat()
    checkpoints.update(path, {("a", 0): 1})
    assert path.stat().st_ino == before.st_ino


def test_update_does_not_overwrite_what_it_cannot_read(tmp_path: Path) -> None:
    """DIR-2: overwriting a malformed checkpoint would lose the log starts of all other
    partitions.
    """
    path = tmp_path / file_names.LOG_STARTS
    path.write_bytes(b"0\n2\na 0 5\n")
    with pytest.raises(ForeignDirectoryError):
        checkpoints.update(path, {("mine", 0): 8})
    assert path.read_bytes() == b"0\n2\na 0 5\n"


def test_a_brokers_checkpoints_are_read_and_written_back_the_same(
    golden: Path, tmp_path: Path
) -> None:
    names = list(golden.glob("*/log/*-checkpoint"))
    assert len(names) == 24
    for path in names:
        offsets = checkpoints.read_offsets(path)
        copy = tmp_path / path.name
        checkpoints.write_offsets(copy, offsets)
        assert sorted(copy.read_bytes().splitlines()) == sorted(
            path.read_bytes().splitlines() or [b"0", b"0"]
        )


def test_a_brokers_epochs_are_read_and_written_back_the_same(golden: Path, tmp_path: Path) -> None:
    paths = list(golden.glob("*/log/*/leader-epoch-checkpoint"))
    assert len(paths) > 40
    for path in paths:
        copy = tmp_path / "leader-epoch-checkpoint"
        checkpoints.write_epochs(copy, checkpoints.read_epochs(path))
        assert copy.read_bytes() == path.read_bytes()


# ---- epochs --------------------------------------------------------------------------------------


def test_epochs_that_contradict_a_new_one_go() -> None:
    epochs = EpochCache([(0, 0), (2, 134), (4, 144)])
    assert not epochs.assign(4, 200)
    assert epochs.assign(3, 150)
    assert epochs.entries == [(0, 0), (2, 134), (3, 150)]
    assert epochs.assign(7, 134)
    assert epochs.entries == [(0, 0), (7, 134)]
    assert epochs.assign(7, 100)
    assert epochs.entries == [(0, 0), (7, 100)]


def test_epochs_that_fall_in_a_file_are_brought_in_order(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n3\n5 10\n3 20\n4 30\n")
    assert checkpoints.read_epochs(path).entries == [(3, 20), (4, 30)]


def test_epochs_follow_the_log_when_it_is_cut_at_either_end() -> None:
    epochs = EpochCache([(0, 0), (2, 134), (4, 144), (6, 154)])
    assert not epochs.truncate_from_end(155)
    assert epochs.truncate_from_end(154)
    assert epochs.truncate_from_start(140)
    assert epochs.entries == [(2, 140), (4, 144)]
    assert not epochs.truncate_from_start(140)
    assert epochs.truncate_from_start(1000)
    assert epochs.entries == [(4, 1000)]


def test_epoch_of_an_offset_and_end_of_an_epoch() -> None:
    epochs = EpochCache([(1, 10), (2, 134), (6, 154)])
    assert [epochs.epoch_for(offset) for offset in (9, 10, 133, 134, 153, 154, 10**9)] == [
        -1,
        1,
        1,
        2,
        2,
        6,
        6,
    ]
    ends = {epoch: epochs.end_offset(epoch, 200) for epoch in (-1, 0, 1, 2, 4, 6, 7)}
    assert ends == {
        -1: (-1, -1),
        0: (0, 10),
        1: (1, 134),
        2: (2, 154),
        4: (2, 154),
        6: (6, 200),
        7: (-1, -1),
    }
    assert EpochCache().end_offset(0, 5) == (-1, -1)


def test_epochs_always_rise_whatever_is_done_to_them(rng: random.Random) -> None:
    for _ in range(200):
        epochs = EpochCache()
        for _ in range(30):
            offset = rng.randrange(60)
            match rng.randrange(3):
                case 0:
                    epochs.assign(rng.randrange(12), offset)
                case 1:
                    epochs.truncate_from_end(offset)
                case 2:
                    epochs.truncate_from_start(offset)
            pairs = list(zip(epochs.entries, epochs.entries[1:], strict=False))
            assert all(first[0] < second[0] and first[1] < second[1] for first, second in pairs)
