"""The integration with polars: a topic as a LazyFrame.

    embedlog.polars.scan(log, "events").filter(…).select(…).collect()

POLARS-1  the bounds are pinned when the frame is created: later appends are not in it, however often it is collected
POLARS-2  bounds of `offset`, `timestamp` and `partition` in a filter reduce what is read. The complete filter is applied by
    polars afterwards, so a condition that is not recognized costs time and no row
POLARS-3  only the columns of the query are decoded
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import embedlog

if TYPE_CHECKING:
    import polars

PER_MILLISECOND = {"Milliseconds": 1, "Microseconds": 1_000, "Nanoseconds": 1_000_000}
MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq", "Eq": "Eq"}


def scan(log: embedlog.Log, topic: str, **bounds: Any) -> polars.LazyFrame:
    """A LazyFrame of the present records of the topic; `bounds` are the other arguments of `log.scan`.

    The log must stay open until the frame is collected. Raises MissingExtraError without polars, UnknownTopicOrPartitionError,
    ConfigError.
    """
    _check_log(log)
    try:
        import polars
        from polars.io.plugins import register_io_source
    except ImportError as missing:
        raise embedlog.MissingExtraError("lazy frames need polars", extra="polars") from missing
    whole = log.scan(topic, **bounds)

    def source(columns: list[str] | None, predicate: Any, row_count: int | None, batch_rows: int | None) -> Iterator[Any]:
        narrow = Narrow() if predicate is None or row_count is not None else Narrow().within(_tree(predicate))
        left = row_count
        for batch in narrow.of(whole.narrowed(columns=columns)):
            frame = polars.DataFrame(batch)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame if predicate is None else frame.filter(predicate)
            if left == 0:
                return

    empty = polars.DataFrame(whole.narrowed(partitions=[]))
    return register_io_source(source, schema=empty.schema, is_pure=True)


def _check_log(given: object) -> None:
    if not isinstance(given, embedlog.Log):
        path = repr(str(given)) if isinstance(given, str | os.PathLike) else "path"
        found = type(given).__name__
        raise TypeError(f"embedlog.polars.scan() takes an open log, not {found}: embedlog.open({path}, read_only=True)")


# ---- predicates ------------------------------------------------------------------------------------------------------

NEVER = 2**63 - 1


@dataclass(frozen=True)
class Narrow:
    """Bounds that a predicate implies: starts inclusive, ends exclusive."""

    first: int = 0
    last: int = NEVER
    start_ms: int = 0
    end_ms: int = NEVER
    partition: int | None = None

    def of(self, scan: embedlog.Scan) -> embedlog.Scan:
        """The part of a scan within these bounds."""
        known = list(scan.bounds)
        return scan.narrowed(
            partitions=None if self.partition is None else [number for number in known if number == self.partition],
            start_offset=self.first or None,
            end_offset=None if self.last == NEVER else max(0, self.last),
            start_time=self.start_ms or None,
            end_time=None if self.end_ms == NEVER else max(0, self.end_ms),
        )

    def within(self, node: Any) -> Narrow:
        """These bounds, narrowed by the recognized parts of a predicate's tree."""
        comparison = node.get("BinaryExpr") if isinstance(node, dict) else None
        if not isinstance(comparison, dict):
            return self
        left, right, sign = comparison.get("left"), comparison.get("right"), comparison.get("op")
        if sign in ("And", "LogicalAnd"):
            return self.within(left).within(right)
        if isinstance(right, dict) and "Column" in right:
            left, right, sign = right, left, MIRRORED.get(str(sign))
        column, number = (left.get("Column") if isinstance(left, dict) else None), _number(right)
        if number is None or sign not in MIRRORED:
            return self
        if column == "offset":
            return self._offsets(str(sign), number)
        if column == "timestamp":
            return self._times(str(sign), number)
        return replace(self, partition=number) if column == "partition" and sign == "Eq" else self

    def _offsets(self, sign: str, number: int) -> Narrow:
        low, high = _span(sign, number)
        return replace(self, first=max(self.first, low), last=min(self.last, high))

    def _times(self, sign: str, number: int) -> Narrow:
        low, high = _span(sign, number)
        return replace(self, start_ms=max(self.start_ms, low), end_ms=min(self.end_ms, high))


def _span(sign: str, number: int) -> tuple[int, int]:
    """The least value, and the one after the greatest."""
    low = {"Gt": number + 1, "GtEq": number, "Eq": number}.get(sign, 0)
    high = {"Lt": number, "LtEq": number + 1, "Eq": number + 1}.get(sign, NEVER)
    return low, high


def _number(node: Any) -> int | None:
    """A literal as a whole number: an offset, or milliseconds."""
    literal = node.get("Literal") if isinstance(node, dict) else None
    for kind in ("Scalar", "Dyn"):
        if isinstance(literal, dict) and isinstance(literal.get(kind), dict):
            literal = literal[kind]
    if not isinstance(literal, dict) or len(literal) != 1:
        return None
    ((kind, value),) = literal.items()
    if kind == "Datetime" and isinstance(value, list) and value[1:2] and value[1] in PER_MILLISECOND:
        whole, rest = divmod(value[0], PER_MILLISECOND[value[1]])
        return None if rest else int(whole)  # between two milliseconds: left to polars
    return value if kind.startswith(("Int", "UInt")) and type(value) is int else None


def _tree(predicate: Any) -> Any:
    """A predicate as nested mappings; None if this version of polars serializes it in another form."""
    try:
        return json.loads(predicate.meta.serialize(format="json"))
    except (ValueError, TypeError, AttributeError):
        return None
