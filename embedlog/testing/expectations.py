"""Expected records, their comparison with records of a log, and differences as text.

- A field that an expectation does not name is not compared.
- Text is compared as UTF-8, a mapping or list as JSON; bytes and None are compared as they are.
- A difference inside JSON is named by its path: `value.items[2].price`; one inside a long text is
  shown where it is.
- An object that compares in its own way, as `unittest.mock.ANY`, does so everywhere, also inside
  JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from embedlog.config import keywords

__all__ = ["Expected", "expected_record", "record", "show"]

BYTES_SHOWN_MAX: Final = 120  # characters of one value in a message
PATHS_SHOWN_MAX: Final = 5  # differences of one JSON value in a message


class _Unset:
    """A field that is not compared."""

    def __repr__(self) -> str:
        return "…"


UNSET: Final = _Unset()


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected fields of one record; made by `record`. A field that is not set matches
    everything.
    """

    value: Any = UNSET
    key: Any = UNSET
    headers: Any = UNSET
    partition: Any = UNSET
    offset: Any = UNSET
    timestamp_ms: Any = UNSET

    def matches(self, found: Any) -> bool:
        """Whether a record has all expected fields."""
        return not any(True for _ in self.differences(found))

    def differences(self, found: Any) -> Iterator[str]:
        """One line for each field of `found`, a record, that differs."""
        for name, value in _set_fields(self):
            yield from _compare_field(name, value, getattr(found, name))

    def __str__(self) -> str:
        text = " ".join(f"{name}={show(value)}" for name, value in _set_fields(self))
        return text or "any record"


def _set_fields(expected: Expected) -> Iterator[tuple[str, Any]]:
    """Name and value of each field that is compared."""
    for field in fields(expected):
        value = getattr(expected, field.name)
        if value is not UNSET:
            yield field.name, value


def field_count(expected: Expected) -> int:
    """The number of fields that are compared."""
    return len(list(_set_fields(expected)))


