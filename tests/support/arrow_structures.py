"""Arrow arrays built byte by byte behind the C data interface, sound or damaged within what the
interface allows.

A producer promises memory: each buffer has the bytes that format, length and offset imply, and the
data of byte strings those up to the last offset. All else can be wrong: formats, counts, pointers,
indices, run ends, inner offsets, lengths of children.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

Value = bytes | None
T = TypeVar("T")


class CSchema(ctypes.Structure):
    pass


class CArray(ctypes.Structure):
    pass


CSchema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(CSchema))),
    ("dictionary", ctypes.POINTER(CSchema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
CArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(CArray))),
    ("dictionary", ctypes.POINTER(CArray)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

RELEASE_SCHEMA = ctypes.CFUNCTYPE(None, ctypes.POINTER(CSchema))
RELEASE_ARRAY = ctypes.CFUNCTYPE(None, ctypes.POINTER(CArray))


def _release(pointer: Any) -> None:
    pointer.contents.release = None


_released_schema = RELEASE_SCHEMA(_release)
_released_array = RELEASE_ARRAY(_release)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

INDEXES: Final = {
    "c": np.int8,
    "C": np.uint8,
    "s": np.int16,
    "S": np.uint16,
    "i": np.int32,
    "I": np.uint32,
    "l": np.int64,
    "L": np.uint64,
}
FORMATS: Final = (
    "",
    "w",
    "w:",
    "w:0",
    "w:-1",
    "w:3x",
    "w:99999999999999999999",
    "w:2147483648",
    "w:2147483647",
    "td",
    "tdD",
    "tdm",
    "tdX",
    "ts",
    "tss:",
    "tsm:UTC",
    "tsx:",
    "n",
    "b",
    "c",
    "L",
    "z",
    "Z",
    "u",
    "U",
    "vz",
    "vu",
    "vx",
    "zz",
    "+",
    "+l",
    "+L",
    "+m",
    "+s",
    "+r",
    "+w:2",
    "d:5,2",
    "\xff",
)


class Array(NamedTuple):
    """An array of the interface; `values` are the rows of a sound one, as bytes."""

    format: str
    length: int
    offset: int
    null_count: int
    buffers: list[Any]
    children: Sequence[Array] = ()
    dictionary: Array | None = None
    values: Sequence[Value] = ()
    name: str = ""


class Capsules:
    """An object with `__arrow_c_array__` over an array and its memory. `memory` lives as long as
    this object.
    """

    def __init__(self, array: Array) -> None:
        self._memory: list[Any] = []
        self._schema, self._array = self._schema_of(array), self._array_of(array)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _new_capsule(ctypes.addressof(self._schema), b"arrow_schema", None),
            _new_capsule(ctypes.addressof(self._array), b"arrow_array", None),
        )

    def _keep(self, thing: T) -> T:
        self._memory.append(thing)
        return thing

    def _pointers(self, kind: Any, made: list[Any]) -> Any:
        return self._keep(
            (ctypes.POINTER(kind) * len(made))(*(ctypes.pointer(each) for each in made))
        )

    def _schema_of(self, array: Array) -> CSchema:
        children = [self._schema_of(each) for each in array.children]
        made = CSchema(
            format=array.format.encode("latin-1"),
            name=array.name.encode(),
            n_children=len(children),
        )
        if children:
            made.children = self._pointers(CSchema, children)
        if array.dictionary is not None:
            made.dictionary = ctypes.pointer(self._schema_of(array.dictionary))
        made.release = ctypes.cast(_released_schema, ctypes.c_void_p)
        return self._keep(made)

    def _array_of(self, array: Array) -> CArray:
        children = [self._array_of(each) for each in array.children]
        pointers = []
        for each in array.buffers:
            held = None if each is None else self._keep(np.ascontiguousarray(each))
            pointers.append(None if held is None else held.ctypes.data)
        made = CArray(array.length, array.null_count, array.offset, len(pointers), len(children))
        made.buffers = self._keep((ctypes.c_void_p * len(pointers))(*pointers))
        if children:
            made.children = self._pointers(CArray, children)
        if array.dictionary is not None:
            made.dictionary = ctypes.pointer(self._array_of(array.dictionary))
        made.release = ctypes.cast(_released_array, ctypes.c_void_p)
        return self._keep(made)


# ---- sound arrays --------------------------------------------------------------------------------


def any_array(rng: random.Random, rows: int, depth: int = 0) -> Array:
    """An array of byte strings in any layout that a column takes."""
    layouts = [_plain, _plain, _views, _fixed, _nulls] + ([_dictionary, _runs] if depth < 3 else [])
    return rng.choice(layouts)(rng, rows, depth)


def _validity(rng: random.Random, rows: int, offset: int) -> tuple[Any, list[bool], int]:
    """A bitmap, which rows are valid, and a null count: -1 is unknown."""
    if rng.random() < 0.4:
        return None, [True] * rows, rng.choice([0, -1])
    valid = [rng.random() < 0.8 for _ in range(rows)]
    bits = np.packbits(np.array([True] * offset + valid, np.bool_), bitorder="little")
    return (
        bits,
        valid,
        rng.choice([-1, valid.count(False)]) if not all(valid) else rng.choice([-1, 0]),
    )


def _texts(rng: random.Random, rows: int) -> list[bytes]:
    return [rng.choice([b"", b"a", b"bc", b"thirteen byte", b"x" * 40]) for _ in range(rows)]


def _with_nulls(texts: list[bytes], valid: list[bool]) -> list[Value]:
    return [text if is_valid else None for text, is_valid in zip(texts, valid, strict=True)]


def _plain(rng: random.Random, rows: int, depth: int) -> Array:
    kind = rng.choice("zuZU")
    offset = rng.randrange(4)
    bits, valid, nulls = _validity(rng, rows, offset)
    texts = _texts(rng, offset + rows)
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32 if kind in "zu" else np.int64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    return Array(
        kind, rows, offset, nulls, [bits, ends, data], values=_with_nulls(texts[offset:], valid)
    )


def _views(rng: random.Random, rows: int, depth: int) -> Array:
    offset = rng.randrange(4)
    bits, valid, nulls = _validity(rng, rows, offset)
    texts = _texts(rng, offset + rows)
    pool = b"".join(texts) + b"!"
    views = bytearray()
    at = 0
    for text in texts:
        short = (
            text.ljust(12, b"\0")
            if len(text) <= 12
            else text[:4] + bytes(4) + at.to_bytes(4, "little")
        )
        views += len(text).to_bytes(4, "little") + short
        at += len(text)
    buffers = [
        bits,
        np.frombuffer(bytes(views), np.uint8),
        np.frombuffer(pool, np.uint8),
        np.array([len(pool)], np.int64),
    ]
    return Array(
        rng.choice(["vz", "vu"]),
        rows,
        offset,
        nulls,
        buffers,
        values=_with_nulls(texts[offset:], valid),
    )


def _fixed(rng: random.Random, rows: int, depth: int) -> Array:
    offset = rng.randrange(4)
    width = rng.choice([0, 1, 7, 16])
    bits, valid, nulls = _validity(rng, rows, offset)
    texts = [rng.randbytes(width) for _ in range(offset + rows)]
    data = np.frombuffer(b"".join(texts), np.uint8)
    return Array(
        f"w:{width}", rows, offset, nulls, [bits, data], values=_with_nulls(texts[offset:], valid)
    )


def _nulls(rng: random.Random, rows: int, depth: int) -> Array:
    return Array("n", rows, rng.randrange(4), rows, [], values=[None] * rows)


def _dictionary(rng: random.Random, rows: int, depth: int) -> Array:
    kind = rng.choice([*INDEXES])
    offset = rng.randrange(4)
    known = any_array(rng, rng.randrange(1, 9), depth + 1)
    bits, valid, nulls = _validity(rng, rows, offset)
    numbers = [rng.randrange(known.length) for _ in range(offset + rows)]
    values = [
        known.values[number] if good else None
        for number, good in zip(numbers[offset:], valid, strict=True)
    ]
    return Array(
        kind,
        rows,
        offset,
        nulls,
        [bits, np.array(numbers, INDEXES[kind])],
        dictionary=known,
        values=values,
    )


def _runs(rng: random.Random, rows: int, depth: int) -> Array:
    offset = rng.randrange(4)
    kind = rng.choice("sil")
    total = offset + rows
    ends: list[int] = []
    while not ends or ends[-1] < total:
        ends.append((ends[-1] if ends else 0) + rng.randrange(1, 9))
    values = any_array(rng, len(ends), depth + 1)
    shift = rng.randrange(3)
    numbers = Array(
        kind,
        len(ends),
        shift,
        0,
        [None, np.array([0] * shift + ends, INDEXES[kind])],
        name="run_ends",
    )
    rows_of = [
        next(number for number, end in enumerate(ends) if row < end) for row in range(offset, total)
    ]
    children = [numbers, values._replace(name="values")]
    return Array(
        "+r", rows, offset, 0, [], children, values=[values.values[row] for row in rows_of]
    )


# ---- damage --------------------------------------------------------------------------------------


def damaged(rng: random.Random, array: Array) -> Array:
    """The array with one thing that is wrong, here or in a child or dictionary."""
    below = [*range(len(array.children)), *(["dictionary"] if array.dictionary is not None else [])]
    if below and rng.random() < 0.6:
        place = rng.choice(below)
        if place == "dictionary":
            assert array.dictionary is not None
            return array._replace(dictionary=damaged(rng, array.dictionary))
        children = list(array.children)
        children[int(place)] = damaged(rng, children[int(place)])
        return array._replace(children=children)
    return rng.choice(
        [_other_format, _shorter, _negative, _no_buffer, _fewer_parts, _other_numbers, _other_count]
    )(rng, array)


def _other_format(rng: random.Random, array: Array) -> Array:
    """Another format, with buffers of enough bytes for any that is known."""
    room = (array.length + array.offset + 2) * 16
    kind = rng.choice(FORMATS)
    if kind.startswith("w:"):
        room = 0 if kind == "w:0" else room
        if kind == "w:2147483647":
            array = array._replace(length=0, offset=0)
    if kind in ("z", "u", "Z", "U", "vz", "vu", "+l", "+L", "+m"):
        views = np.array([room], np.int64)
        buffers = (
            [None, np.zeros(room, np.uint8), np.zeros(room, np.uint8), views]
            if kind[0] == "v"
            else [None, np.zeros(room, np.uint8), np.zeros(room, np.uint8)]
        )
        return array._replace(format=kind, buffers=buffers)
    return array._replace(format=kind, buffers=[None, np.zeros(room, np.uint8)])


def _shorter(rng: random.Random, array: Array) -> Array:
    """Fewer rows than whoever contains the array expects."""
    return array._replace(length=rng.randrange(array.length + 1))


def _negative(rng: random.Random, array: Array) -> Array:
    number = rng.choice([-1, -(2**62), 2**62])
    return array._replace(length=number) if rng.random() < 0.5 else array._replace(offset=number)


def _no_buffer(rng: random.Random, array: Array) -> Array:
    return array._replace(buffers=[None] * len(array.buffers))


def _fewer_parts(rng: random.Random, array: Array) -> Array:
    if array.dictionary is not None and rng.random() < 0.5:
        return array._replace(dictionary=None)
    return (
        array._replace(children=array.children[:-1])
        if array.children
        else array._replace(buffers=array.buffers[:-1])
    )


def _other_numbers(rng: random.Random, array: Array) -> Array:
    """Other indices, run ends, inner offsets or views; the last offset stays, because it is the
    promised size of the data.
    """
    if len(array.buffers) < 2 or array.buffers[1] is None or not array.buffers[1].size:
        return array
    numbers = array.buffers[1].copy()
    ends = 1 if array.format in ("z", "u", "Z", "U") else 0
    for _ in range(rng.randrange(1, 4)):
        if numbers.size > ends:
            info = np.iinfo(numbers.dtype)
            numbers[rng.randrange(numbers.size - ends)] = rng.choice(
                [0, 1, info.min, info.max, rng.randrange(info.max)]
            )
    return array._replace(buffers=[array.buffers[0], numbers, *array.buffers[2:]])


def _other_count(rng: random.Random, array: Array) -> Array:
    return array._replace(null_count=rng.choice([-1, 0, 1, 2**62, -(2**62)]))
