"""Selects records by key, value, header and time.

- A text is a substring; `/text/` is a regular expression, and `/text/i` one for letters in any
  case.
- A header is selected by its name, or by `name=text` with a text in one of these forms.
- All given conditions hold for a selected record; a null key or value contains no text.
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
        return any(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        texts = {field.name: getattr(self, field.name) for field in fields(self)}
        return " ".join(f"{name}={text}" for name, text in texts.items() if text)

    def compile(self, now_ms: int) -> Matcher:
        """The filter in a form that selects. Raises FilterError."""
        header_name, sign, header_text = self.header.partition("=")
        return Matcher(
            key=parse_pattern("key", self.key),
            value=parse_pattern("value", self.value),
            header_name=header_name.encode() if header_name else None,
            header_value=parse_pattern("header", header_text) if sign else None,
            since_ms=parse_moment("since", self.since, now_ms),
            until_ms=parse_moment("until", self.until, now_ms),
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

    def search_term(self) -> tuple[Pattern, str] | None:
        """The pattern and the column that a search of the log can use; None if only times are
        given.
        """
        if self.value is not None:
            return self.value, "value"
        if self.key is not None:
            return self.key, "key"
        if self.header_value is not None and self.header_value != b"":
            return self.header_value, "headers"
        if self.header_name:
            return self.header_name, "headers"
        return None

    def accepts(self, record: Record[bytes, bytes]) -> bool:
        """Whether all conditions but the times hold."""
        if self.key is not None and not contains(self.key, record.key):
            return False
        if self.value is not None and not contains(self.value, record.value):
            return False
        if self.header_name is None and self.header_value is None:
            return True
        return any(self._accepts_header(name, value) for name, value in record.headers)

    def _accepts_header(self, name: str, value: bytes | None) -> bool:
        encoded_name = name.encode("utf-8", "surrogateescape")
        if self.header_name is not None and encoded_name != self.header_name:
            return False
        return self.header_value is None or contains(self.header_value, value)


def contains(pattern: Pattern, data: Any) -> bool:
    """Whether bytes match; decoded, if the pattern is for text."""
    if data is None:
        return False
    if isinstance(pattern, bytes):
        return pattern in data
    if isinstance(pattern.pattern, bytes):
        return re.search(pattern, data) is not None
    return re.search(pattern, data.decode("utf-8", "replace")) is not None


def parse_pattern(name: str, text: str) -> Pattern | None:
    """A substring as bytes, or an expression; None for an empty text. Raises FilterError."""
    match = re.fullmatch(r"/(.*)/(i?)", text, re.DOTALL)
    if match is None:
        return text.encode("utf-8", "surrogateescape") or None
    flags = re.IGNORECASE if match[2] else re.NOFLAG
    try:
        if match[1].isascii():
            return re.compile(match[1].encode("ascii"), flags)
        return re.compile(match[1], flags)
    except (re.error, OverflowError, RecursionError) as problem:
        raise FilterError(f"{name}: not a regular expression: {problem}") from None


# eight digits that are a date of ISO 8601 without signs
_DATE_OR_MILLISECONDS = re.compile(r"(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")


def parse_moment(name: str, text: str, now_ms: int) -> int | None:
    """A time in ms; None for an empty text. Raises FilterError."""
    text = text.strip()
    if not text:
        return None
    match = _BACK.fullmatch(text)
    if match is not None:
        return max(now_ms - int(match[1]) * _UNITS_MS[match[2]], 0)
    if _DATE_OR_MILLISECONDS.fullmatch(text):
        date_text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
        raise FilterError(f"{name}: {text} is a date or milliseconds: write {date_text} or 0{text}")
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        date = datetime.fromisoformat(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        time_ms = (date - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise FilterError(f"{name}: expected {TIME_HINT}, found {text!r:.60}") from None
    if time_ms < 0:
        raise FilterError(f"{name}: a time is not before 1970, found {text!r:.60}")
    return time_ms
