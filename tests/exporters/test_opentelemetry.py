"""The instruments of OpenTelemetry, read by a reader of its SDK."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.exporters import opentelemetry
from embedlog.exporters.samples import families, samples
from tests.conftest import ROOT

QUIET = {"housekeeping": False}
TIMERS_WITHOUT_EVENTS = {
    "append_lock_wait",
    "leader_election",
    "log_clean",
    "log_flush",
    "log_load",
}

Values = dict[tuple[str, frozenset[tuple[str, Any]]], float]


class Counted:
    """A log that counts its reports."""

    def __init__(self, log: embedlog.Log) -> None:
        self.path = log.path
        self.calls = 0
        self._log = log

    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]:
        self.calls += 1
        return self._log.metrics(include_internal=include_internal)


class Failing:
    path = Path("failing")
    calls = 0

    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]:
        self.calls += 1
        raise embedlog.StorageError("no report")


def reader_and_provider() -> tuple[Any, Any]:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = pytest.importorskip("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    return reader, sdk.MeterProvider(metric_readers=[reader], shutdown_on_exit=False)


def metrics_of(reader: Any) -> list[Any]:
    data = reader.get_metrics_data()
    return (
        []
        if data is None
        else [
            each
            for of in data.resource_metrics
            for scope in of.scope_metrics
            for each in scope.metrics
        ]
    )


def values(reader: Any) -> Values:
    return {
        (each.name, frozenset(point.attributes.items())): point.value
        for each in metrics_of(reader)
        for point in each.data.data_points
    }


def test_a_reader_collects_the_samples(tmp_path: Path) -> None:
    reader, provider = reader_and_provider()
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t", 2)
        with log.producer() as producer:
            producer.send_batch("t", [b"x"] * 3, partition=1)
        log.reset_group_offsets("g\n", ["t"], to="earliest")
        counted = Counted(log)
        opentelemetry.instrument(counted, meter_provider=provider, attributes={"service": "s"})
        found = values(reader)
        assert counted.calls == 1, "one report for all instruments"
        common = {"directory": str(tmp_path), "service": "s"}
        wanted = {
            (
                f"embedlog.{each.name.removesuffix('_total')}",
                frozenset({**common, **each.labels}.items()),
            ): each.value
            for each in samples(log.metrics())
        }
        assert found == wanted
        lag = (
            "embedlog.group_partition_records_lag",
            frozenset({**common, "group": "g\n", "topic": "t", "partition": "1"}.items()),
        )
        assert found[lag] == 3
        with log.producer() as producer:
            producer.send("t", b"x", partition=1)
        assert values(reader)[lag] == 4
        assert counted.calls == 2


@pytest.mark.usefixtures("usual_internal_topics")
def test_internal_topics_are_observed_if_they_are_asked_for(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        log.reset_group_offsets("g", ["t"], to="earliest")
        for include_internal, count in ((False, 1), (True, 51)):
            reader, provider = reader_and_provider()
            opentelemetry.instrument(
                log, meter_provider=provider, include_internal=include_internal
            )
            found = values(reader)
            assert len([name for name, _ in found if name == "embedlog.partition_size"]) == count
            assert [
                value
                for (name, _), value in found.items()
                if name == "embedlog.internal_global_partition_count"
            ] == [50]


def test_instruments_have_kinds_and_units(tmp_path: Path) -> None:
    reader, provider = reader_and_provider()
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        log.flush()
        opentelemetry.instrument(log, meter_provider=provider)
        found = {each.name: each for each in metrics_of(reader)}
    assert found["embedlog.bytes_in"].data.is_monotonic
    assert found["embedlog.bytes_in"].unit == found["embedlog.partition_size"].unit == "By"
    assert found["embedlog.bytes_in"].description == "BytesInPerSec"
    assert not hasattr(found["embedlog.partition_size"].data, "is_monotonic")
    assert found["embedlog.log_load_max_ms"].unit == "ms"
    assert found["embedlog.partition_count"].unit == "1"


def test_a_closed_log_has_no_observations_and_is_not_kept(tmp_path: Path) -> None:
    reader, provider = reader_and_provider()
    log = embedlog.open(tmp_path, config=QUIET)
    opentelemetry.instrument(log, meter_provider=provider)
    assert values(reader)
    log.close()
    assert not values(reader)
    alive = weakref.ref(log)
    del log
    gc.collect()
    assert alive() is None
    assert not values(reader)


def test_a_failure_is_raised_once_in_a_collection(caplog: pytest.LogCaptureFixture) -> None:
    reader, provider = reader_and_provider()
    failing = Failing()
    opentelemetry.instrument(failing, meter_provider=provider)
    assert not values(reader)
    assert failing.calls == 1
    assert (
        sum("no report" in str(each.exc_info and each.exc_info[1]) for each in caplog.records) == 1
    )


def test_instruments_need_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with (
        embedlog.open(tmp_path, config=QUIET) as log,
        pytest.raises(embedlog.MissingExtraError, match=r"embedlog\[opentelemetry\]"),
    ):
        opentelemetry.instrument(log)


NAMES = sorted({family.source for family in families()})


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "metrics.md").read_text()


def test_every_metric_has_a_test() -> None:
    texts = [path.read_text() for path in (ROOT / "tests" / "admin").rglob("test_*.py")]
    assert [name for name in NAMES if not any(f'"{name}"' in text for text in texts)] == []


def test_every_sample_has_a_family(tmp_path: Path) -> None:
    known = {each.name: each for each in families()}
    assert len(known) == len(list(families()))
    with embedlog.open([tmp_path / "1", tmp_path / "2"], config=QUIET) as log:
        log.create_topic("t", replication_factor=2)
        log.reset_group_offsets("g", ["t"], to="earliest")
        found = {each.name: each for each in samples(log.metrics())}
    assert {name: (each.source, each.counter) for name, each in found.items()} == {
        name: (each.source, each.counter) for name, each in known.items() if name in found
    }
    assert set(known) - set(found) <= {
        f"{timer}_{part}_ms" for timer in TIMERS_WITHOUT_EVENTS for part in ("mean", "max")
    }
