"""The end of the process that reads the output of `tail`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.tools.cli.program import NO_READER, main
from embedlog.tools.cli.reader_watch import end_with_reader

TIMEOUT_S = 30


@contextlib.contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of a pipe that is standard output inside the block. Not a fixture: pytest
    sets the output for each call.
    """
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as output, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        yield reading


@pytest.mark.parametrize("options", [[], ["-G", "g", "--from-beginning"]], ids=["alone", "group"])
def test_tail_ends_with_its_reader_on_an_idle_topic(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        producer.send("events", b"first").result(TIMEOUT_S)
    seen = []
    with piped(monkeypatch) as pipe:

        def head() -> None:
            seen.append(os.read(pipe, 100))
            os.close(pipe)

        reader = threading.Thread(target=head, daemon=True)
        reader.start()
        verb = "consume" if options else "tail"
        assert main([verb, "events", "--timeout-ms", str(TIMEOUT_S * 1000), *options]) == NO_READER
        reader.join(TIMEOUT_S)
    assert seen == [b"first\n"]


def test_a_wait_that_is_not_ended_by_the_reader_goes_on(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        embedlog.open(tmp_path / "data") as log,
        log.consumer("events") as consumer,
        piped(monkeypatch) as pipe,
    ):
        threads = threading.active_count()
        with end_with_reader(consumer):
            assert list(consumer.batches(timeout=0.01)) == []
        assert threading.active_count() == threads
        os.close(pipe)
        assert list(consumer.batches(timeout=0.01)) == []
