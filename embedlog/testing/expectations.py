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

__all__ = ["Expected", "expected_record", "record", "shown"]

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
        for each in fields(self):
            wanted = getattr(self, each.name)
            if wanted is not UNSET:
                yield from _field_differences(each.name, wanted, getattr(found, each.name))

    def __str__(self) -> str:
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return (
            " ".join(f"{name}={shown(wanted)}" for name, wanted in named if wanted is not UNSET)
            or "any record"
        )


def field_count(wanted: Expected) -> int:
    """The number of fields that are compared."""
    return sum(getattr(wanted, each.name) is not UNSET for each in fields(wanted))


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
    return Expected(value, key, headers, partition, offset, timestamp_ms)


def expected_record(given: Any) -> Expected:
    """The expectation for an item of a list: `record(…)`, a `Record`, a `ProducerRecord`, a (key,
    value) pair, or a value.
    """
    if isinstance(given, Expected):
        return given
    if hasattr(given, "timestamp_type"):
        return Expected(given.value, given.key, given.headers, given.partition)
    if hasattr(given, "timestamp_ms"):  # a ProducerRecord: None means "chosen by the producer"
        chosen = {
            name: UNSET if getattr(given, name) is None else getattr(given, name)
            for name in ("partition", "timestamp_ms")
        }
        return Expected(given.value, given.key, list(given.headers or ()), **chosen)
    if isinstance(given, tuple):
        if len(given) != 2:
            raise TypeError(
                "an expected record is a value, a pair (key, value) or record(…), not a tuple of "
                f"{len(given)}"
            )
        return Expected(key=given[0], value=given[1])
    return Expected(value=given)


# ---- comparison --------------------------------------------------------------------------------------


def decoded(stored: Any) -> Any:
    """A JSON value for bytes or text that are a JSON object or array; otherwise UNSET."""
    try:
        found = json.loads(stored) if isinstance(stored, bytes | bytearray | str) else stored
    except ValueError:
        return UNSET
    return found if isinstance(found, dict | list) else UNSET


def _same(wanted: Any, stored: Any) -> bool:
    if isinstance(wanted, str) and isinstance(stored, bytes):
        return wanted.encode() == stored
    if isinstance(wanted, Mapping | list):
        found = decoded(stored)
        return found is not UNSET and not any(_json_differences("", _plain(wanted), found))
    return bool(wanted == stored)


def _plain(wanted: Any) -> Any:
    """A value as JSON has it: tuples become lists, keys become text. Other objects stay as they are,
    and compare in their own way.
    """
    if isinstance(wanted, Mapping):
        return {
            key if isinstance(key, str) else json.dumps(key, default=str): _plain(each)
            for key, each in wanted.items()
        }
    return [_plain(each) for each in wanted] if isinstance(wanted, list | tuple) else wanted


def _same_leaf(wanted: Any, found: Any) -> bool:
    """Whether two values inside JSON are equal; a date or another object also by its text."""
    if isinstance(wanted, bool) or isinstance(found, bool):  # True == 1 in Python
        return wanted is found or (
            not isinstance(wanted, bool | int | float) and bool(wanted == found)
        )
    return bool(wanted == found) or (
        not isinstance(wanted, str | int | float | None) and str(wanted) == found
    )


def _headers(given: Any) -> list[tuple[str, bytes | None]]:
    pairs: Iterable[tuple[str, Any]] = given.items() if isinstance(given, Mapping) else given
    return [
        (name, content.encode() if isinstance(content, str) else content) for name, content in pairs
    ]


