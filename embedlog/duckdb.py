"""Topics as tables in DuckDB: `embedlog.duckdb.register(log, connection)`, then SQL.

    connection = embedlog.duckdb.register(log)
    connection.sql("select partition, count(*) from events group by partition")

V1  a view is pinned when it is registered: what is appended later comes with the next `register`
V2  a query reads only the columns that it names, and the log again each time: nothing is kept between two queries
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import embedlog


def register(log: embedlog.Log, connection: Any = None, *, topics: Iterable[str] | None = None, **bounds: Any) -> Any:
    """Makes a view of each topic (of all that are not internal), under its name, in `connection`, or in a new database in memory.

    `bounds` is what `log.scan` takes beside the topic. Views of these names that are there already are replaced. Gives the
    connection. Raises MissingExtraError without duckdb or pyarrow, UnknownTopicOrPartitionError, ConfigError.
    """
    try:
        import duckdb
    except ImportError as missing:
        raise embedlog.MissingExtraError("SQL over topics needs duckdb", extra="duckdb") from missing
    tables = {name: table(log, name, **bounds) for name in (log.topics() if topics is None else topics)}
    made = duckdb.connect() if connection is None else connection
    for name, each in tables.items():
        made.register(name, each)
    return made


def table(log: embedlog.Log, topic: str, **bounds: Any) -> Any:
    """A topic as a pyarrow Dataset, of which DuckDB takes the columns that a query names. Raises as `register` does."""
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
            read = whole.narrowed(columns=wanted + named)
            batches = (batch for batch in read)
            return pyarrow.dataset.Scanner.from_batches(batches, schema=read.schema, columns=wanted, filter=filter)

    return Topic()


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
