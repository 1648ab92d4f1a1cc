"""Other engines over the same files: polars, DuckDB, pandas and pyarrow give the rows of a
consumer, and give rows back.
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.duckdb
import embedlog.polars
from embedlog.polars import Narrow
from tests.support import random_log
from tests.support.golden_records import TOPICS

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")
duckdb = pytest.importorskip("duckdb", reason="needs duckdb: pip install 'embedlog[duckdb]'")
pl = pytest.importorskip("polars", reason="needs polars: pip install 'embedlog[polars]'")
pd = pytest.importorskip("pandas", reason="needs pandas: pip install 'embedlog[pandas]'")

ISOLATION = ("read_uncommitted", "read_committed")
both_levels = pytest.mark.parametrize("isolation", ISOLATION)

Row = tuple[Any, ...]


def rows_of(table: Any) -> list[Row]:
    """The rows of an Arrow table, in the form of `random_log.row_of`."""
    found = []
    for row in table.select(
        ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    ).to_pylist():
        time_ms = (row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        found.append(
            (
                row["partition"],
                row["offset"],
                time_ms,
                row["timestamp_type"],
                row["key"],
                row["value"],
                headers,
            )
        )
    return sorted(found, key=lambda each: each[:2])


def by_scan(log: embedlog.Log, topic: str, isolation: str) -> list[Row]:
    return rows_of(log.scan(topic, isolation_level=isolation).to_arrow())


def by_polars(log: embedlog.Log, topic: str, isolation: str) -> list[Row]:
    return rows_of(embedlog.polars.scan(log, topic, isolation_level=isolation).collect().to_arrow())


def by_duckdb(log: embedlog.Log, topic: str, isolation: str) -> list[Row]:
    with embedlog.duckdb.register(log, topics=[topic], isolation_level=isolation) as connection:
        return rows_of(connection.sql(f'select * from "{topic}"').to_arrow_table())


def by_pandas(log: embedlog.Log, topic: str, isolation: str) -> list[Row]:
    frame = log.scan(topic, isolation_level=isolation).to_pandas()
    times = (frame["timestamp"] - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(1, "ms")
    headers = [tuple((each["key"], each["value"]) for each in many) for many in frame["headers"]]
    bare = frame.astype({"key": object, "value": object})
    keys, values = (
        bare[name].where(bare[name].notna(), None).tolist() for name in ("key", "value")
    )
    rows = zip(
        frame["partition"],
        frame["offset"],
        times,
        frame["timestamp_type"],
        keys,
        values,
        headers,
        strict=True,
    )
    return sorted(rows, key=lambda each: each[:2])


ENGINES = (by_scan, by_polars, by_duckdb, by_pandas)


@pytest.fixture(scope="module")
def golden_logs(golden: Path) -> Iterator[dict[str, embedlog.Log]]:
    logs = {
        name: embedlog.open(golden / name / "log", read_only=True)
        for name in {name for name, _ in TOPICS}
    }
    yield logs
    for log in logs.values():
        log.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `events`: 2 partitions of 100 records, one a second, in batches of ten."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("events", partitions=2)
        fill(made)
        yield made


def fill(log: embedlog.Log, first: int = 0) -> None:
    with log.producer() as producer:
        for number in range(first, first + 200):
            producer.send(
                "events", b"v%d" % number, partition=number % 2, timestamp_ms=1000 * (number // 2)
            )
            if number % 20 == 19:
                producer.flush()


# ---- truth ---------------------------------------------------------------------------------------


@pytest.mark.sample(0.15)
@both_levels
@pytest.mark.parametrize(("name", "topic"), TOPICS)
def test_all_engines_say_of_kafkas_directories_what_a_consumer_says(
    golden_logs: dict[str, embedlog.Log], name: str, topic: str, isolation: str
) -> None:
    log = golden_logs[name]
    wanted = random_log.consumed(log, topic, isolation)
    for engine in ENGINES:
        assert engine(log, topic, isolation) == wanted, engine.__name__


@pytest.mark.sample(0.3)
@both_levels
def test_all_engines_say_of_a_random_log_what_a_consumer_says(
    tmp_path: Path, rng: random.Random, isolation: str
) -> None:
    topics = random_log.write(tmp_path / "log", rng)
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        counts = {topic: len(random_log.consumed(log, topic, isolation)) for topic in topics}
        assert 0 < counts["compacted"] < 150
        assert {record.leader_epoch for record in log.scan("epochs").records()} == {0, 1, 2}
        for topic in topics:
            wanted = random_log.consumed(log, topic, isolation)
            for engine in ENGINES:
                assert engine(log, topic, isolation) == wanted, (engine.__name__, topic)


def test_random_predicates_give_the_rows_that_polars_alone_would_give(
    log: embedlog.Log, rng: random.Random
) -> None:
    whole = pl.DataFrame(log.scan("events"))
    lazy = embedlog.polars.scan(log, "events")

    def moment() -> datetime:
        return datetime.fromtimestamp(rng.randrange(110), UTC) + timedelta(
            microseconds=rng.choice([0, 0, 1, 500_001])
        )

    parts: list[Callable[[], Any]] = [
        lambda: pl.col("offset") >= rng.randrange(-5, 120),
        lambda: pl.col("offset") < rng.randrange(-5, 120),
        lambda: rng.randrange(120) >= pl.col("offset"),
        lambda: pl.col("offset") == rng.randrange(120),
        lambda: pl.col("timestamp") > moment(),
        lambda: pl.col("timestamp") <= moment(),
        lambda: pl.col("timestamp").is_between(moment(), moment()),
        lambda: pl.col("partition") == rng.randrange(3),
        lambda: pl.col("value").bin.contains(b"1"),
        lambda: (pl.col("offset") < 3) | (pl.col("partition") == 1),
        lambda: ~(pl.col("offset") < 50),
        lambda: pl.col("offset") + 1 > 60,
    ]
    for _ in range(60):
        predicate = rng.choice(parts)()
        for _ in range(rng.randrange(3)):
            predicate = predicate & rng.choice(parts)()
        columns = rng.sample(["offset", "value", "partition", "timestamp"], rng.randrange(1, 4))
        found = lazy.filter(predicate).select(columns).collect()
        assert found.equals(whole.filter(predicate).select(columns)), predicate
        assert (
            lazy.head(7)
            .filter(predicate)
            .select(columns)
            .collect()
            .equals(whole.head(7).filter(predicate).select(columns))
        )


# ---- input ---------------------------------------------------------------------------------------


class Spy:
    """The scans that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[tuple[tuple[str, ...], dict[int, tuple[int, int]]]] = []
        real = embedlog.Scan.__iter__

        def iterate(scan: embedlog.Scan) -> Iterator[Any]:
            self.read.append((scan.columns, scan.bounds))
            return real(scan)

        monkeypatch.setattr(embedlog.Scan, "__iter__", iterate)

    @property
    def columns(self) -> list[tuple[str, ...]]:
        return [columns for columns, _ in self.read]

    def whole(self) -> dict[int, tuple[int, int]]:
        """The offsets that were read of each partition, in one piece or in several."""
        found: dict[int, tuple[int, int]] = {}
        for _, bounds in self.read:
            for number, (start, end) in bounds.items():
                first, last = found.get(number, (start, start))
                assert last == start
                found[number] = first, end
        return found