def _field_differences(name: str, wanted: Any, stored: Any) -> Iterator[str]:
    if name == "headers":
        want = _headers(wanted)
        have = _headers(stored)
        if isinstance(wanted, Mapping):
            yield from _header_differences(want, have)
        elif want != have:
            yield f"headers: expected {shown(want)}, found {shown(have)}"
        return
    if _same(wanted, stored):
        return
    found = decoded(stored)
    inner = wanted if isinstance(wanted, Mapping | list) else decoded(wanted)
    if inner is UNSET or found is UNSET:
        yield f"{name}: {_both(wanted, stored)}"
        return
    lines = list(_json_differences(name, _plain(inner), found))
    yield from lines[:PATHS_SHOWN_MAX] or [
        f"{name}: equal as JSON, other bytes: expected {wanted!r}, found {stored!r}"
    ]
    if len(lines) > PATHS_SHOWN_MAX:
        yield f"{name}: {len(lines) - PATHS_SHOWN_MAX} more differences"


def _header_differences(
    wanted: list[tuple[str, Any]], stored: list[tuple[str, Any]]
) -> Iterator[str]:
    """The differences of two lists in any order, one line for each name."""
    for name in dict.fromkeys(name for name, _ in (*wanted, *stored)):
        want, have = (
            [content for each, content in pairs if each == name] for pairs in (wanted, stored)
        )
        if len(want) == len(have) and all(
            _same(one, other) for one, other in zip(want, have, strict=True)
        ):
            continue
        one, other = (each[0] if len(each) == 1 else each for each in (want, have))
        if not want or not have:
            yield (
                f"headers[{name!r}]: "
                f"{f'not expected, found {shown(other)}' if not want else f'expected {shown(one)}, absent'}"
            )
        else:
            yield f"headers[{name!r}]: {_both(one, other)}"


def _json_differences(path: str, wanted: Any, found: Any) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            yield from _json_differences(
                f"{path}.{key}", wanted.get(key, UNSET), found.get(key, UNSET)
            )
    elif isinstance(wanted, list) and isinstance(found, list):
        for at in range(max(len(wanted), len(found))):
            want, have = (each[at] if at < len(each) else UNSET for each in (wanted, found))
            yield from _json_differences(f"{path}[{at}]", want, have)
    elif wanted is UNSET:
        yield f"{path}: not expected, found {shown(found)}"
    elif found is UNSET:
        yield f"{path}: expected {shown(wanted)}, absent"
    elif not _same_leaf(wanted, found):
        yield f"{path}: {_both(wanted, found)}"


# ---- text --------------------------------------------------------------------------------------------


def _both(wanted: Any, stored: Any) -> str:
    """Two different values, each from a little before the first difference on if they are
    long.
    """
    one = _text(wanted)
    other = _text(stored)
    at = next(
        (at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )
    if at < BYTES_SHOWN_MAX // 2 or max(len(one), len(other)) <= BYTES_SHOWN_MAX:
        return f"expected {_cut(one)}, found {_cut(other)}"
    start = at - BYTES_SHOWN_MAX // 4
    return (
        f"differ from character {at} on: expected …{_cut(one[start:])}, found "
        f"…{_cut(other[start:])}"
    )


def shown(given: Any) -> str:
    """A value for a message: JSON and text are decoded, a long value is cut."""
    return _cut(_text(given))


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= BYTES_SHOWN_MAX
        else f"{text[:BYTES_SHOWN_MAX]}… ({len(text)} characters)"
    )


def _text(given: Any) -> str:
    if isinstance(given, bytes):
        try:
            text = given.decode()
        except UnicodeDecodeError:
            text = repr(given)
        else:
            text = text if decoded(given) is not UNSET else repr(text)
    elif isinstance(given, Mapping) or (
        isinstance(given, list) and not any(isinstance(each, tuple) for each in given)
    ):
        text = json.dumps(_plain(given), ensure_ascii=False, default=str)
    else:
        text = repr(given)
    return text


def shown_record(found: Any) -> str:
    """One line for a record of a log."""
    headers = f" headers={shown(list(found.headers))}" if found.headers else ""
    return (
        f"partition {found.partition} offset {found.offset} key={shown(found.key)} "
        f"value={shown(found.value)}{headers}"
    )
