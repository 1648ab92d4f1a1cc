"""Contains `Search`, the records of a scan that match a pattern.

- Chunks without the bytes that the pattern requires are not decoded; their checksums are checked as
  in a scan.
- Each iteration begins at the start; memory is bounded as in a scan.
- A record matches if one of the searched columns does; `invert` selects all other records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from embedlog._native._rows import Record
from embedlog._native.lazy_numpy import np
from embedlog.columns.arrow_export import ALL_COLUMNS
from embedlog.columns.batch import record_of, records_of
from embedlog.columns.chunks import ChunkSource, EncodedPiece
from embedlog.columns.patterns import RowMatcher, SearchPattern
from embedlog.errors import ConfigError
from embedlog.format.record_columns import CODEC_MASK, BytesColumn, Decoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = ("key", "value", "headers")
DENSE = 4  # a chunk of which more than one row in so many matches is converted as a whole


class Search:
    """Records that match a pattern; created by `Scan.search`. Iteration finds them, in the order of
    the scan.

    **Threads:** many threads may use a Search; each iterator belongs to one at a time.
    """

    def __init__(
        self,
        topic: str,
        source: Callable[[tuple[str, ...]], ChunkSource],
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
        self._open_source = source
        self._matcher = RowMatcher(pattern)
        self._invert = invert

    def __iter__(self) -> Iterator[Record[bytes, bytes]]:
        for number, decoded, matches in self._search_chunks(ALL_COLUMNS):
            rows = np.flatnonzero(matches).tolist()
            if len(rows) * DENSE > decoded.count:
                records = records_of(self._topic, number, decoded)
                yield from (records[row] for row in rows)
            else:
                for row in rows:
                    yield record_of(self._topic, number, decoded, row)

    def count(self) -> int:
        """The number of records that match."""
        return sum(
            int(np.count_nonzero(matches)) for _, _, matches in self._search_chunks(self.columns)
        )

    def _search_chunks(
        self, columns: tuple[str, ...]
    ) -> Iterator[tuple[int, Decoded, NDArray[np.bool_]]]:
        """Number of the partition, decoded rows, and the rows that match, of chunks with a
        match.
        """
        source = self._open_source(columns)
        while (piece := source.fetch()) is not None:
            if self._is_useful(piece):
                for number, decoded in _decode_all(source, piece):
                    matches = self._rows(decoded)
                    if matches.any():
                        yield number, decoded, matches
            del piece  # free its memory before the next one is read

    def _is_useful(self, piece: EncodedPiece) -> bool:
        """Whether records of this piece may be selected. Compressed bytes show nothing."""
        if self._invert or (piece.batches["attributes"] & CODEC_MASK).any():
            return True
        return self._matcher.may_match(piece.fetched.data)

    def _rows(self, decoded: Decoded) -> NDArray[np.bool_]:
        """Which rows are selected."""
        matches = np.zeros(decoded.count, np.bool_)
        for name, column in (("key", decoded.keys), ("value", decoded.values)):
            if name in self.columns and column is not None:
                matches |= self._matcher.rows(column)
        if "headers" in self.columns and decoded.headers is not None:
            starts = decoded.headers.starts
            texts: tuple[BytesColumn, BytesColumn] = (decoded.headers.keys, decoded.headers.values)
            for column in texts:
                if len(column):
                    header_numbers = np.flatnonzero(self._matcher.rows(column))
                    matches[starts.searchsorted(header_numbers, "right") - 1] = True
        return ~matches if self._invert else matches


def _decode_all(source: ChunkSource, piece: EncodedPiece) -> Iterator[tuple[int, Decoded]]:
    number, decoded, remaining = source.decode(piece)
    while True:
        if decoded is not None and decoded.count:
            yield number, decoded
        if remaining is None:
            return
        number, decoded, remaining = source.decode_rest(remaining)
