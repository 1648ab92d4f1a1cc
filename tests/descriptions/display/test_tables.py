"""What notebooks show."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.descriptions.display import tables
from embedlog.descriptions.groups import GroupDescription, GroupPartition
from embedlog.types import OffsetAndMetadata

QUIET = {"housekeeping": False}
HOSTILE = "<script>alert('x')</script>"


def test_cells_are_escaped_short_and_printable() -> None:
    found = tables.make_short_table(
        HOSTILE, (HOSTILE,), [(HOSTILE, b"\xff\x00", None, "a\nb\x1b[0m", b"x" * 1000)]
    )
    assert "<script" not in found
    assert found.count("&lt;script&gt;") == 3
    for cell in ("0xff00", "null", r"a\nb\x1b[0m", "x" * (tables.CELL_MAX - 1) + "…"):
        assert f"<td>{cell}</td>" in found
    long = tables.make_short_table(
        "t", ("n",), [(number,) for number in range(tables.ROWS_SHOWN + 1)]
    )
    assert long.count("<tr>") == tables.ROWS_SHOWN + 1
    assert f"t, the first {tables.ROWS_SHOWN} of {tables.ROWS_SHOWN + 1}" in long


def test_a_log_and_its_topics_are_tables(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "<b>", config=QUIET) as log:
        log.create_topic("orders", 2, config={"retention.ms": "5"})
        with log.producer() as producer:
            for number in range(3):
                producer.send("orders", HOSTILE.encode(), partition=number % 2)
        assert "<td>orders</td><td>2</td><td>3</td>" in log._repr_html_()
        assert "<b>" not in log._repr_html_()
        topic = log.describe_topic("orders")._repr_html_()
        assert "topic orders; retention.ms=5" in topic
        assert "<td>0</td><td>0</td><td>2</td>" in topic
        with log.producer() as producer:
            producer.send("orders", b"dated", timestamp_ms=1_700_000_000_123)
        scan = log.scan("orders")._repr_html_()
        assert scan.count("&lt;script&gt;") == 3
        assert "<th>time (UTC)</th>" in scan
        assert "<td>2023-11-14 22:13:20.123</td><td>null</td><td>dated</td>" in scan
        assert "<script" not in scan
        scan = log.scan("orders")
    assert " closed" in log._repr_html_()
    assert scan._repr_html_().startswith("<table><caption>scan of orders: ")
    assert "the log was closed; open it again" in scan._repr_html_()


def test_a_group_is_a_table() -> None:
    found = GroupDescription(
        HOSTILE, "Stable", partitions=(GroupPartition("t", 1, OffsetAndMetadata(2), 5, HOSTILE),)
    )._repr_html_()
    assert "<script" not in found
    assert "<td>t</td><td>1</td><td>2</td><td>5</td><td>3</td><td>&lt;script&gt;" in found


def test_a_scan_has_a_head_and_a_number_of_rows(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            # each transaction ends with a marker, which has an offset and is no record
            for number in range(12):
                with producer.transaction():
                    producer.send("t", b"%d" % number)
        scan = log.scan("t")
        assert [record.value for record in scan.head(2)] == [b"0", b"1"]
        assert len(scan.head()) == 10
        assert scan.head(0) == []
        assert scan.num_rows == 12 < scan.bounds[0][1]
        assert log.scan("t", columns=["value"]).num_rows == 12
        assert "the first 10 records" in scan._repr_html_()
        frame = scan.narrowed(columns=["offset", "value"]).to_polars()
        assert isinstance(frame, polars.DataFrame)
        assert frame["value"].to_list() == [b"%d" % number for number in range(12)]
        with pytest.raises(embedlog.ConfigError):
            scan.head(-1)


def test_a_record_is_a_dict_and_a_table() -> None:
    made = embedlog.Record("t", 1, 2, 3, 0, None, HOSTILE.encode(), (("name", None),), 7)
    fields = made._asdict()
    assert list(fields) == [
        "topic",
        "partition",
        "offset",
        "timestamp_ms",
        "timestamp_type",
        "key",
        "value",
        "headers",
        "leader_epoch",
    ]
    assert embedlog.Record(**fields) == made
    assert all(fields[name] == getattr(made, name) for name in fields)
    shown = made._repr_html_()
    assert "<td>timestamp_ms</td><td>3 (1970-01-01 00:00:00.003 UTC)</td>" in shown
    assert "<caption>record 2 of t-1</caption>" in shown
    assert "<td>key</td><td>null</td>" in shown
    assert "<td>value</td><td>&lt;script&gt;" in shown
    assert "<script" not in shown


def test_a_deserialized_record_is_a_dict_and_a_table() -> None:
    value = {"n": [1]}
    made = embedlog.Record("t", 0, 0, 0, 0, 5, value)
    assert made._asdict()["value"] is value
    assert "<td>value</td><td>{&#x27;n&#x27;: [1]}</td>" in made._repr_html_()


def test_records_convert_to_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send_batch("t", [b"0", None, b"2"])
        frame = pandas.DataFrame(record._asdict() for record in log.scan("t").records())
        assert frame["offset"].tolist() == [0, 1, 2]
        assert frame["value"].tolist() == [b"0", None, b"2"]
        assert log.scan("t", columns=["offset", "value"]).to_pandas()["offset"].tolist() == [
            0,
            1,
            2,
        ]


def test_a_long_key_or_value_is_shortened_in_the_repr_of_a_record() -> None:
    def shown(key: object, value: object) -> str:
        return repr(embedlog.Record("t", 0, 0, 0, 0, key, value))

    assert "key=b'k', value='v', headers=(), " in shown(b"k", "v")
    assert f"key={bytes(200)!r}, value={'v' * 200!r}, " in shown(bytes(200), "v" * 200)
    assert f"key={b'k' * 200!r}... (201 bytes), " in shown(b"k" * 201, None)
    assert f"value={'é' * 200!r}... (1000 characters), " in shown(None, "é" * 1000)


@pytest.mark.usefixtures("usual_internal_topics")
def test_descriptions_have_a_short_repr(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        log.create_topic("orders", 8)
        with log.producer() as producer:
            producer.send("orders", b"x", partition=6)
        topic = log.describe_topic("orders")
        size = topic.partitions[6].size_bytes
        assert (
            repr(topic)
            == f"<embedlog.TopicDescription 'orders': 8 partitions, 1 offsets, {size} bytes>"
        )
        assert repr(log.scan("orders")).startswith("Scan('orders', bounds={0: (0, 0), 1: (0, 0), ")
        assert "4: (0, 0)} (the first 5 of 8), columns=" in repr(log.scan("orders"))
        assert repr(log.replicas()) == "<embedlog.ReplicasDescription: 1 directory, 8 partitions>"
        log.reset_group_offsets("g", ["orders"], to="earliest")
        assert (
            repr(log.replicas())
            == "<embedlog.ReplicasDescription: 1 directory, 8 partitions and 50 of internal topics>"
        )
        assert "8 partitions and 50 of internal topics\n" in str(log.replicas())
        assert repr(log.check()).startswith(
            "<embedlog.CheckReport: 8 partitions and 50 of internal topics, 58 segments, "
        )
    group = GroupDescription(
        "g", "Empty", partitions=(GroupPartition("t", 1, OffsetAndMetadata(2), 5),)
    )
    assert repr(group) == "<embedlog.GroupDescription 'g': Empty, 0 members, 1 partition, lag 3>"


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (-1, "-1"),
        (0, "1970-01-01 00:00:00.000"),
        (-2, "1969-12-31 23:59:59.998"),
        (1_700_000_000_123, "2023-11-14 22:13:20.123"),
        (2**62, str(2**62)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_a_time_is_a_date_if_there_is_one(time_ms: int, text: str) -> None:
    assert tables.format_time(time_ms) == text
    shown = embedlog.Record("t", 0, 0, time_ms, 0, None, None)._repr_html_()
    assert (
        f"<td>timestamp_ms</td><td>{time_ms}{f' ({text} UTC)' if text != str(time_ms) else ''}</td>"
        in shown
    )
