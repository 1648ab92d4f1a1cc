"""The verb `import`: round trips of all formats, kills at each step, standard input, and hostile
files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, ipc, parquet

import embedlog
from embedlog import Producer, Record, TopicPartition
from embedlog.tools.cli.transfer import imports, json_rows, readers
from embedlog.tools.cli.transfer.export_directory import MANIFEST

csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))  # its first call makes a pipe, which pyarrow keeps

FORMATS = ("parquet", "arrow", "jsonl", "csv")
VALUES = [
    b"plain",
    None,
    b"",
    b'\xff\x00"\r\n,',
    "é\n".encode(),
    b'{"base64":"eA=="}',
    b'{"base64":',
    b"null",
    b"1",
    b" ",
]


def contents(path: Path, topic: str = "events") -> list[tuple[Any, ...]]:
    """The committed records of a topic without their offsets, by partition."""
    with embedlog.open(path, read_only=True) as log:
        return [
            fields(record) for record in log.scan(topic, isolation_level="read_committed").records()
        ]


def fields(record: Record[bytes, bytes]) -> tuple[Any, ...]:
    return record.partition, record.timestamp_ms, record.key, record.value, record.headers


def fill(path: Path, rng: random.Random, count: int = 20) -> None:
    with embedlog.open(path) as log, log.producer() as producer:
        log.create_topic("events", 3, config={"retention.ms": "-1", "segment.bytes": "1048576"})
        for number in range(count):
            headers = [
                (rng.choice(["a", "é"]), rng.choice(VALUES)) for _ in range(rng.randrange(3))
            ]
            producer.send(
                "events",
                rng.choice(VALUES),
                key=rng.choice(VALUES),
                headers=headers,
                timestamp_ms=rng.randrange(10**12),
                partition=number % 3,
            )


# ---- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        "parquet",
        "csv",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("arrow", "jsonl")),
    ],
)
def test_an_export_is_imported_with_the_same_records(
    run: Callable[..., Any], tmp_path: Path, layout: str, rng: random.Random
) -> None:
    fill(tmp_path / "data", rng)
    out = str(tmp_path / "out")
    other = str(tmp_path / "other")
    assert run("export", out, "--format", layout).status == 0
    with embedlog.open(other):
        pass
    outcome = run("-d", other, "import", out, "--create", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert sum(each["records"] for each in json.loads(outcome.out)) == 20
    assert contents(tmp_path / "other") == contents(tmp_path / "data")
    with embedlog.open(other, read_only=True) as log:
        assert log.describe_topic("events").config["segment.bytes"] == "1048576"
    again = run("-d", other, "import", out, "--json")
    assert sum(each["records"] for each in json.loads(again.out)) == 0
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        producer.send("events", b"later", partition=2)
    assert run("export", out, "--format", layout).status == 0
    assert run("-d", other, "import", out).status == 0
    assert contents(tmp_path / "other") == contents(tmp_path / "data")


def test_rows_go_to_a_given_partition_or_are_divided_by_key(
    run: Callable[..., Any], tmp_path: Path, rng: random.Random
) -> None:
    fill(tmp_path / "data", rng)
    out = str(tmp_path / "out")
    assert run("export", out, "--format", "jsonl").status == 0
    for name, options in (("one", ("-p", "1")), ("keys", ("--repartition",))):
        assert run("topics", "--create", "--topic", name, "--partitions", "2").status == 0
        assert run("import", out, "-t", name, *options).status == 0
    assert {row[0] for row in contents(tmp_path / "data", "one")} == {1}
    by_key: dict[bytes, set[int]] = {}
    for row in contents(tmp_path / "data", "keys"):
        by_key.setdefault(row[2], set()).add(row[0])
    assert {len(numbers) for key, numbers in by_key.items() if key is not None} == {1}
    assert run("topics", "--create", "--topic", "two", "--partitions", "2").status == 0
    outcome = run("import", out, "-t", "two")  # it has no partition 2
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert {row[0] for row in contents(tmp_path / "data", "two")} == {0, 1}


def test_lines_of_cat_are_imported_from_standard_input(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    assert events("produce", "-t", "events", "-K", ":", stdin=b"a:1\nb:2\n").status == 0
    lines = events("cat", "events", "--json").out.encode()
    assert events("topics", "--create", "--topic", "copy", "--partitions", "1").status == 0
    assert events("import", "-", "-t", "copy", "--format", "jsonl", stdin=lines).status == 0
    assert contents(tmp_path / "data", "copy") == contents(tmp_path / "data")
    first = b"value,key\nx,1\n"
    second = b"value,key\nx,1\ny,2\n"
    for text, count in ((first, 1), (first, 0), (second, 1)):
        outcome = events(
            "import", "-", "-t", "events", "--format", "csv", "--id", "mine", "--json", stdin=text
        )
        assert json.loads(outcome.out) == [{"file": "-", "topic": "events", "records": count}]
    assert [(row[2], row[3]) for row in contents(tmp_path / "data")][2:] == [
        (b"1", b"x"),
        (b"2", b"y"),
    ]


@pytest.mark.parametrize("layout", FORMATS)
def test_rows_are_read_from_each_position(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "GROUP_ROWS", 2)
    monkeypatch.setattr(readers, "GROUP_BYTES", 20)
    file = tmp_path / "rows"
    table = pyarrow.table({"value": [str(n) for n in range(7)]})
    if layout == "parquet":
        parquet.write_table(table, file, row_group_size=3)
    elif layout == "arrow":
        with ipc.new_file(str(file), table.schema) as writer:
            writer.write_table(table, 3)
    else:
        file.write_text(
            "value\n" * (layout == "csv")
            + "".join((f"{n}\n" if layout == "csv" else f'{{"value":"{n}"}}\n') for n in range(7))
        )
    for first in range(9):
        with file.open("rb") as opened:
            parts = list(readers.read_rows(layout, opened, "rows", first))
        assert all(0 < rows.count <= 2 for rows in parts)
        assert [value for rows in parts for value in values(rows)] == [
            b"%d" % n for n in range(first, 7)
        ]


def values(rows: Any) -> list[bytes]:
    if isinstance(rows, json_rows.ListRows):
        return [row.value or b"" for row in rows.rows]
    return list(rows.batch["value"].cast(pyarrow.binary()).to_pylist())


def test_types_of_other_programs_are_converted(events: Callable[..., Any], tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "value": pyarrow.array(["a", "b"]).dictionary_encode(),
            "key": pyarrow.array([b"kk", None], pyarrow.binary(2)),
            "partition": pyarrow.array([0, None], pyarrow.uint64()),
            "timestamp": pyarrow.array([5, 6], pyarrow.uint32()),
            "headers": pyarrow.array(
                [[("h", b"1")], None], pyarrow.map_(pyarrow.string(), pyarrow.binary())
            ),
        }
    )
    with ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert events("import", str(tmp_path / "a.arrow"), "-t", "events").err == ""
    assert contents(tmp_path / "data") == [
        (0, 5, b"kk", b"a", (("h", b"1"),)),
        (0, 6, None, b"b", ()),
    ]


def test_transactions_have_about_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "TRANSACTION_BYTES", 25)
    rows = [json_rows.ListRows([], size) for size in (10, 10, 10, 30, 10)]
    found = [
        [each.size_bytes for each in group] for group in imports._group_by_transaction(iter(rows))
    ]
    assert found == [[10, 10, 10], [30], [10]]


def test_tables_of_other_programs_are_imported(events: Callable[..., Any], tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "value": pyarrow.array(["a", None]),
            "key": pyarrow.array([b"k", b""], pyarrow.large_binary()),
            "timestamp": pyarrow.array([5_000_000, None], pyarrow.timestamp("ns", "UTC")),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    with ipc.new_file(str(tmp_path / "a.feather"), table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "a.csv").write_text(
        '"key","value","timestamp"\n"k","a",1970-01-01T00:00:00.005Z\n"",,\n'
    )
    (tmp_path / "b.csv").write_text('key,value,timestamp\nk,a,5\n"",,-1\n')
    (tmp_path / "a.ndjson").write_text(
        '{"value":"a","key":"k","timestamp":"1970-01-01T00:00:00.005"}\n\n{"value":null,"key":"","timestamp":-1,"topic":"x"}\n'
    )
    files = [str(path) for path in sorted(tmp_path.glob("?.*"))]
    assert len(files) == 5
    outcome = events("import", *files, "-t", "events")
    assert (outcome.status, outcome.err) == (0, "")
    rows = contents(tmp_path / "data")
    assert [(row[2], row[3]) for row in rows] == [(b"k", b"a"), (b"", None)] * 5
    assert [row[1] for row in rows[::2]] == [5] * 5
    assert all(row[1] > 10**12 for row in rows[1::2])  # the time of the import


# ---- kills ---------------------------------------------------------------------------------------


STEPS = ("send_offsets_to_transaction", "commit_transaction")
ALL_STEPS = (*STEPS, "init_transactions", "begin_transaction", "send_batch")


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        ("jsonl", STEPS),
        pytest.param("jsonl", ALL_STEPS, marks=pytest.mark.slow),
        pytest.param("parquet", ALL_STEPS, marks=pytest.mark.slow),
    ],
)
def test_an_import_killed_at_any_step_is_continued(
    events: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    steps: tuple[str, ...],
) -> None:
    """A child ends before its n-th call of the producer, for every n; then a whole run completes
    the import.
    """
    monkeypatch.setattr(imports, "TRANSACTION_BYTES", 1)
    monkeypatch.setattr(readers, "GROUP_BYTES", 1)
    monkeypatch.setattr(readers, "GROUP_ROWS", 2)
    file = tmp_path / f"rows.{layout}"
    if layout == "jsonl":
        file.write_text("".join(f'{{"value":"{n}"}}\n' for n in range(2)))
    else:
        parquet.write_table(
            pyarrow.table({"value": [str(n) for n in range(2)]}), file, row_group_size=1
        )
    for number in range(100):
        arguments = ("import", str(file), "-t", f"topic{number}")
        with embedlog.open(tmp_path / "data") as log:
            log.create_topic(f"topic{number}")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _end_at(number, steps)
                status = events(*arguments).status
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9), number
        assert events(*arguments).status == 0
        assert [row[3] for row in contents(tmp_path / "data", f"topic{number}")] == [b"0", b"1"], (
            number
        )
        if status == 0:
            assert number > 4
            return
    pytest.fail("a run without a kill was expected")


def _end_at(number: int, steps: tuple[str, ...]) -> None:
    left = [number]

    def ending(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **keywords: Any) -> Any:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return call(*arguments, **keywords)

        return called

    for name in steps:
        setattr(Producer, name, ending(getattr(Producer, name)))


def test_a_damaged_line_leaves_the_rows_before_it(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "TRANSACTION_BYTES", 1)
    monkeypatch.setattr(readers, "GROUP_BYTES", 1)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"value":"0"}\n{"value":"1"}\n{"value":2}\n')
    outcome = events("import", str(file), "-t", "events")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert f"{file}: line 3: expected text" in outcome.err
    assert [row[3] for row in contents(tmp_path / "data")] == [b"0", b"1"]
    file.write_text('{"value":"0"}\n{"value":"1"}\n{"value":"2"}\n{"value":"3"}\n')
    outcome = events("import", str(file), "-t", "events")
    assert outcome.status == 2  # the first bytes differ
    assert "is not the file that was imported by this name" in outcome.err


def test_a_file_that_grew_is_continued(events: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for count in (1, 3):
        file.write_text("".join(f'{{"value":"{n}"}}\n' for n in range(count)))
        assert events("import", str(file), "-t", "events").status == 0
    assert [row[3] for row in contents(tmp_path / "data")] == [b"0", b"1", b"2"]


def test_a_topic_that_was_created_again_gets_the_rows_again(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"value":"0"}\n')
    for _ in range(2):
        assert events("import", str(file), "-t", "events").status == 0
        assert len(contents(tmp_path / "data")) == 1
        with embedlog.open(tmp_path / "data") as log:
            log.delete_topic("events")
            log.create_topic("events")


def test_the_position_does_not_expire(events: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"value":"0"}\n')
    assert events("import", str(file), "-t", "events").status == 0
    with embedlog.open(tmp_path / "data") as log:
        group = imports.group_of(
            imports.ImportSource(str(file), "jsonl", str(file)), imports.ImportTarget("events")
        )
        found = log.group_offsets(group)[TopicPartition("events", 0)]
        assert found.offset == 1
        assert found.metadata.startswith("complete 14 ")
        with (
            pytest.raises(embedlog.InconsistentGroupProtocolError),
            log.consumer("events", group_id=group) as consumer,
        ):
            consumer.poll(timeout=1)


# ---- input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        "{}",
        '{"value":1}',
        '{"value":"a","payload":"b"}',
        '{"value":"a","other":1}',
        '{"value":{"base64":"?"}}',
        '{"value":"a","headers":["x"]}',
        '{"value":"a","headers":[1,"x"]}',
        '{"value":"a","ts":1.5}',
        '{"value":"a","ts":"soon"}',
        '{"value":"a","partition":-1}',
        '{"value":"a","partition":true}',
        "[" * 100_000,
        '{"value":"\\ud800"}',
    ],
)
def test_a_wrong_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(embedlog.InvalidRecordError, match="line 2"):
        list(json_rows.read_list_rows(io.BytesIO(b"\n" + line.encode() + b"\n"), 0, 100))


def test_a_line_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "LINE_BYTES_MAX", 20)
    with pytest.raises(embedlog.InvalidRecordError, match="at most 20 bytes"):
        list(json_rows.read_list_rows(io.BytesIO(b'{"value":"' + b"x" * 20), 0, 100))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.parquet", b"PAR1 nonsense PAR1"),
        ("a.parquet", b""),
        ("a.arrow", b"ARROW1\0\0nonsense"),
        ("a.arrow", b""),
        ("a.csv", b""),
        ("a.csv", b"value\n1,2\n"),
        ("a.csv", b"value,headers\na,{}\n"),
        ("a.csv", b"value,partition\na,x\n"),
        ("a.csv", b"value,timestamp\na,soon\n"),
        ("a.csv", b'value\n"{""base64"":""?"\n'),
        ("a.jsonl", b"\xff\n"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_name(name: str, data: bytes) -> None:
    with pytest.raises(embedlog.InvalidRecordError, match=name):
        list(readers.read_rows(readers.SUFFIXES[Path(name).suffix], io.BytesIO(data), name, 0))


def test_truncated_and_changed_files_are_typed_errors(
    events: Callable[..., Any], tmp_path: Path, rng: random.Random
) -> None:
    """Random damage gives the rows, or an error of the library; never another exception."""
    table = pyarrow.table(
        {
            "value": [b"abc"] * 50,
            "key": [None, b"k"] * 25,
            "timestamp": pyarrow.array([1] * 50, pyarrow.int64()),
        }
    )
    for layout in ("parquet", "arrow"):
        file = io.BytesIO()
        if layout == "parquet":
            parquet.write_table(table, file)
        else:
            with ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        for _ in range(60):
            data = bytearray(file.getvalue())
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            del data[rng.choice([len(data), rng.randrange(len(data))]) :]
            with contextlib.suppress(embedlog.InvalidRecordError, embedlog.ConfigError):
                for rows in readers.read_rows(layout, io.BytesIO(bytes(data)), "file", 0):
                    assert 0 < rows.count <= 50


def test_a_column_of_another_type_is_one_line(events: Callable[..., Any], tmp_path: Path) -> None:
    for number, table in enumerate(
        (
            pyarrow.table({"value": [1]}),
            pyarrow.table({"value": ["a"], "timestamp": ["x"]}),
            pyarrow.table({"value": ["a"], "partition": ["x"]}),
            pyarrow.table({"value": ["a"], "headers": ["x"]}),
        )
    ):
        parquet.write_table(table, tmp_path / f"{number}.parquet")
        outcome = events("import", str(tmp_path / f"{number}.parquet"), "-t", "events")
        assert (outcome.status, outcome.err.count("\n")) == (1, 1), outcome.err
        assert f"{number}.parquet" in outcome.err
    for table in (pyarrow.table({"other": [1]}), pyarrow.table({"value": ["a"], "other": [1]})):
        parquet.write_table(table, tmp_path / "other.parquet")
        outcome = events("import", str(tmp_path / "other.parquet"), "-t", "events")
        assert outcome.status == 2
        assert "columns of" in outcome.err


REFUSED: list[tuple[str, ...]] = [
    (),
    ("-",),
    ("-", "-t", "events"),
    ("-", "-t", "events", "--format", "parquet"),
    ("absent.csv", "-t", "events"),
    ("-", "-", "-t", "events", "--format", "csv"),
    ("{0}", "-t", "events"),
    ("{0}/x", "-t", "events"),
    ("{0}/x", "{0}/x", "-t", "events", "--format", "csv", "--id", "both"),
]


def test_a_wrong_source_is_refused(events: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x").write_text("value\na\n")
    for arguments in REFUSED:
        outcome = events("import", *(each.format(tmp_path / "here") for each in arguments))
        assert (outcome.status, outcome.out) == (2, ""), arguments
    assert contents(tmp_path / "data") == []


@pytest.mark.parametrize(
    ("row", "options"), [({"value": "a"}, ("-p", "5")), ({"value": "a", "partition": 5}, ())]
)
@pytest.mark.parametrize("layout", ["jsonl", "parquet"])
def test_a_row_without_its_partition_creates_no_topic(
    events: Callable[..., Any],
    tmp_path: Path,
    layout: str,
    row: dict[str, Any],
    options: tuple[str, ...],
) -> None:
    path = tmp_path / f"rows.{layout}"
    if layout == "jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        parquet.write_table(pyarrow.table({name: [value] for name, value in row.items()}), path)
    outcome = events("import", str(path), "-t", "new", "--create", *options)
    assert (outcome.status, outcome.out) == (2, "")
    assert "--partitions 6" in outcome.err
    assert "new" not in events("topics", "--list").out.split()
    assert events("topics", "--create", "--topic", "new", "--partitions", "6").status == 0
    assert events("import", str(path), "-t", "new", "--create", *options).status == 0
    assert [record[0] for record in contents(tmp_path / "data", "new")] == [5]


def test_one_topic_of_an_export_is_selected(events: Callable[..., Any], tmp_path: Path) -> None:
    assert events("topics", "--create", "--topic", "second", "--partitions", "1").status == 0
    for topic in ("events", "second"):
        assert events("produce", "-t", topic, stdin=topic.encode()).status == 0
    out = str(tmp_path / "out")
    assert events("export", out, "--format", "csv").status == 0
    assert events("topics", "--create", "--topic", "copy", "--partitions", "1").status == 0
    assert events("import", out, "-t", "copy").status == 2
    assert events("import", out, "-t", "copy", "--from-topic", "absent").status == 2
    assert events("import", out, "--format", "jsonl").status == 2
    assert events("import", out, "-t", "copy", "--from-topic", "second").status == 0
    assert [row[3] for row in contents(tmp_path / "data", "copy")] == [b"second"]
    (tmp_path / "out" / MANIFEST).write_text("{}")
    assert events("import", out, "-t", "copy", "--from-topic", "second").status == 2
