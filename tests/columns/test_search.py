"""Searches: rows and chunks that match, compared with Python's own search of each record alone."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog._native import search
from embedlog.columns import patterns
from embedlog.columns import scan as scan_module
from embedlog.columns.patterns import Needles, RowMatcher
from embedlog.columns.scan import Scan
from embedlog.columns.scan_bounds import ScanBounds
from embedlog.errors import ConfigError, CorruptRecordError
from embedlog.format.record_columns import BytesColumn
from tests.support.fake_engine import FakeEngine, Row

LETTERS = b"aAbB\n\xc3\xa9"


def matches(pattern: Any, row: bytes | None) -> bool:
    """Whether a row matches, by Python's own operations."""
    if row is None:
        return False
    if isinstance(pattern, bytes):
        return pattern in row
    return (
        pattern.search(row.decode("utf-8", "replace") if isinstance(pattern.pattern, str) else row)
        is not None
    )


# ---- bytes ---------------------------------------------------------------------------------------


def test_a_byte_string_is_found_at_the_same_place_as_by_python(rng: random.Random) -> None:
    for _ in range(300):
        size = rng.choice([0, 1, 5, 100, 4095, 4096, 4097, 9000])
        data = bytes(rng.choices(b"aAb", k=size))
        start = rng.randrange(size + 1)
        needle = data[start : start + rng.choice([1, 2, 3, 63, 64, 65, 200])] or b"b"
        assert search.find(data, needle, False) == data.find(needle)
        assert search.find(data, needle.lower(), True) == data.lower().find(needle.lower())


def test_rows_are_those_that_python_finds(rng: random.Random) -> None:
    for _ in range(300):
        rows = [
            bytes(rng.choices(LETTERS, k=rng.randrange(6))) for _ in range(rng.randrange(1, 30))
        ]
        rows[rng.randrange(len(rows))] += bytes(rng.choices(LETTERS, k=rng.choice([0, 5000])))
        column = BytesColumn.of(rows)
        needle = bytes(rng.choices(LETTERS, k=rng.randrange(1, 4)))
        for fold in (False, True):
            found = np.zeros(len(rows), np.bool_)
            wanted = [needle.lower() in row.lower() if fold else needle in row for row in rows]
            text = needle.lower() if fold else needle
            count = search.mark_rows(
                column.data, column.offsets.astype(np.int32), text, fold, found
            )
            assert (found.tolist(), count) == (wanted, sum(wanted)), (rows, needle, fold)


def test_offsets_outside_of_the_data_are_refused() -> None:
    for offsets in ([0, 4], [2, 1], [-1, 1]):
        with pytest.raises(AssertionError):
            search.mark_rows(
                b"abc", np.array(offsets, np.int32), b"a", False, np.zeros(1, np.bool_)
            )


# ---- patterns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "needles"),
    [
        (b"abc", Needles((b"abc",), False, True)),
        (b"", None),
        (re.compile(rb"abc"), Needles((b"abc",), False, True)),
        (re.compile(rb"AbC", re.IGNORECASE), Needles((b"abc",), True, True)),
        (re.compile(rb"a(bc)d"), Needles((b"abcd",), False, True)),
        (re.compile(rb"^abc$"), Needles((b"abc",), False, False)),
        (re.compile(rb"ab.*cde?"), Needles((b"ab",), False, False)),
        (re.compile(rb"[0-9]+xyz(abcd)+"), Needles((b"abcd",), False, False)),
        (re.compile(rb"(?:abcd)*xy"), Needles((b"xy",), False, False)),
        (re.compile(rb"(?i:abc)x"), Needles((b"x",), False, False)),
        (re.compile(rb"abc|xyz"), Needles((b"abc", b"xyz"), False, False)),
        (
            re.compile(rb"(error|warn|fatal): [0-9]"),
            Needles((b"error", b"warn", b"fatal"), False, False),
        ),
        (re.compile(rb"abcde(x|yz)"), Needles((b"abcde",), False, False)),
        (re.compile(rb"abcde|abcdf"), Needles((b"abcd",), False, False)),
        (re.compile(rb"(ab|cd(ef|gh))+"), Needles((b"ab", b"cd"), False, False)),
        (re.compile(rb"ABC|XYZ", re.IGNORECASE), Needles((b"abc", b"xyz"), True, False)),
        (re.compile(rb"abc|[0-9]"), None),
        (re.compile(rb"abc|"), None),
        (re.compile(b"|".join(b"%c%dx" % (65 + n, n) for n in range(17))), None),
        (re.compile(rb"(?!abc)"), None),
        (re.compile("é+abc"), Needles((b"abc",), False, False)),
        (re.compile("ab\ufffdc"), Needles((b"ab",), False, False)),
        (re.compile("abc", re.IGNORECASE), None),  # in text, other letters fold to these
    ],
)
def test_every_match_contains_one_of_the_needles(pattern: Any, needles: Needles | None) -> None:
    assert RowMatcher(pattern).needles == needles


