"""Exports the metrics of a log to Prometheus: as text, and as a collector for `prometheus_client`.

PROMETHEUS-1  each name begins with `embedlog_`; the help is the name in `log.metrics()`
PROMETHEUS-2  values of labels are escaped as the format demands: group names are input
PROMETHEUS-3  a scrape calls `log.metrics()` once. Only the collector needs `prometheus_client`
PROMETHEUS-4  a closed log has no samples: the other collectors of a registry belong to the program,
    and a scrape has all or none
PROMETHEUS-5  the samples of a collector have the path of their log as the label `directory`: a
    process may have several logs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from embedlog import ClosedError, MissingExtraError
from embedlog.exporters.samples import Sample, samples

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Measured(Protocol):
    """A log."""

    @property
    def path(self) -> Path: ...
    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]: ...


def text(metrics: Mapping[str, Any]) -> str:
    """The result of `log.metrics()` in Prometheus' text format, version 0.0.4."""
    lines = []
    for name, found in _families(samples(metrics)).items():
        kind = "counter" if found[0].counter else "gauge"
        lines += [f"# HELP embedlog_{name} {found[0].source}", f"# TYPE embedlog_{name} {kind}"]
        lines += [f"embedlog_{name}{_labels(each.labels)} {each.value!r}" for each in found]
    return "\n".join(lines) + "\n"


def _families(given: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples by name: the format wants those of one name together."""
    found: dict[str, list[Sample]] = {}
    for each in given:
        found.setdefault(each.name, []).append(each)
    return found


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return (
        "{"
        + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
        + "}"
    )


class Collector:
    """A collector for `prometheus_client`: `registry.register(Collector(log))`, or of several logs.
    Threads: any.

    Each sample has the path of its log as the label `directory`. A closed log has no samples.
    Internal topics have samples of their own only with `include_internal=True`. Raises
    MissingExtraError without `prometheus_client`.
    """

    def __init__(self, log: Measured, *others: Measured, include_internal: bool = False) -> None:
        try:
            import prometheus_client  # noqa: F401 (an error belongs to the construction, not to a scrape)
        except ImportError as missing:
            raise MissingExtraError(
                "a collector needs prometheus_client; text() does not", extra="prometheus"
            ) from missing
        self._logs = (log, *others)
        self._include_internal = include_internal

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, found in _families(self._samples()).items():
            family = CounterMetricFamily if found[0].counter else GaugeMetricFamily
            made = family(f"embedlog_{name}", found[0].source, labels=list(found[0].labels))
            for each in found:
                made.add_metric(list(each.labels.values()), each.value)
            yield made

    def _samples(self) -> Iterator[Sample]:
        for log in self._logs:
            yield from _samples_of(log, include_internal=self._include_internal)

    def describe(self) -> list[Metric]:
        """Nothing: a registration reads no metrics."""
        return []


def _samples_of(log: Measured, *, include_internal: bool) -> list[Sample]:
    """The samples of one log with its directory (PROMETHEUS-4, PROMETHEUS-5)."""
    try:
        known = log.metrics(include_internal=include_internal)
    except ClosedError:
        return []
    place = {"directory": str(log.path)}
    return [each._replace(labels={**place, **each.labels}) for each in samples(known)]
