"""The append lock: the consequence of each code of the C core for a caller that has the lock
already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import StorageError
from embedlog.format.encoder import encode_records
from embedlog.partition import append_lock
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt


def test_a_page_that_is_destroyed_before_the_segment_is_opened_does_not_give_the_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To map the page again would close the lock file: the append would continue without the
    lock.
    """
    batch = encode_records([(b"k", b"v")], system.wall_ms())
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        with partition.exclusive():
            partition.append_held(batch)
        held = system.Writer.append_locked
        struck = []

        def destroying(writer: system.Writer, *arguments: Any) -> int:
            code = held(writer, *arguments)
            if code == system.MUST_REOPEN and not struck:
                struck.append(True)
                with (tmp_path / "log" / "t-0" / "embedlog.page").open("r+b") as file:
                    file.write(b"\xff" * 4096)
            return code

        monkeypatch.setattr(system.Writer, "append_locked", destroying)
        with (
            pytest.raises(StorageError, match="the control page is damaged"),
            partition.exclusive(),
        ):
            partition._lock.writer.close_segment()
            partition.append_held(batch)
        assert struck
        with partition.exclusive():
            partition.append_held(batch)
        assert [record.offset for record in log.scan("t").records()] == [0, 1]


@OF_THIS_INTERPRETER
def test_an_interrupt_before_a_repair_leaves_it_to_the_next_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner word of a killed appender is cleared by a repair, and by nothing else."""
    repaired: list[bool] = []
    monkeypatch.setattr(append_lock, "repair", lambda locked: repaired.append(True))
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        partition = log._engine.partition("t", 0)
        with partition.exclusive():
            partition.append_held(encode_records([(b"k", b"v")], system.wall_ms()))
        page = partition.mapped_page
        assert page is not None
        for nth in range(1, 1000):
            page.set(system.WORD_OWNER, 1)
            repaired.clear()
            interrupt = Interrupt(nth, {"append_lock.py", "system.py"})
            with partition._lock.mutex_until(partition.deadline()):
                interrupt.run(lambda: partition._lock._repair(partition.deadline()))
            if interrupt.struck is None:
                break
            assert repaired or page.word(system.WORD_OWNER), interrupt.struck
        assert repaired
        assert not page.word(system.WORD_OWNER)