EXPRESSIONS = [
    rb"a",
    rb"ab",
    rb"^a",
    rb"a$",
    rb"\ba",
    rb"[ab]{2}",
    rb"a|B",
    rb"a.b",
    rb"(?s)a.*b",
    rb"b*",
    rb"a(?=b)",
    rb"(?<!a)b",
    rb"(?m)^b",
    rb"a{1,3}b",
    rb"(a)\1",
    rb"[^a]b",
    rb"a++b",
    rb"(?>a|ab)b",
    rb"\xc3.",
    rb"",
    rb"(?i)AB",
    rb"(?i)[ab]b",
    rb"ab|Ba",
    rb"(?:aa|bb)a",
    rb"ab|b*",
    rb"(ab|Bb)$",
    rb"(?i)aa|b\n",
    rb"A(aa|bb)",
    rb"(?s)ab.*|b.a",
]


def test_rows_match_as_each_row_alone(rng: random.Random) -> None:
    chosen: list[Any] = [
        b"ab",
        b"\n",
        *map(re.compile, EXPRESSIONS),
        *(re.compile(each.decode("latin-1")) for each in EXPRESSIONS),
    ]
    chosen += [re.compile("é"), re.compile("É", re.IGNORECASE), re.compile("\ufffd")]
    bounded = sum(RowMatcher(pattern)._is_bounded for pattern in chosen)
    assert bounded > 3, "some are applied to the whole buffer"
    for pattern in chosen:
        for _ in range(20):
            rows = [
                rng.choice([None, bytes(rng.choices(LETTERS, k=rng.randrange(5)))])
                for _ in range(rng.randrange(1, 12))
            ]
            expected = [matches(pattern, row) for row in rows]
            assert RowMatcher(pattern).rows(BytesColumn.of(rows)).tolist() == expected, (
                pattern,
                rows,
            )


def test_without_the_parser_each_row_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(patterns, "import_module", absent)
    matcher = RowMatcher(re.compile(b"ab"))
    assert (matcher.needles, matcher.rows(BytesColumn.of([b"xab", b"a", b"b"])).tolist()) == (
        None,
        [True, False, False],
    )


