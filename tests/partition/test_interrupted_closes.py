"""An interrupt while files are closed: no number of a closed descriptor is used or closed again, as
it may be another file's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.storage import files, locks
from tests.support.strike import Strike

pytestmark = pytest.mark.may_leak("an interrupt after a descriptor was taken out of its field")


def points(
    call: Callable[[], Any], prepare: Callable[[], Any], judge: Callable[[Strike], None]
) -> int:
    nth = 0
    while True:
        nth += 1
        prepare()
        strike = Strike(nth)
        strike.run(call)
        judge(strike)
        if not strike.has_struck:
            return nth


def test_the_core_forgets_a_segment_before_its_descriptors_are_closed(tmp_path: Path) -> None:
    """Else the next append writes into the file that has the number then: a failed append could not
    be undone.
    """
    with (
        embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log,
        log.producer(linger_ms=0) as producer,
    ):
        log.create_topic("t")
        partition: Any = log._engine.partition("t", 0)
        writer = partition._writer

        def judge(strike: Strike) -> None:
            raw = partition._state.writer.raw
            assert raw.log_fd == -1 or raw.log_fd in writer.fds, strike.place

        numbers = points(writer.close_segment, lambda: producer.send("t", b"v").result(20), judge)
        assert numbers > 2
        assert log.scan("t").num_rows == numbers


def test_an_interrupted_close_of_a_lock_file_gives_the_lock_back(tmp_path: Path) -> None:
    pair: list[locks.LockFile] = []

    def prepare() -> None:
        pair[:] = [locks.LockFile(tmp_path / "lock"), locks.LockFile(tmp_path / "lock")]
        assert pair[0].try_lock()

    def judge(strike: Strike) -> None:
        pair[0].close()
        assert pair[1].try_lock(), strike.place
        pair[1].close()

    assert points(lambda: pair[0].close(), prepare, judge) > 1


def test_an_interrupted_end_of_liveness_closes_no_descriptor_twice(tmp_path: Path) -> None:
    """A repeated close would close the file that has the number meanwhile."""
    others: list[int] = []
    made: list[embedlog.Log] = []

    def prepare() -> None:
        made[:] = [embedlog.open(tmp_path / "log", config={"housekeeping": False})]
        with made[0].producer(transactional_id="x") as producer:
            producer.init_transactions()

    def judge(strike: Strike) -> None:
        others[:] = [files.open_file(tmp_path / "other", files.CREATE) for _ in range(20)]
        made[0].close()
        for fd in others:
            assert os.fstat(fd).st_size == 0, strike.place
            files.close(fd)

    points(lambda: made[0]._engine.transactions.liveness.close(), prepare, judge)


def test_a_descriptor_that_is_none_is_not_closed() -> None:
    assert files.close(-1) == 0
