"""Appends that fail, ways to hear of it, and what is logged of records that were not written."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

import embedlog


def asked_for_its_result(future: embedlog.Future) -> None:
    with pytest.raises(embedlog.EmbedlogError):
        future.result()


HEARD: dict[str, Callable[[embedlog.Future], object]] = {
    "exception": lambda future: future.exception(),
    "result": asked_for_its_result,
    "callback": lambda future: future.add_done_callback(id),
}


def lost_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING and "not written" in each.getMessage()
    ]


def refuse(monkeypatch: pytest.MonkeyPatch, log: embedlog.Log, error: Exception) -> None:
    """Every append fails from here on."""

    def append(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(log._engine.partition("one", 0)), "append", append)
