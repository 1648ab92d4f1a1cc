"""The integration with DuckDB: topics as tables, queried by SQL.

    connection = embedlog.duckdb.register(log)
    connection.sql("select partition, count(*) from events group by partition")

DUCKDB-1  a view is pinned when it is registered: later appends are visible after the next `register`
DUCKDB-2  a query reads only the columns that it names, and reads the log each time: nothing is cached between queries
DUCKDB-3  bounds of `offset`, `timestamp` and `partition` in a condition reduce what is read. DuckDB applies the whole condition
    afterwards, so a condition that is not recognized costs time and no row
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import embedlog

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TIME_END_MS = 253_402_300_800_000  # the year 10000: later times are not narrowed


def register(
    log: embedlog.Log, connection: DuckDBPyConnection | None = None, *, topics: Iterable[str] | None = None, **bounds: Any
) -> DuckDBPyConnection:
    """Create a view of each topic (default: all that are not internal) in `connection`, or in a new database in memory.

    `bounds` are the other arguments of `log.scan`; a mapping of TopicPartition applies to the topics that it names. Existing
    views of these names are replaced. Returns the connection. Raises MissingExtraError without duckdb or pyarrow,
    UnknownTopicOrPartitionError, ConfigError.
    """
    _check_log(log, "embedlog.duckdb.register()")
    try:
        import duckdb
    except ImportError as missing:
        raise embedlog.MissingExtraError("SQL over topics needs duckdb", extra="duckdb") from missing
    if isinstance(topics, str):
        raise TypeError(f"topics: a list of names, not {topics!r}")
    names = log.topics() if topics is None else list(topics)
    tables = {name: table(log, name, **_of_topic(name, names, bounds)) for name in names}
    made = duckdb.connect() if connection is None else connection
    for name, each in tables.items():
        made.register(name, each)
    return made


def table(log: embedlog.Log, topic: str, **bounds: Any) -> Any:
    """A topic as a pyarrow Dataset; DuckDB reads the columns that a query names. Raises as `register` does."""
    _check_log(log, "embedlog.duckdb.table()")
    try:
        import pyarrow.dataset
    except ImportError as missing:
        raise embedlog.MissingExtraError("views of topics need pyarrow", extra="duckdb") from missing
    whole = log.scan(topic, **bounds)

    class Topic(pyarrow.dataset.Dataset):  # type: ignore[misc]
        """The part of the dataset interface that DuckDB uses: a schema and a scanner."""

        def __init__(self) -> None:
            """Skip the base class: there is no C++ dataset."""

        @property
        def schema(self) -> Any:
            return whole.schema

        def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
            wanted = list(whole.columns if columns is None else columns)
            named = [name for name in whole.columns if name not in wanted and _names(filter, whole.schema, name)]
            read = _narrowed(whole, filter).narrowed(columns=wanted + named)
            batches = (batch for batch in read)
            return pyarrow.dataset.Scanner.from_batches(batches, schema=read.schema, columns=wanted, filter=filter)

    return Topic()


def _check_log(given: object, call: str) -> None:
    if not isinstance(given, embedlog.Log):
        path = repr(str(given)) if isinstance(given, str | os.PathLike) else "path"
        raise TypeError(f"{call} takes an open log, not {type(given).__name__}: embedlog.open({path}, read_only=True)")


def _of_topic(name: str, names: list[str], bounds: dict[str, Any]) -> dict[str, Any]:
    """The bounds of one of several topics. Raises UnknownTopicOrPartitionError for a bound of any other topic."""
    made = dict(bounds)
    for bound, given in bounds.items():
        if isinstance(given, Mapping) and all(isinstance(key, tuple) and len(key) == 2 for key in given):
            places = {embedlog.TopicPartition(*key): offset for key, offset in given.items()}
            odd = next((place for place in places if place.topic not in names), None)
            if odd is not None:
                expected = f"one of the topics {', '.join(names)}"
                raise embedlog.UnknownTopicOrPartitionError(
                    f"{bound} names a partition that is not read", expected=expected, found=repr(odd)
                )
            made[bound] = {place: offset for place, offset in places.items() if place.topic == name}
    return made


# ---- conditions ------------------------------------------------------------------------------------------------------


def _narrowed(scan: embedlog.Scan, condition: Any) -> embedlog.Scan:
    """The part of a scan in which the condition can hold."""
    import pyarrow
    from pyarrow.dataset import field

    part, schema = scan, scan.schema
    can_hold = _possible(condition, schema)
    if _names(condition, schema, "partition"):
        part = part.narrowed(partitions=[number for number in part.bounds if can_hold(field("partition") == number)])
    if _names(condition, schema, "offset") and part.bounds:
        first, last = min(start for start, _ in part.bounds.values()), max(end for _, end in part.bounds.values())
        place = field("offset")
        low, high = _span(first, last, lambda at: can_hold(place < at), lambda at: can_hold(place >= at))
        part = part.narrowed(start_offset=low, end_offset=high)
    if _names(condition, schema, "timestamp"):
        kind = schema.field("timestamp").type

        def moment(time_ms: int) -> Any:
            return pyarrow.scalar(time_ms, kind)

        time = field("timestamp")
        low, high = _span(0, TIME_END_MS, lambda at: can_hold(time < moment(at)), lambda at: can_hold(time >= moment(at)))
        part = part.narrowed(start_time=low or None, end_time=high if high < TIME_END_MS else None)
    return part


def _span(first: int, last: int, below: Callable[[int], bool], from_on: Callable[[int], bool]) -> tuple[int, int]:
    """The range of these numbers in which the condition can hold."""
    low = first + bisect_left(range(first + 1, last + 1), True, key=below)
    high = first + bisect_left(range(first, last), True, key=lambda at: not from_on(at))
    return low, max(low, high)


def _possible(condition: Any, schema: Any) -> Callable[[Any], bool]:
    """A test whether the condition can hold together with another one: Arrow's own pruning of files."""
    from pyarrow import fs
    from pyarrow.dataset import FileSystemDataset, IpcFileFormat

    layout, filesystem = IpcFileFormat(), fs.LocalFileSystem()

    def can_hold(given: Any) -> bool:
        file = layout.make_fragment("never-opened", filesystem, given)
        return any(True for _ in FileSystemDataset([file], schema, layout, filesystem).get_fragments(condition))

    return can_hold


def _names(condition: Any, schema: Any, column: str) -> bool:
    """Whether a pyarrow expression names the column: without it the expression cannot be bound."""
    import pyarrow.dataset

    if condition is None:
        return False
    others = pyarrow.schema([field for field in schema if field.name != column])
    try:
        pyarrow.dataset.Scanner.from_batches(iter(()), schema=others, columns=[], filter=condition)
    except pyarrow.ArrowInvalid:
        return True
    return False
