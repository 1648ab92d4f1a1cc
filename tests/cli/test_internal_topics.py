"""Internal topics are hidden unless they are asked for, in every verb, and a line says how many."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog

LISTS = [["ls"], ["topics"], ["topics", "--describe"], ["offsets"], ["du"], ["replicas"]]


@pytest.fixture
def grouped(tmp_path: Path, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` on a log with the topic `web`, and a group."""
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("web", 3)
        producer.send("web", b"x").result()
        with log.consumer("web", group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.poll(5)
            consumer.commit()
    return run


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_a_list_hides_internal_topics_and_says_how_many(grouped: Callable[..., Any], arguments: list[str]) -> None:
    hidden = grouped(*arguments)
    assert "web" in hidden.out
    assert "__consumer_offsets" not in hidden.out
    assert hidden.err.startswith(("embedlog: 1 internal topic is hidden", "embedlog: 50 internal partitions"))
    assert "--include-internal shows " in hidden.err
    for option in ("--include-internal", "-a"):
        shown = grouped(*arguments, option)
        assert "__consumer_offsets" in shown.out
        assert shown.err == ""


def test_json_hides_the_same(grouped: Callable[..., Any]) -> None:
    for arguments in (["ls", "--json"], ["topics", "--json"], ["topics", "--describe", "--json"], ["offsets", "--json"],
                      ["du", "--json"], ["replicas", "--json"]):  # fmt: skip
        hidden, shown = grouped(*arguments), grouped(*arguments, "-a")
        json.loads(hidden.out)
        assert hidden.err == ""
        partitions = '"partitions"' if arguments[0] == "replicas" else ""  # directories name nothing
        assert "__consumer_offsets" not in hidden.out, partitions
        assert "__consumer_offsets" in shown.out


def test_a_topic_that_is_named_is_shown(grouped: Callable[..., Any]) -> None:
    name = "__consumer_offsets"
    for arguments in (["topics", "--describe", "--topic", name], ["topics", "--topic", name], ["offsets", "--topic", name],
                      ["ls", name], ["du", "--topic-list", name], ["replicas", "--topic", name]):  # fmt: skip
        outcome = grouped(*arguments)
        assert (outcome.status, outcome.err) == (0, ""), arguments
        assert name in outcome.out


def test_the_options_of_kafka_are_accepted(grouped: Callable[..., Any]) -> None:
    assert grouped("topics", "--exclude-internal").out == "web\n"
    assert "__" not in grouped("offsets", "--exclude-internal-topics").out
    assert grouped("topics", "--exclude-internal", "-a").status == 2
