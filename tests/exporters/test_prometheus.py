"""The text format and the collector of Prometheus, read by the parser of `prometheus_client`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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
    return {
        (each.name, frozenset(each.labels.items()), each.value)
        for family in families
        for each in family.samples
    }


def test_samples_have_the_values_of_the_report(tmp_path: Path) -> None:
    with log_with_a_group(tmp_path) as log:
        found = {(each.name, *each.labels.values()): each for each in samples(log.metrics())}
    assert found["messages_in_total",].value >= found["topic_messages_in_total", "t"].value == 3
    assert found["messages_in_total",].counter
    assert found["partition_log_end_offset", "t", "0"].value == 3
    assert found["log_flush_max_ms",].value > 0
    assert (
        found["group_records_lag", HOSTILE].value
        == found["group_partition_records_lag", HOSTILE, "t", "0"].value
        == 3
    )
    assert (
        found[
            "directory_partition_count",
            next(key[1] for key in found if key[0] == "directory_partition_count"),
        ].value
        >= 1
    )
    assert found["under_replicated_partitions",].value == 0
    assert ("log_clean_max_ms",) not in found  # there was no pass


def test_prometheus_reads_the_text(tmp_path: Path) -> None:
    with log_with_a_group(tmp_path) as log:
        known = log.metrics()
    wanted = {
        (f"embedlog_{each.name}", frozenset(each.labels.items()), float(each.value))
        for each in samples(known)
    }
    assert parsed(prometheus.text(known)) == wanted
    assert ("embedlog_group_records_lag", frozenset({("group", HOSTILE)}), 3.0) in wanted


def test_the_collector_exports_the_same_names(tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client")
    with log_with_a_group(tmp_path) as log:
        registry = client.CollectorRegistry()
        registry.register(prometheus.Collector(log))
        scraped = parsed(client.generate_latest(registry).decode())
        wanted = parsed(prometheus.text(log.metrics()))
    place = ("directory", str(tmp_path))
    assert {each[:2] for each in scraped} == {
        (name, labels | {place}) for name, labels, _ in wanted
    }
    assert ("embedlog_topic_messages_in_total", frozenset({place, ("topic", "t")}), 3.0) in scraped


@pytest.mark.usefixtures("usual_internal_topics")
def test_internal_topics_have_sums_and_are_exported_if_they_are_asked_for(tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client")
    with log_with_a_group(tmp_path) as log:
        hidden = scrape_of(prometheus.Collector(log), client)
        assert not [labels for _, labels, _ in hidden if ("topic", "__consumer_offsets") in labels]
        sums = {name: value for name, _, value in hidden if name.startswith("embedlog_internal_")}
        assert sums["embedlog_internal_global_topic_count"] == 1
        assert sums["embedlog_internal_global_partition_count"] == 50
        shown = scrape_of(prometheus.Collector(log, include_internal=True), client)
    found = {
        name: value for name, labels, value in shown if ("topic", "__consumer_offsets") in labels
    }
    sizes = [
        value
        for name, labels, value in shown
        if name == "embedlog_partition_size" and ("topic", "t") not in labels
    ]
    assert (len(sizes), sum(sizes)) == (50, sums["embedlog_internal_size"])
    assert (
        found["embedlog_topic_messages_in_total"]
        == sums["embedlog_internal_messages_in_total"]
        == 1
    )


def scrape_of(collector: prometheus.Collector, client: Any) -> Flat:
    registry = client.CollectorRegistry()
    registry.register(collector)
    return scrape(registry)


def scrape(registry: Any) -> Flat:
    client = pytest.importorskip("prometheus_client")
    return parsed(client.generate_latest(registry).decode())


def series(found: Flat) -> list[tuple[str, frozenset[tuple[str, str]]]]:
    return sorted(((name, labels) for name, labels, _ in found), key=str)


@pytest.mark.parametrize("collectors", [1, 2])
def test_two_logs_have_different_series(tmp_path: Path, collectors: int) -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    with (
        log_with_a_group(tmp_path / "a") as first,
        log_with_a_group(tmp_path / HOSTILE.replace("/", "")) as second,
    ):
        if collectors == 1:
            registry.register(prometheus.Collector(first, second))
            scraped = scrape(registry)  # one family for each name
        else:
            registry.register(prometheus.Collector(first))
            registry.register(prometheus.Collector(second))
            text = client.generate_latest(registry).decode()
            families = pytest.importorskip(
                "prometheus_client.parser"
            ).text_string_to_metric_families(text)
            found = [
                (each.name, frozenset(each.labels.items()), each.value)
                for family in families
                for each in family.samples
            ]
            scraped = set(found)
            assert len(series(scraped)) == len(set(series(scraped))) == len(found)
        for log in (first, second):
            ends = {
                key
                for key in scraped
                if key[0] == "embedlog_partition_log_end_offset" and ("topic", "t") in key[1]
            }
            assert {
                value for _, labels, value in ends if ("directory", str(log.path)) in labels
            } == {3.0}


def test_a_closed_log_has_no_samples_and_the_scrape_goes_on(tmp_path: Path) -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    client.Counter("mine", "of the application", registry=registry).inc()
    with log_with_a_group(tmp_path / "a") as first, log_with_a_group(tmp_path / "b") as second:
        registry.register(prometheus.Collector(first, second))
        first.close()
        scraped = scrape(registry)
        assert {
            value for _, labels, _ in scraped for name, value in labels if name == "directory"
        } == {str(second.path)}
    left = scrape(registry)
    assert {name for name, _, _ in left} == {"mine_total", "mine_created"}


def test_another_failure_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    with log_with_a_group(tmp_path) as log:
        registry.register(prometheus.Collector(log))

        def failing(*, include_internal: bool = False) -> dict[str, Any]:
            raise embedlog.StorageError("cannot read", errno=5, path=tmp_path)

        monkeypatch.setattr(log, "metrics", failing)
        with pytest.raises(embedlog.StorageError):
            client.generate_latest(registry)


def test_a_collector_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        embedlog.open(tmp_path, config=QUIET) as log,
        pytest.raises(embedlog.MissingExtraError, match=r"embedlog\[prometheus\]"),
    ):
        prometheus.Collector(log)