@keywords.checked_call
def record(
    value: Any = UNSET,
    *,
    key: Any = UNSET,
    headers: Any = UNSET,
    partition: int | Any = UNSET,
    offset: int | Any = UNSET,
    timestamp_ms: int | Any = UNSET,
) -> Expected:
    """An expected record: only the given fields are compared.

    `key` and `value`: bytes, text (as UTF-8), a mapping or list (as JSON), or None. `headers`: a
    mapping, in any order, or a list of pairs, in order. `timestamp_ms`: milliseconds since 1970
    UTC. **Threads:** any.
    """
    return Expected(
        value=value,
        key=key,
        headers=headers,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def expected_record(item: Any) -> Expected:
    """The expectation for an item of a list: `record(…)`, a `Record`, a `ProducerRecord`, a (key,
    value) pair, or a value.
    """
    if isinstance(item, Expected):
        return item
    if hasattr(item, "timestamp_type"):
        return Expected(item.value, item.key, item.headers, item.partition)
    if hasattr(item, "timestamp_ms"):  # a ProducerRecord: None means "chosen by the producer"
        return Expected(
            value=item.value,
            key=item.key,
            headers=list(item.headers or ()),
            partition=UNSET if item.partition is None else item.partition,
            timestamp_ms=UNSET if item.timestamp_ms is None else item.timestamp_ms,
        )
    if isinstance(item, tuple):
        if len(item) != 2:
            raise TypeError(
                "an expected record is a value, a pair (key, value) or record(…), not a tuple of "
                f"{len(item)}"
            )
        return Expected(key=item[0], value=item[1])
    return Expected(value=item)


# ---- comparison --------------------------------------------------------------------------------------


def decode_json(stored: Any) -> Any:
    """A JSON value for bytes or text that are a JSON object or array; otherwise UNSET."""
    value = stored
    if isinstance(stored, bytes | bytearray | str):
        try:
            value = json.loads(stored)
        except ValueError:
            return UNSET
    return value if isinstance(value, dict | list) else UNSET


def _is_equal(expected: Any, stored: Any) -> bool:
    if isinstance(expected, str) and isinstance(stored, bytes):
        return expected.encode() == stored
    if isinstance(expected, Mapping | list):
        found = decode_json(stored)
        return found is not UNSET and not any(_compare_json("", _to_json(expected), found))
    return bool(expected == stored)


def _to_json(value: Any) -> Any:
    """A value as JSON has it: tuples become lists, keys become text. Other objects stay as they are,
    and compare in their own way.
    """
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else json.dumps(key, default=str): _to_json(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value


def _is_equal_in_json(expected: Any, found: Any) -> bool:
    """Whether two values inside JSON are equal; a date or another object also by its text."""
    if isinstance(expected, bool) or isinstance(found, bool):  # True == 1 in Python
        if isinstance(expected, bool | int | float):
            return expected is found
        return bool(expected == found)
    if expected == found:
        return True
    return not isinstance(expected, str | int | float | None) and str(expected) == found


def _header_pairs(headers: Any) -> list[tuple[str, bytes | None]]:
    pairs: Iterable[tuple[str, Any]] = headers
    if isinstance(headers, Mapping):
        pairs = headers.items()
    return [
        (name, content.encode() if isinstance(content, str) else content) for name, content in pairs
    ]


def _compare_field(name: str, expected: Any, stored: Any) -> Iterator[str]:
    """The differences of a field, one line for each."""
    if name == "headers":
        expected_pairs = _header_pairs(expected)
        stored_pairs = _header_pairs(stored)
        if isinstance(expected, Mapping):
            yield from _compare_headers(expected_pairs, stored_pairs)
        elif expected_pairs != stored_pairs:
            yield f"headers: expected {show(expected_pairs)}, found {show(stored_pairs)}"
        return
    if _is_equal(expected, stored):
        return
    found_json = decode_json(stored)
    expected_json = expected if isinstance(expected, Mapping | list) else decode_json(expected)
    if expected_json is UNSET or found_json is UNSET:
        yield f"{name}: {_show_difference(expected, stored)}"
        return
    lines = list(_compare_json(name, _to_json(expected_json), found_json))
    if not lines:
        yield f"{name}: equal as JSON, other bytes: expected {expected!r}, found {stored!r}"
    yield from lines[:PATHS_SHOWN_MAX]
    if len(lines) > PATHS_SHOWN_MAX:
        yield f"{name}: {len(lines) - PATHS_SHOWN_MAX} more differences"


def _compare_headers(
    expected: list[tuple[str, Any]], stored: list[tuple[str, Any]]
) -> Iterator[str]:
    """The differences of two lists in any order, one line for each name."""
    for name in dict.fromkeys(name for name, _ in (*expected, *stored)):
        expected_values = [value for header, value in expected if header == name]
        stored_values = [value for header, value in stored if header == name]
        if _are_equal(expected_values, stored_values):
            continue
        expected_value = expected_values[0] if len(expected_values) == 1 else expected_values
        stored_value = stored_values[0] if len(stored_values) == 1 else stored_values
        if not expected_values:
            difference = f"not expected, found {show(stored_value)}"
        elif not stored_values:
            difference = f"expected {show(expected_value)}, absent"
        else:
            difference = _show_difference(expected_value, stored_value)
        yield f"headers[{name!r}]: {difference}"


def _are_equal(expected: list[Any], stored: list[Any]) -> bool:
    if len(expected) != len(stored):
        return False
    return all(_is_equal(*pair) for pair in zip(expected, stored, strict=True))


def _compare_json(path: str, expected: Any, found: Any) -> Iterator[str]:
    """The differences of two JSON values, one line for each path."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*expected, *found]):
            yield from _compare_json(
                f"{path}.{key}", expected.get(key, UNSET), found.get(key, UNSET)
            )
    elif isinstance(expected, list) and isinstance(found, list):
        for index in range(max(len(expected), len(found))):
            yield from _compare_json(
                f"{path}[{index}]",
                expected[index] if index < len(expected) else UNSET,
                found[index] if index < len(found) else UNSET,
            )
    elif expected is UNSET:
        yield f"{path}: not expected, found {show(found)}"
    elif found is UNSET:
        yield f"{path}: expected {show(expected)}, absent"
    elif not _is_equal_in_json(expected, found):
        yield f"{path}: {_show_difference(expected, found)}"


# ---- text --------------------------------------------------------------------------------------------


def _show_difference(expected: Any, stored: Any) -> str:
    """Two different values, each from a little before the first difference on if they are long."""
    expected_text = _text_of(expected)
    stored_text = _text_of(stored)
    position = 0
    for expected_character, stored_character in zip(expected_text, stored_text, strict=False):
        if expected_character != stored_character:
            break
        position += 1
    longest = max(len(expected_text), len(stored_text))
    if position < BYTES_SHOWN_MAX // 2 or longest <= BYTES_SHOWN_MAX:
        return f"expected {_cut(expected_text)}, found {_cut(stored_text)}"
    start = position - BYTES_SHOWN_MAX // 4
    return (
        f"differ from character {position} on: expected …{_cut(expected_text[start:])}, found "
        f"…{_cut(stored_text[start:])}"
    )


def show(value: Any) -> str:
    """A value for a message: JSON and text are decoded, a long value is cut."""
    return _cut(_text_of(value))


def _cut(text: str) -> str:
    if len(text) <= BYTES_SHOWN_MAX:
        return text
    return f"{text[:BYTES_SHOWN_MAX]}… ({len(text)} characters)"


def _text_of(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return repr(value)
        return repr(text) if decode_json(value) is UNSET else text
    is_list_of_pairs = isinstance(value, list) and any(isinstance(item, tuple) for item in value)
    if isinstance(value, Mapping | list) and not is_list_of_pairs:
        return json.dumps(_to_json(value), ensure_ascii=False, default=str)
    return repr(value)


def show_record(record: Any) -> str:
    """One line for a record of a log."""
    headers = f" headers={show(list(record.headers))}" if record.headers else ""
    return (
        f"partition {record.partition} offset {record.offset} key={show(record.key)} "
        f"value={show(record.value)}{headers}"
    )
