"""Contains `Search`, the records of a scan that match a pattern.

SEARCH-1  chunks without the bytes that the pattern requires are not decoded; their checksums are
    checked as in a scan
SEARCH-2  each iteration begins at the start; memory is bounded as in a scan
SEARCH-3  a record matches if one of the searched columns does; `invert` selects all other records
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from embedlog._native._rows import Record
from embedlog._native.lazy_numpy import np
from embedlog.columns.arrow_export import ALL_COLUMNS
from embedlog.columns.batch import record_of, records_of
from embedlog.columns.chunks import Piece, Source
from embedlog.columns.patterns import Matcher, SearchPattern
from embedlog.errors import ConfigError
from embedlog.format.record_columns import CODEC_MASK, BytesColumn, Decoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = ("key", "value", "headers")
DENSE = 4  # a chunk with more than one match of so many rows is converted as a whole


class Search:
    """Records that match a pattern; created by `Scan.search`. Iteration finds them, in the order of
    the scan.

    **Threads:** many threads may use a Search; each iterator belongs to one at a time.
    """

    def __init__(
        self,
        topic: str,
        source: Callable[[tuple[str, ...]], Source],
        pattern: SearchPattern,
        columns: Iterable[str],
        invert: bool,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError(f"columns: a list of names, not one text: [{columns!r}]")
        self.columns = tuple(dict.fromkeys(columns))
        if not self.columns or not set(self.columns) <= set(COLUMNS):
            raise ConfigError(
                "columns", expected=f"some of {', '.join(COLUMNS)}", found=repr(list(self.columns))
            )
        self._topic = topic
        self._source = source
        self._matcher = Matcher(pattern)
        self._invert = invert

    def __iter__(self) -> Iterator[Record[bytes, bytes]]:
        for number, decoded, found in self._found(ALL_COLUMNS):
            rows = np.flatnonzero(found).tolist()
            if len(rows) * DENSE > decoded.count:
                records = records_of(self._topic, number, decoded)
                yield from (records[row] for row in rows)
            else:
                for row in rows:
                    yield record_of(self._topic, number, decoded, row)

    def count(self) -> int:
        """The number of records that match."""
        return sum(int(np.count_nonzero(found)) for _, _, found in self._found(self.columns))

    def _found(self, columns: tuple[str, ...]) -> Iterator[tuple[int, Decoded, NDArray[np.bool_]]]:
        """Number of the partition, decoded rows, and the rows that match, of chunks with a
        match.
        """
        source = self._source(columns)
        while (piece := source.fetch()) is not None:
            if self._is_useful(piece):
                for number, decoded in _decoded(source, piece):
                    found = self._rows(decoded)
                    if found.any():
                        yield number, decoded, found
            del piece  # free its memory before the next one is read

    def _is_useful(self, piece: Piece) -> bool:
        """Whether records of this piece may be selected. Compressed bytes show nothing."""
        if self._invert or (piece.batches["attributes"] & CODEC_MASK).any():
            return True
        return self._matcher.may_match(piece.fetched.data)

    def _rows(self, decoded: Decoded) -> NDArray[np.bool_]:
        found = np.zeros(decoded.count, np.bool_)
        for name, column in (("key", decoded.keys), ("value", decoded.values)):
            if name in self.columns and column is not None:
                found |= self._matcher.rows(column)
        if "headers" in self.columns and decoded.headers is not None:
            starts = decoded.headers.starts
            texts: tuple[BytesColumn, BytesColumn] = (decoded.headers.keys, decoded.headers.values)
            for column in texts:
                if len(column):
                    places = np.flatnonzero(self._matcher.rows(column))
                    found[starts.searchsorted(places, "right") - 1] = True
        return ~found if self._invert else found


def _decoded(source: Source, piece: Piece) -> Iterator[tuple[int, Decoded]]:
    number, decoded, rest = source.decode(piece)
    while True:
        if decoded is not None and decoded.count:
            yield number, decoded
        if rest is None:
            return
        number, decoded, rest = source.rest(rest)
