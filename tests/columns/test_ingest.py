"""What `send_batch` takes: lists, numpy, Arrow in all its layouts; read back row for row, and
refused by name.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embedlog._native import _rows
from embedlog.columns import arrow_import, ingest
from embedlog.columns.ingest import ColumnPiece, pieces_of
from embedlog.errors import InvalidRecordError

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")

ITEMS = [
    b"",
    b"a",
    None,
    b"longer than twelve bytes, so that a view points elsewhere",
    b"\xff\x00",
    None,
    b"tail",
]
TEXTS = [
    "",
    "a",
    None,
    "länger als zwölf Bytes, so that a view points elsewhere",
    "ü",
    None,
    "tail",
]


def values_of(*arguments: Any, **keywords: Any) -> list[bytes | None]:
    return [value for piece in pieces_of(*arguments, **keywords) for value in (piece.values or [])]


def rows_of(pieces: Iterator[ColumnPiece]) -> list[tuple[Any, ...]]:
    """(value, key, headers, timestamp, partition) of every row."""
    rows = []
    for piece in pieces:
        for row in range(piece.count):
            headers = None
            if piece.headers is not None:
                places = range(int(piece.headers.starts[row]), int(piece.headers.starts[row + 1]))
                headers = [
                    (piece.headers.keys[place], piece.headers.values[place]) for place in places
                ]
            rows.append(
                (
                    piece.values[row] if piece.values is not None else None,
                    piece.keys[row] if piece.keys is not None else None,
                    headers,
                    None if piece.timestamps is None else int(piece.timestamps[row]),
                    None if piece.partitions is None else int(piece.partitions[row]),
                )
            )
    return rows


# ---- lists and numpy -----------------------------------------------------------------------------


def test_lists_and_their_like_are_taken() -> None:
    assert values_of(ITEMS) == ITEMS
    assert values_of(tuple(ITEMS)) == ITEMS
    assert values_of(iter(ITEMS)) == ITEMS
    assert values_of([bytearray(b"x"), memoryview(b"y"), None, b"z"]) == [b"x", b"y", None, b"z"]
    assert values_of([]) == []


def test_a_long_list_comes_in_pieces_that_fit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "PIECE_BYTES", 100)
    items = [b"x" * 30] * 10 + [b"y" * 500]
    pieces = list(pieces_of(items, keys=[b"%d" % number for number in range(11)]))
    assert [piece.count for piece in pieces] == [3, 3, 3, 1, 1]
    assert [key for piece in pieces for key in (piece.keys or [])] == [
        b"%d" % number for number in range(11)
    ]


def test_numpy_rows_of_bytes_are_read_in_place() -> None:
    matrix = np.arange(12, dtype=np.uint8).reshape(3, 4)
    (piece,) = pieces_of(matrix)
    assert list(piece.values or []) == [bytes(row) for row in matrix]
    assert piece.values is not None
    assert np.shares_memory(piece.values.data, matrix)
    assert values_of(matrix[:, ::2]) == [bytes(row) for row in matrix[:, ::2]]
    raw = np.array([b"abc\0", b"xy\0\0"], dtype="V4")
    assert values_of(raw) == [b"abc\0", b"xy\0\0"]
    assert values_of(np.array([b"abc", b"xy"])) == [b"abc", b"xy"]
    assert values_of(np.array(ITEMS, dtype=object)) == ITEMS
    assert values_of(np.empty((0, 4), np.uint8)) == []
    assert values_of(np.empty((3, 0), np.uint8)) == [b""] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        b"bytes",
        5,
        None,
        {"a": 1},
        np.array([1, 2]),
        np.array(["a"]),
        np.zeros((2, 2)),
        np.array(5),
        [b"x", 3],
        [[b"x"]],
    ],
    ids=repr,
)
def test_what_is_no_column_of_bytes_is_refused_by_type(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"value|bytes"):
        list(pieces_of(wrong))


def test_texts_without_a_serializer_name_it() -> None:
    with pytest.raises(TypeError, match=r"value_serializer.*embedlog\.serializers\.string"):
        list(pieces_of([b"good", "text"]))
    with pytest.raises(TypeError, match="key_serializer"):
        list(pieces_of([b"good"], keys=["text"]))


# ---- columns beside the values -------------------------------------------------------------------


def test_keys_headers_and_timestamps_stand_beside_their_values() -> None:
    headers = [[], None, [("a", b"1"), ["ä", None]]]
    rows = rows_of(pieces_of([b"x", b"y", b"z"], [b"k", None, b""], [5, 6, 7], headers))
    assert rows == [
        (b"x", b"k", [], 5, None),
        (b"y", None, [], 6, None),
        (b"z", b"", [(b"a", b"1"), ("ä".encode(), None)], 7, None),
    ]


@pytest.mark.parametrize("name", ["keys", "timestamps_ms", "headers"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("hidden", [False, True], ids=["known length", "unknown length"])
def test_columns_of_another_length_are_refused(name: str, count: int, hidden: bool) -> None:
    column: Any = {"keys": [b"k"], "timestamps_ms": [5], "headers": [()]}[name] * count
    if hidden and name != "timestamps_ms":
        column = iter(column)
    with pytest.raises(InvalidRecordError, match=name.removesuffix("_ms")):
        list(pieces_of(iter([b"x", b"y"]) if hidden else [b"x", b"y"], **{name: column}))


@pytest.mark.parametrize(
    "wrong", ["text", {"a": b"b"}, [("a",)], [("a", "text")], [(b"a", b"b")], [("a", b"b", 1)], 5]
)
def test_headers_of_another_shape_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="header"):
        list(pieces_of([b"x"], headers=[wrong]))


@pytest.mark.parametrize("wrong", [[1.5], ["a"], [[1]], 1.5])
def test_timestamps_that_are_no_integers_are_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, InvalidRecordError)):
        list(pieces_of([b"x"], timestamps_ms=wrong))


# ---- Arrow ---------------------------------------------------------------------------------------

BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]


@pytest.mark.parametrize("kind", BYTES_TYPES + TEXT_TYPES, ids=str)
def test_every_layout_of_byte_strings_is_read(kind: Any, rng: random.Random) -> None:
    texts = kind in TEXT_TYPES
    items: list[Any] = TEXTS if texts else ITEMS
    expected = [item.encode() if isinstance(item, str) else item for item in items]
    whole = pa.array(items, type=kind)
    assert values_of(whole) == expected
    assert values_of(whole.slice(2, 4)) == expected[2:6]
    assert (
        values_of(pa.chunked_array([whole.slice(1), whole.slice(0, 0), whole]))
        == expected[1:] + expected
    )
    assert values_of([b"v"] * 7, keys=whole) == [b"v"] * 7
    assert [row[1] for row in rows_of(pieces_of([b"v"] * 7, keys=whole))] == expected
    many = [rng.choice(items) for _ in range(1000)]
    assert values_of(pa.array(many, type=kind)) == [
        item.encode() if isinstance(item, str) else item for item in many
    ]


def test_arrow_values_are_read_in_place() -> None:
    array = pa.array([b"abc", b"de"])
    (piece,) = pieces_of(array)
    assert piece.values is not None
    assert piece.values.data.ctypes.data == array.buffers()[2].address


def table(**columns: Any) -> Any:
    return pa.table(columns)


def test_a_table_has_all_columns_in_any_order() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}], [], None],
        type=pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    whole = table(
        partition=pa.array([0, 1, None], pa.int32()),
        headers=headers,
        value=[b"x", None, b"z"],
        key=[None, b"k", b""],
        timestamp=pa.array([1000, 2000, 3000], pa.timestamp("ms", "UTC")),
    )
    expected = [
        (b"x", None, [(b"a", b"1")], 1000, 0),
        (None, b"k", [], 2000, 1),
        (b"z", b"", [], 3000, -1),
    ]
    assert rows_of(pieces_of(whole)) == expected
    assert rows_of(pieces_of(whole.slice(1))) == expected[1:]
    assert rows_of(pieces_of(whole.to_batches()[0].slice(1, 1))) == expected[1:2]
    assert rows_of(pieces_of(whole.to_struct_array().chunk(0).slice(2))) == expected[2:]
    assert (
        rows_of(
            pieces_of(
                pa.RecordBatchReader.from_batches(whole.schema, whole.to_batches(max_chunksize=1))
            )
        )
        == expected
    )


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_sliced_headers_stay_with_their_rows(kind: Any) -> None:
    entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
    lists = [
        [{"key": f"k{row}.{place}", "value": b"%d" % place} for place in range(row % 3)]
        for row in range(20)
    ]
    whole = table(value=[b"%d" % row for row in range(20)], headers=pa.array(lists, kind(entry)))
    rows = rows_of(pieces_of(whole.slice(7, 9)))
    assert [row[2] for row in rows] == [
        [(pair["key"].encode(), pair["value"]) for pair in lists[row]] for row in range(7, 16)
    ]


def test_a_map_of_headers_is_taken() -> None:
    whole = table(
        value=[b"x"],
        headers=pa.array([[("a", b"1"), ("b", None)]], pa.map_(pa.string(), pa.binary())),
    )
    assert rows_of(pieces_of(whole))[0][2] == [(b"a", b"1"), (b"b", None)]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.timestamp("s"), 5),
        (pa.timestamp("ms"), 5000),
        (pa.timestamp("us"), 5_000_999),
        (pa.timestamp("ns"), 5_000_000_999),
        (pa.int64(), 5000),
    ],
    ids=str,
)
def test_times_of_every_unit_become_milliseconds(kind: Any, given: int) -> None:
    assert rows_of(pieces_of(table(value=[b"x"], timestamp=pa.array([given], kind))))[0][3] == 5000


def test_a_null_time_is_now() -> None:
    (first, second) = rows_of(
        pieces_of(table(value=[b"x", b"y"], timestamp=pa.array([None, 5], pa.int64())))
    )
    assert first[3] > 10**12
    assert second[3] == 5


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"value": [b"x"], "colour": [1]}, "colour"),
        ({"key": [b"x"]}, "value"),
        ({"value": [5]}, "value"),
        ({"value": [[b"x"]]}, "value"),
        ({"value": pa.array([5]).dictionary_encode()}, "value"),
        ({"value": [b"x"], "key": [1.5]}, "key"),
        ({"value": [b"x"], "timestamp": [1.5]}, "timestamp"),
        ({"value": [b"x"], "timestamp": pa.array([5], pa.time64("us"))}, "timestamp"),
        ({"value": [b"x"], "partition": ["a"]}, "partition"),
        ({"value": [b"x"], "partition": pa.array([5], pa.timestamp("ms"))}, "partition"),
        ({"value": [b"x"], "headers": [b"h"]}, "headers"),
        ({"value": [b"x"], "headers": [[b"h"]]}, "headers"),
        ({"value": [b"x"], "headers": [[{"key": "a"}]]}, "headers"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else each,
)
def test_other_columns_and_types_are_refused_by_name(columns: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'"):
        list(pieces_of(table(**columns)))


def test_rows_and_headers_that_are_null_are_refused() -> None:
    nulls = pa.StructArray.from_arrays(
        [pa.array([b"a", b"b"])], names=["value"], mask=pa.array([False, True])
    )
    with pytest.raises(InvalidRecordError, match="null"):
        list(pieces_of(nulls))
    entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
    with pytest.raises(InvalidRecordError, match="key of a header"):
        list(
            pieces_of(
                table(
                    value=[b"x"], headers=pa.array([[{"key": None, "value": b""}]], pa.list_(entry))
                )
            )
        )


@pytest.mark.parametrize(
    "twice", [{"keys": [b"k"]}, {"timestamps_ms": [5]}, {"headers": [()]}], ids=str
)
def test_a_column_given_twice_is_refused(twice: Any) -> None:
    entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
    whole = table(value=[b"x"], key=[b"k"], timestamp=[5], headers=pa.array([[]], pa.list_(entry)))
    with pytest.raises(InvalidRecordError, match="twice"):
        list(pieces_of(whole, **twice))


def test_a_column_of_nothing_is_all_null() -> None:
    assert (
        rows_of(pieces_of(table(value=pa.nulls(3), key=pa.nulls(3))))
        == [(None, None, None, None, None)] * 3
    )


def test_keys_in_other_chunks_are_cut_to_fit(rng: random.Random) -> None:
    values = [b"v%d" % number for number in range(100)]
    keys = [rng.choice([None, b"k%d" % number]) for number in range(100)]

    def chunked(items: list[Any]) -> Any:
        cuts = [0, *sorted(rng.sample(range(101), 6)), 100]
        return pa.chunked_array(
            [pa.array(items[a:b], pa.binary()) for a, b in itertools.pairwise(cuts)]
        )

    for _ in range(20):
        rows = rows_of(pieces_of(chunked(values), chunked(keys)))
        assert [row[:2] for row in rows] == list(zip(values, keys, strict=True))


def test_memory_is_released_when_the_last_view_is_gone() -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    whole = table(value=[b"x" * 1000] * 1000)
    pieces = list(pieces_of(whole))
    del whole
    gc.collect()
    assert pa.total_allocated_bytes() > before + 900_000
    assert pieces[0].values is not None
    assert pieces[0].values[999] == b"x" * 1000
    del pieces
    gc.collect()
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize(
    "wrong", [{"value": [5]}, {"value": [b"x"], "colour": [b"y" * 1000]}], ids=str
)
def test_memory_is_released_when_it_is_refused(wrong: Any) -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    with pytest.raises(TypeError):
        list(pieces_of(table(**wrong)))
    gc.collect()
    assert pa.total_allocated_bytes() == before


def test_a_stream_that_fails_tells_its_reason() -> None:
    def batches() -> Iterator[Any]:
        yield pa.record_batch({"value": [b"x"]})
        raise RuntimeError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.binary())]), batches())
    pieces = pieces_of(reader)
    next(pieces)
    with pytest.raises(ValueError, match="the source is gone"):
        next(pieces)


def test_a_capsule_is_taken_once() -> None:
    capsules = pa.array([b"x"]).__arrow_c_array__()
    _rows.arrow_from_array(*capsules)
    with pytest.raises(ValueError, match="taken before"):
        _rows.arrow_from_array(*capsules)
    stream = table(value=[b"x"]).__arrow_c_stream__()
    _rows.arrow_from_stream(stream)
    with pytest.raises(ValueError, match="taken before"):
        _rows.arrow_from_stream(stream)
    with pytest.raises(ValueError):
        _rows.arrow_from_stream(capsules[0])


def test_an_empty_format_is_none_that_we_know() -> None:
    schema = _rows.arrow_schema(("", "x", True, (), None))
    node = _rows.arrow_from_array(
        schema, _rows.arrow_array((1, 0, 0, (None, b"abcd", b"efgh"), (), None))
    )
    assert node[1] == ""
    assert node[5] == (), "no views of formats without views"


@pytest.mark.parametrize("format_", ["ix", "c1", "Ll"])
def test_a_format_that_only_begins_like_a_number_is_none_that_we_know(format_: str) -> None:
    schema = _rows.arrow_schema((format_, "x", True, (), None))
    assert (
        _rows.arrow_from_array(schema, _rows.arrow_array((1, 0, 0, (None, b"12345678"), (), None)))[
            5
        ]
        == ()
    )


def test_a_stream_is_asked_by_one_thread_at_a_time() -> None:
    """An exporter need not expect two: its state is its own only as long as the first call
    lasts.
    """
    inside = 0
    most = 0
    asked = 0
    second = threading.Event()

    def ask() -> Any:
        nonlocal inside, most, asked
        inside += 1
        most = max(most, inside)
        asked += 1
        if inside > 1:
            second.set()
        second.wait(0.2)
        inside -= 1
        return (1, 0, 0, (None, b"12345678"), (), None) if asked <= 4 else None

    stream = _rows.arrow_from_stream(_rows.arrow_array_stream(("l", "x", True, (), None), ask))
    threads = [threading.Thread(target=lambda: list(stream)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_stream_that_is_asked_from_inside_its_exporter_fails_instead_of_waiting_for_itself() -> (
    None
):
    def ask() -> Any:
        return next(stream)

    stream = _rows.arrow_from_stream(_rows.arrow_array_stream(("l", "x", True, (), None), ask))
    with pytest.raises(ValueError, match="already inside the Arrow stream"):
        next(stream)


def test_views_that_point_nowhere_are_refused() -> None:
    good = np.zeros(16, np.uint8)
    good[0] = 3
    assert _rows.column_from_views(good, None, (), 0, 1)[0] == b"\0\0\0"
    far = good.copy()
    far[0] = 100
    with pytest.raises(ValueError, match="outside its data"):
        _rows.column_from_views(far, None, (), 0, 1)
    with pytest.raises(ValueError, match="outside its data"):
        _rows.column_from_views(far, None, (b"x" * 99,), 0, 1)
    assert _rows.column_from_views(far, b"\0", (), 0, 1)[0] == b""
    for start, count in [(0, 2), (-1, 1), (1, 1), (0, -1)]:
        with pytest.raises(ValueError, match="outside the views"):
            _rows.column_from_views(good, None, (), start, count)


def test_polars_is_taken_as_it_is() -> None:
    pl = pytest.importorskip("polars", reason="needs polars")
    frame = pl.DataFrame({"value": [b"x", b"y" * 50, None], "key": ["a", None, "c" * 20]})
    assert [row[:2] for row in rows_of(pieces_of(frame))] == [
        (b"x", b"a"),
        (b"y" * 50, None),
        (None, b"c" * 20),
    ]
    assert values_of(frame["key"]) == [b"a", None, b"c" * 20]


def test_a_table_needs_no_pyarrow_to_be_understood() -> None:
    """Only the protocol is used: any object that has it will do."""

    class Foreign:
        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return pa.record_batch({"value": [b"x"]}).__arrow_c_array__()

    assert arrow_import.has_arrow_interface(Foreign())
    assert values_of(Foreign()) == [b"x"]
