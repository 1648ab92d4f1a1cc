"""The verb `export`: the files of each format, continued and killed exports, foreign and damaged
directories.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, ipc, parquet

import embedlog
from embedlog import Record
from embedlog.tools.cli.transfer import export_directory, writers
from embedlog.tools.cli.transfer.csv_text import bytes_column_of, bytes_of, headers_of

FORMATS = ("parquet", "arrow", "jsonl", "csv")
csv.read_csv(pyarrow.BufferReader(b"a\n1\n"))  # its first call makes a pipe, which pyarrow keeps
VALUES = [
    b"plain",
    None,
    b"",
    b'\xff\x00"\r\n,',
    "é\n".encode(),
    b'{"base64":"eA=="}',
    b'{"base64":',
    b"null",
]


@pytest.fixture
def filled(events: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Two partitions with all kinds of values, keys and headers; batches of one or two records."""
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_partitions("events", 2)
        for number, value in enumerate(VALUES * 2):
            headers = [("a", value), ("é", None)][: number % 3]
            key = VALUES[number % 3]
            producer.send(
                "events",
                value,
                key=key,
                headers=headers,
                timestamp_ms=1000 + number,
                partition=number % 2,
            ).result()
    return events


def expected(
    path: Path, isolation_level: embedlog.IsolationLevel = "read_committed"
) -> list[tuple[Any, ...]]:
    with embedlog.open(path / "data", read_only=True) as log:
        return sorted(
            fields(record)
            for record in log.scan("events", isolation_level=isolation_level).records()
        )


def fields(record: Record[bytes, bytes]) -> tuple[Any, ...]:
    return (
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
    )


def rows(path: Path) -> list[tuple[Any, ...]]:
    """The records of one exported file."""
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        return [
            (
                line["partition"],
                line["offset"],
                line["ts"],
                bytes_of(line["key"]),
                bytes_of(line["payload"]),
                tuple(headers_of(line["headers"])),
            )
            for line in lines
        ]
    if path.suffix == ".csv":
        kinds = {
            "key": pyarrow.binary(),
            "value": pyarrow.binary(),
            "headers": pyarrow.string(),
            "timestamp": pyarrow.timestamp("ms", "UTC"),
        }
        nulls: dict[str, Any] = {
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": False,
            "null_values": [""],
        }
        convert = csv.ConvertOptions(column_types=kinds, **nulls)
        table = csv.read_csv(
            path, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=convert
        )
        for name in ("key", "value"):
            column = bytes_column_of(table[name].combine_chunks())
            table = table.set_column(table.schema.get_field_index(name), name, column)
        found = table.to_pylist()
        for row in found:
            row["headers"] = [
                {"key": n, "value": v} for n, v in headers_of(json.loads(row["headers"] or "null"))
            ]
    else:
        found = (
            parquet.read_table(path)
            if path.suffix == ".parquet"
            else ipc.open_file(path).read_all()
        ).to_pylist()
    return [
        (
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((each["key"], each["value"]) for each in row["headers"]),
        )
        for row in found
    ]


def exported(directory: Path) -> list[tuple[Any, ...]]:
    """The records of all files; each file has only offsets of its name."""
    found = []
    for each in export_directory.files_of(directory, "events"):
        here = rows(each.path)
        assert here
        assert all(row[0] == each.partition and each.start <= row[1] < each.end for row in here)
        found += here
    return sorted(found, key=lambda row: row[:2])


@pytest.mark.parametrize("layout", FORMATS)
def test_the_files_have_the_records(
    filled: Callable[..., Any], tmp_path: Path, layout: str
) -> None:
    outcome = filled("export", str(tmp_path / "out"), "--format", layout)
    assert (outcome.status, outcome.err) == (0, "")
    assert exported(tmp_path / "out") == expected(tmp_path)
    names = sorted(os.listdir(tmp_path / "out" / "events"))
    assert names == [f"{n}-{0:020}-{8:020}.{layout}" for n in (0, 1)]
    assert f"{names[0]}        8" in outcome.out
    assert filled("export", str(tmp_path / "out"), "--format", layout, "--json").out == "[]\n"


