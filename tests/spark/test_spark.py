"""Spark over the same files, in one session; `make test` runs the tests of the rows,
`make test-spark` all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
import embedlog.duckdb
import embedlog.polars
import embedlog.spark
from embedlog.spark.read_options import COLUMNS
from tests.conftest import ROOT
from tests.kafka import GOLDEN
from tests.support import random_log
from tests.support.documents import program
from tests.support.golden_records import DIRECTORIES
from tests.support.spark_rows import append, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Row = tuple[Any, ...]


def load(spark: Any, directory: Path, **options: str) -> Any:
    reader = spark.read.format("embedlog")
    for name, text in options.items():
        reader = reader.option(name.replace("_", "."), text)
    return reader.load(str(directory))


def places(frame: Any) -> list[tuple[int, int]]:
    return sorted(
        (row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect()
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic `t`: 2 partitions of 100 records, one a second, in many small segments."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("t", partitions=2, config={"segment.bytes": "1000"})
        append(made, 200)
        yield made


# ---- truth -----------------------------------------------------------------------------------------------------------


def test_spark_says_of_kafkas_directories_what_a_consumer_says(
    spark: Any, golden: Path, rng: random.Random
) -> None:
    """One of the directories; `test_read_plan` reads the topics of each without Spark, and
    `make test-slow` the short way.
    """
    name, topics = rng.choice(DIRECTORIES)
    directory = golden / name / "log"
    with embedlog.open(directory, read_only=True) as log:
        wanted = {topic: random_log.consumed(log, topic, "read_committed") for topic in topics}
    found = load(
        spark,
        directory,
        subscribe=",".join(topics),
        isolation_level="read_committed",
        INCLUDEheaders="true",
    )
    rows = rows_of(found.toArrow())
    assert {topic: rows.get(topic, []) for topic in topics} == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "topics"), DIRECTORIES, ids=GOLDEN)
def test_the_short_way_says_of_kafkas_directories_what_a_consumer_says(
    spark: Any, golden: Path, name: str, topics: tuple[str, ...]
) -> None:
    directory = golden / name / "log"
    with embedlog.open(directory, read_only=True) as log:
        for topic in topics:
            for isolation in ("read_uncommitted", "read_committed"):
                frame = embedlog.spark.scan(
                    spark, str(directory), topic, columns=COLUMNS, isolation_level=isolation
                )
                wanted = random_log.consumed(log, topic, isolation)
                assert rows_of(frame.toArrow()).get(topic, []) == wanted, (topic, isolation)


def test_all_engines_say_of_a_random_log_what_a_consumer_says(
    spark: Any, tmp_path: Path, rng: random.Random
) -> None:
    topics = random_log.write(tmp_path / "log", rng)
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        wanted = {topic: random_log.consumed(log, topic, "read_uncommitted") for topic in topics}
        views = embedlog.duckdb.register(log)
        for topic, rows in wanted.items():
            assert views.sql(f'select count(*) from "{topic}"').fetchall() == [(len(rows),)]
            assert embedlog.polars.scan(log, topic).collect().height == len(rows)
        views.close()
    found = rows_of(
        load(spark, tmp_path / "log", subscribePattern=".*", includeHeaders="true").toArrow()
    )
    assert {topic: found.get(topic, []) for topic in topics} == wanted


# ---- one load --------------------------------------------------------------------------------------------------------


def test_a_load_is_pinned_and_used_as_often_as_one_likes(spark: Any, log: embedlog.Log) -> None:
    base = load(spark, log.path, subscribe="t")
    assert base.filter("offset >= 90").count() == 20
    assert base.count() == 200
    both = base.filter("offset >= 98").union(base.filter("offset < 2"))
    assert sorted(row["offset"] for row in both.collect()) == [0, 0, 1, 1, 98, 98, 99, 99]
    base.createOrReplaceTempView("pinned")
    counts = (
        "select (select count(*) from pinned where offset >= 90), (select count(*) from pinned)"
    )
    assert tuple(spark.sql(counts).collect()[0]) == (20, 200)
    append(log, 50)
    assert base.count() == 200
    assert load(spark, log.path, subscribe="t").count() == 250


@pytest.mark.slow
def test_columns_and_schema_prune(spark: Any, log: embedlog.Log) -> None:
    few = load(spark, log.path, subscribe="t", columns="offset,VALUE", startingOffsets="98")
    assert few.dtypes == [("offset", "bigint"), ("value", "binary")]
    assert min(bytes(row["value"]) for row in few.collect()) == b"value 196"
    reader = (
        spark.read.format("embedlog")
        .option("subscribe", "t")
        .schema("value BINARY, offset LONG NOT NULL")
    )
    assert reader.load(str(log.path)).agg({"offset": "max"}).collect()[0][0] == 99
    assert load(spark, log.path, subscribe="t", startingTimestamp="90000").count() == 20


@pytest.mark.slow
def test_sql_without_python(spark: Any, log: embedlog.Log) -> None:
    options = f"path '{log.path}', subscribe 't', maxRecordsPerPartition 30"
    spark.sql(f"create temporary view events using embedlog options ({options})")
    query = (
        "select topic, partition, max(timestamp) as newest, count(distinct value) from events "
        "group by 1, 2 order by 2"
    )
    assert [
        tuple(row)[:2] + (row[2].timestamp(), row[3]) for row in spark.sql(query).collect()
    ] == [
        ("t", 0, 99.0, 100),
        ("t", 1, 99.0, 100),
    ]


@pytest.mark.slow
def test_one_view_is_read_and_written(spark: Any, log: embedlog.Log) -> None:
    log.create_topic("copy")
    options = f"path '{log.path}', subscribe 't', topic 'copy', columns 'key,value'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW both USING embedlog OPTIONS ({options})")
    spark.sql("INSERT INTO both SELECT * FROM both")
    assert sum(1 for _ in log.scan("copy").records()) == 200


TABLES = {
    "without a schema": "USING embedlog OPTIONS (path '{path}', subscribe 't') COMMENT 'x' TBLPROPERTIES ('my.own' = '1')",
    "with a location": "USING embedlog OPTIONS (subscribe 't') LOCATION '{path}'",
    "of a sink": "USING embedlog OPTIONS (path '{path}', topic 'copy')",
    "with a schema": "(key BINARY, value BINARY) USING embedlog",
}


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_a_table_of_the_catalog_is_created_and_its_queries_name_the_options(
    spark: Any, log: embedlog.Log, text: str
) -> None:
    log.create_topic("copy")
    source = f"WITH (path = '{log.path}', subscribe = 't')"
    sink = f"WITH (path = '{log.path}', topic = 'copy')"
    name = "embedlog_table"
    try:
        spark.sql(f"CREATE TABLE {name} {text.format(path=log.path)}")
        assert spark.sql(f"SELECT value FROM {name} {source}").count() == 200
        spark.sql(f"INSERT INTO {name} {sink} (key, value) VALUES (null, binary('v'))")
        for query in (f"SELECT * FROM {name}", f"INSERT INTO {name} (value) VALUES (binary('v'))"):
            with pytest.raises(
                Exception, match="Spark passes the options of a table in its catalog to no query"
            ):
                spark.sql(query).collect()
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    assert sum(1 for _ in log.scan("copy").records()) == 1


def test_registered_again_it_is_the_same(spark: Any, log: embedlog.Log) -> None:
    embedlog.spark.register(spark)
    assert load(spark, log.path, assign='{"t": [1]}').count() == 100


# ---- the fast path ---------------------------------------------------------------------------------------------------


def test_a_scan_gives_the_rows_of_the_format(spark: Any, log: embedlog.Log) -> None:
    frame = embedlog.spark.scan(spark, str(log.path), "t", min_partitions=3)
    assert frame.dtypes == load(spark, log.path, subscribe="t").dtypes
    found = frame.orderBy("partition", "offset").toArrow()
    assert found.equals(
        load(spark, log.path, subscribe="t").orderBy("partition", "offset").toArrow()
    )
    append(log, 10)
    assert frame.count() == 200
    narrow = embedlog.spark.scan(
        spark,
        str(log.path),
        "t",
        start_time=20_500,
        end_offset={0: 30},
        columns=["OFFSET", "headers"],
    )
    assert narrow.dtypes == [
        ("offset", "bigint"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert sorted(row["offset"] for row in narrow.collect()) == sorted(
        [*range(21, 30), *range(21, 100)]
    )
    assert embedlog.spark.scan(spark, str(log.path), "t", start_offset=10_000).count() == 0


def test_a_function_runs_where_the_rows_are_read(spark: Any, log: embedlog.Log) -> None:
    import pyarrow

    def lengths(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            total = pyarrow.compute.sum(pyarrow.compute.binary_length(batch["value"])).as_py() or 0
            yield pyarrow.record_batch({"size": pyarrow.array([total], pyarrow.int64())})

    frame = embedlog.spark.scan(spark, str(log.path), "t", columns=["value"])
    total = frame.map_arrow(lengths, "size BIGINT").groupBy().sum("size").collect()[0][0]
    assert total == sum(len(record.value) for record in log.scan("t").records())


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "t", "startingOfsets": "1"}, "did you mean startingOffsets"),
        ({"subscribe": "missing"}, "no such topic: missing: expected one of: t"),
        ({"subscribe": "t", "kafka_bootstrap_servers": "h:9092"}, "the source has no broker"),
        ({"subscribe": "t", "startingOffsets": "7777"}, "topic t, partition 0 does not contain"),
    ],
)
def test_what_is_wrong_is_said_on_the_driver(
    spark: Any, log: embedlog.Log, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        load(spark, log.path, **options).count()


def test_an_error_is_a_sentence_and_no_tour_of_our_modules(spark: Any, log: embedlog.Log) -> None:
    """Planned or read: the frame that Spark calls, the one that shortens the rest, and what is
    wrong.
    """
    damaged = log.path / "t-0" / f"{0:020d}.log"
    frame = load(spark, log.path, subscribe="t")
    frame.count()  # planned
    raw = bytearray(damaged.read_bytes())
    raw[-1] ^= 1
    damaged.write_bytes(raw)
    for asked, words in (
        (lambda: load(spark, log.path, subscribe="missing").count(), "no such topic: missing"),
        (
            lambda: load(spark, log.path, subscribe="t", startingOffsetz="1").count(),
            "did you mean startingOffsets?",
        ),
        (
            lambda: load(spark, log.path, subscribe="t", kafka_bootstrap_servers="a:1").count(),
            "kafka.bootstrap.servers",
        ),
        (lambda: frame.count(), "topic t, partition 0"),
    ):
        with pytest.raises(Exception, match="Traceback") as caught:
            asked()
        told = str(caught.value).split("JVM stacktrace")[0].split("Driver stacktrace")[0]
        trace = told[told.index("Traceback") :]
        assert words in trace
        ours = [
            line
            for line in trace.splitlines()
            if "/embedlog/" in line and line.lstrip().startswith("File ")
        ]
        assert len(ours) <= 2, trace


@pytest.mark.slow
def test_spark_still_shares_pushed_filters_among_the_uses_of_one_load(
    spark: Any, log: embedlog.Log
) -> None:
    """Why no filter is taken: rows would be missing. The day this fails,
    `DataSourceReader.pushFilters` can be used.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Pushed(DataSourceReader):
        def __init__(self) -> None:
            self.limit = 10

        def pushFilters(self, filters: list[Any]) -> Any:  # noqa: N802
            for each in filters:
                if type(each).__name__ == "LessThan":
                    self.limit = each.value
                yield each  # Spark has to apply all of them again

        def partitions(self) -> list[Any]:
            return [InputPartition(self.limit)]

        def read(self, partition: Any) -> Iterator[Any]:
            return iter([(number,) for number in range(partition.value)])

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n INT"

        def reader(self, schema: Any) -> Any:
            return Pushed()

    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("numbers").load()
        assert frame.where("n < 3").count() == 3
        assert frame.count() == 3, "ten are right"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.slow
