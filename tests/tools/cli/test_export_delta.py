"""The verb `export --format delta`: each export is one commit, a killed one is completed, and other
programs' logs are seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import embedlog
from embedlog.tools.cli.transfer import delta_log


def commits(path: Path) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in each.read_text().splitlines()]
        for each in sorted((path / "_delta_log").iterdir())
    ]


def table_of(path: Path) -> pyarrow.Table:
    """The table as a reader of Delta sees it: the files of all commits."""
    added = [action["add"] for commit in commits(path) for action in commit if "add" in action]
    assert all((path / each["path"]).stat().st_size == each["size"] for each in added)
    return pyarrow.concat_tables(parquet.read_table(path / each["path"]) for each in added)


def send(path: Path, first: int, end: int) -> None:
    with embedlog.open(path / "data") as log, log.producer() as producer:
        for number in range(first, end):
            producer.send("events", b"v%d" % number, key=b"k", headers=[("h", b"x")]).result()


def test_each_export_is_one_commit(events: Callable[..., Any], tmp_path: Path) -> None:
    send(tmp_path, 0, 30)
    for end in (30, 50):
        send(tmp_path, 30, end)
        assert events("export", str(tmp_path / "lake"), "events", "--format", "delta").status == 0
    assert events("export", str(tmp_path / "lake"), "events", "--format", "delta").status == 0
    path = tmp_path / "lake" / "events"
    assert [len(commit) for commit in commits(path)] == [3, 1]
    protocol = commits(path)[0][0]["protocol"]
    metadata = commits(path)[0][1]["metaData"]
    assert (protocol["minReaderVersion"], metadata["format"]["provider"]) == (1, "parquet")
    table = table_of(path)
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        scan = log.scan("events")
        expected = scan.to_arrow()
        fields = json.loads(metadata["schemaString"])["fields"]
        assert [each["name"] for each in fields] == list(scan.columns)
    assert table.schema.field("timestamp").type == pyarrow.timestamp("us", "UTC")
    for name in ("partition", "offset", "key", "value", "headers", "leader_epoch"):
        assert table[name].to_pylist() == expected[name].to_pylist()


def test_a_killed_export_is_completed_by_the_next_one(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(tmp_path, 0, 10)
    with monkeypatch.context() as patched:
        patched.setattr(delta_log, "commit", lambda directory, topic: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            events("export", str(tmp_path / "lake"), "events", "--format", "delta")
    assert events("export", str(tmp_path / "lake"), "events", "--format", "delta").status == 0
    assert table_of(tmp_path / "lake" / "events").num_rows == 10


def test_a_log_that_another_program_has_shortened_is_refused(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    send(tmp_path, 0, 10)
    assert events("export", str(tmp_path / "lake"), "events", "--format", "delta").status == 0
    log = tmp_path / "lake" / "events" / "_delta_log"
    (log / f"{0:020}.json").rename(log / f"{7:020}.json")
    send(tmp_path, 10, 20)
    found = events("export", str(tmp_path / "lake"), "events", "--format", "delta")
    assert found.status != 0
    assert "export to a new directory" in found.err


def test_a_damaged_commit_is_named(tmp_path: Path) -> None:
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text('{"add":')
    with pytest.raises(embedlog.ForeignDirectoryError, match="no commit of a Delta table"):
        delta_log.commit(tmp_path, "t")
