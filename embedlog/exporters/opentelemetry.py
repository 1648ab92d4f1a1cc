"""Exports the metrics of a log to OpenTelemetry, as observable instruments.

- One collection of a reader calls `log.metrics()` once. An instrument that is asked again begins a
  new collection.
- The instruments exist from the start. A value that is not known is no observation.
- Instruments cannot be removed from a provider, so they keep no log alive. A closed log has no
  observations.
- A failure of `log.metrics()` is raised once in a collection, not by each instrument.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from embedlog import ClosedError, MissingExtraError, __version__
from embedlog.exporters.samples import Family, Sample, families, samples

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

_UNITS: Final = {
    "_bytes": "By",
    "_ms": "ms",
    "_percent": "%",
    "_secs": "s",
    "_seconds": "s",
    "_size": "By",
}


class ObservedLog(Protocol):
    """A log."""

    @property
    def path(self) -> Path: ...
    def metrics(self, *, include_internal: bool = False) -> dict[str, Any]: ...


def instrument(
    log: ObservedLog,
    *,
    meter_provider: MeterProvider | None = None,
    attributes: Mapping[str, str] | None = None,
    include_internal: bool = False,
) -> None:
    """Create the instruments of a log in a provider, by default the global one.

    `attributes` are added to those of each observation. Without `directory` among them, that is the
    path of the log. Internal topics have observations of their own only with
    `include_internal=True`. Call it once for each log and provider. Raises MissingExtraError
    without `opentelemetry-api`.
    """
    try:
        from opentelemetry import metrics
    except ImportError as missing:
        raise MissingExtraError(
            "the instruments need opentelemetry-api", extra="opentelemetry"
        ) from missing
    common = {"directory": str(log.path), **(attributes or {})}
    meter = metrics.get_meter("embedlog", __version__, meter_provider, attributes=common)
    collection = _Collection(log, include_internal=include_internal)
    for family in families():
        make = meter.create_observable_counter if family.counter else meter.create_observable_gauge
        name = f"embedlog.{family.name.removesuffix('_total')}"
        make(
            name,
            [_callback(collection, family, common)],
            unit=_unit(name),
            description=family.source,
        )


def _callback(
    collection: _Collection, family: Family, common: Mapping[str, str]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """The values of one instrument."""
    from opentelemetry.metrics import Observation

    def observe(options: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(sample.value, {**common, **sample.labels})
            for sample in collection.of(family.name)
        ]

    return observe


def _unit(name: str) -> str:
    """The unit in the notation of UCUM."""
    if "bytes" in name:
        return "By"
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            return unit
    return "1"


class _Collection:
    """The samples of one collection. Threads: any."""

    def __init__(self, log: ObservedLog, *, include_internal: bool) -> None:
        self._log = weakref.ref(log)
        self._include_internal = include_internal
        self._lock = threading.Lock()
        self._samples: dict[str, list[Sample]] = {}
        # the instruments of this collection; None before the first one
        self._asked_names: set[str] | None = None

    def of(self, name: str) -> Sequence[Sample]:
        """The samples of one instrument. Raises what `log.metrics()` raises,
        except ClosedError.
        """
        with self._lock:
            if self._asked_names is None or name in self._asked_names:
                self._asked_names = {name}
                self._samples = {}
                self._samples = self._read()
            self._asked_names.add(name)
            return self._samples.get(name, [])

    def _read(self) -> dict[str, list[Sample]]:
        log = self._log()
        if log is None:
            return {}
        try:
            metrics = log.metrics(include_internal=self._include_internal)
        except ClosedError:
            return {}
        by_name: dict[str, list[Sample]] = {}
        for sample in samples(metrics):
            by_name.setdefault(sample.name, []).append(sample)
        return by_name
