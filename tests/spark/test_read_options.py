"""The options of the Spark source, read and refused without Spark."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import embedlog
from embedlog.spark.option_names import SINK_ONLY
from embedlog.spark.read_options import (
    COLUMNS,
    DEFAULT_COLUMNS,
    EARLIEST,
    LATEST,
    OPTIONS,
    Bound,
    checked_columns,
    directory_of,
    parse,
    schema_columns,
)
from embedlog.spark.write_options import SPARKS_OWN, WRITE_OPTIONS, parse_write

BASE = {"path": "data", "subscribe": "a"}


def test_defaults() -> None:
    settings = parse(BASE, stream=False)
    assert settings.directory.endswith("/data")
    assert settings.subscribe == ("a",)
    assert (settings.start.every, settings.end.every) == (EARLIEST, LATEST)
    assert parse(BASE, stream=True).start.every == LATEST
    assert (
        settings.columns
        == DEFAULT_COLUMNS
        == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    )
    assert settings.fail_on_data_loss
    assert settings.isolation == "read_uncommitted"


def test_every_option_is_taken_in_any_case() -> None:
    texts = {
        "subscribe": "a, b,a",
        "startingOffsets": '{"a": {"0": 3, "1": -2}, "b": "earliest"}',
        "endingOffsets": '{"a": 7}',
        "includeHeaders": "TRUE",
        "minPartitions": "4",
        "maxRecordsPerPartition": "10",
        "maxBytesPerPartition": "2m",
        "failOnDataLoss": "false",
        "isolation.level": "READ_COMMITTED",
        "startingOffsetsByTimestampStrategy": "Error",
    }
    for spell in (str, str.lower, str.upper):
        settings = parse(
            {"path": "d"} | {spell(name): text for name, text in texts.items()}, stream=False
        )
        assert settings.subscribe == ("a", "b")
        assert [settings.start.of("a", number) for number in (0, 1, 2)] == [3, EARLIEST, EARLIEST]
        assert [settings.end.of("a", 0), settings.end.of("b", 0)] == [7, LATEST]
        assert settings.columns == tuple(COLUMNS)
        assert (settings.min_partitions, settings.max_records, settings.max_bytes) == (
            4,
            10,
            2 << 20,
        )
        assert (settings.fail_on_data_loss, settings.isolation, settings.late_is_error) == (
            False,
            "read_committed",
            True,
        )
    assert (
        parse(BASE | {"kafka.isolation.level": "read_committed"}, stream=False).isolation
        == "read_committed"
    )
    assert parse(BASE | {"kafka.group.id": "g"}, stream=True).group_id == "g"


def test_the_most_special_way_to_say_where_counts() -> None:
    every = BASE | {
        "startingOffsets": "5",
        "startingOffsetsByTimestamp": '{"a": {"1": 1000}}',
        "startingTimestamp": "2000",
    }
    assert parse(every, stream=False).start == Bound(2000, by_time=True, option="startingTimestamp")
    del every["startingTimestamp"]
    start = parse(every, stream=False).start
    assert (start.of("a", 1), start.of("a", 0), start.by_time) == (1000, EARLIEST, True)
    del every["startingOffsetsByTimestamp"]
    assert parse(every, stream=False).start == Bound(5, option="startingOffsets")


def test_times_are_milliseconds_or_iso_with_a_zone() -> None:
    for text in ("1700000000123", "2023-11-14T22:13:20.123Z", "2023-11-14T23:13:20.123+01:00"):
        assert parse(BASE | {"endingTimestamp": text}, stream=False).end.every == 1700000000123


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", "-1"),
        ("startingOffsets", '{"a": {"0": -1}}'),
        ("startingOffsets", "-3"),
        ("startingOffsets", "{"),
        ("startingOffsets", '{"a": {"x": 1}}'),
        ("startingOffsets", '{"a": {"0": "soon"}}'),
        ("startingOffsets", '{"a": {"0": true}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"a": {"0": -2}}'),
        ("endingTimestamp", "2023-11-14T22:13:20"),
        ("endingTimestamp", "yesterday"),
        ("endingTimestamp", "-5"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("includeHeaders", "yes"),
        ("failOnDataLoss", "1"),
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("maxRecordsPerPartition", "-1"),
        ("maxBytesPerPartition", "64 miles"),
        ("isolation.level", "serializable"),
        ("columns", "value,worth"),
        ("columns", "value,VALUE"),
        ("columns", ","),
        ("maxTriggerDelay", "soon"),
    ],
)
def test_a_wrong_value_is_refused_by_its_option(option: str, text: str) -> None:
    with pytest.raises(embedlog.ConfigError, match=option):
        parse(BASE | {option: text}, stream=False)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("startingOfsets", "did you mean startingOffsets"),
        ("minpartition", "did you mean minPartitions"),
        ("isolationLevel", "did you mean isolation.level"),
        ("zebra", "unknown option of the embedlog source$"),
        ("kafka.bootstrap.servers", "the source has no broker"),
        ("kafkaConsumer.pollTimeoutMs", "remove the option"),
        ("fetchOffset.numRetries", "remove the option"),
        ("logPath", "unknown option"),
    ],
)
def test_an_unknown_option_is_refused_with_what_to_do(option: str, words: str) -> None:
    with pytest.raises(embedlog.ConfigError, match=words):
        parse(BASE | {option: "1"}, stream=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "d"}, "none of them"),
        ({"path": "d", "subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign"),
        ({"subscribe": "a"}, "directory is missing"),
        ({"path": "d", "subscribe": " , "}, "names"),
        ({"path": "d", "assign": '{"a": 0}'}, "assign"),
        ({"path": "d", "assign": '{"a": ["0"]}'}, "assign"),
        ({"path": "d", "assign": "a"}, "assign"),
        (
            BASE | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "at most maxOffsetsPerTrigger",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(embedlog.ConfigError, match=words):
        parse(given, stream=False)


def test_batches_and_streams_have_options_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(embedlog.ConfigError, match="no end"):
        parse(BASE | {"endingOffsets": "5"}, stream=True)
    with caplog.at_level(logging.WARNING, "embedlog.spark"):
        parse(BASE | {"maxOffsetsPerTrigger": "5"}, stream=False)
    assert "no effect in a batch" in caplog.text
    assert (
        parse(
            BASE | {"startingOffsets": "latest", "maxTriggerDelay": "90s"}, stream=True
        ).max_delay_ms
        == 90_000
    )
    assert parse(BASE | {"startingOffsets": "latest"}, stream=None).start.every == LATEST


def test_columns_are_spelled_as_spark_does() -> None:
    assert checked_columns(("VALUE", "timestamptype")) == ("value", "timestampType")
    assert parse(BASE | {"columns": "offset, Value"}, stream=False).columns == ("offset", "value")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a", "/a"),
        ("/a/../b/", "/b"),
        ("file:///a%20b", "/a b"),
        ("file://localhost/a", "/a"),
        ("/a%20b", "/a%20b"),
        ("/a/b:c", "/a/b:c"),
    ],
)
def test_a_directory_may_be_a_file_address(given: str, path: str) -> None:
    assert directory_of(given) == path


@pytest.mark.parametrize(
    "given", ["hdfs://nn/x", "s3a://bucket/x", "dbfs:/x", "file://host/x", '["/a", "hdfs://nn/x"]']
)
def test_a_path_on_no_local_disk_is_refused_as_that(given: str) -> None:
    with pytest.raises(embedlog.ConfigError, match="path: not a local path"):
        parse({"path": given, "subscribe": "a"}, stream=False)


def test_every_option_says_what_it_means() -> None:
    for name, option in OPTIONS.items():
        assert option.doc.endswith((".", "…")), name
        assert option.batch or option.stream


@pytest.mark.parametrize("value", [True, 1.5, None, []])
def test_a_bound_that_is_no_offset(value: Any) -> None:
    import json

    with pytest.raises(embedlog.ConfigError, match="startingOffsets"):
        parse(BASE | {"startingOffsets": json.dumps({"a": {"0": value}})}, stream=False)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("Topics", "subscribe"), ("pattern", "subscribePattern"), ("startTime", "startingTimestamp")],
)
def test_a_name_of_another_call_is_explained(given: str, meant: str) -> None:
    with pytest.raises(
        embedlog.ConfigError,
        match=rf"{given}: unknown option of the embedlog source; did you mean {meant}\?",
    ):
        parse({"path": "d", given: "a"}, stream=False)


# ---- options of others ---------------------------------------------------------------------------

PORTED = {
    "path": "d",
    "subscribe": "a",
    "kafka.bootstrap.servers": "h:9092",
    "kafkaconsumer.polltimeoutms": "1",
    "kafka.security.protocol": "SSL",
    "zebra": "1",
    "startofset": "1",
}


def test_all_refused_options_of_a_ported_program_are_in_one_error() -> None:
    with pytest.raises(embedlog.ConfigError) as refused:
        parse(PORTED, stream=False)
    for name in (
        "kafka.bootstrap.servers",
        "kafkaConsumer.pollTimeoutMs",
        "kafka.security.protocol",
        "zebra",
        "startofset",
    ):
        assert name in str(refused.value)


def test_all_refused_values_are_in_that_error() -> None:
    values = {"includeheaders": "perhaps", "startingoffsets": "soon"}
    with pytest.raises(embedlog.ConfigError) as refused:
        parse(PORTED | values, stream=False)
    for words in (
        "kafka.bootstrap.servers",
        "zebra",
        "includeHeaders",
        "perhaps",
        "startingOffsets",
        "soon",
    ):
        assert words in str(refused.value)
    with pytest.raises(embedlog.ConfigError, match=r"batchId.*-1.*compression\.type.*lzma"):
        parse_write(
            {"path": "d", "topic": "t", "batchid": "-1", "compression.type": "lzma"}, stream=False
        )
    with pytest.raises(embedlog.ConfigError) as one:
        parse(BASE | {"includeheaders": "perhaps"}, stream=False)
    assert (one.value.expected, one.value.found) == ("true or false", "'perhaps'")


def test_the_options_of_the_other_direction_are_known() -> None:
    own = {name.lower() for name in (*WRITE_OPTIONS, *SPARKS_OWN)} - {
        name.lower() for name in OPTIONS
    }
    assert {name.lower() for name in SINK_ONLY} == own | {"kafka.compression.type"}
    both = {name.lower(): "1" for name in SINK_ONLY} | BASE
    assert parse(both, stream=False) == parse(BASE, stream=False)
    sink = {"path": "data", "topic": "a"}
    source = {name: "no value of it" for name in OPTIONS if name not in WRITE_OPTIONS}
    assert parse_write(source | {"kafka.group.id": "g"} | sink, stream=True) == parse_write(
        sink, stream=True
    )


def test_a_topic_without_a_subscription_is_explained() -> None:
    with pytest.raises(
        embedlog.ConfigError, match=r"topic is an option of the sink: did you mean subscribe\?"
    ):
        parse({"path": "d", "topic": "a"}, stream=False)


def test_the_properties_of_a_table_are_no_options() -> None:
    table = {
        "location": "file:/data",
        "provider": "embedlog",
        "owner": "root",
        "external": "true",
        "comment": "hello",
        "my.own": "1",
        "path": "file:/data",
        "subscribe": "t",
        "option.subscribe": "t",
    }
    assert parse(table, stream=None).subscribe == ("t",)
    assert schema_columns(table | {"columns": "value", "option.columns": "value"}) == ("value",)
    assert schema_columns({"provider": "embedlog", "owner": "root"}) == DEFAULT_COLUMNS
    with pytest.raises(embedlog.ConfigError, match="subscrib: unknown option"):
        parse(table | {"subscrib": "t", "option.subscrib": "t"}, stream=None)
    with pytest.raises(embedlog.ConfigError, match="comment: unknown option"):
        parse(BASE | {"comment": "hello"}, stream=None)


@pytest.mark.parametrize("words", ["SELECT", "INSERT INTO"])
def test_a_table_of_the_catalog_without_its_options_is_told_the_way(words: str) -> None:
    with pytest.raises(embedlog.ConfigError, match=rf"{words}.* WITH \(path = .*temporary view"):
        parse({}, stream=False) if words == "SELECT" else parse_write({}, stream=False)
