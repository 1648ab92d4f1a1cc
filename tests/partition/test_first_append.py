"""The first append of a process to a segment: it opens the files, and checks the sequences of an
idempotent producer.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import StorageError
from embedlog.format import record_batch, sequence_rules
from embedlog.format.record_batch import Stamp
from embedlog.partition.partition import Partition
from tests.support.stamped_batches import send

STAMP = Stamp(2**62 + 1, 0)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """One record of a producer, and no file that is open for appends."""
    with embedlog.open(tmp_path / "log", housekeeping=False) as log:
        log.create_topic("t")
        found = log._engine.partition("t", 0)
        assert send(found, STAMP, 0, b"a") == (0, 0)
        found._writer.drop()
        found._producers.forget()
        yield found


def values(partition: Partition) -> list[bytes]:
    found = partition.fetch(0)
    return [value or b"" for value in record_batch.decode(found.data, found.batches).values or ()]


def test_the_first_append_to_a_segment_checks_its_sequences_once(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = list[object]()
    check = sequence_rules.check_sequences
    monkeypatch.setattr(
        sequence_rules, "check_sequences", lambda *each: (checks.append(each), check(*each))[1]
    )
    assert send(partition, STAMP, 1, b"b", b"c") == (1, 2)
    assert len(checks) == 1
    assert values(partition) == [b"a", b"b", b"c"]


def test_a_failed_open_for_an_append_leaves_nothing_to_repair(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fails(now: object) -> None:
        raise StorageError("cannot open", errno=errno.EMFILE)

    with monkeypatch.context() as patched:
        patched.setattr(partition._writer, "open_active", fails)
        with pytest.raises(StorageError, match="EMFILE"):
            send(partition, STAMP, 1, b"b")
        assert partition._state.page.word(system.WORD_OWNER) == 0
    assert send(partition, STAMP, 1, b"b") == (1, 1)
    assert values(partition) == [b"a", b"b"]
