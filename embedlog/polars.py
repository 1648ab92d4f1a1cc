"""The integration with polars: a topic as a LazyFrame.

    embedlog.polars.scan(log, "events").filter(…).select(…).collect()

- The bounds are pinned when the frame is created: later appends are not in it, however often it is
  collected.
- Bounds of `offset`, `timestamp` and `partition` in a filter reduce what is read. The complete
  filter is applied by polars afterwards, so a condition that is not recognized costs time and no
  row.
- Only the columns of the query are decoded; where `topic` and `partition` are enough, records are
  only counted.
- A limit and `tail` decode about as many records as they return.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import embedlog

if TYPE_CHECKING:
    import polars

PER_MILLISECOND = {"Milliseconds": 1, "Microseconds": 1_000, "Nanoseconds": 1_000_000}
ROWS_AT_ONCE = 1 << 20  # of a frame with constant columns
MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq", "Eq": "Eq"}


def scan(log: embedlog.Log, topic: str, **bounds: Any) -> polars.LazyFrame:
    """A LazyFrame of the current records of the topic; `bounds` are the other arguments of
    `log.scan`.

    The log must stay open until the frame is collected. Raises MissingExtraError without polars,
    UnknownTopicOrPartitionError, ConfigError.
    """
    _check_log(log)
    try:
        import polars
        from polars.io.plugins import register_io_source
    except ImportError as missing:
        raise embedlog.MissingExtraError("lazy frames need polars", extra="polars") from missing
    return _frame(log.scan(topic, **bounds), polars, register_io_source)


def _frame(scan: embedlog.Scan, polars: Any, register_io_source: Any) -> Any:
    """A LazyFrame of a scan."""
    empty = polars.DataFrame(scan.narrowed(partitions=[]))

    def source(
        columns: list[str] | None, predicate: Any, row_count: int | None, batch_rows: int | None
    ) -> Iterator[Any]:
        narrow = Narrow()
        if predicate is not None and row_count is None:
            narrow = narrow.within(_tree(predicate))
        remaining = row_count
        for read in _frames(
            narrow.of(scan.narrowed(columns=columns)),
            empty.schema,
            polars,
            reads_few=remaining is not None,
        ):
            frame = read
            if remaining is not None:
                frame = read.head(remaining)
                remaining -= frame.height
            yield frame if predicate is None else frame.filter(predicate)
            if remaining == 0:
                return

    def tail(n: int = 5) -> Any:
        """The last `n` records, without a read of the others. polars gives a source no limit from
        the end.
        """
        return _frame(scan.ending(n), polars, register_io_source)

    frame = register_io_source(source, schema=empty.schema, is_pure=True)
    frame.tail = tail  # of this frame alone: frames that are made of it have other rows
    frame.last = lambda: tail(1)
    return frame


def _frames(part: embedlog.Scan, schema: Any, polars: Any, *, reads_few: bool) -> Iterator[Any]:
    """The records as DataFrames; `reads_few`: the first records may be enough."""
    constants = {"topic": part.topic, "partition": 0}
    # also `len()`, for which polars asks for any column
    if part.columns and constants.keys() >= set(part.columns):
        for number in part.bounds:
            count = part.narrowed(partitions=number).num_rows
            row = {**constants, "partition": number}
            constant_columns = [
                polars.Series(name, [row[name]], dtype=schema[name]) for name in part.columns
            ]
            for start in range(0, count, ROWS_AT_ONCE):
                yield polars.DataFrame(
                    [
                        column.new_from_index(0, min(ROWS_AT_ONCE, count - start))
                        for column in constant_columns
                    ]
                )
        return
    for piece in part.gradually() if reads_few else (part,):
        for batch in piece:
            yield polars.DataFrame(batch)


def _check_log(log: object) -> None:
    if not isinstance(log, embedlog.Log):
        path = repr(str(log)) if isinstance(log, str | os.PathLike) else "path"
        kind = type(log).__name__
        raise TypeError(
            f"embedlog.polars.scan() takes an open log, not {kind}: embedlog.open({path}, "
            "read_only=True)"
        )


# ---- predicates ------------------------------------------------------------------------------------------------------

NEVER = 2**63 - 1


@dataclass(frozen=True)
class Narrow:
    """Bounds that a predicate implies: starts inclusive, ends exclusive."""

    first: int = 0
    last: int = NEVER
    start_ms: int = 0
    end_ms: int = NEVER
    partitions: frozenset[int] | None = None

    def of(self, scan: embedlog.Scan) -> embedlog.Scan:
        """The part of a scan within these bounds."""
        partitions: list[int] | None = None
        if self.partitions is not None:
            partitions = [number for number in scan.bounds if number in self.partitions]
        return scan.narrowed(
            partitions=partitions,
            start_offset=self.first or None,
            end_offset=None if self.last == NEVER else max(0, self.last),
            start_time=self.start_ms or None,
            end_time=None if self.end_ms == NEVER else max(0, self.end_ms),
        )

    def within(self, node: Any) -> Narrow:
        """These bounds, narrowed by the recognized parts of a predicate's tree."""
        if not isinstance(node, dict):
            return self
        call = node.get("Function")
        if isinstance(call, dict):
            return self._within_call(call)
        comparison = node.get("BinaryExpr")
        if not isinstance(comparison, dict):
            return self
        left = comparison.get("left")
        right = comparison.get("right")
        sign = comparison.get("op")
        if sign in ("And", "LogicalAnd"):
            return self.within(left).within(right)
        if sign in ("Or", "LogicalOr"):
            return self.within(left).or_within(self.within(right))
        if _column(right) is not None:
            left, right, sign = right, left, MIRRORED.get(str(sign))
        column = _column(left)
        number = _number(right)
        if number is None or sign not in MIRRORED:
            return self
        return self._where(column, *_span(str(sign), number))

    def or_within(self, other: Narrow) -> Narrow:
        """The bounds that contain these and the other ones."""
        partitions: frozenset[int] | None = None
        if self.partitions is not None and other.partitions is not None:
            partitions = self.partitions | other.partitions
        return Narrow(
            min(self.first, other.first),
            max(self.last, other.last),
            min(self.start_ms, other.start_ms),
            max(self.end_ms, other.end_ms),
            partitions,
        )

    def _within_call(self, call: dict[str, Any]) -> Narrow:
        """Narrowed by `is_between` or `is_in` of a column."""
        arguments = call.get("input")
        name = call.get("function")
        name = name.get("Boolean") if isinstance(name, dict) else None
        if not isinstance(arguments, list) or not isinstance(name, dict) or len(name) != 1:
            return self
        ((kind, options),) = name.items()
        column = _column(arguments[0]) if arguments else None
        if kind == "IsIn" and len(arguments) == 2:
            values = _values(arguments[1])
            return self if values is None else self._among(column, values)
        if kind != "IsBetween" or len(arguments) != 3 or not isinstance(options, dict):
            return self
        closed = options.get("closed")
        narrowed = self
        for number, sign, ends in (
            (_number(arguments[1]), "Gt", ("Both", "Left")),
            (_number(arguments[2]), "Lt", ("Both", "Right")),
        ):
            if number is not None:
                narrowed = narrowed._where(
                    column, *_span(f"{sign}Eq" if closed in ends else sign, number)
                )
        return narrowed

    def _where(self, column: str | None, low: int, high: int) -> Narrow:
        """Narrowed to values of a column from `low` to below `high`."""
        if column == "offset":
            return replace(self, first=max(self.first, low), last=min(self.last, high))
        if column == "timestamp":
            return replace(self, start_ms=max(self.start_ms, low), end_ms=min(self.end_ms, high))
        if column == "partition" and high == low + 1:
            return self._among(column, [low])
        return self

    def _among(self, column: str | None, values: list[int]) -> Narrow:
        """Narrowed to these values of a column."""
        if column == "partition":
            selected = frozenset(values)
            return replace(
                self, partitions=selected if self.partitions is None else self.partitions & selected
            )
        return self._where(column, min(values, default=0), max(values, default=-1) + 1)


