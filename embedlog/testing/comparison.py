"""The comparison of two lists of records, as lines of an assertion of pytest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from embedlog.testing.expectations import Expected, shown, shown_record

__all__ = ["compared"]

# the fields that an expectation has
COMPARED: Final = ("partition", "offset", "timestamp_ms", "key", "value", "headers")

FIELDS: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp_ms",
    "timestamp_type",
    "key",
    "value",
    "headers",
    "leader_epoch",
)


def compared(left: Sequence[Any], right: Sequence[Any]) -> list[str]:
    """The first difference of two lists of records: index, records and fields. The right list
    counts as the expected one.
    """
    head = f"lists of records differ: {len(left)} == {len(right)} records"
    at = next(
        (at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )
    return [
        head,
        f"first difference at record {at}",
        *_sides(at, left, right),
        *_fields(at, left, right),
    ]


def _sides(at: int, left: Sequence[Any], right: Sequence[Any]) -> list[str]:
    sides = (("left ", left), ("right", right))
    return [
        f"  {name} {_shown(side[at]) if at < len(side) else 'no record'}" for name, side in sides
    ]


def _shown(given: Any) -> str:
    return shown_record(given) if hasattr(given, "timestamp_type") else shown(given)


def _fields(at: int, left: Sequence[Any], right: Sequence[Any]) -> list[str]:
    if (
        at >= len(left)
        or at >= len(right)
        or not all(hasattr(side[at], "timestamp_type") for side in (left, right))
    ):
        return []
    pairs = ((name, getattr(left[at], name), getattr(right[at], name)) for name in FIELDS)
    lines: list[str] = []
    for name, one, other in pairs:
        if one != other and name in COMPARED:
            lines += Expected(**{name: list(other) if name == "headers" else other}).differences(
                left[at]
            )
        elif one != other:
            lines.append(f"{name}: expected {shown(other)}, found {shown(one)}")
    return [f"  {line}" for line in lines]
