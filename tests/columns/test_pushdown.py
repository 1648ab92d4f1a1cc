"""What a query of polars, DuckDB or a pyarrow dataset decodes; its rows are those of the same query
without any pushdown.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import embedlog
import embedlog.duckdb
import embedlog.polars
from embedlog.columns.chunks import ChunkSource

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")
dataset = pytest.importorskip("pyarrow.dataset")
duckdb = pytest.importorskip("duckdb", reason="needs duckdb: pip install 'embedlog[duckdb]'")
pl = pytest.importorskip("polars", reason="needs polars: pip install 'embedlog[polars]'")

PARTITIONS: Final = 4
RECORDS: Final = 4000
FIRST_MS: Final = 1_700_000_000_000
FEW: Final = 128  # rows of the first batch of a query that may need few


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedlog.Log]:
    """4,000 records in 4 partitions, one a second."""
    with embedlog.open(
        tmp_path_factory.mktemp("pushdown") / "log", config={"housekeeping": False}
    ) as made:
        made.create_topic("e", partitions=PARTITIONS)
        with made.producer() as producer:
            for number in range(RECORDS):
                producer.send(
                    "e",
                    b"%d" % number,
                    key=b"k%d" % (number % 50),
                    partition=number % 4,
                    timestamp_ms=FIRST_MS + 1000 * number,
                )
                if number % 400 == 399:
                    producer.flush()
        yield made


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each decoding."""
    found: list[int] = []
    real = ChunkSource._decode

    def counted(self: ChunkSource, *args: Any) -> Any:
        made = real(self, *args)
        found.append(0 if made.decoded is None else made.decoded.count)
        return made

    monkeypatch.setattr(ChunkSource, "_decode", counted)
    return found


