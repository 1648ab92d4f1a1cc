"""Connects a topic and a table of SQLite or PostgreSQL in both directions: each row and each record
once, also after kill -9.

    python examples/table_connectors.py pull data orders shop.sqlite      rows of the table `orders`
    to the topic `orders` python examples/table_connectors.py push data orders shop.sqlite
    records of the topic `orders` to the table `orders_log` python examples/table_connectors.py push
    data orders postgresql:///shop --follow

A run copies what exists and ends; with `--follow` it continues for ever. The next run continues
where the last one ended or was killed. The contract is small. A `Source` returns rows after a
position. A `Sink` takes records, and its `flush` stores them together with the offsets of the next
records. So a sink is also the pattern for any result that is stored in a database.

A pull stores the position in the topic `NAME.positions`, in one transaction of the log with the
records. A push stores offsets in the table `NAME_positions`, in one transaction of the database
with the rows.

Required of a source table: a column `id` that grows with each row, in SQLite with AUTOINCREMENT;
the other columns become JSON. Only new rows are copied: an updated or deleted row is not noticed.
Run one pull and one push of a topic at a time. A second pull fences the first one; a second push
fails at the primary key.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import embedlog
from embedlog import Record, TopicPartition

COUNT = 500  # rows of a transaction


class Row(NamedTuple):
    """A row of a source. A later read continues after `position`."""

    position: int
    key: bytes
    value: bytes


class Source(Protocol):
    """Rows with positions that grow."""

    def read(self, position: int, count: int) -> Sequence[Row]:
        """The first rows after the position, in order; none at the end."""
        ...


class Sink(Protocol):
    """A target that stores offsets next to the records."""

    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition, as of the last `flush`."""
        ...

    def put(self, records: Sequence[Record[bytes, bytes]]) -> None:
        """Take records of some partitions, in order."""
        ...

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store all taken records and the positions after them, together or not at all."""
        ...


# ---- the two directions ----------------------------------------------------------------------------------------------


def pull(
    log: embedlog.Log, topic: str, source: Source, *, count: int = COUNT, follow: bool = False
) -> int:
    """Copy rows to a topic; returns their number."""
    progress = f"{topic}.positions"
    log.create_topic(topic, exist_ok=True)
    log.create_topic(progress, config={"cleanup.policy": "compact"}, exist_ok=True)
    copied = 0
    with log.producer(transactional_id=f"pull-{topic}") as producer:
        # ends the transaction of a killed run, before its position is read
        producer.init_transactions()
        position = last_position(log, progress)
        while True:
            rows = source.read(position, count)
            if rows:
                with producer.transaction():
                    for row in rows:
                        producer.send(topic, row.value, key=row.key)
                    producer.send(progress, b"%d" % rows[-1].position, key=b"position")
                position = rows[-1].position
                copied = copied + len(rows)
            elif not follow:
                return copied
            else:
                time.sleep(1)  # a table has no notification


def last_position(log: embedlog.Log, progress: str) -> int:
    """The position of the last committed transaction; 0 without one."""
    found = 0
    for record in log.scan(progress, isolation_level="read_committed").records():
        found = int(record.value)
    return found


def push(
    log: embedlog.Log, topic: str, sink: Sink, *, count: int = COUNT, follow: bool = False
) -> int:
    """Copy the committed records of a topic to a sink; returns their number."""
    places = [
        TopicPartition(topic, number) for number in range(log.describe_topic(topic).partition_count)
    ]
    copied = 0
    with log.consumer(isolation_level="read_committed", auto_offset_reset="none") as consumer:
        consumer.assign(places)
        stored = sink.positions()
        for place in places:
            if place in stored:
                consumer.seek(place, stored[place])
            else:
                consumer.seek_to_beginning(place)
        ends = consumer.end_offsets(places)
        while follow or any(consumer.position(place) < ends[place] for place in places):
            records = consumer.poll(timeout=1.0, max_records=count)
            if records:
                sink.put(records)
                sink.flush({place: consumer.position(place) for place in places})
                copied += len(records)
    return copied


# ---- databases -------------------------------------------------------------------------------------------------------


class Database(Protocol):
    """The differences between databases."""

    mark: str  # of a parameter
    bytes_type: str
    lock: str  # a statement that waits for writers of the table in the place {}; may be empty

    def transaction(self) -> contextlib.AbstractContextManager[Any]:
        """A cursor, whose changes are committed at the end of the block, or rolled back."""
        ...


class Sqlite:
    """A file of SQLite."""

    # one writer at a time: ids become visible in order
    mark = "?"
    bytes_type = "BLOB"
    lock = ""

    def __init__(self, path: str) -> None:
        self.connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = FULL")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        cursor = self.connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()


class Postgres:
    """A database of PostgreSQL; needs psycopg 3."""

    mark = "%s"
    bytes_type = "BYTEA"
    # an open transaction may hold a smaller id than those that are visible
    lock = "LOCK TABLE {} IN SHARE MODE"

    def __init__(self, url: str) -> None:
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        with self.connection.transaction(), self.connection.cursor() as cursor:
            yield cursor

    def close(self) -> None:
        self.connection.close()


def connect(place: str) -> Sqlite | Postgres:
    """The database of a URL of PostgreSQL, or of a path."""
    return Postgres(place) if place.startswith(("postgresql://", "postgres://")) else Sqlite(place)


def quoted(name: str) -> str:
    """The name of a table or column in a statement."""
    return '"' + name.replace('"', '""') + '"'


class TableSource:
    """The rows of a table by their `id`."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = quoted(table)

    def read(self, position: int, count: int) -> Sequence[Row]:
        mark = self._database.mark
        query = f"SELECT * FROM {self._table} WHERE id > {mark} ORDER BY id LIMIT {mark}"
        with self._database.transaction() as cursor:
            if self._database.lock:
                cursor.execute(self._database.lock.format(self._table))
            cursor.execute(query, (position, count))
            names = [column[0] for column in cursor.description]
            found = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
        return [
            Row(int(row["id"]), b"%d" % row["id"], json.dumps(row, default=_text).encode())
            for row in found
        ]


