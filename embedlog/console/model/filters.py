"""Selects records by key, value, header and time.

FILTERS-1  a text is a substring; `/text/` is a regular expression, and `/text/i` one for letters in
    any case
FILTERS-2  a header is selected by its name, or by `name=text`, where the text is one of FILTERS-1
FILTERS-3  all given conditions hold for a selected record; a null key or value contains no text
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from embedlog import Record

Pattern = bytes | re.Pattern[bytes] | re.Pattern[str]
TIME_HINT = "a time in ms, a date such as 2026-01-31T12:00 in UTC, or -5m"
_BACK = re.compile(r"-([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FilterError(ValueError):
    """A text of a filter that has no meaning."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The texts of a filter, as they are typed; empty ones select all."""

    key: str = ""
    value: str = ""
    header: str = ""
    since: str = ""
    until: str = ""

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        return " ".join(
            f"{each.name}={text}" for each in fields(self) if (text := getattr(self, each.name))
        )

    def compiled(self, now_ms: int) -> Matcher:
        """The filter in a form that selects. Raises FilterError."""
        name, sign, wanted = self.header.partition("=")
        return Matcher(
            pattern("key", self.key),
            pattern("value", self.value),
            name.encode() if name else None,
            pattern("header", wanted) if sign else None,
            moment("since", self.since, now_ms),
            moment("until", self.until, now_ms),
        )


@dataclass(frozen=True, slots=True)
class Matcher:
    """The conditions of a filter."""

    key: Pattern | None = None
    value: Pattern | None = None
    header_name: bytes | None = None
    header_value: Pattern | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def searched(self) -> tuple[Pattern, str] | None:
        """The pattern and the column that a search of the log can use; None if only times are
        given.
        """
        if self.value is not None:
            return self.value, "value"
        if self.key is not None:
            return self.key, "key"
        if self.header_value is not None and self.header_value != b"":
            return self.header_value, "headers"
        return (self.header_name, "headers") if self.header_name else None

    def accepts(self, record: Record[bytes, bytes]) -> bool:
        """Whether all conditions but the times hold."""
        return (
            (self.key is None or contains(self.key, record.key))
            and (self.value is None or contains(self.value, record.value))
            and (
                (self.header_name is None and self.header_value is None) or self._has_header(record)
            )
        )

    def _has_header(self, record: Record[bytes, bytes]) -> bool:
        return any(
            (
                self.header_name is None
                or name.encode("utf-8", "surrogateescape") == self.header_name
            )
            and (self.header_value is None or contains(self.header_value, value))
            for name, value in record.headers
        )


def contains(wanted: Pattern, data: Any) -> bool:
    """Whether bytes match; decoded, if the pattern is for text."""
    if data is None:
        return False
    if isinstance(wanted, bytes):
        return wanted in data
    if isinstance(wanted.pattern, bytes):
        return re.search(wanted, data) is not None
    return re.search(wanted, data.decode("utf-8", "replace")) is not None


def pattern(name: str, text: str) -> Pattern | None:
    """A substring as bytes, or an expression; None for an empty text. Raises FilterError."""
    found = re.fullmatch(r"/(.*)/(i?)", text, re.DOTALL)
    if found is None:
        return text.encode("utf-8", "surrogateescape") or None
    flags = re.IGNORECASE if found[2] else re.NOFLAG
    try:
        return (
            re.compile(found[1].encode("ascii"), flags)
            if found[1].isascii()
            else re.compile(found[1], flags)
        )
    except (re.error, OverflowError, RecursionError) as problem:
        raise FilterError(f"{name}: not a regular expression: {problem}") from None


def moment(name: str, text: str, now_ms: int) -> int | None:
    """A time in ms; None for an empty text. Raises FilterError."""
    text = text.strip()
    if not text:
        return None
    if back := _BACK.fullmatch(text):
        return max(now_ms - int(back[1]) * _UNITS_MS[back[2]], 0)
    try:
        if re.fullmatch(r"[0-9]{1,18}", text):
            return int(text)
        found = datetime.fromisoformat(text)
        made = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        raise FilterError(f"{name}: expected {TIME_HINT}, found {text!r:.60}") from None
    time_ms = made // timedelta(milliseconds=1)
    if time_ms < 0:
        raise FilterError(f"{name}: a time is not before 1970, found {text!r:.60}")
    return time_ms
