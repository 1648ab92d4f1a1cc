"""Writes batches as lines: plain values from columns without an object per record, other formats
from records.

Plain lines are written from arrays of many rows: the values, and the delimiter after each. A batch
with null values is written value by value.
"""

from __future__ import annotations

from typing import BinaryIO

from embedlog import Batch
from embedlog.tools.cli.record_format import Formatter

PIECE_ROWS = 2048  # arrays of this many short rows stay in the processor's cache


class LineWriter:
    """Writes rows of batches to a binary file. Without a formatter a line is the value and
    `delimiter`.
    """

    def __init__(
        self,
        file: BinaryIO,
        formatter: Formatter | None,
        delimiter: bytes = b"\n",
        null: bytes = b"null",
    ) -> None:
        self._file = file
        self._formatter = formatter
        self._delimiter = delimiter
        self._null = null

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that the lines need; None is all."""
        return ("offset", "value") if self._formatter is None else None

    def write(self, batch: Batch, first: int, last: int) -> None:
        """Write the rows from `first` up to `last`."""
        if self._formatter is not None:
            lines = [self._formatter(record) for record in batch.records()[first:last]]
            self._file.write(b"".join(lines))
        elif batch.values.validity is None:
            for start in range(first, last, PIECE_ROWS):
                end = min(start + PIECE_ROWS, last)
                self._file.write(plain_lines(batch, start, end, self._delimiter))
        else:
            values = (batch.values[row] for row in range(first, last))
            texts = (self._null if value is None else value for value in values)
            self._file.write(b"".join([text + self._delimiter for text in texts]))


def plain_lines(batch: Batch, first: int, last: int, delimiter: bytes) -> memoryview:
    """The values of these rows, with the delimiter after each. REQUIRES no null among them."""
    import numpy as np  # late: most verbs need no numpy

    offsets = batch.values.offsets[first : last + 1].astype(np.int64)
    data = batch.values.data[offsets[0] : offsets[-1]]
    count = last - first
    width = len(delimiter)
    lengths = np.diff(offsets)
    if count and width and (lengths == lengths[0]).all():
        rows = np.empty((count, int(lengths[0]) + width), dtype=np.uint8)
        rows[:, :-width] = data.reshape(count, int(lengths[0]))
        rows[:, -width:] = np.frombuffer(delimiter, dtype=np.uint8)
        return rows.reshape(-1).data
    out = np.empty(len(data) + count * width, dtype=np.uint8)
    is_value = np.ones(len(out), dtype=np.bool_)
    ends = offsets[1:] - offsets[0] + np.arange(count) * width
    for index in range(width):
        out[ends + index] = delimiter[index]
        is_value[ends + index] = False
    out[is_value] = data
    return out.data
