"""Appends of a partition that fail in a chosen way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import embedlog

Append = Callable[..., Any]


def failing(
    monkeypatch: pytest.MonkeyPatch,
    log: embedlog.Log,
    problems: list[Exception],
    after_write: bool = False,
) -> list[Any]:
    """The next appends fail with these, before they begin or after their end; returns the stamps of
    the appends.
    """
    kind = type(log._engine.partition("one", 0))
    real: Append = kind.append
    seen: list[Any] = []

    def append(self: Any, run: Any, **facts: Any) -> Any:
        seen.append((facts["stamp"], int(run.batches["base_sequence"][0])))
        if problems and not after_write:
            raise problems.pop(0)
        answer = real(self, run, **facts)
        if problems:
            facts["progress"].__init__(run)  # as if the caller had never heard how far it came
            raise problems.pop(0)
        return answer

    monkeypatch.setattr(kind, "append", append)
    return seen
