"""The verb `dump` beside kafka-dump-log, and on damaged files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.kafka import oracle

PRINTED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
MODES = [
    "--print-data-log",
    "--deep-iteration",
    "--skip-record-metadata --print-data-log",
    "--index-sanity-check",
    "--verify-index-only",
    "",
]


def files_of(directory: Path) -> str:
    """The files of a log directory that kafka-dump-log prints."""
    return ",".join(map(str, sorted(path for path in directory.rglob("*") if path.suffix in PRINTED)))


def lines(text: str) -> list[str]:
    """Java and Python replace bytes that are not UTF-8 by different numbers of characters."""
    return re.sub("\ufffd+", "\ufffd", text).split("\n")


def agrees(run: Callable[..., Any], *arguments: str) -> None:
    """Text is equal line by line; contradictions and gaps are equal in any order, because Kafka prints them in that of a hash."""
    expected, found = oracle.tool("dump-log", *arguments), run("dump", *arguments)
    printed = found.out.replace("\r\n", "\n").replace("\r", "\n")  # as the text of the other process was read
    assert lines(printed) == lines(expected.stdout)
    assert sorted(found.err.splitlines()) == sorted(expected.stderr.splitlines())
    assert found.status == 0


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.xdist_group("kafka")
@pytest.mark.usefixtures("kafka")
def test_records_of_a_brokers_directory_are_printed_as_by_kafka(golden: Path, run: Callable[..., Any]) -> None:
    directory = golden / "clean" / "log"
    names = ("compacted-0", "corners-0", "empty-0", "idempotent-0", "transactions-0")
    agrees(run, "--files", ",".join(files_of(directory / name) for name in names), "--print-data-log")
    for topic, option in (("__consumer_offsets", "--offsets-decoder"), ("__transaction_state", "--transaction-log-decoder")):
        agrees(run, "--files", str(directory / f"{topic}-0" / f"{0:020d}.log"), option)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.xdist_group("kafka")
@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("mode", MODES)
def test_all_options_print_what_kafka_prints(golden: Path, run: Callable[..., Any], mode: str) -> None:
    agrees(run, "--files", files_of(golden / "clean" / "log"), *mode.split())


def filled(path: Path) -> Path:
    """The files of a partition with three batches."""
    with embedlog.open(path) as log:
        log.create_topic("t", config={"index.interval.bytes": 1})
        for value in (b"first", b"second", b"third"):
            with log.producer() as producer:
                producer.send("t", value, key=b"k", headers=[("name", b"x")])
    return path / "t-0"


def test_a_partition_is_printed_by_its_name(tmp_path: Path, run: Callable[..., Any]) -> None:
    filled(tmp_path / "data")
    found = run("dump", "t-0", "--print-data-log")
    assert (found.status, found.err) == (0, "")
    assert found.out.count("baseOffset: ") == found.out.count("| offset: ") == 3
    assert "headerKeys: [name] key: k payload: second\n" in found.out
    facts = [json.loads(line) for line in run("dump", "t-0", "--deep-iteration", "--json").out.splitlines()]
    assert [each["offset"] for each in facts if "headerKeys" in each] == [0, 1, 2]


def test_damage_is_reported_with_its_place(tmp_path: Path, run: Callable[..., Any]) -> None:
    log = filled(tmp_path / "data") / f"{0:020d}.log"
    good, index = log.read_bytes(), log.with_suffix(".index")
    size = 12 + int.from_bytes(good[8:12], "big")

    log.write_bytes(good[: size - 2] + b"\xff" + good[size - 1 :])
    found = run("dump", "--files", str(log), "--deep-iteration")
    assert (found.status, found.out.count("isvalid: false"), found.out.count("| offset")) == (1, 1, 2)

    log.write_bytes(good[:-5])
    found = run("dump", "--files", str(log))
    left = len(good) - 5 - found.out.count("baseOffset") * size
    assert found.status == 1
    assert found.out.endswith(f"invalid bytes at the end of {log.name}\n")
    assert left > 0

    log.write_bytes(good)
    index.write_bytes(b"\0\0\0\1\0\0\0\0")  # names offset 1 at the first batch
    found = run("dump", "--files", str(index))
    assert (found.status, found.err) == (1, f"Mismatches in :{index}\n  Index offset: 1, log offset: 0\n")

    log.with_suffix(".timeindex").write_bytes(bytes(7) + b"\1" + bytes(4))
    found = run("dump", "--files", str(log.with_suffix(".timeindex")))
    assert found.status == 1
    assert "Found timestamp mismatch" in found.err


def test_a_size_in_a_file_is_compared_with_the_file(tmp_path: Path, run: Callable[..., Any]) -> None:
    log = filled(tmp_path / "data") / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[8:12] = (2**31 - 20).to_bytes(4, "big")
    log.write_bytes(data)
    found = run("dump", "--files", str(log), "--print-data-log")
    assert found.status == 1
    assert f"Found {len(data)} invalid bytes" in found.out


def test_other_files_are_ignored_and_absent_ones_reported(tmp_path: Path, run: Callable[..., Any]) -> None:
    directory = filled(tmp_path / "data")
    found = run("dump", "--files", f"{directory}/partition.metadata,{directory}/{5:020d}.log")
    assert found.status == 1
    assert f"Ignoring unknown file {directory}/partition.metadata\n" in found.out
    assert run("dump").status == run("dump", "none-0").status == run("dump", "--key-decoder-class", "x").status == 2


def test_any_bytes_are_printed_or_reported(tmp_path: Path, run: Callable[..., Any], rng: Any) -> None:
    directory = filled(tmp_path / "data")
    for path in sorted(path for path in directory.iterdir() if path.suffix in PRINTED):
        good = path.read_bytes()
        for _ in range(20):
            data = bytearray(good or os.urandom(24))
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            path.write_bytes(data[: rng.randint(1, len(data))])
            assert run("dump", "--files", str(path), "--offsets-decoder").status in (0, 1)
        path.write_bytes(good)