def test_polars_reads_what_the_query_needs(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    lazy = embedlog.polars.scan(log, "events")
    late = (pl.col("offset") >= 40) & (pl.col("offset") < 60) & (pl.col("partition") == 1)
    assert lazy.filter(late).select("value").collect().height == 20
    assert spy.read[0][1] == {1: (40, 60)}
    assert set(spy.read[0][0]) == {"value", "partition", "offset"}
    moment = datetime.fromtimestamp(90, UTC)
    assert lazy.filter(pl.col("timestamp") >= moment).select("value").collect().height == 20
    assert spy.read[1][1] == {0: (90, 100), 1: (90, 100)}
    assert lazy.select("offset").head(3).collect().height == 3
    assert spy.read[2][0] == ("offset",)


def test_duckdb_reads_the_columns_that_a_query_names(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    with embedlog.duckdb.register(log) as connection:
        assert connection.sql('select sum("offset") from events').fetchall() == [(9900,)]
        assert connection.sql(
            'select max(value) from events where partition = 1 and "offset" < 10'
        ).fetchall() == [(b"v9",)]
        both = 'select count(*) from events a join events b using (partition, "offset")'
        assert connection.sql(both).fetchall() == [(200,)]
    columns = [
        each
        for number, each in enumerate(map(set, spy.columns))
        if not number or each != set(spy.columns[number - 1])
    ]
    assert columns[:2] == [{"offset"}, {"value", "partition", "offset"}]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ('"offset" >= 40 and "offset" < 60 and partition = 1', {1: (40, 60)}),
        ('"offset" in (7, 90)', {0: (7, 91), 1: (7, 91)}),
        ('"offset" = 7 or "offset" = 9', {0: (7, 10), 1: (7, 10)}),
        ('not ("offset" > 5)', {0: (0, 6), 1: (0, 6)}),
        ("timestamp >= TIMESTAMPTZ '1970-01-01 00:01:30+00'", {0: (90, 100), 1: (90, 100)}),
        ("timestamp > TIMESTAMPTZ '2200-01-01 00:00:00+00'", {0: (100, 100), 1: (100, 100)}),
        ("partition = 5", {}),
        ("value = 'v3'::blob or \"offset\" < 3", {0: (0, 100), 1: (0, 100)}),
        ('"offset" < 3 or partition = 0', {0: (0, 100), 1: (0, 100)}),
    ],
)
def test_duckdb_reads_the_part_in_which_a_condition_can_hold(
    log: embedlog.Log,
    monkeypatch: pytest.MonkeyPatch,
    condition: str,
    wanted: dict[int, tuple[int, int]],
) -> None:
    whole = log.scan("events").to_arrow()  # noqa: F841 (DuckDB finds it)
    query = f'select partition, "offset" from {{}} where {condition} order by 1, 2'
    expected = duckdb.sql(query.format("whole")).fetchall()
    spy = Spy(monkeypatch)
    with embedlog.duckdb.register(log) as connection:
        assert connection.sql(query.format("events")).fetchall() == expected
    assert spy.whole() == {
        number: (start, end) for number, (start, end) in wanted.items() if start < end
    }


