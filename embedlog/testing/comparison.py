"""The comparison of two lists of records, as lines of an assertion of pytest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from embedlog.testing.expectations import Expected, show, show_record

__all__ = ["compare_lists"]

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


def compare_lists(left: Sequence[Any], right: Sequence[Any]) -> list[str]:
    """The first difference of two lists of records: index, records and fields. The right list
    counts as the expected one.
    """
    head = f"lists of records differ: {len(left)} == {len(right)} records"
    row = min(len(left), len(right))
    for number, (left_item, right_item) in enumerate(zip(left, right, strict=False)):
        if left_item != right_item:
            row = number
            break
    lines = [
        head,
        f"first difference at record {row}",
        f"  left  {_show_item(left, row)}",
        f"  right {_show_item(right, row)}",
    ]
    if row < len(left) and row < len(right) and _is_record(left[row]) and _is_record(right[row]):
        lines += _compare_fields(left[row], right[row])
    return lines


def _is_record(item: Any) -> bool:
    return hasattr(item, "timestamp_type")


def _show_item(items: Sequence[Any], row: int) -> str:
    if row >= len(items):
        return "no record"
    return show_record(items[row]) if _is_record(items[row]) else show(items[row])


def _compare_fields(found: Any, expected: Any) -> list[str]:
    lines: list[str] = []
    for name in FIELDS:
        found_value = getattr(found, name)
        expected_value = getattr(expected, name)
        if found_value == expected_value:
            continue
        if name == "headers":
            expected_value = list(expected_value)
        if name in COMPARED:
            lines += Expected(**{name: expected_value}).differences(found)
        else:
            lines.append(f"{name}: expected {show(expected_value)}, found {show(found_value)}")
    return [f"  {line}" for line in lines]
