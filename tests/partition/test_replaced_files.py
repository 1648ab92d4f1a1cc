"""Files of a partition that another process replaced under their names."""

from __future__ import annotations

from pathlib import Path

import embedlog
from embedlog.format.record_batch import Stamp
from tests.support.stamped_batches import send

A = 2**62 + 1
B = 2**62 + 2


def test_producers_are_read_from_the_file_that_has_the_name_now(tmp_path: Path) -> None:
    """Another process began the log again at the same offset, while this one has the earlier file
    open.
    """
    with embedlog.open(tmp_path / "log") as log, embedlog.open(tmp_path / "log") as other:
        log.create_topic("events")
        partition = log._engine.partition("events", 0)
        send(partition, Stamp(A, 0), 0, b"before")
        assert len(partition.fetch(0).batches) == 1  # which opens the file for reading
        again = other._engine.partition("events", 0)
        with again.replica.exclusive() as held:
            held.restart(0)
        send(again, Stamp(B, 0), 0, b"again")
        with partition.exclusive() as locked:
            assert set(locked.producer_state(locked.published).producers) == {B}
        assert partition.fetch(0).batches["producer_id"].tolist() == [B]