def test_random_conditions_give_the_rows_that_duckdb_alone_would_give(
    log: embedlog.Log, rng: random.Random
) -> None:
    whole = log.scan("events").to_arrow()

    def moment() -> str:
        time = datetime.fromtimestamp(rng.randrange(110), UTC) + timedelta(
            microseconds=rng.choice([0, 0, 1, 500_001])
        )
        return f"TIMESTAMPTZ '{time.isoformat(sep=' ')}'"

    parts: list[Callable[[], str]] = [
        lambda: (
            f'"offset" {rng.choice(["<", "<=", ">", ">=", "=", "<>"])} {rng.randrange(-5, 120)}'
        ),
        lambda: f'{rng.randrange(120)} >= "offset"',
        lambda: f"timestamp {rng.choice(['<', '<=', '>', '>=', '='])} {moment()}",
        lambda: f"partition {rng.choice(['=', '<', '<>'])} {rng.randrange(3)}",
        lambda: f'"offset" in ({rng.randrange(99)}, {rng.randrange(99)})',
        lambda: "octet_length(value) = 2",
        lambda: '"offset" % 7 = 1',
        lambda: "key is not null",
    ]
    with embedlog.duckdb.register(log) as connection:
        connection.register("whole", whole)
        for _ in range(60):
            condition = rng.choice(parts)()
            for _ in range(rng.randrange(3)):
                condition = (
                    f"({condition} {rng.choice(['and', 'or', 'and not'])} {rng.choice(parts)()})"
                )
            query = f'select value, partition, "offset" from {{}} where {condition} order by 2, 3'
            found, wanted = (
                connection.sql(query.format(name)).fetchall() for name in ("events", "whole")
            )
            assert found == wanted, condition


def test_duckdb_takes_a_scan_by_its_name_in_python(log: embedlog.Log) -> None:
    events = log.scan("events", columns=["offset", "value"])  # noqa: F841 (DuckDB finds it)
    assert duckdb.sql('select count(*), max("offset") from events').fetchall() == [(200, 99)]


def test_a_topic_of_any_name_becomes_a_view(log: embedlog.Log) -> None:
    log.create_topic("web.log-2")
    connection = duckdb.connect()
    assert embedlog.duckdb.register(log, connection) is connection
    assert connection.sql('select count(*) from "web.log-2"').fetchall() == [(0,)]
    with pytest.raises(embedlog.UnknownTopicOrPartitionError):
        embedlog.duckdb.register(log, connection, topics=["missing"])
    connection.close()


# ---- pinned --------------------------------------------------------------------------------------


def test_what_is_appended_later_is_in_no_view_made_before(log: embedlog.Log) -> None:
    lazy = embedlog.polars.scan(log, "events")
    connection = embedlog.duckdb.register(log)
    narrowed = log.scan("events").narrowed(end_offset=1000)
    fill(log, 200)
    assert lazy.select("offset").collect().height == 200
    assert connection.sql("select count(*) from events").fetchall() == [(200,)]
    assert sum(1 for _ in narrowed.records()) == 200
    embedlog.duckdb.register(log, connection)
    assert connection.sql("select count(*) from events").fetchall() == [(400,)]
    connection.close()


def test_what_retention_takes_away_behind_a_view_is_an_error_and_no_gap(log: embedlog.Log) -> None:
    lazy = embedlog.polars.scan(log, "events")
    connection = embedlog.duckdb.register(log)
    log.delete_records({embedlog.TopicPartition("events", 0): 30})
    with pytest.raises(Exception, match=r"events-0 has no offset 0"):
        lazy.collect()
    with pytest.raises(Exception, match=r"events-0 has no offset 0"):
        lazy.filter(pl.col("timestamp") >= datetime.fromtimestamp(10, UTC)).collect()
    with pytest.raises(Exception, match=r"events-0 has no offset 0"):
        connection.sql("select max(value) from events").fetchall()
    assert lazy.filter(pl.col("offset") >= 30).collect().height == 140
    connection.close()