def test_a_second_run_continues(
    filled: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlog.tools.cli.verbs.export.FILE_MIB", 1)
    out = str(tmp_path / "out")
    first = json.loads(
        filled(
            "export", out, "-t", "events", "--format", "arrow", "--start-offset", "3", "--json"
        ).out
    )
    keys = ("partition", "start_offset", "end_offset", "records")
    assert [tuple(each[key] for key in keys) for each in first] == [(0, 3, 8, 5), (1, 3, 8, 5)]
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        producer.send("events", b"later", partition=1).result()
    assert filled("export", out, "--format", "arrow").status == 0
    assert exported(tmp_path / "out") == expected(tmp_path)
    assert sorted(os.listdir(tmp_path / "out" / "events"))[2:] == [
        f"1-{a:020}-{b:020}.arrow" for a, b in ((0, 3), (3, 8), (8, 9))
    ]


def test_times_and_partitions_limit_the_export(filled: Callable[..., Any], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    limits = ("--start-time", "1004", "--end-time", "1010", "--format", "jsonl")
    assert filled("export", out, "-p", "1", *limits).status == 0
    assert exported(tmp_path / "out") == [
        row for row in expected(tmp_path) if 1004 <= row[2] < 1010 and row[0] == 1
    ]
    assert filled("export", out, *limits).status == 0
    assert exported(tmp_path / "out") == [
        row for row in expected(tmp_path) if 1004 <= row[2] < 1010
    ]
    refused = filled("export", out, "--format", "jsonl", "--start-time", "1004")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "end_ms of this export: expected 1010, found null" in refused.err


def test_ranges_without_records_belong_to_the_next_file(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    """A transaction that was aborted, and a time before all records, leave no file."""
    with embedlog.open(tmp_path / "data") as log, log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("events", b"no").result()
        producer.abort_transaction()
        out = str(tmp_path / "out")
        assert events("export", out).status == 0
        assert os.listdir(tmp_path / "out" / "events") == []
        producer.begin_transaction()
        producer.send("events", b"yes").result()
        assert events("export", out).status == 0
        assert os.listdir(tmp_path / "out" / "events") == []  # the transaction is open
        producer.commit_transaction()
    assert events("export", out).status == 0
    (name,) = os.listdir(tmp_path / "out" / "events")
    assert name == f"0-{0:020}-{4:020}.parquet"
    assert [row[4] for row in exported(tmp_path / "out")] == [b"yes"]


def test_records_deleted_before_their_export_are_named(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    assert filled("export", out, "--end-offset", "2", "--format", "jsonl").err == ""
    with embedlog.open(tmp_path / "data") as log:
        log.delete_records({embedlog.TopicPartition("events", 0): 5})
    outcome = filled("export", out, "--format", "jsonl")
    assert (outcome.status, outcome.err) == (
        0,
        "embedlog: events-0: offsets 2 to 4 were deleted before their export\n",
    )


# ---- kills ---------------------------------------------------------------------------------------


def test_an_export_killed_at_any_step_is_continued(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    """A child ends before its n-th call of these, for every n; then a whole run completes the
    export.
    """
    wanted = [row for row in expected(tmp_path) if row[0] == 0]
    for number in range(100):
        out = tmp_path / f"out{number}"
        arguments = ("export", str(out), "--format", "jsonl", "-p", "0")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _end_at(number)
                status = filled(*arguments).status
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9), number
        assert filled(*arguments).status == 0
        assert exported(out) == wanted
        assert not list(out.glob("**/.*"))
        if status == 0:
            assert number > 8
            return
    pytest.fail("a run without a kill was expected")


def _end_at(number: int) -> None:
    """Replace the calls that change files: the n-th one of this process ends it."""
    left = [number]

    def ending(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **keywords: Any) -> Any:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return call(*arguments, **keywords)

        return called

    for name in ("fsync", "rename", "mkdir"):
        setattr(os, name, ending(getattr(os, name)))
    writers.WRITERS["jsonl"] = ending(writers.WRITERS["jsonl"])
    Path.mkdir = ending(Path.mkdir)  # type: ignore[method-assign]


def test_a_failed_write_leaves_no_file(
    filled: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setitem(writers.WRITERS, "jsonl", full)
        outcome = filled("export", str(tmp_path / "out"), "--format", "jsonl")
    assert (outcome.status, outcome.err) == (1, "embedlog: [Errno 28] No space left on device\n")
    assert os.listdir(tmp_path / "out" / "events") == []


# ---- directories ---------------------------------------------------------------------------------


def test_a_foreign_directory_is_refused_and_unchanged(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    outcome = filled("export", str(tmp_path / "out"))
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert os.listdir(tmp_path / "out") == ["file"]


DAMAGED = [
    "",
    "[" * 100_000,
    "[]",
    "{}",
    '{"version": 2}',
    '{"version": 1, "export_id": 3}',
    "\x00",
    '{"version":1,"export_id":"x","format":"jsonl","isolation_level":"read_committed","start_ms":null,"end_ms":null,'
    '"topics":{"../x":{"id":"","partitions":1,"config":{}}}}',
]


def test_a_damaged_manifest_is_refused(filled: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for text in DAMAGED:
        (out / export_directory.MANIFEST).write_text(text)
        outcome = filled("export", str(out), "--format", "jsonl")
        assert (outcome.status, outcome.err.count("\n")) == (2, 1)
        assert str(out) in outcome.err


def test_a_topic_that_was_created_again_is_refused(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    assert filled("export", out, "--format", "jsonl").status == 0
    with embedlog.open(tmp_path / "data") as log:
        log.delete_topic("events")
        log.create_topic("events")
    outcome = filled("export", out, "--format", "jsonl")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert "was created again" in outcome.err


def test_one_process_exports_to_a_directory_at_a_time(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert filled("export", str(out), "--format", "jsonl").status == 0
    fd = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert filled("export", str(out), "--format", "jsonl").status == 2
    finally:
        os.close(fd)


def test_a_compression_that_a_format_lacks_is_refused(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    for layout, compression in (("csv", "zstd"), ("arrow", "gzip"), ("parquet", "best")):
        outcome = filled(
            "export", str(tmp_path / "out"), "--format", layout, "--compression", compression
        )
        assert outcome.status == 2
        assert "--compression: expected" in outcome.err
    assert (
        filled("export", str(tmp_path / "out"), "--format", "arrow", "--compression", "lz4").status
        == 0
    )
