"""The text format and the collector of Prometheus, read by the parser of `prometheus_client`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import embedlog
from embedlog.exporters import prometheus
from embedlog.exporters.samples import samples

QUIET = {"housekeeping": False}
HOSTILE = 'a"b\\c\nd{e="f"} 1'

Flat = set[tuple[str, frozenset[tuple[str, str]], float]]


def log_with_a_group(path: Path) -> embedlog.Log:
    log = embedlog.open(path, config=QUIET)
    log.create_topic("t")
    with log.producer() as producer:
        for _ in range(3):
            producer.send("t", b"x")
    log.flush()
    log.reset_group_offsets(HOSTILE, ["t"], to="earliest")
    return log


def parsed(text: str) -> Flat:
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {(each.name, frozenset(each.labels.items()), each.value) for family in families for each in family.samples}


def test_samples_have_the_values_of_the_report(tmp_path: Path) -> None:
    with log_with_a_group(tmp_path) as log:
        found = {(each.name, *each.labels.values()): each for each in samples(log.metrics())}
    assert found["messages_in_total",].value >= found["topic_messages_in_total", "t"].value == 3
    assert found["messages_in_total",].counter
    assert found["partition_log_end_offset", "t", "0"].value == 3
    assert found["log_flush_max_ms",].value > 0
    assert found["group_records_lag", HOSTILE].value == found["group_partition_records_lag", HOSTILE, "t", "0"].value == 3
    assert found["directory_partition_count", next(key[1] for key in found if key[0] == "directory_partition_count")].value >= 1
    assert found["under_replicated_partitions",].value == 0
    assert ("log_clean_max_ms",) not in found  # there was no pass


def test_prometheus_reads_the_text(tmp_path: Path) -> None:
    with log_with_a_group(tmp_path) as log:
        known = log.metrics()
    wanted = {(f"embedlog_{each.name}", frozenset(each.labels.items()), float(each.value)) for each in samples(known)}
    assert parsed(prometheus.text(known)) == wanted
    assert ("embedlog_group_records_lag", frozenset({("group", HOSTILE)}), 3.0) in wanted


def test_the_collector_exports_the_same_names(tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client")
    with log_with_a_group(tmp_path) as log:
        registry = client.CollectorRegistry()
        registry.register(prometheus.Collector(log))
        scraped = parsed(client.generate_latest(registry).decode())
        wanted = parsed(prometheus.text(log.metrics()))
    assert {each[:2] for each in scraped} == {each[:2] for each in wanted}
    assert ("embedlog_topic_messages_in_total", frozenset({("topic", "t")}), 3.0) in scraped


def test_a_collector_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with embedlog.open(tmp_path, config=QUIET) as log, pytest.raises(embedlog.MissingExtraError, match=r"embedlog\[prometheus\]"):
        prometheus.Collector(log)
