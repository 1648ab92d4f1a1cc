"""A failed delivery keeps no objects alive: neither the frames of its error, nor their values."""

from __future__ import annotations

import gc
import weakref

import pytest

import embedlog
from embedlog.producer.delivery_failures import copy_error
from tests.support import producer_helpers
from tests.support.delivery_failures import refuse

log = producer_helpers.log


class Batch:
    """An object that a program holds while it sends."""


def test_a_frame_that_asked_one_of_many_futures_is_collected(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, log, embedlog.StorageError("the disk is gone"))
    kept: list[weakref.ref[Batch]] = []

    def send(producer: embedlog.Producer) -> None:
        batch = Batch()
        kept.append(weakref.ref(batch))
        futures = [producer.send("one", b"v") for _ in range(5)]
        for future in futures:
            future.result()

    with log.producer(linger_ms=producer_helpers.LONG_MS, on_delivery_error="log") as producer:
        for _ in range(3):
            with pytest.raises(embedlog.StorageError, match="the disk is gone"):
                send(producer)
        gc.collect()
        assert [each() for each in kept] == [None, None, None]


def test_what_is_raised_again_says_the_same() -> None:
    error = embedlog.CorruptRecordError("bad", path="/p", position=3, expected=1, found=2)
    error.add_note("a note")
    error.__cause__ = OSError(5, "why")
    again = copy_error(error)
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
    assert again is not error
    assert again.__cause__ is error.__cause__
    assert again.__suppress_context__