# ---- scans ---------------------------------------------------------------------------------------


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Topic `a`: values `v0` to `v39` in batches of 7, keys in two of three, headers in each second
    one.
    """
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 400)
    made = FakeEngine(a=1)
    rows = [
        Row(b"v%d" % n, b"k%d" % n if n % 3 else None, [("h", b"%d" % n)] * (n % 2), 1000 * n)
        for n in range(40)
    ]
    for begin in range(0, len(rows), 7):
        made.partition("a", 0).append(rows[begin : begin + 7])
    return made


def scan_of(engine: FakeEngine, **bounds: Any) -> Scan:
    return Scan(engine, "a", ScanBounds(**bounds))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "options", "expected"),
    [
        (b"v3", {}, [3, *range(30, 40)]),
        (b"3", {"columns": ["key"]}, [13, 23, 31, 32, 34, 35, 37, 38]),
        (b"3", {"columns": ["headers"]}, [3, 13, 23, 31, 33, 35, 37, 39]),
        (b"h", {"columns": ["headers"]}, list(range(1, 40, 2))),
        (re.compile(b"^v[0-3]$"), {}, [0, 1, 2, 3]),
        (re.compile("^k2"), {}, [2, *(n for n in range(20, 30) if n % 3)]),
        (b"v", {"invert": True}, []),
        (re.compile(b"v."), {"invert": True, "columns": ["key"]}, list(range(40))),
        (b"absent", {}, []),
        (b"", {"columns": ["key"]}, [n for n in range(40) if n % 3]),
    ],
)
def test_records_of_a_scan_are_found(
    engine: FakeEngine, pattern: Any, options: dict[str, Any], expected: list[int]
) -> None:
    found = scan_of(engine).search(pattern, **options)
    assert [record.offset for record in found] == expected
    assert [record.value for record in found] == [b"v%d" % n for n in expected]
    assert found.count() == len(expected)


def test_the_bounds_of_the_scan_are_those_of_the_search(engine: FakeEngine) -> None:
    assert [
        each.offset for each in scan_of(engine, start_offset=5, end_time=32_000).search(b"3")
    ] == [13, 23, 30, 31]


def test_a_chunk_without_the_needle_is_not_decoded(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    decode = scan_module.ChunkSource.decode
    monkeypatch.setattr(
        scan_module.ChunkSource,
        "decode",
        lambda self, piece: (decoded.append(1), decode(self, piece))[1],
    )
    for pattern, share in ((b"absent", 0), (b"v39", 1), (re.compile(b"v39$"), 1)):
        decoded.clear()
        assert scan_of(engine).search(pattern).count() == share
        assert len(decoded) == share, pattern
    assert scan_of(engine).search(b"v", invert=True).count() == 0
    assert len(decoded) > 3


def test_compressed_and_plain_batches_are_searched(tmp_path: Path) -> None:
    codecs = ("none", "gzip", "lz4", "zstd", "none")
    with embedlog.open(tmp_path) as log:
        log.create_topic("a")
        for codec in codecs:
            with log.producer(compression_type=codec) as producer:
                producer.send_batch(
                    "a", [b"x" * 200 + codec.encode() + b"%d" % n for n in range(50)]
                ).result()
        scan = log.scan("a")
        for codec in codecs[1:]:
            assert scan.search(codec.encode() + b"7").count() == codecs.count(codec)
            assert [
                record.value[200:] for record in scan.search(re.compile(codec.encode() + b".*49$"))
            ] == [codec.encode() + b"49"] * codecs.count(codec)
        assert scan.search(b"absent").count() == 0


def test_damage_is_an_error_also_in_a_chunk_without_a_match(tmp_path: Path) -> None:
    with embedlog.open(tmp_path) as log:
        log.create_topic("a")
        with log.producer() as producer:
            producer.send("a", b"0123456789").result()
        file = tmp_path / "a-0" / f"{0:020}.log"
        data = bytearray(file.read_bytes())
        data[data.index(b"4")] ^= 1
        file.write_bytes(data)
    with embedlog.open(tmp_path, read_only=True) as log, pytest.raises(CorruptRecordError):
        log.scan("a").search(b"absent").count()


@pytest.mark.parametrize(
    ("pattern", "columns"),
    [("text", ["key"]), (b"x", []), (b"x", ["offset"]), (3, ["key"]), (re.compile, ["key"])],
)
def test_a_wrong_pattern_or_column_is_refused(
    engine: FakeEngine, pattern: Any, columns: list[str]
) -> None:
    with pytest.raises(ConfigError):
        scan_of(engine).search(pattern, columns=columns)
    with pytest.raises(TypeError):
        scan_of(engine).search(b"x", columns="key")