def _text(value: object) -> str:
    """A value that JSON lacks: bytes in hex, others as text."""
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else str(value)


class TableSink:
    """A table with a row for each record, and a table of positions."""

    def __init__(self, database: Database, table: str, topic: str) -> None:
        self._database = database
        self._topic = topic
        self._rows = quoted(f"{table}_log")
        self._positions = quoted(f"{table}_positions")
        self._taken: list[Record[bytes, bytes]] = []
        with database.transaction() as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._rows} (topic TEXT, part INTEGER, position "
                f"BIGINT, key {database.bytes_type},"
                f" value {database.bytes_type}, PRIMARY KEY (topic, part, position))"
            )
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._positions}"
                " (topic TEXT, part INTEGER, position BIGINT, PRIMARY KEY (topic, part))"
            )

    def positions(self) -> Mapping[TopicPartition, int]:
        query = f"SELECT part, position FROM {self._positions} WHERE topic = {self._database.mark}"
        with self._database.transaction() as cursor:
            cursor.execute(query, (self._topic,))
            return {
                TopicPartition(self._topic, part): position for part, position in cursor.fetchall()
            }

    def put(self, records: Sequence[Record[bytes, bytes]]) -> None:
        self._taken += records

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        mark = self._database.mark
        insert = f"INSERT INTO {self._rows} VALUES ({', '.join([mark] * 5)})"
        update = (
            f"INSERT INTO {self._positions} VALUES ({', '.join([mark] * 3)})"
            " ON CONFLICT (topic, part) DO UPDATE SET position = excluded.position"
        )
        with self._database.transaction() as cursor:
            cursor.executemany(
                insert,
                [
                    (each.topic, each.partition, each.offset, each.key, each.value)
                    for each in self._taken
                ],
            )
            cursor.executemany(
                update, [(*place, position) for place, position in positions.items()]
            )
        self._taken = []


# ---- the program -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("direction", choices=("pull", "push"))
    parser.add_argument("directory", help="the log directory")
    parser.add_argument("name", help="the topic, and the table")
    parser.add_argument("database", help="a path for SQLite, or a URL postgresql://…")
    parser.add_argument("--count", type=int, default=COUNT, help="rows of a transaction")
    parser.add_argument("--follow", action="store_true", help="continue for ever")
    given = parser.parse_args()
    with (
        embedlog.open(given.directory) as log,
        contextlib.closing(connect(given.database)) as database,
    ):
        if given.direction == "pull":
            copied = pull(
                log,
                given.name,
                TableSource(database, given.name),
                count=given.count,
                follow=given.follow,
            )
        else:
            sink = TableSink(database, given.name, given.name)
            copied = push(log, given.name, sink, count=given.count, follow=given.follow)
    print(f"{copied} rows copied")


if __name__ == "__main__":
    main()
