"""Parses the argument `to` of a reset, and computes the offset for each partition.

- Pure: bounds, the committed offset, the offset found by time, and the current time are arguments.
- `to` is checked completely before any lookup, and an ambiguous value is refused.
- As in Kafka's own tool: a time after the last record means the end, and so does `current` without
  a committed offset. A shift needs a committed offset. An offset outside of the log is moved to its
  nearer end, except `current`, which stays unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from embedlog.config.times import duration_ms, milliseconds
from embedlog.errors import ConfigError, InvalidTimestampError, NoOffsetForPartitionError
from embedlog.types import TopicPartition, topic_partition

EXPECTED: Final = (
    '"earliest", "latest", "current", an offset, an aware datetime, a timedelta back from now, '
    '"by_duration:PnDTnHnMnS",'
    ' {"offset": n}, {"time": ms or datetime}, {"duration": timedelta or text}, {"shift": n}, or '
    "{TopicPartition: offset}"
)
WORDS: Final = ("earliest", "latest", "current")


@dataclass(frozen=True)
class Target:
    """The parsed `to`: `kind` is one of "earliest", "latest", "current", "offset", "time",
    "duration", "shift", "each".
    """

    kind: str
    number: int = 0
    each: Mapping[TopicPartition, int] = field(default_factory=dict)

    def time_ms(self, now_ms: int) -> int | None:
        """The time to search for; None for other kinds."""
        if self.kind == "time":
            return self.number
        return max(0, now_ms - self.number) if self.kind == "duration" else None

    def offset(
        self,
        tp: TopicPartition,
        *,
        start: int,
        end: int,
        committed: int | None,
        offset_for_time: int | None,
    ) -> int:
        """The offset, also outside of the log; `offset_for_time`: that of the first record at or
        after `time_ms`, None if there is none.

        Raises NoOffsetForPartitionError for a shift without a committed offset.
        """
        if self.kind == "earliest":
            return start
        if self.kind == "offset":
            return self.number
        if self.kind == "each":
            return self.each[tp]
        if self.kind in ("time", "duration"):
            return end if offset_for_time is None else offset_for_time
        if self.kind == "shift" and committed is None:
            problem = f"no offset is committed for {tp.topic}-{tp.partition}: a shift needs one"
            raise NoOffsetForPartitionError(problem, topic=tp.topic, partition=tp.partition)
        if committed is None or self.kind == "latest":
            return end
        return committed + self.number if self.kind == "shift" else committed


def clamp(offset: int, start: int, end: int) -> int:
    """The nearest offset that a reader can start from."""
    return min(max(offset, start), end)


def parse_target(to: object) -> Target:
    """Parse `to`. Raises TypeError for an unknown type, ConfigError, InvalidTimestampError."""
    if isinstance(to, str):
        return _from_text(to)
    if isinstance(to, datetime):
        return Target("time", _time_ms_of(to))
    if isinstance(to, timedelta):
        return Target("duration", _duration_ms_of(to))
    if isinstance(to, Mapping):
        return _from_mapping(to)
    return Target("offset", _offset_of(to))


def _from_text(text: str) -> Target:
    if text in WORDS:
        return Target(text)
    kind, _, duration = text.partition(":")
    if kind == "by_duration":
        return Target("duration", duration_ms(duration, "to"))
    raise ConfigError("to", expected=EXPECTED, found=repr(text))


def _from_mapping(to: Mapping[Any, Any]) -> Target:
    if to and all(isinstance(key, tuple) for key in to):
        return Target(
            "each",
            each={
                topic_partition(key): _offset_of(getattr(value, "offset", value))
                for key, value in to.items()
            },
        )
    if len(to) != 1:
        raise ConfigError("to", expected=EXPECTED, found=repr(dict(to)))
    ((kind, value),) = to.items()
    if kind == "offset":
        return Target("offset", _offset_of(value))
    if kind == "time":
        return Target("time", _time_ms_of(value))
    if kind == "duration":
        return Target(
            "duration",
            duration_ms(value, "to") if isinstance(value, str) else _duration_ms_of(value),
        )
    if kind == "shift":
        return Target("shift", _check_int(value, "a shift"))
    raise ConfigError("to", expected=EXPECTED, found=repr(dict(to)))


def _time_ms_of(value: object) -> int:
    time_ms = milliseconds(value)  # type: ignore[arg-type]
    if time_ms < 0:
        raise InvalidTimestampError("to: a time is not negative", found=time_ms)
    return time_ms


def _duration_ms_of(value: object) -> int:
    if not isinstance(value, timedelta):
        raise TypeError(f"a duration is a timedelta or text such as 'PT1H', not {value!r:.100}")
    duration_in_ms = value // timedelta(milliseconds=1)
    if duration_in_ms < 0:
        raise ConfigError("to: a duration goes back from now and is not negative", found=value)
    return duration_in_ms


def _offset_of(value: object) -> int:
    offset = _check_int(value, "an offset")
    if offset < 0:
        raise ConfigError("to: an offset is not negative", found=offset)
    return offset


def _check_int(value: object, name: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} is an int, not a bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} is an int, not {value!r:.100}; a group is reset to {EXPECTED}"
        ) from None
