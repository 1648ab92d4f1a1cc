"""Errors of the library name its calls; the command line names its options instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.tools.cli.option_words import OPTIONS, text_in_options
from tests.conftest import ROOT

JOINT = re.compile(r'"\s+f?"')  # of the parts of a long text


@pytest.mark.parametrize("call", OPTIONS)
def test_each_text_is_one_of_the_library(call: str) -> None:
    """A text that the library changes would otherwise stay here without an effect."""
    package = ROOT / "embedlog"
    sources = (
        path for path in package.rglob("*.py") if "cli" not in path.relative_to(package).parts
    )
    assert any(call in JOINT.sub("", path.read_text()) for path in sources)


def test_no_error_of_a_verb_names_a_call(events: Callable[..., Any], tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    expected = {
        (
            "topics",
            "--create",
            "--topic",
            "events",
        ): "topic 'events' exists already; --if-not-exists accepts that",
        (
            "cat",
            "nothing",
        ): "topic 'nothing' is unknown; topics --create creates it, and ls lists all",
        (
            "grep",
            "x",
            "nothing",
        ): "topic 'nothing' is unknown; topics --create creates it, and ls lists all",
        (
            "-d",
            absent,
            "ls",
        ): f"{absent}: no such log directory; topics --create makes one: No such file or "
        "directory (ENOENT)",
        ("restore", absent): f"{absent}: no such log directory: No such file or directory (ENOENT)",
        (
            "mirror",
            "--from",
            absent,
        ): f"{absent}: no such log directory: No such file or directory (ENOENT)",
    }
    for words, text in expected.items():
        outcome = events(*words)
        assert (outcome.out, outcome.err.count("\n")) == ("", 1), words
        assert outcome.err.endswith(text + "\n"), words


def test_one_directory_of_a_set_is_written_with_the_others(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    places = [str(tmp_path / name) for name in ("a", "b")]
    run("-d", places[0], "-d", places[1], "topics", "--create", "--topic", "events")
    refused = run("-d", places[0], "produce", "-t", "events", stdin=b"x\n")
    assert "the directory belongs to a set: give all of its directories by -d" in refused.err


def test_a_call_of_the_library_keeps_its_words(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path) as log,
        pytest.raises(embedlog.UnknownTopicOrPartitionError) as caught,
    ):
        log.describe_topic("nothing")
    assert "create_topic() creates it" in str(caught.value)
    assert "topics --create creates it" in text_in_options(caught.value)