def at(second: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(FIRST_MS / 1000, dt.UTC) + dt.timedelta(seconds=second)


def sql_time(second: float) -> str:
    return f"TIMESTAMPTZ '{at(second).isoformat()}'"


class Query(NamedTuple):
    """A condition in each language, the records it selects, and the most rows that may be decoded
    for it.
    """

    polars: Any
    sql: str
    arrow: Any
    holds: Callable[[dict[str, Any]], bool]
    most: int


def time(second: float) -> Any:
    return pa.scalar(at(second), pa.timestamp("us", "UTC")).cast(pa.timestamp("ms", "UTC"))


col = pl.col
field = dataset.field
QUERIES: Final = {
    "partition =": Query(
        col("partition") == 1,
        "partition = 1",
        field("partition") == 1,
        lambda row: row["partition"] == 1,
        1000,
    ),
    "partition in": Query(
        col("partition").is_in([1, 2]),
        "partition in (1, 2)",
        field("partition").isin([1, 2]),
        lambda row: row["partition"] in (1, 2),
        2000,
    ),
    "partition in none": Query(
        col("partition").is_in([7]),
        "partition in (7)",
        field("partition").isin([7]),
        lambda row: False,
        0,
    ),
    "partition = or =": Query(
        (col("partition") == 0) | (col("partition") == 3),
        "partition = 0 or partition = 3",
        (field("partition") == 0) | (field("partition") == 3),
        lambda row: row["partition"] in (0, 3),
        2000,
    ),
    "offset >=": Query(
        col("offset") >= 900,
        '"offset" >= 900',
        field("offset") >= 900,
        lambda row: row["offset"] >= 900,
        400,
    ),
    "offset between": Query(
        col("offset").is_between(100, 149),
        '"offset" between 100 and 149',
        (field("offset") >= 100) & (field("offset") <= 149),
        lambda row: 100 <= row["offset"] <= 149,
        200,
    ),
    "offset between, open": Query(
        col("offset").is_between(100, 150, closed="none"),
        '"offset" > 100 and "offset" < 150',
        (field("offset") > 100) & (field("offset") < 150),
        lambda row: 100 < row["offset"] < 150,
        200,
    ),
    "offset in": Query(
        col("offset").is_in([10, 12, 14]),
        '"offset" in (10, 12, 14)',
        field("offset").isin([10, 12, 14]),
        lambda row: row["offset"] in (10, 12, 14),
        20,
    ),
    "timestamp >=": Query(
        col("timestamp") >= at(3600),
        f"timestamp >= {sql_time(3600)}",
        field("timestamp") >= time(3600),
        lambda row: row["timestamp"] >= at(3600),
        400,
    ),
    "timestamp between": Query(
        col("timestamp").is_between(at(600), at(900)),
        f"timestamp between {sql_time(600)} and {sql_time(900)}",
        (field("timestamp") >= time(600)) & (field("timestamp") <= time(900)),
        lambda row: at(600) <= row["timestamp"] <= at(900),
        304,
    ),
    "timestamp between microseconds": Query(
        col("timestamp").is_between(at(600.0005), at(900.0005)),
        f"timestamp between {sql_time(600.0005)} and {sql_time(900.0005)}",
        (field("timestamp") > time(600)) & (field("timestamp") <= time(900)),
        lambda row: at(600) < row["timestamp"] <= at(900),
        304,
    ),
    "timestamp in": Query(
        col("timestamp").is_in([at(8), at(16)]),
        f"timestamp in ({sql_time(8)}, {sql_time(16)})",
        field("timestamp").isin([time(8), time(16)]),
        lambda row: row["timestamp"] in (at(8), at(16)),
        12,
    ),
    "key =": Query(
        col("key") == b"k7",
        "key = 'k7'",
        field("key") == b"k7",
        lambda row: row["key"] == b"k7",
        4000,
    ),
}
by_query = pytest.mark.parametrize("name", QUERIES)


def rows(log: embedlog.Log) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log.scan("e").to_arrow().to_pylist()
    return found


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((each["partition"], each["offset"]) for each in found)


def expected(log: embedlog.Log, query: Query) -> list[tuple[int, int]]:
    return places([each for each in rows(log) if query.holds(each)])


@pytest.mark.sample(0.25)
@by_query
def test_polars_decodes_what_a_condition_needs(
    log: embedlog.Log, decoded: list[int], name: str
) -> None:
    query = QUERIES[name]
    # polars cuts microseconds of a literal off
    right = places(pl.DataFrame(log.scan("e")).filter(query.polars).to_dicts())
    assert right == expected(log, query) or "microseconds" in name
    decoded.clear()
    found = (
        embedlog.polars.scan(log, "e").filter(query.polars).select("partition", "offset").collect()
    )
    assert sum(decoded) <= query.most
    assert places(found.to_dicts()) == right
    counted = embedlog.polars.scan(log, "e").filter(query.polars).select(pl.len()).collect().item()
    assert counted == len(right)


@pytest.mark.sample(0.25)
@by_query
def test_duckdb_decodes_what_a_condition_needs(
    log: embedlog.Log, decoded: list[int], name: str
) -> None:
    query = QUERIES[name]
    right = expected(log, query)
    decoded.clear()
    with embedlog.duckdb.register(log) as connection:
        found = connection.sql(
            f'select partition, "offset" from e where {query.sql}'
        ).to_arrow_table()
        assert sum(decoded) <= query.most
        assert places(found.to_pylist()) == right
        assert connection.sql(f"select count(*) from e where {query.sql}").fetchall() == [
            (len(right),)
        ]


@pytest.mark.sample(0.25)
@by_query
def test_a_dataset_decodes_what_a_condition_needs(
    log: embedlog.Log, decoded: list[int], name: str
) -> None:
    query = QUERIES[name]
    right = expected(log, query)
    decoded.clear()
    table = embedlog.duckdb.table(log, "e").to_table(
        columns=["partition", "offset"], filter=query.arrow
    )
    assert sum(decoded) <= query.most
    assert places(table.to_pylist()) == right
    assert embedlog.duckdb.table(log, "e").count_rows(filter=query.arrow) == len(right)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda lazy: lazy.tail(5), 5 + 5),  # the offsets, and the records
        (lambda lazy: lazy.tail(1003), 1000 + 3 + 1003),
        (lambda lazy: lazy.last(), 1 + 1),
        (lambda lazy: lazy.tail(0), 0),
        (lambda lazy: lazy.tail(9000), 4000 + 4000),
        (lambda lazy: lazy.head(5), FEW),
        (lambda lazy: lazy.head(200), FEW + 4 * FEW),
        (lambda lazy: lazy.select("topic", "partition"), 0),
        (lambda lazy: lazy.select("partition").head(1500), 0),
        (lambda lazy: lazy.select(pl.len()), 0),
        (lambda lazy: lazy.group_by("partition").len().sort("partition"), 0),
        (lambda lazy: lazy.filter(col("value") == b"3999").tail(5), 4000),
        (lambda lazy: lazy.select("offset").tail(5), 4000),
    ],
)
def test_polars_decodes_what_a_selection_needs(
    log: embedlog.Log, decoded: list[int], make: Callable[[Any], Any], most: int
) -> None:
    right = make(pl.DataFrame(log.scan("e")).lazy()).collect()
    decoded.clear()
    found = make(embedlog.polars.scan(log, "e")).collect()
    assert sum(decoded) <= most
    assert found.equals(right)
    assert found.schema == right.schema


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("select * from e limit 5", FEW),
        ('select value from e where "offset" >= 500 limit 5', 500),
        ("select count(*) from e", 0),
        ("select partition, count(*) from e group by partition order by partition", 0),
        ("select count(*) from e where partition = 2", 0),
        ("select max(topic), min(partition) from e", 0),
    ],
)
def test_duckdb_decodes_what_a_selection_needs(
    log: embedlog.Log, decoded: list[int], query: str, most: int
) -> None:
    whole = duckdb.connect()
    whole.register("e", log.scan("e").to_arrow())
    decoded.clear()
    with embedlog.duckdb.register(log) as connection:
        found = connection.sql(query).fetchall()
    assert sum(decoded) <= most
    if "limit" in query:
        assert len(found) == 5
    else:
        assert found == whole.sql(query).fetchall()


