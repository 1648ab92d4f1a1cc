"""Internal topics are hidden unless they are asked for, in every verb, and a line says how many."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog

LISTS = [
    ["ls"],
    ["topics"],
    ["topics", "--describe"],
    ["offsets"],
    ["du"],
    ["replicas"],
    ["metrics"],
    ["configs", "--all"],
]


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


@pytest.mark.usefixtures("usual_internal_topics")
@pytest.mark.sample(0.3)
@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_a_list_hides_internal_topics_and_says_how_many(
    grouped: Callable[..., Any], arguments: list[str]
) -> None:
    hidden = grouped(*arguments)
    assert "web" in hidden.out
    assert "__consumer_offsets" not in hidden.out
    assert hidden.err.startswith(
        ("embedlog: 1 internal topic is hidden", "embedlog: 50 internal partitions")
    )
    assert "--include-internal shows " in hidden.err
    for option in ("--include-internal", "-a"):
        shown = grouped(*arguments, option)
        assert "__consumer_offsets" in shown.out
        assert shown.err == ""


def test_json_hides_the_same(grouped: Callable[..., Any]) -> None:
    for arguments in (
        ["ls", "--json"],
        ["topics", "--json"],
        ["topics", "--describe", "--json"],
        ["offsets", "--json"],
        ["du", "--json"],
        ["replicas", "--json"],
        ["metrics", "--json"],
        ["configs", "--all", "--json"],
    ):
        hidden = grouped(*arguments)
        shown = grouped(*arguments, "-a")
        json.loads(hidden.out)
        assert hidden.err == ""
        assert "__consumer_offsets" not in hidden.out, arguments
        assert "__consumer_offsets" in shown.out


def test_a_topic_that_is_named_is_shown(grouped: Callable[..., Any]) -> None:
    name = "__consumer_offsets"
    for arguments in (
        ["topics", "--describe", "--topic", name],
        ["topics", "--topic", name],
        ["offsets", "--topic", name],
        ["ls", name],
        ["du", "--topic-list", name],
        ["replicas", "--topic", name],
    ):
        outcome = grouped(*arguments)
        assert (outcome.status, outcome.err) == (0, ""), arguments
        assert name in outcome.out


@pytest.mark.usefixtures("usual_internal_topics")
def test_metrics_for_prometheus_have_the_sums_of_what_is_hidden(
    grouped: Callable[..., Any],
) -> None:
    hidden = grouped("metrics", "--prometheus")
    assert hidden.err == ""
    assert "__consumer_offsets" not in hidden.out
    assert "\nembedlog_internal_global_partition_count 50\n" in hidden.out
    assert "\nembedlog_internal_global_topic_count 1\n" in hidden.out
    shown = grouped("metrics", "--prometheus", "-a")
    sizes = re.findall(
        r'^embedlog_partition_size\{topic="__consumer_offsets",partition="\d+"\} (\d+)$',
        shown.out,
        re.MULTILINE,
    )
    assert len(sizes) == 50
    assert f"\nembedlog_internal_size {sum(map(int, sizes))}\n" in hidden.out


VERBS_THAT_READ = [
    ["consume", "--json", "--include", "{}", "--from-beginning", "-e"],
    ["cat", "--json", "--include", "{}"],
    ["grep", "", "--json", "--include", "{}"],
    ["perf", "consumer", "--include", "{}", "--num-records", "1", "--timeout", "1000"],
]


@pytest.mark.parametrize("arguments", VERBS_THAT_READ, ids=" ".join)
def test_a_pattern_reads_no_internal_topic_and_names_it(
    grouped: Callable[..., Any], arguments: list[str]
) -> None:
    refused = grouped(*(each.format("__.*") for each in arguments))
    assert refused.status in (1, 2)
    assert refused.out == ""
    assert (
        "only internal topics match: give the name of one, such as __consumer_offsets"
        in refused.err
    )
    absent = grouped(*(each.format("none.*") for each in arguments))
    assert (
        "--include: no topic matches 'none.*': the whole name must match; embedlog ls lists the "
        "topics" in absent.err
    )
    named = grouped(*(each.format("__consumer_offsets") for each in arguments))
    assert named.err == ""


def test_the_options_of_kafka_are_accepted(grouped: Callable[..., Any]) -> None:
    assert grouped("topics", "--exclude-internal").out == "web\n"
    assert "__" not in grouped("offsets", "--exclude-internal-topics").out
    assert grouped("topics", "--exclude-internal", "-a").status == 2
