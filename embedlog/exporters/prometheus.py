"""Exports the metrics of a log to Prometheus: as text, and as a collector for `prometheus_client`.

PROMETHEUS-1  each name begins with `embedlog_`; the help is the name in `log.metrics()`
PROMETHEUS-2  values of labels are escaped as the format demands: group names are input
PROMETHEUS-3  a scrape calls `log.metrics()` once. Only the collector needs `prometheus_client`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from embedlog import MissingExtraError
from embedlog.exporters.samples import Sample, samples

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Measured(Protocol):
    """A log."""

    def metrics(self) -> dict[str, Any]: ...


def text(metrics: Mapping[str, Any]) -> str:
    """The result of `log.metrics()` in Prometheus' text format, version 0.0.4."""
    lines = []
    for name, found in _families(metrics).items():
        kind = "counter" if found[0].counter else "gauge"
        lines += [f"# HELP embedlog_{name} {found[0].source}", f"# TYPE embedlog_{name} {kind}"]
        lines += [f"embedlog_{name}{_labels(each.labels)} {each.value!r}" for each in found]
    return "\n".join(lines) + "\n"


def _families(metrics: Mapping[str, Any]) -> dict[str, list[Sample]]:
    """The samples by name: the format wants those of one name together."""
    found: dict[str, list[Sample]] = {}
    for each in samples(metrics):
        found.setdefault(each.name, []).append(each)
    return found


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


class Collector:
    """A collector for `prometheus_client`: `registry.register(Collector(log))`. Threads: any.

    Raises MissingExtraError without `prometheus_client`.
    """

    def __init__(self, log: Measured) -> None:
        try:
            import prometheus_client  # noqa: F401 (an error belongs to the construction, not to a scrape)
        except ImportError as missing:
            raise MissingExtraError("a collector needs prometheus_client; text() does not", extra="prometheus") from missing
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape. Raises ClosedError."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, found in _families(self._log.metrics()).items():
            family = CounterMetricFamily if found[0].counter else GaugeMetricFamily
            made = family(f"embedlog_{name}", found[0].source, labels=list(found[0].labels))
            for each in found:
                made.add_metric(list(each.labels.values()), each.value)
            yield made

    def describe(self) -> list[Metric]:
        """Nothing: a registration reads no metrics."""
        return []
