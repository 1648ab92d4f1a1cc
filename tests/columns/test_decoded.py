"""Typed columns of a scan by deserializers, and SQL of a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'embedlog[arrow]'")
pytest.importorskip("duckdb", reason="needs duckdb: pip install 'embedlog[duckdb]'")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as made:
        made.create_topic("e", partitions=2)
        with made.producer() as producer:
            for number in range(10):
                value = None if number == 4 else b'{"n": %d, "name": "x"}' % number
                producer.send("e", value, key=b"k%d" % number, partition=number % 2)
        yield made


def test_values_have_the_types_of_what_a_deserializer_returns(log: embedlog.Log) -> None:
    scan = log.scan("e")
    table = pa.Table.from_batches(scan.decoded(value_deserializer=json.loads))
    assert table.column_names == list(scan.columns)
    assert table.schema.field("value").type == pa.struct([("n", pa.int64()), ("name", pa.string())])
    assert [each and each["n"] for each in table["value"].to_pylist()] == [
        0,
        2,
        None,
        6,
        8,
        1,
        3,
        5,
        7,
        9,
    ]
    assert table["key"].to_pylist() == scan.to_arrow()["key"].to_pylist()


def test_a_given_type_is_used_and_other_columns_stay(log: embedlog.Log) -> None:
    scan = log.scan("e", columns=["offset", "value", "key"], partitions=0)
    kind = pa.struct([("n", pa.int16())])
    batches = scan.decoded(
        value_deserializer=json.loads, value_type=kind, key_deserializer=bytes.decode
    )
    table = pa.Table.from_batches(batches)
    assert table.schema == pa.schema(
        [("offset", pa.int64()), ("value", kind), ("key", pa.string())]
    )
    assert table["key"].to_pylist() == ["k0", "k2", "k4", "k6", "k8"]


def test_without_deserializers_it_is_the_scan(log: embedlog.Log) -> None:
    assert pa.Table.from_batches(log.scan("e").decoded()) == log.scan("e").to_arrow()


def test_a_value_that_cannot_be_deserialized_is_named(log: embedlog.Log) -> None:
    with log.producer() as producer:
        producer.send("e", b"{", partition=1).result()
    with pytest.raises(embedlog.SerializationError, match="partition 1, offset 5") as failed:
        list(log.scan("e").decoded(value_deserializer=json.loads))
    assert (failed.value.partition, failed.value.offset, failed.value.field) == (1, 5, "value")


def test_sql_gives_the_rows_of_a_query(log: embedlog.Log) -> None:
    query = "select partition, count(*) as n from e group by partition order by partition"
    assert log.sql(query).to_pylist() == [{"partition": 0, "n": 5}, {"partition": 1, "n": 5}]
    assert log.sql("select count(*) as n from e", topics=["e"], partitions=0).to_pylist() == [
        {"n": 5}
    ]


def test_sql_of_a_closed_log_is_refused(tmp_path: Path) -> None:
    log = embedlog.open(tmp_path / "log")
    log.close()
    with pytest.raises(embedlog.ClosedError):
        log.sql("select 1")
