"""Python calls of the byte search in `_core`: whole buffers, and rows of columns.

The interpreter's lock is released during a search; every array stays referenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedlog._native._core import ffi, lib
from embedlog._native.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def find(data: Any, needle: bytes, fold: bool) -> int:
    """Position of the first occurrence in a buffer, or -1. With `fold`, ASCII letters match in both
    cases.

    REQUIRES a needle that is not empty, in lower case with `fold`.
    """
    view = ffi.from_buffer("uint8_t[]", data)
    return int(lib.el_find(view, len(view), needle, len(needle), fold))


def mark_rows(
    data: Any, offsets: NDArray[np.int32], needle: bytes, fold: bool, marks: NDArray[np.bool_]
) -> int:
    """Set `marks` for the rows of a column that contain the needle, and return their number.
    REQUIRES as `find`.
    """
    view = ffi.from_buffer("uint8_t[]", data)
    starts = ffi.from_buffer("int32_t[]", offsets)
    out = ffi.from_buffer("uint8_t[]", marks, require_writable=True)
    count = lib.el_find_rows(
        view, len(view), starts, len(offsets) - 1, needle, len(needle), fold, out
    )
    assert count >= 0, "the offsets of a decoded column rise"
    return int(count)