def test_a_directory_that_is_not_there_is_named(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("Dear Sir")
    for directory in (tmp_path / "nothing", tmp_path / "other"):
        with pytest.raises(Exception, match=str(directory)):
            load(spark, directory, subscribe="t").count()
        with pytest.raises(embedlog.EmbedlogError, match=str(directory)):
            embedlog.spark.scan(spark, str(directory), "t")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("value STRING", r"value.*CAST\(value AS STRING\).*expected binary, found string"),
        ("vallue BINARY", "no column vallue"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    spark: Any, log: embedlog.Log, schema: str, words: str
) -> None:
    with pytest.raises(Exception, match=words):
        spark.read.format("embedlog").option("subscribe", "t").schema(schema).load(
            str(log.path)
        ).count()


def test_damage_under_a_job_is_told_with_its_place(spark: Any, log: embedlog.Log) -> None:
    frame = load(spark, log.path, subscribe="t")
    assert frame.count() == 200
    path = sorted((log.path / "t-1").glob("*.log"))[1]
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    place = rf"{path.name} at byte 0: topic t, partition 1, at or after offset {int(path.stem)}: "
    for damaged in (frame, embedlog.spark.scan(spark, str(log.path), "t")):
        with pytest.raises(Exception, match=place):
            damaged.count()


@pytest.mark.slow
def test_what_retention_takes_under_a_job_is_told(spark: Any, log: embedlog.Log) -> None:
    frame = load(spark, log.path, subscribe="t")
    lenient = load(spark, log.path, subscribe="t", failOnDataLoss="false")
    assert frame.count() == lenient.count() == 200
    log.delete_records({embedlog.TopicPartition("t", 0): 50})
    with pytest.raises(
        Exception,
        match=rf"{log.path}/t-0: topic t, partition 0, at or after offset 0: planned records were d",
    ):
        frame.count()
    assert lenient.count() == 150


# ---- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/spark.md", "docs/reference/spark.md"])
def test_the_page_about_spark_runs(
    page: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = program(ROOT / page)
    for name in ("data", "checkpoint"):  # Spark has a directory of its own
        text = text.replace(f'"{name}"', repr(str(tmp_path / name))).replace(
            f"'{name}'", f"'{tmp_path / name}'"
        )
    exec(compile(text, page, "exec"), {"__name__": "__main__"})