# ---- narrowing -----------------------------------------------------------------------------------


def test_narrowing_only_takes_away(log: embedlog.Log, rng: random.Random) -> None:
    scan = log.scan(
        "events", start_offset=10, end_offset={0: 90}, start_time=5_000, end_time=95_000
    )
    everything = [(r.partition, r.offset, r.timestamp_ms) for r in scan.records()]
    for _ in range(40):
        first = rng.randrange(110)
        last = rng.randrange(110)
        begin = rng.randrange(110_000)
        end = rng.randrange(110_000)
        part = scan.narrowed(
            start_offset=first,
            end_offset={1: last},
            start_time=begin,
            end_time=end,
            columns=["offset"],
        )
        wanted = [
            (p, o)
            for p, o, t in everything
            if first <= o and (p != 1 or o < last) and begin <= t < end
        ]
        assert [(r.partition, r.offset) for r in part.records()] == wanted
        assert part.to_arrow()["offset"].to_pylist() == [offset for _, offset in wanted]
    with pytest.raises(embedlog.UnknownTopicOrPartitionError):
        scan.narrowed(partitions=7)
    with pytest.raises(embedlog.ConfigError):
        scan.narrowed(columns=["none"])


@pytest.mark.parametrize(
    "tree",
    [None, [], {}, {"BinaryExpr": 3}, {"BinaryExpr": {"op": "GtEq", "left": [], "right": {}}}],
)
def test_a_predicate_that_is_not_understood_narrows_nothing(tree: Any) -> None:
    assert Narrow().within(tree) == Narrow()


# ---- back again ----------------------------------------------------------------------------------


def sources() -> dict[str, Any]:
    values = [b"a", b"", None, b"d"]
    keys = [b"k", None, b"", b"z"]
    table = pa.table({"key": keys, "value": values})
    return {
        "pyarrow": table,
        "polars": pl.DataFrame({"key": keys, "value": values}),
        "pandas": pd.DataFrame({"key": keys, "value": values}),
        "duckdb": duckdb.sql(
            "select * from (values ('k'::blob, 'a'::blob), (null, ''), ('', null), ('z', 'd')) "
            "t(key, value)"
        ),
        "reader": pa.RecordBatchReader.from_batches(table.schema, table.to_batches(2)),
    }


@pytest.mark.parametrize("engine", ["pyarrow", "polars", "pandas", "duckdb", "reader"])
def test_rows_of_every_engine_are_written(log: embedlog.Log, engine: str) -> None:
    log.create_topic("back")
    with log.producer() as producer:
        ((_, _, base, count),) = producer.send_batch("back", sources()[engine]).result(10)
    assert (base, count) == (0, 4)
    written = [(record.key, record.value) for record in log.scan("back").records()]
    assert written == [(b"k", b"a"), (None, b""), (b"", None), (b"z", b"d")]


def test_a_topic_is_copied_through_each_engine(log: embedlog.Log) -> None:
    """All columns of `send_batch` are accepted: a scan's own output is its input."""
    log.create_topic("copy", partitions=2)
    columns = ["key", "value", "headers", "timestamp", "partition"]
    scan = log.scan("events", columns=columns)
    with log.producer() as producer:
        for source in (scan, scan.to_arrow(), pl.DataFrame(scan), duckdb.sql("select * from scan")):
            producer.send_batch("copy", source).result(10)
    found = [(r.partition, r.timestamp_ms, r.value) for r in log.scan("copy").records()]
    assert found == [
        (r.partition, r.timestamp_ms, r.value)
        for n in (0, 1)
        for _ in range(4)
        for r in log.scan("events", partitions=n).records()
    ]


# ---- missing packages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("polars", "polars", lambda log: embedlog.polars.scan(log, "events")),
        ("duckdb", "duckdb", lambda log: embedlog.duckdb.register(log)),
        ("pyarrow.dataset", "duckdb", lambda log: embedlog.duckdb.register(log)),
        ("pandas", "pandas", lambda log: log.scan("events").to_pandas()),
    ],
)
def test_an_absent_engine_is_named(
    log: embedlog.Log,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    extra: str,
    call: Callable[[embedlog.Log], object],
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **keywords: Any) -> Any:
        if name == module or name.startswith(f"{module}."):
            raise ModuleNotFoundError(name)
        return real(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(embedlog.MissingExtraError, match=rf"embedlog\[{extra}\]"):
        call(log)
