"""Random Arrow structures: sound ones give their rows, damaged ones an error of a known kind or
rows, and never a crash.

`make test-sanitize` runs this with ASan and UBSan around the C core: a read beyond a buffer ends
it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from embedlog.columns import arrow_import
from embedlog.columns.ingest import ColumnPiece, pieces_of
from embedlog.errors import EmbedlogError
from tests.support.arrow_structures import FORMATS, Array, Capsules, any_array, damaged

ROUNDS = int(os.environ.get("EMBEDLOG_ARROW_ROUNDS", "400"))
REFUSALS = (TypeError, ValueError, EmbedlogError)


def table_of(rng: random.Random, column: Array) -> Array:
    """A record batch with this column as `value`; its rows can begin later than those of the
    column.
    """
    key = any_array(rng, column.length)
    return Array(
        "+s",
        column.length,
        0,
        0,
        [None],
        [column._replace(name="value"), key._replace(name="key")],
        values=column.values,
    )


def rows_of(array: Array) -> list[Any]:
    return list(arrow_import.read_bytes(next(arrow_import.read_arrays(Capsules(array))), "value"))


def pieces(table: Array) -> list[ColumnPiece]:
    return list(pieces_of(Capsules(table)))


def times(array: Array) -> list[int]:
    found: list[int] = arrow_import.read_times(Capsules(array)).tolist()
    return found


def test_a_sound_array_gives_its_rows(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        array = any_array(rng, rng.randrange(30))
        assert rows_of(array) == list(array.values), array
        table = table_of(rng, array)
        if array.length and array.format != "n":
            made = pieces(table)
            assert [value for piece in made for value in list(piece.values or [])] == list(
                array.values
            ), array
            assert [key for piece in made for key in list(piece.keys or [])] == list(
                table.children[1].values
            ), table


def result(call: Callable[[], Any]) -> Any:
    """The result of a call, or the words of its refusal."""
    try:
        return call()
    except REFUSALS as problem:
        return str(problem)


def test_a_damaged_array_gives_rows_or_an_error(rng: random.Random) -> None:
    refused = 0
    for _ in range(ROUNDS):
        array = damaged(rng, any_array(rng, rng.randrange(1, 30)))
        found = result(partial(rows_of, array))
        refused += isinstance(found, str)
        assert isinstance(found, str) or len(found) == array.length
        if 0 <= array.length < 100:
            assert result(partial(pieces, table_of(rng, array))) != ""
    assert refused


def test_a_damaged_table_gives_pieces_of_equal_columns(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        found = result(
            partial(pieces, damaged(rng, table_of(rng, any_array(rng, rng.randrange(1, 30)))))
        )
        for piece in () if isinstance(found, str) else found:
            assert piece.values is not None
            assert piece.keys is None or len(list(piece.keys)) == len(list(piece.values))


def test_dates_and_numbers_of_any_shape(rng: random.Random) -> None:
    kinds = {
        "tdD": np.int32,
        "tdm": np.int64,
        "l": np.int64,
        "s": np.int16,
        "tss:": np.int64,
        "tsn:UTC": np.int64,
        "c": np.int8,
    }
    for _ in range(ROUNDS):
        offset = rng.randrange(3)
        rows = rng.randrange(1, 20)
        kind = rng.choice([*kinds])
        numbers = np.array([rng.randrange(-100, 100) for _ in range(offset + rows)], kinds[kind])
        array = Array(kind, rows, offset, 0, [None, numbers])
        scale = {"tdD": 86_400_000, "tss:": 1000}.get(kind, 1)
        wanted = [
            int(each) * scale if kind != "tsn:UTC" else int(each) // 1_000_000
            for each in numbers[offset:]
        ]
        assert arrow_import.read_times(Capsules(array)).tolist() == wanted
        assert not isinstance(result(partial(times, array)), str)
        assert result(partial(times, damaged(rng, array))) != ""


@pytest.mark.parametrize("rows", [0, 1])
def test_an_array_of_each_format_alone(rows: int) -> None:
    for kind in FORMATS:
        for count in range(5):
            assert result(partial(rows_of, Array(kind, rows, 0, 0, [None] * count))) != ""
