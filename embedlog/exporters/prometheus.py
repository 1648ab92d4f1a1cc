"""Exports the metrics of a log to Prometheus: as text, and as a collector for `prometheus_client`.

- Each name begins with `embedlog_`; the help is the name in `log.metrics()`.
- Values of labels are escaped as the format demands: group names are input.
- A scrape calls `log.metrics()` once. Only the collector needs `prometheus_client`.
- A closed log has no samples: the other collectors of a registry belong to the program, and a
  scrape has all or none.
- The samples of a collector have the path of their log as the label `directory`: a process may have
  several logs.
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


class ScrapedLog(Protocol):
    """A log."""

    @property
    def path(self) -> Path: ...
    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]: ...


def text(metrics: Mapping[str, Any]) -> str:
    """The result of `log.metrics()` in Prometheus' text format, version 0.0.4."""
    lines = []
    for name, family in _families(samples(metrics)).items():
        kind = "counter" if family[0].counter else "gauge"
        lines.append(f"# HELP embedlog_{name} {family[0].source}")
        lines.append(f"# TYPE embedlog_{name} {kind}")
        lines += [f"embedlog_{name}{_labels(sample.labels)} {sample.value!r}" for sample in family]
    return "\n".join(lines) + "\n"


def _families(all_samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples by name: the format wants those of one name together."""
    by_name: dict[str, list[Sample]] = {}
    for sample in all_samples:
        by_name.setdefault(sample.name, []).append(sample)
    return by_name


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}"


class Collector:
    """A collector for `prometheus_client`: `registry.register(Collector(log))`, or of several logs.
    Threads: any.

    Each sample has the path of its log as the label `directory`. A closed log has no samples.
    Internal topics have samples of their own only with `include_internal=True`. Raises
    MissingExtraError without `prometheus_client`.
    """

    def __init__(
        self, log: ScrapedLog, *others: ScrapedLog, include_internal: bool = False
    ) -> None:
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

        for name, family in _families(self._samples()).items():
            first = family[0]
            family_class = CounterMetricFamily if first.counter else GaugeMetricFamily
            metric = family_class(f"embedlog_{name}", first.source, labels=list(first.labels))
            for sample in family:
                metric.add_metric(list(sample.labels.values()), sample.value)
            yield metric

    def _samples(self) -> Iterator[Sample]:
        for log in self._logs:
            yield from _samples_of(log, include_internal=self._include_internal)

    def describe(self) -> list[Metric]:
        """Nothing: a registration reads no metrics."""
        return []


def _samples_of(log: ScrapedLog, *, include_internal: bool) -> list[Sample]:
    """The samples of one log with the label of its directory; none of a closed log."""
    try:
        metrics = log.metrics(include_internal=include_internal)
    except ClosedError:
        return []
    directory = {"directory": str(log.path)}
    return [sample._replace(labels={**directory, **sample.labels}) for sample in samples(metrics)]
