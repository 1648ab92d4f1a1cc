"""Topics as tables in DuckDB: `embedlog.duckdb.register(log, connection)`, then SQL.

    connection = embedlog.duckdb.register(log)
    connection.sql("select partition, count(*) from events group by partition")

DUCKDB-1  a view is pinned when it is registered: what is appended later comes with the next `register`
DUCKDB-2  a query reads only the columns that it names, and the log again each time: nothing is kept between two queries
DUCKDB-3  of a condition, whatever bounds `offset`, `timestamp` or `partition` narrows what is read; it is applied behind that all
    the same, so that what is not understood costs time and no row
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import embedlog

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TIME_END_MS = 253_402_300_800_000  # the year 10000: what lies behind is not narrowed


def register(
    log: embedlog.Log, connection: DuckDBPyConnection | None = None, *, topics: Iterable[str] | None = None, **bounds: Any
) -> DuckDBPyConnection:
    """Makes a view of each topic (of all that are not internal), under its name, in `connection`, or in a new database in memory.

    `bounds` is what `log.scan` takes beside the topic; of a mapping of TopicPartition each topic takes what is its own. Views of
    these names that are there already are replaced. Gives the connection. Raises MissingExtraError without duckdb or pyarrow,
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
    """A topic as a pyarrow Dataset, of which DuckDB takes the columns that a query names. Raises as `register` does."""
    _check_log(log, "embedlog.duckdb.table()")
    try:
        import pyarrow.dataset
    except ImportError as missing:
        raise embedlog.MissingExtraError("views of topics need pyarrow", extra="duckdb") from missing
    whole = log.scan(topic, **bounds)

    class Topic(pyarrow.dataset.Dataset):  # type: ignore[misc]
        """What DuckDB asks of a dataset: a schema, and a scanner of some columns."""

        def __init__(self) -> None:
            """There is nothing below it in C++."""

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
    """The bounds of one topic of several. Raises UnknownTopicOrPartitionError for those of a topic that is none of them."""
    made = dict(bounds)
    for bound, given in bounds.items():
        if isinstance(given, Mapping) and all(isinstance(key, tuple) and len(key) == 2 for key in given):
            places = {embedlog.TopicPartition(*key): offset for key, offset in given.items()}
            odd = next((place for place in places if place.topic not in names), None)
            if odd is not None:
                expected = f"one of the topics {', '.join(names)}"
                raise embedlog.UnknownTopicOrPartitionError(f"{bound} names what is not read", expected=expected, found=repr(odd))
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
    """The last of these numbers below which nothing can hold, and the first from which on nothing can."""
    low = first + bisect_left(range(first + 1, last + 1), True, key=below)
    high = first + bisect_left(range(first, last), True, key=lambda at: not from_on(at))
    return low, max(low, high)


def _possible(condition: Any, schema: Any) -> Callable[[Any], bool]:
    """Whether the condition can hold where something else does. Arrow knows: by this it leaves out whole files."""
    from pyarrow import fs
    from pyarrow.dataset import FileSystemDataset, IpcFileFormat

    layout, nowhere = IpcFileFormat(), fs.LocalFileSystem()

    def can_hold(given: Any) -> bool:
        file = layout.make_fragment("never-opened", nowhere, given)
        return any(True for _ in FileSystemDataset([file], schema, layout, nowhere).get_fragments(condition))

    return can_hold


def _names(condition: Any, schema: Any, column: str) -> bool:
    """Whether a pyarrow expression names the column: then it has no meaning without it."""
    import pyarrow.dataset

    if condition is None:
        return False
    others = pyarrow.schema([field for field in schema if field.name != column])
    try:
        pyarrow.dataset.Scanner.from_batches(iter(()), schema=others, columns=[], filter=condition)
    except pyarrow.ArrowInvalid:
        return True
    return False
