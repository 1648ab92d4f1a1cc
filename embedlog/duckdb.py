"""The integration with DuckDB: topics as tables, queried by SQL.

    connection = embedlog.duckdb.register(log)
    connection.sql("select partition, count(*) from events group by partition")

- A view is pinned when it is registered: later appends are visible after the next `register`.
- A query reads only the columns that it names, and reads the log each time: nothing is cached
  between queries.
- Bounds of `offset`, `timestamp` and `partition` in a condition reduce what is read. DuckDB applies
  the whole condition afterwards, so a condition that is not recognized costs time and no row.
- A query that needs few records (`limit`) decodes few: DuckDB takes batches one by one, and the
  first ones are small. One that needs none, as `count(*)`, counts.
- In a database in memory the views are also seen by other cursors of the connection. In a file they
  are temporary, and of one connection: another process would find a view of a log that it does not
  have.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import embedlog

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CONSTANT = frozenset({"topic", "partition"})  # columns with one value for each partition
ROWS_AT_ONCE = 1 << 20  # of a batch with constant columns
TIME_END_MS = 253_402_300_800_000  # the year 10000: later times are not narrowed


def register(
    log: embedlog.Log,
    connection: DuckDBPyConnection | None = None,
    *,
    topics: Iterable[str] | None = None,
    **bounds: Any,
) -> DuckDBPyConnection:
    """Create a view of each topic (default: all that are not internal) in `connection`, or in a new
    database in memory.

    `bounds` are the other arguments of `log.scan`; a mapping of TopicPartition applies to the
    topics that it names. Existing views of these names are replaced. Cursors of the connection, one
    for each thread, see the views of a database in memory, and register those of a file anew.
    Returns the connection. Raises MissingExtraError without duckdb or pyarrow,
    UnknownTopicOrPartitionError, ConfigError.
    """
    _check_log(log, "embedlog.duckdb.register()")
    try:
        import duckdb
    except ImportError as missing:
        raise embedlog.MissingExtraError(
            "SQL over topics needs duckdb", extra="duckdb"
        ) from missing
    if isinstance(topics, str):
        raise TypeError(f"topics: a list of names, not {topics!r}")
    names = log.topics() if topics is None else list(topics)
    tables = {name: table(log, name, **_bounds_of_topic(name, names, bounds)) for name in names}
    target = duckdb.connect() if connection is None else connection
    shared = target.execute(
        "select path is null from duckdb_databases() where database_name = current_database()"
    ).fetchall()
    for name, dataset in tables.items():
        target.register(name, dataset)
        if shared == [(True,)]:
            # a table of this name: the temporary view hides it here alone
            with contextlib.suppress(duckdb.CatalogException):
                target.from_arrow(dataset).create_view(name, replace=True)
                target.unregister(name)
    return target


def sql(log: embedlog.Log, query: str, **bounds: Any) -> Any:
    """The rows of a query over the topics, as a pyarrow Table; `bounds` as in `register`.

    Raises as `register` does, and DuckDB's errors.
    """
    with register(log, **bounds) as connection:
        return connection.sql(query).to_arrow_table()


def table(log: embedlog.Log, topic: str, **bounds: Any) -> Any:
    """A topic as a pyarrow Dataset; DuckDB reads the columns that a query names. Raises as
    `register` does.
    """
    _check_log(log, "embedlog.duckdb.table()")
    try:
        import pyarrow.dataset
    except ImportError as missing:
        raise embedlog.MissingExtraError(
            "views of topics need pyarrow", extra="duckdb"
        ) from missing
    scan = log.scan(topic, **bounds)

    class Topic(pyarrow.dataset.Dataset):  # type: ignore[misc]
        """The part of the dataset interface that DuckDB uses: a schema and a scanner."""

        def __init__(self) -> None:
            """Skip the base class: there is no C++ dataset."""

        @property
        def schema(self) -> Any:
            return scan.schema

        def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
            selected = list(scan.columns if columns is None else columns)
            named = [
                name
                for name in scan.columns
                if name not in selected and _names(filter, scan.schema, name)
            ]
            return _Scanner(
                _narrow(scan, filter).narrowed(columns=selected + named), selected, filter
            )

    return Topic()


class _Scanner:
    """The part of a pyarrow Scanner that DuckDB uses, without its read-ahead; everything else is
    that of a Scanner.
    """

    def __init__(self, read: embedlog.Scan, columns: list[str], condition: Any) -> None:
        self._read = read
        self._columns = columns
        self._condition = condition

    def to_reader(self) -> Any:
        """A reader whose batches are read when they are taken, the first ones small."""
        import pyarrow

        schema = pyarrow.schema([self._read.schema.field(name) for name in self._columns])
        return pyarrow.RecordBatchReader.from_batches(schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        for batch in (
            self._constants() if CONSTANT.issuperset(self._read.columns) else self._decode()
        ):
            if self._condition is None:
                yield batch.select(self._columns)
            else:
                yield from self._scanner([batch]).to_batches()

    def _decode(self) -> Iterator[Any]:
        for piece in self._read.gradually():
            yield from piece

    def _constants(self) -> Iterator[Any]:
        """The rows of a query that needs only columns with one value for each partition, also
        `count(*)`: they are counted.
        """
        import pyarrow

        schema = self._read.schema
        for number in self._read.bounds:
            count = self._read.narrowed(partitions=number).num_rows
            values = {"topic": self._read.topic, "partition": number}
            for start in range(0, count, ROWS_AT_ONCE):
                rows = min(ROWS_AT_ONCE, count - start)
                arrays = [
                    pyarrow.repeat(pyarrow.scalar(values[field.name], field.type), rows)
                    for field in schema
                ]
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

    def _scanner(self, batches: Iterable[Any]) -> Any:
        from pyarrow.dataset import Scanner

        return Scanner.from_batches(
            batches, schema=self._read.schema, columns=self._columns, filter=self._condition
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scanner(batch for batch in self._read), name)


def _check_log(log: object, call: str) -> None:
    if not isinstance(log, embedlog.Log):
        path = repr(str(log)) if isinstance(log, str | os.PathLike) else "path"
        raise TypeError(
            f"{call} takes an open log, not {type(log).__name__}: embedlog.open({path}, "
            "read_only=True)"
        )


def _bounds_of_topic(name: str, names: list[str], bounds: dict[str, Any]) -> dict[str, Any]:
    """The bounds of one of several topics. Raises UnknownTopicOrPartitionError for a bound of any
    other topic.
    """
    own_bounds = dict(bounds)
    for bound, value in bounds.items():
        if not isinstance(value, Mapping):
            continue
        if not all(isinstance(key, tuple) and len(key) == 2 for key in value):
            continue
        offsets = {embedlog.TopicPartition(*key): offset for key, offset in value.items()}
        for tp in offsets:
            if tp.topic not in names:
                raise embedlog.UnknownTopicOrPartitionError(
                    f"{bound} names a partition that is not read",
                    expected=f"one of the topics {', '.join(names)}",
                    found=repr(tp),
                )
        own_bounds[bound] = {tp: offset for tp, offset in offsets.items() if tp.topic == name}
    return own_bounds


# ---- conditions ------------------------------------------------------------------------------------------------------


def _narrow(scan: embedlog.Scan, condition: Any) -> embedlog.Scan:
    """The part of a scan in which the condition can hold."""
    import pyarrow
    from pyarrow.dataset import field

    part = scan
    schema = scan.schema
    can_hold = _possibility_test(condition, schema)
    if _names(condition, schema, "partition"):
        part = part.narrowed(
            partitions=[number for number in part.bounds if can_hold(field("partition") == number)]
        )
    if _names(condition, schema, "offset") and part.bounds:
        first = min(start for start, _ in part.bounds.values())
        last = max(end for _, end in part.bounds.values())
        offset = field("offset")
        low, high = _span(
            first, last, lambda at: can_hold(offset < at), lambda at: can_hold(offset >= at)
        )
        part = part.narrowed(start_offset=low, end_offset=high)
    if _names(condition, schema, "timestamp"):
        kind = schema.field("timestamp").type

        def moment(time_ms: int) -> Any:
            return pyarrow.scalar(time_ms, kind)

        time = field("timestamp")
        low, high = _span(
            0,
            TIME_END_MS,
            lambda at: can_hold(time < moment(at)),
            lambda at: can_hold(time >= moment(at)),
        )
        part = part.narrowed(start_time=low or None, end_time=high if high < TIME_END_MS else None)
    return part


def _span(
    first: int, last: int, below: Callable[[int], bool], from_on: Callable[[int], bool]
) -> tuple[int, int]:
    """The range of these numbers in which the condition can hold."""
    low = first + bisect_left(range(first + 1, last + 1), True, key=below)
    high = first + bisect_left(range(first, last), True, key=lambda at: not from_on(at))
    return low, max(low, high)


def _possibility_test(condition: Any, schema: Any) -> Callable[[Any], bool]:
    """A test whether the condition can hold together with another one: Arrow's own pruning of
    files.
    """
    from pyarrow import fs
    from pyarrow.dataset import FileSystemDataset, IpcFileFormat

    layout = IpcFileFormat()
    filesystem = fs.LocalFileSystem()

    def can_hold(other_condition: Any) -> bool:
        file = layout.make_fragment("never-opened", filesystem, other_condition)
        dataset = FileSystemDataset([file], schema, layout, filesystem)
        return next(iter(dataset.get_fragments(condition)), None) is not None

    return can_hold


def _names(condition: Any, schema: Any, column: str) -> bool:
    """Whether a pyarrow expression names the column: without it the expression cannot be bound."""
    import pyarrow.dataset

    if condition is None:
        return False
    other_columns = pyarrow.schema([field for field in schema if field.name != column])
    try:
        pyarrow.dataset.Scanner.from_batches(
            iter(()), schema=other_columns, columns=[], filter=condition
        )
    except pyarrow.ArrowInvalid:
        return True
    return False
