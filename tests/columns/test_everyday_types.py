"""Columns of everyday frames are taken: dictionaries, runs, fixed sizes, dates, and all that a scan
itself gives out.
"""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog._native import _rows
from embedlog.columns.ingest import pieces_of, rows_of
from embedlog.errors import InvalidRecordError

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
pl = pytest.importorskip("polars", reason="needs polars: pip install 'embedlog[polars]'")

DAY_MS = 86_400_000


def values_of(column: Any) -> list[bytes | None]:
    return [
        value
        for piece in pieces_of(pa.table({"value": column}))
        for value in list(piece.values or [])
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_dictionary_and_runs_give_the_rows_of_the_plain_column(
    seed: int, rng: random.Random
) -> None:
    texts = [rng.choice([None, "", "a", "bc", "x" * 300]) for _ in range(rng.randrange(60))]
    wanted = [None if text is None else text.encode() for text in texts]
    plain = pa.array(texts, pa.string())
    index = rng.choice([pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64()])
    dictionary = plain.dictionary_encode().cast(pa.dictionary(index, pa.string()))
    runs = pc.run_end_encode(plain)
    first = rng.randrange(len(texts) + 1)
    count = rng.randrange(len(texts) - first + 1)
    for column in (plain, dictionary, runs):
        assert values_of(column) == wanted
        assert values_of(column.slice(first, count)) == wanted[first : first + count]


def test_fixed_sizes_are_bytes() -> None:
    column = pa.array([b"12", None, b"34", b"56"], pa.binary(2))
    assert values_of(column) == [b"12", None, b"34", b"56"]
    assert values_of(column.slice(2)) == [b"34", b"56"]
    assert values_of(pa.array([b"0123456789abcdef"], pa.uuid())) == [b"0123456789abcdef"]


def test_categories_of_polars_are_texts() -> None:
    for kind in (pl.Categorical(), pl.Enum(["a", "b"])):
        frame = pl.DataFrame(
            {"key": pl.Series(["a", None, "b"], dtype=kind), "value": [b"1", b"2", b"3"]}
        )
        (piece,) = pieces_of(frame)
        assert list(piece.keys or []) == [b"a", None, b"b"]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_a_date_is_its_midnight(kind: Any) -> None:
    days = pa.array([datetime.date(1970, 1, 2), datetime.date(2024, 1, 1)], kind)
    (piece,) = pieces_of(pa.table({"value": [b"a", b"b"], "timestamp": days}))
    assert piece.timestamps is not None
    assert piece.timestamps.tolist() == [DAY_MS, 19_723 * DAY_MS]


AWARE = [datetime.datetime(1970, 1, 1, 0, 0, second, tzinfo=datetime.UTC) for second in (1, 2)]


@pytest.mark.parametrize(
    "times",
    [
        pa.array(AWARE, pa.timestamp("ms", "UTC")),
        pa.chunked_array(
            [
                pa.array(AWARE[:1], pa.timestamp("us", "UTC")),
                pa.array(AWARE[1:], pa.timestamp("us", "UTC")),
            ]
        ),
        np.array(["1970-01-01T00:00:01", "1970-01-01T00:00:02"], "datetime64[ns]"),
        AWARE,
        np.array([1000, 2000]),
    ],
    ids=["arrow", "chunks", "numpy", "datetimes", "integers"],
)
def test_times_beside_the_values_may_have_each_common_type(times: Any) -> None:
    values = [b"a", b"b"]
    (piece,) = pieces_of(pa.array(values), None, times)
    assert piece.timestamps is not None
    assert piece.timestamps.tolist() == [1000, 2000]
    assert [row[2] for row in rows_of(values, None, times, None)] == [1000, 2000]


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="NaT"):
        pieces_of([b"a"], None, np.array(["NaT"], "datetime64[ms]"))


def test_an_index_outside_of_its_dictionary_is_refused() -> None:
    schema = _rows.arrow_schema(("i", "value", True, (), ("u", "", True, (), None)))
    dictionary = (1, 0, 0, (None, np.array([0, 1], np.int32), b"x"), (), None)
    array = _rows.arrow_array((1, 0, 0, (None, np.array([7], np.int32)), (), dictionary))

    class Source:
        def __arrow_c_array__(self, requested: object = None) -> tuple[object, object]:
            return schema, array

    with pytest.raises(InvalidRecordError, match="dictionary does not have"):
        list(pieces_of(Source()))


@pytest.mark.parametrize("ends", [[0], [2, 2], [3, 1], [1], []], ids=str)
def test_runs_that_do_not_cover_their_rows_are_refused(ends: list[int]) -> None:
    schema = _rows.arrow_schema(
        (
            "+r",
            "value",
            True,
            (("i", "run_ends", False, (), None), ("u", "values", True, (), None)),
            None,
        )
    )
    count = len(ends)
    values = (count, 0, 0, (None, np.arange(count + 1, dtype=np.int32), b"x" * count), (), None)
    array = _rows.arrow_array(
        (2, 0, 0, (), ((count, 0, 0, (None, np.array(ends, np.int32)), (), None), values), None)
    )

    class Source:
        def __arrow_c_array__(self, requested: object = None) -> tuple[object, object]:
            return schema, array

    with pytest.raises(InvalidRecordError, match="do not cover its rows"):
        list(pieces_of(Source()))


@pytest.mark.parametrize("width", ["", "x", "-1", "2x", "99999999999999999999"])
def test_a_width_that_is_no_number_gets_no_view(width: str) -> None:
    schema = _rows.arrow_schema((f"w:{width}", "x", True, (), None))
    assert (
        _rows.arrow_from_array(schema, _rows.arrow_array((1, 0, 0, (None, b"12345678"), (), None)))[
            5
        ]
        == ()
    )


def test_a_scan_can_be_sent_back(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log, log.producer() as producer:
        log.create_topic("one")
        producer.send(
            "one", b"v", key=b"k", headers=[("h", b"1")], timestamp_ms=5_000_000_000_000 // 4
        ).result(20)
        wanted = [(b"k", b"v", (("h", b"1"),), 5_000_000_000_000 // 4)]
        sources = {
            "scan": log.scan("one"),
            "table": log.scan("one").to_arrow(),
            "reader": pa.RecordBatchReader.from_stream(log.scan("one")),
            "frame": log.scan("one").to_polars(),
        }
        for name, source in sources.items():
            log.create_topic(name)
            producer.send_batch(name, source).result(20)
            rows = [
                (row.key, row.value, row.headers, row.timestamp_ms)
                for row in log.scan(name).records()
            ]
            assert rows == wanted, name


def test_a_query_of_polars_names_its_collect(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log, log.producer() as producer:
        log.create_topic("t")
        with pytest.raises(TypeError, match=r"send its collect\(\)"):
            producer.send_batch("t", pl.LazyFrame({"value": [b"x"]}))
