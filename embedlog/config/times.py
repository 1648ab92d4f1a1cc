"""Reads times and durations that calls and settings take."""

from __future__ import annotations

import re
import warnings
from datetime import UTC, datetime, timedelta

from embedlog.config.timeouts import caller_level
from embedlog.errors import ConfigError

# in seconds: the years 1973 and 2286
SECONDS_FROM = 100_000_000
SECONDS_UNTIL = 10_000_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


def milliseconds(time: int | datetime) -> int:
    """Milliseconds since 1970 UTC, from an int of the same meaning or an aware datetime (rounded
    down).

    Raises TypeError for a datetime without a zone, because its time depends on the machine. Warns
    of an int that is a time in seconds of 1973 or later, and in milliseconds one of the first
    months of 1970.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise TypeError(
                f"{time!r} has no time zone: datetime(…, tzinfo=timezone.utc), or .astimezone() "
                "for local time"
            )
        return (time - _EPOCH) // timedelta(milliseconds=1)
    if type(time) is not int:
        raise TypeError(f"a time is an int in milliseconds or an aware datetime, not {time!r}")
    if SECONDS_FROM <= time < SECONDS_UNTIL:
        text = (
            f"the time {time} is in 1970, because it is in milliseconds: a time in seconds is "
            "int(seconds * 1000)"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=caller_level())
    return time


def duration_ms(text: str, option: str) -> int:
    """Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds, such as "P3D" or
    "PT1H30M".

    Raises ConfigError with the name of the option for any other text, for example "P" or a negative
    duration.
    """
    match = re.fullmatch(_DURATION, text, re.ASCII)
    parts = match.groups() if match and not text.endswith("T") else (None,) * 4
    if not any(part is not None for part in parts):
        raise ConfigError(
            f"{option}: not a duration", expected="by_duration:PnDTnHnMnS", found=repr(text)
        )
    return sum(
        round(float(part) * unit)
        for part, unit in zip(parts, _UNITS_MS, strict=True)
        if part is not None
    )
