"""Searches rows of columns for a byte string or a regular expression.

- A regular expression is applied to each row alone: `^` and `$` are the ends of a row, and no match
  crosses rows.
- Bytes that every match contains, or alternatives of them, are searched first, in whole buffers.
  They exclude a chunk before it is decoded, and rows before the expression is applied.
- An expression of a bounded width, without conditions on its surroundings, is applied to the whole
  buffer. A match there is only a candidate, because it may cross the end of its row.
- A null row matches nothing; an expression for text is applied to rows decoded as UTF-8 with
  replacement characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from embedlog._native import search
from embedlog._native.lazy_numpy import np
from embedlog.errors import ConfigError
from embedlog.format.record_columns import BytesColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

SearchPattern: TypeAlias = "bytes | re.Pattern[bytes] | re.Pattern[str]"

# characters in a row, or alternatives of them
Part: TypeAlias = "list[int] | tuple[list[int], ...]"

TEXT_MIN = 2  # bytes of a text by which rows are found faster than by a bounded expression
TEXTS_MAX = 16  # alternatives: each is a search of its own
# of expressions that are applied to whole buffers: each attempt reads at most so many bytes
WIDTH_MAX = 256

_PARTS = (
    "LITERAL",
    "NOT_LITERAL",
    "ANY",
    "IN",
    "BRANCH",
    "SUBPATTERN",
    "MAX_REPEAT",
    "MIN_REPEAT",
    "RANGE",
    "CATEGORY",
    "NEGATE",
)

# characters of a decoded row that other bytes may be
_UNSTABLE = frozenset((0xFFFD, *range(0xD800, 0xE000)))


class Needles(NamedTuple):
    """Byte strings, one of which every match contains. `fold`: ASCII letters in any case; `whole`:
    nothing else is required.
    """

    texts: tuple[bytes, ...]
    fold: bool
    whole: bool


class RowMatcher:
    """One pattern, prepared for the search of many columns. Raises ConfigError for another type of
    pattern.
    """

    def __init__(self, pattern: SearchPattern) -> None:
        self._expression: re.Pattern[Any] | None = None
        self._is_bounded = False
        self.needles: Needles | None = None
        if isinstance(pattern, bytes):
            self.needles = Needles((pattern,), False, True) if pattern else None
            return
        if not isinstance(pattern, re.Pattern):
            raise ConfigError(
                "pattern",
                expected="bytes, or a compiled regular expression",
                found=repr(pattern)[:100],
            )
        self._expression = pattern
        facts = _ExpressionFacts.of(pattern)
        if facts is not None:
            self.needles = facts.needles
            self._is_bounded = facts.is_bounded

    def may_match(self, data: Any) -> bool:
        """Whether rows inside of this buffer may match."""
        needles = self.needles
        return needles is None or any(
            search.find(data, text, needles.fold) >= 0 for text in needles.texts
        )

    def rows(self, column: BytesColumn) -> NDArray[np.bool_]:
        """The rows that match. REQUIRES a column that starts at bit 0 of its validity."""
        matches = np.zeros(len(column), np.bool_)
        if self._is_bounded and (
            self.needles is None or min(map(len, self.needles.texts)) < TEXT_MIN
        ):
            self._mark_bounded(column, matches)
            return matches
        if self.needles is not None:
            offsets = column.offsets.astype(np.int32, copy=False)
            for text in self.needles.texts:
                search.mark_rows(column.data, offsets, text, self.needles.fold, matches)
            if not self.needles.whole:
                self._keep_matches(column, matches)
            return matches
        matches[:] = True
        if column.validity is not None:
            matches &= np.unpackbits(column.validity, bitorder="little", count=len(column)).astype(
                np.bool_
            )
        if self._expression is not None:
            self._keep_matches(column, matches)
        return matches

    def _keep_matches(self, column: BytesColumn, matches: NDArray[np.bool_]) -> None:
        """Unmark the rows that the expression does not match."""
        assert self._expression is not None
        apply = self._expression.search
        data = column.data.data
        offsets = column.offsets
        is_text = isinstance(self._expression.pattern, str)
        rows = np.flatnonzero(matches)
        for row, start, end in zip(
            rows.tolist(), offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True
        ):
            piece: Any = str(data[start:end], "utf-8", "replace") if is_text else data[start:end]
            if apply(piece) is None:
                matches[row] = False

    def _mark_bounded(self, column: BytesColumn, matches: NDArray[np.bool_]) -> None:
        """Mark rows by one expression over the whole buffer."""
        assert self._expression is not None
        apply = self._expression.search
        offsets = column.offsets
        data = column.data.data
        end = int(offsets[-1])
        position = int(offsets[0])
        while (match := apply(data, position, end)) is not None:
            row = int(offsets.searchsorted(match.start(), "right")) - 1
            start = int(offsets[row])
            position = int(offsets[row + 1])
            # a match beyond the end of the row hides a shorter one inside of it
            matches[row] = match.end() <= position or apply(data[start:position]) is not None


class _ExpressionFacts(NamedTuple):
    """What is known of an expression."""

    needles: Needles | None
    is_bounded: bool

    @classmethod
    def of(cls, pattern: re.Pattern[Any]) -> _ExpressionFacts | None:
        """None if nothing is known: this Python has another parser of expressions."""
        try:
            parse = import_module("re._parser").parse
            tree = parse(pattern.pattern, pattern.flags)
            low, high = tree.getwidth()
        except (ImportError, AttributeError):
            return None
        is_text = isinstance(pattern.pattern, str)
        bounded = not is_text and low > 0 and high <= WIDTH_MAX and _is_context_free(tree)
        ignores_case = bool(pattern.flags & re.IGNORECASE)
        if pattern.flags & re.LOCALE or (is_text and ignores_case):
            return cls(None, bounded and not pattern.flags & re.LOCALE)
        parts: list[Part] = [[]]
        whole = _collect(tree, parts, _UNSTABLE if is_text else frozenset())
        characters = _longest_alternatives(parts)
        if not characters:
            return cls(None, bounded)
        if is_text:
            texts = tuple("".join(map(chr, run)).encode() for run in characters)
        else:
            texts = tuple(bytes(run) for run in characters)
        if ignores_case:
            texts = tuple(text.lower() for text in texts)
        return cls(Needles(texts, ignores_case, whole), bounded)


def _longest_alternatives(parts: list[Part]) -> tuple[list[int], ...]:
    """The alternatives with the longest shortest one; none if nothing is required."""
    sets = [part if isinstance(part, tuple) else (part,) for part in parts]
    required = [alternatives for alternatives in sets if alternatives and all(alternatives)]
    return max(required, key=lambda alternatives: min(map(len, alternatives)), default=())


def _collect(tree: Iterable[tuple[Any, Any]], parts: list[Part], excluded: frozenset[int]) -> bool:
    """Append the characters that follow each other in every match. Returns whether they are the
    whole expression.
    """
    whole = True
    for code, argument in tree:
        name = str(code)
        last = parts[-1]
        if name == "LITERAL" and argument not in excluded and isinstance(last, list):
            last.append(argument)
        elif name == "SUBPATTERN" and not argument[1] and not argument[2]:
            whole &= _collect(argument[3], parts, excluded)
        elif name == "AT":
            whole = False
        else:
            whole = False
            if name == "BRANCH":
                parts += [_collect_alternatives(argument[1], excluded)]
            elif name.endswith("_REPEAT") and argument[0] >= 1:
                parts.append([])
                _collect(argument[2], parts, excluded)
            parts.append([])
    return whole


def _collect_alternatives(trees: Iterable[Any], excluded: frozenset[int]) -> tuple[list[int], ...]:
    """Characters of each alternative; none if one of them requires nothing, or there are too
    many.
    """
    texts: list[list[int]] = []
    for tree in trees:
        parts: list[Part] = [[]]
        _collect(tree, parts, excluded)
        best = _longest_alternatives(parts)
        if not best:
            return ()
        texts += best
    return tuple(texts) if len(texts) <= TEXTS_MAX else ()


def _is_context_free(tree: Iterable[tuple[Any, Any]]) -> bool:
    """Whether a match depends only on its own bytes, and a match in a part of a buffer is one in
    the whole buffer.
    """
    for code, argument in tree:
        name = str(code)
        if name not in _PARTS:
            return False
        inner: list[Any] = []
        if name == "BRANCH":
            inner = list(argument[1])
        elif name == "SUBPATTERN":
            inner = [argument[3]]
        elif name.endswith("_REPEAT"):
            inner = [argument[2]]
        if not all(_is_context_free(branch) for branch in inner):
            return False
    return True