# ---- the parts of a scan -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedlog.Log]:
    """Three partitions with aborted and committed transactions; the second one is empty."""
    with embedlog.open(
        tmp_path_factory.mktemp("gaps") / "log", config={"housekeeping": False}
    ) as made:
        made.create_topic("t", partitions=3)
        with made.producer(transactional_id="x", compression_type="gzip") as producer:
            producer.init_transactions()
            for number in range(30):
                producer.begin_transaction()
                for _ in range(number % 5 + 1):
                    producer.send("t", b"%d" % number, partition=0 if number % 3 else 2)
                (producer.abort_transaction if number % 4 == 1 else producer.commit_transaction)()
        yield made


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(
    "bounds", [{}, {"start_offset": 3, "end_offset": 17}, {"partitions": 0}, {"partitions": 1}]
)
def test_the_parts_of_a_scan_are_the_whole(
    gaps: embedlog.Log, isolation: Any, bounds: dict[str, Any]
) -> None:
    scan = gaps.scan("t", isolation_level=isolation, **bounds)
    whole = [(each.partition, each.offset, each.value) for each in scan.records()]
    assert scan.num_rows == len(whole)
    for first in (1, 7, 1000):
        parts = list(scan.gradually(first))
        found = [
            (each.partition, each.offset, each.value) for part in parts for each in part.records()
        ]
        assert found == whole
    for count in (0, 1, 2, 10, 40, len(whole), len(whole) + 9):
        found = [(each.partition, each.offset, each.value) for each in scan.tail(count)]
        assert found == whole[max(0, len(whole) - count) :]
        assert scan.ending(count).num_rows == len(found)


def test_times_within_a_batch_are_counted(log: embedlog.Log) -> None:
    scan = log.scan("e", start_time=FIRST_MS + 1_500, end_time=FIRST_MS + 2_000_500)
    assert scan.num_rows == sum(1 for _ in scan.records()) == 1999


@pytest.mark.parametrize("count", [-1, 1.5, "1", None])
def test_a_count_that_is_none_is_refused(log: embedlog.Log, count: Any) -> None:
    for call in (log.scan("e").ending, log.scan("e").tail):
        with pytest.raises(embedlog.ConfigError, match="count"):
            call(count)
    with pytest.raises(embedlog.ConfigError, match="offsets"):
        next(log.scan("e").gradually(count))


def test_polars_says_what_is_no_count(log: embedlog.Log) -> None:
    with pytest.raises(embedlog.ConfigError, match="count"):
        embedlog.polars.scan(log, "e").tail(-1)


# ---- cursors -------------------------------------------------------------------------------------


def test_a_cursor_sees_the_views_of_a_database_in_memory(log: embedlog.Log) -> None:
    with embedlog.duckdb.register(log) as connection:
        cursor = connection.cursor()
        assert cursor.sql("select count(*) from e").fetchall() == [(RECORDS,)]
        # replaces the view, also for cursors
        embedlog.duckdb.register(log, connection, partitions=0)
        assert connection.sql("select count(*) from e").fetchall() == [(1000,)]
        assert cursor.sql("select count(*) from e").fetchall() == [(1000,)]
        embedlog.duckdb.register(log, cursor, partitions=[0, 1])
        assert connection.sql("select count(*) from e").fetchall() == [(2000,)]


def test_a_file_keeps_no_view_of_a_log(log: embedlog.Log, tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "db") as connection:
        embedlog.duckdb.register(log, connection)
        assert connection.sql("select count(*) from e").fetchall() == [(RECORDS,)]
        cursor = connection.cursor()
        embedlog.duckdb.register(log, cursor)
        assert cursor.sql("select count(*) from e").fetchall() == [(RECORDS,)]
        cursor.close()
    with duckdb.connect(tmp_path / "db") as connection:
        assert connection.sql(
            "select count(*) from duckdb_views() where not internal"
        ).fetchall() == [(0,)]


def test_a_table_of_the_name_of_a_topic_stays(log: embedlog.Log) -> None:
    with duckdb.connect() as connection:
        connection.execute("create table e as select 1 as n")
        embedlog.duckdb.register(log, connection)
        assert connection.sql("select count(*) from e").fetchall() == [(RECORDS,)]
        cursor = connection.cursor()
        assert cursor.sql("select n from e").fetchall() == [(1,)]
