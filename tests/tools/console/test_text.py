"""Texts of a log become printable text, and views keep the tokens of JSON."""

from __future__ import annotations

import json
import random
import unicodedata

import pytest

from embedlog.tools.console.model import text, views


def is_harmless(character: str) -> bool:
    """Whether a terminal only draws it; spaces of all widths are not printable for Python."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def test_every_character_becomes_harmless() -> None:
    unprintable = "".join(each for each in map(chr, range(0x110000)) if not each.isprintable())
    assert not any(map(str.isprintable, unprintable))
    assert all(map(is_harmless, set(text.visible(unprintable[:3000] + unprintable[-3000:]))))


def test_no_byte_reaches_the_terminal_as_a_control(rng: random.Random) -> None:
    data = bytes(range(256)) + rng.randbytes(4000) + "\u202e\u200b\ufeff\U000e0041".encode()
    shown = [
        text.abbreviate(data, 10_000),
        *(line for view in views.NAMES for line in views.lines_of(data, view)),
    ]
    assert all(is_harmless(character) for line in shown for character in line)
    assert text.visible("a\x1b[31m\x7f\x9b\u202e\nb") == "a␛[31m␡<U+009B><U+202E>␊b"


def test_null_is_no_text() -> None:
    assert (text.abbreviate(None), text.abbreviate(b""), text.abbreviate(b"null")) == (
        "∅",
        "",
        "null",
    )
    assert text.abbreviate(b"x" * 500, 10) == "xxxxxxxxx…"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (5_000_000, "4.77 MiB"), (None, "-")],
)
def test_sizes(number: int | None, shown: str) -> None:
    assert text.size(number) == shown


def test_times_that_no_date_has_are_numbers() -> None:
    assert text.time(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert (text.time(-1), text.time(2**62)) == ("-", str(2**62))


def some_json(rng: random.Random, depth: int = 0) -> object:
    kinds = [
        lambda: rng.randint(-(10**20), 10**20),
        rng.random,
        lambda: None,
        lambda: 'a"\\\n[{é,:' * rng.randrange(3),
    ]
    if depth < 4:
        kinds += [lambda: [some_json(rng, depth + 1) for _ in range(rng.randrange(4))]]
        kinds += [lambda: {f"k{n}": some_json(rng, depth + 1) for n in range(rng.randrange(4))}]
    return rng.choice(kinds)()


def test_json_is_indented_as_the_standard_library_does(rng: random.Random) -> None:
    for _ in range(200):
        value = some_json(rng)
        for given in (
            json.dumps(value),
            json.dumps(value, separators=(",", ":")),
            json.dumps(value, indent=4),
        ):
            assert views.indent_json(given.encode())[0] == json.dumps(value, indent=2)


def test_json_keeps_numbers_and_repeated_names() -> None:
    given = '{"a":1.10,"a":123456789012345678901234567890.0,"b":"\\u00e9"}'
    expected = '{\n  "a": 1.10,\n  "a": 123456789012345678901234567890.0,\n  "b": "\\u00e9"\n}'
    assert views.indent_json(given.encode())[0] == expected


@pytest.mark.parametrize(
    "data", [b"{", b"NaN", b"\xff", b"[" * 100_000, b"1 2", b" " * (views.JSON_BYTES + 1)]
)
def test_what_is_not_json_is_shown_as_text_with_the_reason(data: bytes) -> None:
    indented, reason = views.indent_json(data)
    assert indented is None
    assert reason
    assert next(views.lines_of(data, "json")).startswith("(not JSON: ")


def test_hex_has_position_codes_and_signs() -> None:
    assert list(views.lines_of(b"embedlog\x00\xff 1234567", "hex")) == [
        "00000000  65 6d 62 65 64 6c 6f 67 00 ff 20 31 32 33 34 35  embedlog.. 12345",
        "00000010  36 37                                            67",
    ]


@pytest.mark.parametrize("view", views.NAMES)
def test_a_large_value_is_cut_and_counted(view: str) -> None:
    data = b"[" + b"1," * views.SHOWN_BYTES + b"1]"
    lines = list(views.lines_of(data, view))
    if view == "json":
        data = json.dumps(json.loads(data), indent=2).encode()
    assert lines[-1] == f"… {len(data) - views.SHOWN_BYTES:,} more bytes are not shown"
    assert sum(map(len, lines)) < 6 * views.SHOWN_BYTES


def test_json_that_is_long_only_when_it_is_indented_is_counted_too() -> None:
    data = b"[" + b",".join([b"1"] * (views.SHOWN_BYTES // 3)) + b"]"
    assert len(data) < views.SHOWN_BYTES
    indented = json.dumps(json.loads(data), indent=2).encode()
    *_, last = views.lines_of(data, "json")
    assert last == f"… {len(indented) - views.SHOWN_BYTES:,} more bytes are not shown"
