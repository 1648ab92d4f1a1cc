"""Tests of applications: logs in memory, faults, a clock, assertions and fixtures for pytest
(docs/testing.md).

- The import of this package and of its pytest plugin imports no module of the engine; names are
  imported on first use.
- Nothing is replaced by a mock: a test log is a directory with Kafka's files, and every call is the
  one of production.
- Every wait has a deadline and is ended by an event, never by the end of a sleep.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedlog.testing.assertions import (
        assert_committed,
        assert_key_order,
        assert_lag,
        assert_records,
        records,
        wait_for_records,
    )
    from embedlog.testing.expectations import Expected, record
    from embedlog.testing.log_faults import Fault, Faults, Held, faults
    from embedlog.testing.memory import memory_directory, open_log
    from embedlog.testing.plugin import ConsumerFactory, RecordsOf
    from embedlog.testing.stopped_clock import Clock, clock

__all__ = [
    "Clock",
    "ConsumerFactory",
    "Expected",
    "Fault",
    "Faults",
    "Held",
    "RecordsOf",
    "assert_committed",
    "assert_key_order",
    "assert_lag",
    "assert_records",
    "clock",
    "faults",
    "memory_directory",
    "open_log",
    "record",
    "records",
    "wait_for_records",
]

_MODULES = {
    "Clock": "stopped_clock",
    "ConsumerFactory": "plugin",
    "Expected": "expectations",
    "Fault": "log_faults",
    "Faults": "log_faults",
    "Held": "log_faults",
    "RecordsOf": "plugin",
    "assert_committed": "assertions",
    "assert_key_order": "assertions",
    "assert_lag": "assertions",
    "assert_records": "assertions",
    "clock": "stopped_clock",
    "faults": "log_faults",
    "memory_directory": "memory",
    "open_log": "memory",
    "record": "expectations",
    "records": "assertions",
    "wait_for_records": "assertions",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
