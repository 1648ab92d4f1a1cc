"""Formats bytes, texts, sizes, times and rates for the screen.

Each character is printable: control and format characters are replaced by signs or numbers. Null is
∅, and bytes that are not UTF-8 are written as \\xNN.
"""

from __future__ import annotations

from datetime import UTC, datetime

from embedlog.descriptions.display.visible_text import visible

NULL = "∅"
NONE = "-"


def decode(data: bytes) -> str:
    """Bytes as text; those that are not UTF-8 are written as \\xNN."""
    return data.decode("utf-8", "backslashreplace")


def abbreviate(data: bytes | None, characters: int = 200) -> str:
    """The begin of a key or value, on one line."""
    if data is None:
        return NULL
    text = visible(decode(data[: 4 * characters]))
    if len(text) <= characters and len(data) <= 4 * characters:
        return text
    return text[: characters - 1] + "…"


def size(count: float | None) -> str:
    """A number of bytes with three digits and a binary unit; below the next unit with four."""
    if count is None:
        return NONE
    value = float(count)
    unit = 0
    while value >= 1024 and unit < 5:
        value = value / 1024
        unit = unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    number = f"{value:.3g}" if value < 999.5 else f"{value:.0f}"  # else it has an exponent
    return f"{number} {'KMGTP'[unit - 1]}iB"


def count(number: int | None) -> str:
    """A number with groups of three digits."""
    return NONE if number is None else f"{number:,}"


def count_with_noun(number: int, noun: str) -> str:
    """A number and its noun, in the plural if there is not one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rate(number: float | None, unit: str = "") -> str:
    """A rate; one of bytes has their units."""
    if number is None:
        return NONE
    if unit == "B":
        return size(number)
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.1f}"


def time(time_ms: int | None) -> str:
    """A time in UTC; the number if no date has it, `-` for none."""
    if time_ms is None or time_ms < 0:
        return NONE
    try:
        date = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return f"{date:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03}"


def age(duration_s: float | None) -> str:
    """A duration in its largest unit."""
    if duration_s is None:
        return NONE
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration_s >= 2 * length:
            return f"{duration_s / length:.0f} {unit}"
    return f"{max(duration_s, 0):.0f} s"


def line_of(error: BaseException) -> str:
    """An error as one line."""
    return visible(" ".join(str(error).split())) or type(error).__name__