class Number(NamedTuple):
    """A whole number in a predicate: an offset, or milliseconds. Not `exact`: the literal is
    between it and the next one.
    """

    value: int
    exact: bool = True


def _column(node: Any) -> str | None:
    name = node.get("Column") if isinstance(node, dict) else None
    return name if isinstance(name, str) else None


def _span(sign: str, number: Number) -> tuple[int, int]:
    """The least value, and the one after the greatest."""
    value = number.value
    above = number.value + 1
    low = {"Gt": above, "GtEq": value if number.exact else above, "Eq": value}.get(sign, 0)
    high = {"Lt": value if number.exact else above, "LtEq": above, "Eq": above}.get(sign, NEVER)
    return low, high


def _literal(node: Any) -> tuple[str, Any] | None:
    """The kind of a literal and its value."""
    literal = node.get("Literal") if isinstance(node, dict) else None
    for kind in ("Scalar", "Dyn"):
        if isinstance(literal, dict) and isinstance(literal.get(kind), dict):
            literal = literal[kind]
    if not isinstance(literal, dict) or len(literal) != 1:
        return None
    ((kind, value),) = literal.items()
    return kind, value


def _number(node: Any) -> Number | None:
    """A literal as a whole number."""
    literal = _literal(node)
    if literal is None:
        return None
    kind, value = literal
    if (
        kind == "Datetime"
        and isinstance(value, list)
        and value[1:2]
        and value[1] in PER_MILLISECOND
    ):
        milliseconds, remainder = divmod(value[0], PER_MILLISECOND[value[1]])
        return Number(int(milliseconds), exact=not remainder)
    return Number(value) if kind.startswith(("Int", "UInt")) and type(value) is int else None


def _values(node: Any) -> list[int] | None:
    """The whole numbers of a list literal, which is serialized as an IPC stream; times are rounded
    down to milliseconds.
    """
    import polars

    literal = _literal(node)
    if literal is None or literal[0] != "List" or not isinstance(literal[1], list):
        return None
    try:
        series = polars.read_ipc_stream(bytes(literal[1])).to_series().drop_nulls()
    except (polars.exceptions.PolarsError, OSError, ValueError):
        return None  # this version of polars serializes it in another form
    if isinstance(series.dtype, polars.Datetime):
        series = series.dt.epoch("ms")
    if not series.dtype.is_integer():
        return None
    return [int(value) for value in series]


def _tree(predicate: Any) -> Any:
    """A predicate as nested mappings; None if this version of polars serializes it in another
    form.
    """
    try:
        return json.loads(predicate.meta.serialize(format="json"))
    except (ValueError, TypeError, AttributeError):
        return None
