"""The sequences of records that were deleted: the log knows them longer than their places."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.errors import DuplicateSequenceError
from embedlog.format.record_batch import Stamp
from tests.support.stamped_batches import send, stamped

A = 2**62 + 1
B = 2**62 + 2


def test_a_run_that_was_deleted_has_no_places(tmp_path: Path) -> None:
    """More batches than are remembered: it is another error than a gap, after which a producer
    appends them anew.
    """
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("deleted", config={"segment.bytes": 1500})
        partition = log._engine.partition("deleted", 0)
        stamp = Stamp(A, 0)
        run = stamped(stamp, 0, *(b"%01400d" % number for number in range(8)), batch_bytes=1)
        partition.append(run, stamp=stamp)
        send(partition, Stamp(B, 0), 0)
        assert partition.delete_records(8) == 8
        with pytest.raises(DuplicateSequenceError, match="no longer in the log"):
            partition.append(run, stamp=stamp)
        assert partition.bounds().log_end == 9


def test_which_sequences_a_log_had(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("events")
        partition = log._engine.partition("events", 0)
        stamp = Stamp(A, 1)
        epochs = partition.replica.epochs
        assert epochs.has_sequence(stamp, 0) is None
        send(partition, stamp, 2**31 - 2, b"a", b"b", b"c")
        assert [epochs.has_sequence(stamp, each) for each in (2**31 - 3, 2**31 - 1, 0, 1, 7)] == [
            True,
            True,
            True,
            False,
            False,
        ]
        assert [epochs.has_sequence(Stamp(A, epoch), 0) for epoch in (0, 2)] == [None, None]
